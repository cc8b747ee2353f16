"""The parts of a run's config: optimization, losses and length, the exchange, checkpoints, the model.

How often a run is saved changes no weight, so it is a config of its own. `train --model` names a preset; the
layer widths of each are written out here. Imports nothing heavy.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from ..pipeline.errors import ConfigError, check_fields, require_at_least
from ..pipeline.folders.manifest import JsonRecord, RecordError, require_range
from ..pipeline.schema.schema import nearest

_SECONDS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}
_HINT = "write steps as 500, a time as 30s, 10min or 2h, or off"
OFF = "off"
"""Text of an interval that never ends."""


BEST_BY = ("auc", "log-loss", "gauc")
"""Scores by which an evaluation may be the best."""
MOST_LOSS_WEIGHT = 2.0**64
"""Far more than a loss is multiplied with, and far less than a float32 holds."""


def seconds_of(text: str) -> float | None:
    """Return the seconds of a time such as ``"10min"``; None where the text is no time."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", text)
    if match is None or match[2] not in _SECONDS:
        return None
    return float(match[1]) * _SECONDS[match[2]]


def parse_steps_or_time(text: str) -> int | str:
    """Return ``"500"`` as a number of steps; a time, or ``"off"``, as it is.

    Raises:
        ConfigError: it is anything else, or not above 0.
    """
    if text.strip() == OFF:
        return OFF
    steps = re.fullmatch(r"\s*([0-9]+)\s*", text)
    number = seconds_of(text) if steps is None else int(steps[1])
    if number is None:
        raise ConfigError(f"not a number of steps or a time: {text!r}", hint=_HINT)
    # Never is said by a word, so a 0 is a slip.
    if number == 0:
        raise ConfigError(f"{text!r} must be above 0", hint=_HINT)
    return text if steps is None else int(number)


def parse_widths(text: str) -> tuple[int, ...]:
    """Parse ``512,256``, ``none`` for no number; raises ConfigError on anything else."""
    words = [] if text == "none" else text.split(",")
    for word in words:
        if not (word.isascii() and word.isdigit()):
            raise ConfigError(
                f"found {text!r}, want whole numbers with commas between them",
                hint="write them like 512,256, or none for an empty list",
            )
    return tuple(map(int, words))


def require_time(name: str, text: str) -> None:
    """Raise ConfigError unless ``text`` is a time above 0, and not a number of steps."""
    if not seconds_of(text):
        raise ConfigError(f"{name} must be a time such as 30min or 2h, got {text!r}")


Schedule = Literal["constant", "linear", "cosine", "polynomial", "plateau"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeOptions(JsonRecord):
    """Learning rates over the steps, clipping, decay, and when training stops."""

    lr_schedule: Schedule = "constant"
    """Course of the learning rates after warm-up: constant; a decay that is linear, half a cosine, or
    polynomial of degree 2, as DLRM's; or plateau, which divides them by 10 after each evaluation of the
    validation part without a better score."""

    lr_schedule_of: Literal["all", "dense", "rows"] = field(default="all", metadata={"no_option": True})
    """Parameters whose learning rate follows warm-up and schedule: all of them, those of the dense layers, or
    the embedding rows; the others keep a constant rate."""

    warmup_steps: int = 0
    """Number of steps over which the learning rates rise in a straight line to their full values; 0 for
    none."""

    decay_steps: int | None = None
    """Number of steps the decay of the learning rates takes; by default the remaining ones."""

    final_lr: float = 0.0
    """Least learning rate of a decay, which it ends with, or of plateau, as a share of the full one."""

    clip_gradient: float | None = None
    """Largest norm of the gradient of all dense layers together; a longer one is scaled down to it. By
    default there is no limit."""

    dense_decay: float = 0.0
    """Weight decay of the dense layers (L2): the share of the weights that is added to their gradient."""

    embedding_decay: float = 0.0
    """Weight decay of embedding rows (L2): the share of a row's weights that is added to its gradient once in
    each step that looks it up. Rows that are not looked up do not decay."""

    max_steps: int | None = None
    """Number of steps after which training stops; by default it completes all epochs. Decays without
    --decay-steps end there."""

    max_time: str | None = None
    """Time after which training stops, such as 30min or 2h, evaluations included."""

    patience: int | None = None
    """Number of evaluations of the validation part without a better score after which training stops. The
    weights are then those of the best one."""

    stop_at_auc: float | None = None
    """AUC of the validation part at which training stops."""

    keep_best: bool = False
    """Keep the weights of the best evaluation of the validation part, not those of the last step."""

    best_by: str = "auc"
    """Score that decides which evaluation is the best: auc, log-loss or gauc, of the first label, or as
    buy:auc of another."""

    def __post_init__(self) -> None:
        check_fields(self)
        require_at_least("warmup_steps", self.warmup_steps, 0)
        require_at_least("decay_steps", self.decay_steps, 1)
        for name in ("dense_decay", "embedding_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must be from 0 to below 1, got {getattr(self, name)}")
        if not 0 <= self.final_lr <= 1:
            raise ConfigError(f"final_lr must be from 0 to 1, got {self.final_lr}")
        require_at_least("max_steps", self.max_steps, 1)
        require_at_least("patience", self.patience, 1)
        if self.stop_at_auc is not None and not 0 < self.stop_at_auc <= 1:
            raise ConfigError(f"stop_at_auc must be above 0 and at most 1, got {self.stop_at_auc}")
        if self.max_time is not None:
            require_time("max_time", self.max_time)
        parse_best_by(self.best_by)
        if self.clip_gradient is not None and not 0 < self.clip_gradient < math.inf:
            raise ConfigError(f"clip_gradient must be above 0, got {self.clip_gradient}")
        # Each option is valid here; whether it has an effect is checked elsewhere.
        self._refuse_unused()

    @property
    def keeps_best(self) -> bool:
        """Return whether the weights of the best evaluation are kept."""
        return self.keep_best or self.patience is not None

    @property
    def needs_validation(self) -> str | None:
        """The option that needs evaluations of a validation part; None where none is given."""
        return self._ends_by_validation or (
            "--lr-schedule plateau" if self.lr_schedule == "plateau" else None
        )

    @property
    def _ends_by_validation(self) -> str | None:
        """Return the option by which validation decides when to stop or what to keep."""
        given = {
            "patience": self.patience is not None,
            "stop_at_auc": self.stop_at_auc is not None,
            "keep_best": self.keep_best,
        }
        return next((f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given), None)

    @property
    def may_stop(self) -> str | None:
        """Option that may stop training early or need earlier weights, else None."""
        return "--max-time" if self.max_time is not None else self._ends_by_validation

    def idle_settings(self) -> Iterator[tuple[str, str]]:
        """Yield the options that decide nothing, and why."""
        if self.lr_schedule == "constant":
            constant = "the schedule of the learning rates is constant"
            if self.final_lr:
                yield "final_lr", constant
            if self.lr_schedule_of != "all" and self.warmup_steps < 2:
                yield "lr_schedule_of", constant
        if self.best_by != "auc" and not self.keeps_best and self.lr_schedule != "plateau":
            yield "best_by", "neither --keep-best, --patience nor the schedule plateau asks for the best"
        if self.keep_best and self.patience is not None:
            yield "keep_best", "--patience keeps the best weights, too"

    def _refuse_unused(self) -> None:
        """Raise ConfigError where an option would change nothing, which its user did not mean."""
        # The options of a schedule that decays do nothing under a constant one.
        if self.lr_schedule in ("constant", "plateau") and self.decay_steps is not None:
            raise ConfigError(
                f"decay_steps is of no use with the schedule {self.lr_schedule}",
                hint="give --lr-schedule linear, cosine or polynomial too",
            )


def parse_best_by(text: str) -> tuple[str | None, str]:
    """Return the label of a score, None for the first one, and its name, from ``auc`` or ``buy:log-loss``.

    Raises:
        ConfigError: there is no such score.
    """
    label, _, score = text.rpartition(":")
    if score not in BEST_BY:
        raise ConfigError(
            f"best_by is {text!r}, want {', '.join(BEST_BY[:-1])} or {BEST_BY[-1]}, for another label than "
            "the first as LABEL:SCORE"
        )
    return label or None, score


def parse_loss_weights(text: str | None) -> dict[str, float]:
    """Return the loss weights of labels by name, from ``click=1,buy=0.2``.

    Raises:
        ConfigError: a weight is no number of 0 or more, or a name is there twice.
    """
    found: dict[str, float] = {}
    for each in text.split(",") if text is not None else ():
        name, equals, number = each.rpartition("=")
        try:
            weight = float(number) if equals else -1.0
        except ValueError:
            weight = -1.0
        if not (name and 0 <= weight <= MOST_LOSS_WEIGHT) or name in found:
            raise ConfigError(
                f"loss_weights: want LABEL=WEIGHT with commas between, each label once, got {each!r}",
                hint="write them like click=1,buy=0.2, numbers of 0 or more",
            )
        found[name] = weight
    return found


def require_share(name: str, share: float | None) -> None:
    """Raise ConfigError unless a share that is given is in (0, 1]."""
    if share is not None and not 0 < share <= 1:
        raise ConfigError(f"{name} must be above 0 and at most 1, got {share}")


EXACT_CODEC = "none"


FIXED_CODECS = (EXACT_CODEC, "fp16", "bf16", "int8")
"""Codecs without a setting."""


AUTO = "auto"
"""Name of the choice that is left to a measurement."""


BY_SIZE = "sizes"
"""Bounds by the size of a table."""


LEAST_BOUND = 2.0**-16


_BELOW_BOUND = 0.5


# Bounds of tables as Feng et al., SC'24, arXiv 2407.04272, released them: a table is tight, base or loose by
# its size or by its name. Their trainer lists the tables of Criteo's two logs by number. The sizes reproduce
# the lists but for a few tables: Kaggle's tight ones begin at 90,000 rows, two of its small ones are base.
TIGHT, BASE, LOOSE = 0.01, 0.03, 0.05


MANY_ROWS = 400_000
"""Tables with more rows are tight."""


FEW_ROWS = 1_000
"""Tables with fewer rows are loose."""


_LISTS = {
    # Tables of the log by their position, first the tight ones, then the loose ones.
    "kaggle": ((2, 3, 9, 11, 15, 20, 23, 25), (8, 16, 19, 21, 22, 24)),
    "terabyte": ((0, 9, 10, 19, 20, 21, 22), (5, 8, 12, 15, 16, 17, 18, 24, 25)),
}


PUBLISHED_LISTS = tuple(_LISTS)


def bound_by_size(num_rows: int) -> float:
    """Return the bound of a table by its rows."""
    if num_rows > MANY_ROWS:
        return TIGHT
    return LOOSE if num_rows < FEW_ROWS else BASE


def published_bounds(log: str) -> Mapping[str, float]:
    """Return the bounds of the tables C1 to C26 of a log, one of `PUBLISHED_LISTS`."""
    tight, loose = _LISTS[log]
    bounds = dict.fromkeys(range(26), BASE)
    bounds |= dict.fromkeys(tight, TIGHT) | dict.fromkeys(loose, LOOSE)
    return {f"C{table + 1}": bound for table, bound in bounds.items()}


@dataclass(frozen=True, slots=True)
class CodecChoice:
    """A codec as an option names it."""

    kind: str
    """One of `FIXED_CODECS`, ``bounded``, or ``auto``."""
    bound: float | None = None
    """Bound of every table without an explicit bound; None: by table size."""
    of_tables: tuple[tuple[str, float], ...] = ()
    """Bounds of some tables, by name."""


def parse_codec(text: str) -> CodecChoice:
    """Read a codec, such as ``int8`` or ``bounded:0.03,C3=0.01``.

    Raises:
        ConfigError: no such codec, or a bound that is none.
    """
    kind, colon, setting = text.partition(":")
    if not colon and kind in (*FIXED_CODECS, AUTO):
        return CodecChoice(kind)
    if kind != "bounded" or not setting:
        names = ", ".join(FIXED_CODECS)
        raise ConfigError(f"exchange must be {names}, auto or bounded:E, got {text!r}")
    # The bound of all tables, then those of single ones; of the published ones each table has its own.
    first, *others = setting.split(",")
    of_tables: list[tuple[str, float]] = []
    if first in PUBLISHED_LISTS:
        bound: float | None = BASE
        of_tables += published_bounds(first).items()
    else:
        bound = None if first == BY_SIZE else _parse_bound(first)
    for each in others:
        name, equals, number = each.partition("=")
        if not equals:
            raise ConfigError(f"exchange: want TABLE=BOUND, got {each!r}")
        of_tables.append((name, _parse_bound(number)))
    return CodecChoice("bounded", bound, tuple(of_tables))


def _parse_bound(text: str) -> float:
    try:
        bound = float(text)
    except ValueError:
        bound = float("nan")
    if not LEAST_BOUND <= bound < _BELOW_BOUND:
        raise ConfigError(f"exchange: a bound is a number from 2**-16 to below {_BELOW_BOUND}, got {text!r}")
    return bound


@dataclass(frozen=True, kw_only=True)
class ExchangeOptions:
    """Codecs of what crosses between ranks. Weights depend on all but ``none``, and then on the number of
    ranks."""

    exchange: str = "none"
    """Codec of embedding rows and gradients between ranks: none, fp16, bf16 or int8; bounded:0.03, whose
    error is at most that share of the range of a table, optionally followed by bounds of single tables
    (bounded:0.03,C3=0.01), by table size (bounded:sizes: 0.01 above 400,000 rows, 0.05 below 1,000), or as
    published for Criteo's logs (bounded:kaggle, bounded:terabyte); auto measures the link and may choose
    none. Bounds fall from twice their value over the first fifth of the steps. Gradients of rows are int8
    where vectors are bounded; those of dense layers are fp16 for fp16, and bf16 for the others."""

    exchange_feedback: bool = False
    """Keep the error of each coded gradient of a hot row, and add it to the row's next one. Takes 4 bytes a
    number of the hot rows on each rank."""

    def __post_init__(self) -> None:
        check_fields(self)
        parse_codec(self.exchange)
        if self.exchange_feedback and self.exchange == "none":
            raise ConfigError(
                "exchange_feedback keeps the errors of gradients, which have none here: "
                "give --exchange int8, too"
            )


@dataclass(frozen=True, slots=True)
class ChosenExchange:
    """Codecs by the names that options take; none of them is left open."""

    vectors: str = EXACT_CODEC
    gradients: str = EXACT_CODEC
    dense: str = EXACT_CODEC
    early_steps: int = 0
    """Steps in which bounds are looser."""
    feedback: bool = False
    """Whether the error of a hot row's gradient is added to its next one."""

    @property
    def is_exact(self) -> bool:
        """Return whether everything crosses as it is."""
        return self.vectors == self.gradients == self.dense == EXACT_CODEC

    def to_json(self) -> dict[str, Any]:
        """The choice as plain data."""
        return asdict(self)

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> ChosenExchange:
        """Read a recorded choice, which may stand among other settings."""
        return cls(**{field.name: found[field.name] for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class ExchangePrediction:
    """The measurement by which codecs were chosen."""

    delay_seconds: float
    """Seconds of a small message."""
    bytes_per_second: float
    """Bandwidth of the link of the slowest rank, each way."""
    seconds_per_step: float
    """Seconds of a step for the exchange in the chosen codecs."""
    seconds_by_codec: Mapping[str, Mapping[str, float]]
    """Seconds of a step without the delay, of each kind in each codec that was tried."""


TIMEOUT_VARIABLE = "HOTSET_RANK_TIMEOUT"


MOST_SECONDS = 86_400


def rank_timeout() -> float:
    """Return the seconds that a rank waits for another before it stops the run.

    Raises:
        ConfigError: the environment variable that sets them is no such number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE) or "60"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MOST_SECONDS:
        raise ConfigError(
            f"the environment variable {TIMEOUT_VARIABLE} is {text!r}, want seconds, at most {MOST_SECONDS}"
        )
    return seconds


def is_launched() -> bool:
    """Return whether this process was started as one of several ranks.

    Raises:
        ConfigError: the launcher's number of ranks is none.
    """
    number = os.environ.get("WORLD_SIZE") or "1"
    if not number.isdecimal():
        raise ConfigError(f"the environment variable WORLD_SIZE is {number!r}, want the number of ranks")
    return int(number) > 1


def is_first() -> bool:
    """Return whether this process speaks for the run: it is alone, or rank 0."""
    return not is_launched() or os.environ.get("RANK") == "0"


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """How often a run is saved, and how many checkpoints are kept."""

    checkpoint_every: int | str = "10min"
    """Steps (500) or time (10min) between two checkpoints, from which the same command resumes an interrupted
    run; off writes none. They are written while training continues."""

    keep_checkpoints: int = 2
    """Number of checkpoints kept while the run trains. If one is damaged, the run resumes from
    the one before."""

    def __post_init__(self) -> None:
        check_fields(self)
        parse_steps_or_time(str(self.checkpoint_every))
        require_at_least("keep_checkpoints", self.keep_checkpoints, 1)


DLRM_NAMES = ("auto", "kaggle", "terabyte", "mlperf", "small", "dlrm")
"""Names of a DLRM: presets, and two that mean the preset that fits the shards."""


MODEL_NAMES = (*DLRM_NAMES, "dcnv2", "tbsm")
"""Models that come with hotset."""


Structure = Literal["stacked", "parallel"]


Pooling = Literal["sum", "mean"]


_CLASS = re.compile(r"[^\W\d][\w.]*:[\w.<>]+")
"""``package.module:Class``; a class inside a function has ``<locals>`` in its name."""


MOST_WIDTH = 2**20
"""Outputs of a layer: far more than any model has."""


MOST_LAYERS = 64


MOST_HISTORY = 4096
"""Maximum elements of a history; each of them takes one pass through a DLRM."""


def is_class_name(name: str) -> bool:
    """Return whether ``name`` names a class of the user as ``package.module:Class``."""
    return _CLASS.fullmatch(name) is not None


def refuse_unknown_model(name: str) -> None:
    """Raise ConfigError unless ``name`` is a model that comes with hotset, or ``package.module:Class``."""
    if name in MODEL_NAMES or is_class_name(name):
        return
    raise ConfigError(
        f"model must be one of {', '.join(MODEL_NAMES)}, or your own class as package.module:Class, "
        f"got {name!r}",
        hint=nearest(name, MODEL_NAMES) or "for a class Net in the file nets.py write nets:Net",
    )


def parse_arguments(text: str | None) -> dict[str, Any]:
    """Return a user's keyword arguments from a JSON object; none for None.

    Raises:
        ConfigError: it is no JSON object.
    """
    if text is None:
        return {}
    # Anything but an object would not be keyword arguments.
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"model_args must be a JSON object, got {text!r}", hint="""write it like '{"hidden": 64}'"""
        )
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig(JsonRecord):
    """A dense model without the sizes that the shards decide."""

    kind: Literal["dlrm", "dcnv2", "tbsm", "module"]
    """DLRM, DCN V2, TBSM, or a user's module."""
    bottom_widths: tuple[int, ...] = ()
    """Widths of the hidden layers of the bottom MLP, which DLRM ends with the embedding dimension. Of DCN V2
    all its layers; none gives the dense features to the cross network as they are."""
    top_widths: tuple[int, ...] = ()
    """Widths of the hidden layers between the interaction and the logit; the deep network of DCN V2; of TBSM
    those between the interaction and the vector of an element, which is as wide as the last."""
    history_length: int = 0
    """Elements of a history before the candidate, of TBSM."""
    attention_widths: tuple[int, ...] = ()
    """Widths of the hidden layers between the similarities of a history and its weights, of TBSM."""
    last_widths: tuple[int, ...] = ()
    """Widths of the hidden layers between context and candidate and the logit, of TBSM."""
    cross_layers: int = 0
    """Layers of the cross network."""
    cross_rank: int | None = None
    """Rank of the matrices of its layers; None: they are full."""
    structure: Structure = "stacked"
    """Whether the deep network follows the cross network or runs in parallel to it."""
    dropout: float = 0.0
    """Share of the outputs of each hidden layer of the top MLP, or of the deep network, dropped in
    training."""
    batch_norm: bool = False
    """Whether the outputs of hidden layers are normalized over the batch."""
    pooling: Pooling = "sum"
    """How the rows of a multi-hot feature become one embedding."""
    class_name: str | None = None
    """The user's module as ``package.module:Class``."""
    arguments: str | None = None
    """Keyword arguments of its constructor, a JSON object."""

    @property
    def name(self) -> str:
        """The model as messages call it."""
        return self.class_name or self.kind

    def check_values(self, where: str) -> None:
        for key in ("bottom_widths", "top_widths", "attention_widths", "last_widths"):
            widths = getattr(self, key)
            require_range(f"the number of {where}{key}", len(widths), 0, MOST_LAYERS)
            for number, width in enumerate(widths):
                require_range(f"{where}{key}[{number}]", width, 1, MOST_WIDTH)
        is_tbsm = self.kind == "tbsm"
        require_range(f"{where}history_length", self.history_length, int(is_tbsm), MOST_HISTORY)
        if is_tbsm and not (self.top_widths and self.pooling == "sum"):
            raise RecordError(f"{where}top_widths is empty, or pooling not sum, of a model of kind tbsm")
        require_range(f"{where}cross_layers", self.cross_layers, 0, MOST_LAYERS)
        require_range(f"{where}cross_rank", self.cross_rank, 1, MOST_WIDTH)
        if not 0 <= self.dropout < 1:
            raise RecordError(f"{where}dropout is {self.dropout}, want a share in [0, 1)")
        # A class has a name, other models have none.
        is_named = self.class_name is not None
        if is_named != (self.kind == "module") or (is_named and not is_class_name(str(self.class_name))):
            raise RecordError(f"{where}class_name is {self.class_name!r} of a model of kind {self.kind}")
        try:
            parse_arguments(self.arguments)
        except ConfigError as error:
            raise RecordError(f"{where}arguments: {error}") from error
