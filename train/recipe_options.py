"""Options of optimization, losses and run length, and of recurring intervals.

They are a part of the run's config. Imports nothing heavy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ..pipeline.errors import ConfigError, check_fields, require_at_least
from ..pipeline.folders.manifest import JsonRecord

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
