"""Options of how a run optimizes and how long: a part of its config. Imports nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...pipeline.errors import ConfigError, require_at_least

Schedule = Literal["constant", "linear", "cosine", "polynomial"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeOptions:
    """Learning rates over the steps, clipping and decay."""

    lr_schedule: Schedule = "constant"
    """Course of the learning rates after warm-up: constant, or from --decay-start on a decay that is linear,
    half a cosine, or polynomial of degree --decay-power, as DLRM's."""

    lr_schedule_of: Literal["all", "dense", "rows"] = "all"
    """Parameters whose learning rate follows warm-up and schedule: all of them, those of the dense layers, or
    the embedding rows; the others keep a constant rate."""

    warmup_steps: int = 0
    """Number of steps over which the learning rates rise in a straight line to their full values; 0 for
    none."""

    decay_start: int | None = None
    """Step at which the decay of the learning rates starts; by default the end of warm-up."""

    decay_steps: int | None = None
    """Number of steps the decay of the learning rates takes; by default those that are left of the run."""

    decay_power: float = 2.0
    """Degree of the polynomial decay."""

    final_lr: float = 0.0
    """Least learning rate of a decay, which it ends with, as a share of the full one."""

    clip_gradient: float | None = None
    """Largest norm of the gradient of all dense layers together; a longer one is scaled down to it. By
    default there is no limit."""

    dense_decay: float = 0.0
    """Weight decay of the dense layers (L2): the share of the weights that is added to their gradient."""

    embedding_decay: float = 0.0
    """Weight decay of embedding rows (L2): the share of a row's weights that is added to its gradient at each
    step that looks it up, once however often. Rows that are not looked up do not decay."""

    def __post_init__(self) -> None:
        require_at_least("warmup_steps", self.warmup_steps, 0)
        require_at_least("decay_start", self.decay_start, 0)
        require_at_least("decay_steps", self.decay_steps, 1)
        for name in ("dense_decay", "embedding_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must be from 0 to below 1, got {getattr(self, name)}")
        if not 0 <= self.final_lr <= 1:
            raise ConfigError(f"final_lr must be from 0 to 1, got {self.final_lr}")
        for name in ("decay_power", "clip_gradient"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be above 0, got {value}")
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        """Raise ConfigError where an option would change nothing, which its user did not mean."""
        if self.lr_schedule == "constant":
            for name in ("decay_start", "decay_steps"):
                if getattr(self, name) is not None:
                    raise ConfigError(
                        f"{name} is of no use with the schedule constant",
                        hint="give --lr-schedule linear, cosine or polynomial too",
                    )
        if self.decay_start is not None and self.decay_start < self.warmup_steps:
            raise ConfigError(
                f"decay_start must not be before the end of warm-up at step {self.warmup_steps}, "
                f"got {self.decay_start}"
            )
