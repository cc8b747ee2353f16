"""How often a run is saved. Changes no weight, so it is no part of a run's settings. Imports little."""

from __future__ import annotations

from dataclasses import dataclass

from ...pipeline.errors import require_at_least
from ..options.interval import Interval

DEFAULT_INTERVAL = Interval(seconds=600.0)


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """How often a run is saved, and how many checkpoints are kept."""

    checkpoint_every: Interval = DEFAULT_INTERVAL
    """Steps (500) or time (10min) between two checkpoints, from which the same command resumes an interrupted
    run; off writes none. They are written while training continues."""

    keep_checkpoints: int = 2
    """Number of checkpoints kept while the run trains. If one is damaged, the run resumes from
    the one before."""

    def __post_init__(self) -> None:
        require_at_least("keep_checkpoints", self.keep_checkpoints, 1)
