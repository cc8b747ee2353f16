"""The config of a training run: model, placement, memory, ranks and checkpoints.

How often a run is saved changes no weight, so it is a separate config. `train --model` names a preset; the
layer widths of each are written out here. Imports nothing heavy: the command line builds its options from
these classes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from ..pipeline.errors import ByteSize, ConfigError, check_fields, require_at_least, require_at_most
from ..pipeline.folders.manifest import JsonRecord, RecordError, require_range
from ..pipeline.schema.schema import nearest
from ..pipeline.settings import LastBatch
from .recipe_options import (
    RecipeOptions,
    parse_loss_weights,
    parse_steps_or_time,
    require_share,
    require_time,
)

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


PlacementName = Literal["all-fast", "hybrid", "hybrid-dedup", "hybrid-uva", "fae", "cache", "lookahead"]
EmbeddingOptimizer = Literal["sgd", "momentum", "adagrad", "rowwise-adagrad", "adam"]
DenseOptimizer = Literal["same", "sgd", "adagrad", "adam"]
Engine = Literal["hotset", "torchrec"]

EMBEDDING_LR: dict[str, float] = {
    "sgd": 10.0,
    "momentum": 1.0,
    "adagrad": 0.04,
    "rowwise-adagrad": 0.04,
    "adam": 0.005,
}
"""Usual learning rates of the rows. The gradient is a mean over the batch, and a row seen once in 2,048
samples gets 1/2048 of one sample's: SGD at DLRM's 0.1 hardly moves rare rows (AUC 0.706 after 0.4 M
generated samples, against 0.762 at 10 and 0.793 with Adagrad). The first lookup of a row moves it by the rate
of Adam here. With torch's Adam its average goes on to move it, by up to 32 times the rate in all: the usual
0.001 is for that one, and too small here."""
DENSE_LR: dict[str, float] = {"sgd": 0.1, "adagrad": 0.01, "adam": 0.001}
"""Usual learning rates of the dense layers."""
_DENSE_TWIN = {"momentum": "sgd", "rowwise-adagrad": "adagrad"}
"""The dense optimizer nearest to one of rows that torch has not."""


@dataclass(frozen=True, slots=True)
class Optimizers:
    """The optimizers and learning rates of a run, none of them left open."""

    embedding_optimizer: str
    embedding_lr: float
    dense_optimizer: str
    dense_lr: float


MOST_THREADS = 1024
"""More threads of the dense layers than a machine has cores; torch dies of a signal at some ten thousand."""
MOST_MICRO_BATCHES = 1024
"""More parts of a batch than most are worth to be cut into."""
_MOST_BATCHES_AHEAD = 2**20
"""More batches than any run can hold ahead."""
_BOUNDS = {
    "epochs": (1, 2**31),
    "log_every": (1, 2**63),
    "threads": (1, MOST_THREADS),
    "prefetch": (0, _MOST_BATCHES_AHEAD),
    "cache_batches": (1, _MOST_BATCHES_AHEAD),
    "micro_batches": (1, MOST_MICRO_BATCHES),
    "cross_layers": (1, MOST_LAYERS),
    "cross_rank": (1, MOST_WIDTH),
}
"""The least and the largest value of each setting that is a number of something."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig(JsonRecord):
    """Settings of a training run; together with the shards they decide its weights."""

    placement: PlacementName = "lookahead"
    """Where embedding rows live; lookahead keeps hot rows on the fast tier and loads the others just before
    they are needed. all-fast keeps all rows on the fast tier. hybrid and hybrid-dedup keep all on the slow
    tier, without and with deduplication inside a batch. hybrid-uva also does, and copies the rows of one
    batch at a time to the fast tier. cache has a run-time cache there. With fae, hot rows alternate between
    the tiers."""

    hot_bytes: ByteSize | None = None
    """Fast memory for hot rows with their optimizer state; by default the budget that the shards were packed
    with. Another budget needs shards of order original."""

    staging_bytes: ByteSize | None = None
    """Fast memory for loaded rows and their optimizer state, in addition to that of hot rows. By default as
    much as the hot rows take, and enough for the cold rows of four batches. lookahead and cache use it; cache
    also fills the memory of hot rows."""

    slow_bytes: ByteSize | None = None
    """Host memory for embedding rows; the rest go to a spill file while the run trains. lookahead writes each
    row where its next use will find it and reads it in time; the other placements map the file. By default
    all rows are in memory."""

    prefetch: int | None = None
    """Number of batches that transfers may run ahead of the batch being computed; by default 2, or what the
    staging slots allow: each one takes slots for the cold rows of two batches more. Higher values hide slower
    transfers and leave fewer rows to choose from for eviction."""

    cache_policy: Literal["lru", "lfu", "dataset"] = "lfu"
    """Which row the cache evicts: the one used longest ago (lru), the one with the fewest lookups so far
    (lfu), or the one with the fewest lookups in the log (dataset)."""

    cache_warmup: float = 0.7
    """Share of the cache filled with the most frequent rows before the first batch."""

    cache_batches: int = 1
    """Number of batches whose rows are loaded into the cache together."""

    model: str = field(default="auto", metadata={"offered": MODEL_NAMES})
    """Dense model: dlrm, dcnv2, tbsm, a preset of DLRM (kaggle, terabyte, mlperf, small), or a class of your
    own as package.module:Class. dlrm and auto take the preset that fits the embedding dimension of the
    shards: kaggle for 16, terabyte for 64, mlperf for 128, else small. tbsm takes list-valued features as
    histories. A class is a torch.nn.Module over dense features and embeddings."""

    bottom_mlp: tuple[int, ...] | None = None
    """Widths of the hidden layers between the dense features and the interaction, such as 512,256,64; none
    for no layer. By default those of the preset; dcnv2 and tbsm have none by default."""

    top_mlp: tuple[int, ...] | None = None
    """Widths of the hidden layers between the interaction and the logit, the deep network of dcnv2; none for
    no layer. By default those of the preset that fits the embedding dimension; of tbsm 15,15, of which the
    last is the width of the vector of an element."""

    cross_layers: int | None = None
    """Number of layers of the cross network of dcnv2; by default 3."""

    cross_rank: int | None = None
    """Rank of the matrices of the cross network of dcnv2; by default they are full."""

    dropout: float | None = None
    """Share of the outputs of each hidden layer of the top MLP, or of the deep network of dcnv2, that is
    dropped in training, such as 0.2; by default none."""

    batch_norm: bool = False
    """Normalize the outputs of the hidden layers of all MLPs over the batch, before their ReLU. Each
    batch is then computed as a whole, in one thread."""

    pooling: Pooling = "sum"
    """How the rows of a multi-hot feature become one embedding: their sum or their mean."""

    model_args: str | None = None
    """Keyword arguments of the constructor of your own class, a JSON object such as '{"hidden": 64}'; by
    default it gets none. tbsm takes history_length, attention_widths and last_widths, dcnv2 structure."""

    freeze: tuple[str, ...] = field(default=(), metadata={"repeated": "NAME"})
    """Table whose rows are read and never changed; give the option once for each."""

    loss: str | None = None
    """Loss of your own, a function of logits, labels and weights as package.module:function; by default the
    log loss."""

    loss_weights: str | None = None
    """Weight of each label in the loss, such as click=1,buy=0.2, of a log with several; by default 1. A label
    of weight 0 is left out: the model has no logit of it."""

    epochs: int = 1
    """Number of passes over the training part."""

    last_batch: LastBatch = "keep"
    """What becomes of a training batch with fewer samples than the others, the last one of its kind: keep
    trains on it, drop leaves its samples out of every epoch, merge joins it to the batch before. Evaluations
    are of all samples."""

    seed: int = 0
    """Seed of the initial values and of the order of batches."""

    device: str = "cpu"
    """Device of the fast tier and the dense layers: cpu or cuda. For developers: late simulates a
    device that runs queued work late, to find missing waits; late:7 repeats the order of seed 7."""

    engine: Engine = "hotset"
    """Engine that runs the steps: hotset, on one device or on the CPUs of several ranks, or torchrec, on
    several devices."""

    kernels: str | None = field(default=None, metadata={"no_option": True})
    """Kernels of steps on a GPU, for tests and measurements: torch for those that torch has, torch:NAME for
    one of them, more with commas between; by default Triton's, where it is installed. On the simulated device
    they run the dense layers too, which the host runs by default."""

    embedding_optimizer: EmbeddingOptimizer | None = None
    """Optimizer of the embedding rows; by default the one that the shards were packed for, which
    `preprocess --embedding-optimizer` sets. All are lazy: a row that no sample of a batch looks up stays as
    it is, optimizer state included; momentum keeps 0.9 of a row's last step, adam counts the steps of each
    row."""

    embedding_lr: float | None = None
    """Learning rate of the embedding rows; by default 10 for sgd, 1 for momentum, 0.005 for adam, 0.04 for
    the others."""

    dense_optimizer: DenseOptimizer = "adam"
    """Optimizer of the dense layers; same means that of the embedding rows (adagrad for rowwise-adagrad, sgd
    for momentum)."""

    dense_lr: float | None = None
    """Learning rate of the dense layers; by default 0.1 for sgd, 0.01 for adagrad, 0.001 for adam."""

    dense_dtype: Literal["fp32", "bf16", "auto"] = "fp32"
    """Number type of the products of the dense layers. bf16 sums in fp32 and keeps weights and optimizers in
    fp32; it is quick on a GPU, on a CPU with AMX and on AMD's with AVX512-BF16, and slower than fp32 on
    others. auto takes bf16 where it is quick. Evaluation uses the type of the run."""

    fae_variant: Literal["paper", "code"] = "paper"
    """Schedule of the fae placement: that of the paper, which switches by test loss, or that of its released
    code, which runs all mixed batches and then all hot-only ones."""

    evaluate_every: int | str | None = None
    """Steps (500) or time (10min) between evaluations, of the validation part where the log has one; by
    default the run is evaluated at its end only."""

    negative_rate: float | None = None
    """Share of the samples without a click that the log kept, such as 0.1. Predictions are then recalibrated,
    and a sample without a click counts ten times in the scores. By default the log kept all."""

    log_every: int = 100
    """Number of batches between two lines of training loss in metrics.jsonl."""

    threads: int | None = None
    """Number of threads of a training step; by default the cores this process may use, and of several ranks
    the share of each, at most OMP_NUM_THREADS. On the CPU the weights do not depend on it."""

    micro_batches: int | None = None
    """Number of equal parts of a batch whose gradients are summed separately. It fixes the bits of the
    weights for any number of ranks. By default one for each rank."""

    recipe: RecipeOptions = field(default_factory=RecipeOptions)
    """Learning rates over the steps, clipping, decay, and when training stops."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name, (least, most) in _BOUNDS.items():
            require_at_least(name, getattr(self, name), least)
            require_at_most(name, getattr(self, name), most)
        # A number is of steps, a text a time.
        if isinstance(self.evaluate_every, str):
            require_time("evaluate_every", self.evaluate_every)
        else:
            require_at_least("evaluate_every", self.evaluate_every, 1)
        # A rate of None is chosen by the optimizer later.
        for name in ("embedding_lr", "dense_lr"):
            rate = getattr(self, name)
            if rate is not None and not 0 < rate < float("inf"):
                raise ConfigError(f"{name} must be above 0, got {rate}")
        # A log that kept all needs no option.
        require_share("negative_rate", self.negative_rate)
        if self.negative_rate == 1:
            raise ConfigError("negative_rate is 1, and so changes nothing")
        # What depends on the model is checked together.
        self._check_model()
        if self.loss is not None and not is_class_name(self.loss):
            raise ConfigError(
                f"loss must be a function as package.module:function, got {self.loss!r}",
                hint="for a function squared in the file losses.py write losses:squared",
            )
        parse_loss_weights(self.loss_weights)
        if not 0 <= self.cache_warmup <= 1:
            raise ConfigError(f"cache_warmup must be from 0 to 1, got {self.cache_warmup}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be from 0 to 2**63 - 1, got {self.seed}")

    def _check_model(self) -> None:
        refuse_unknown_model(self.model)
        parse_arguments(self.model_args)
        for name in ("bottom_mlp", "top_mlp"):
            widths = getattr(self, name) or ()
            require_at_most(f"the number of layers of {name}", len(widths), MOST_LAYERS)
            for width in widths:
                require_at_least(name, width, 1)
                require_at_most(name, width, MOST_WIDTH)
        # Absent options are those of the model that is chosen, and are checked with it.
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be in [0, 1), got {self.dropout}")

    @property
    def tagging_hot_bytes(self) -> int | None:
        """Budget of the rows by which batches are tagged; None: that of the shards.

        With TorchRec ``hot_bytes`` limits the rows that each rank holds, and the batches stay what they are.
        """
        return self.hot_bytes if self.engine == "hotset" else None

    def row_optimizer(self, packed_for: str) -> str:
        """Return the optimizer of rows: the one set, else the shards' (``packed_for``)."""
        return self.embedding_optimizer or packed_for

    def optimizers(self, packed_for: str) -> Optimizers:
        """Return optimizers and rates of a run on shards packed for ``packed_for``."""
        rows = self.row_optimizer(packed_for)
        dense: str = self.dense_optimizer
        if dense == "same":
            dense = _DENSE_TWIN.get(rows, rows)
        return Optimizers(
            embedding_optimizer=rows,
            embedding_lr=EMBEDDING_LR[rows] if self.embedding_lr is None else self.embedding_lr,
            dense_optimizer=dense,
            dense_lr=DENSE_LR[dense] if self.dense_lr is None else self.dense_lr,
        )


RowType = Literal["fp32", "fp16", "bf16", "int8"]
ROW_TYPES: tuple[RowType, ...] = ("fp32", "fp16", "bf16", "int8")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """Settings of an export."""

    row_type: RowType = "fp32"
    """Number type of the rows: fp32 as trained, fp16, bf16, or int8 with a scale for each row."""

    onnx: bool = False
    """Write an ONNX model too, with its tables in a second file; needs the extra onnx."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictConfig:
    """Settings of a prediction; none but the batch size may change a bit of it."""

    batch_size: int | None = field(default=None, metadata={"no_option": True})
    """Number of samples predicted together; by default that of the training."""

    threads: int | None = None
    """Number of threads that parse, and of those that predict; by default as many as the training used."""

    slow_bytes: ByteSize | None = None
    """Memory for embedding rows; if not all fit, those of some batches at a time are read from the run's
    weights. By default as much as there is."""

    def __post_init__(self) -> None:
        check_fields(self)
        require_at_least("batch_size", self.batch_size, 1)
        require_at_least("threads", self.threads, 1)
        require_at_most("threads", self.threads, MOST_THREADS)
        require_at_least("slow_bytes", self.slow_bytes, 0)
