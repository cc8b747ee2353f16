"""The settings of a measurement of this machine. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from ...pipeline.errors import ConfigError, require_at_least
from ...stats.exchange.rank_masks import MOST_RANKS


@dataclass(frozen=True, kw_only=True)
class CharacteriseConfig:
    """The time and the threads of a measurement."""

    minutes: float = 8.0
    """Minutes that measuring may take; what constants leave of them goes to cells of a sweep."""

    sweep: bool = False
    """Measure every cell of the sweep, however long it takes."""

    ranks: int = 1
    """Number of processes, from 2 up, to measure messages between and to train cells on as well; they are
    started here. 1: nothing is measured of several ranks."""

    device: str = "cpu"
    """Device to measure: cpu. Constants of a GPU are null so far, with the reason."""

    threads: int | None = None
    """Number of threads of a step; by default the cores this process may use."""

    def __post_init__(self) -> None:
        if not 0 < self.minutes < float("inf"):
            raise ConfigError(f"minutes must be above 0, got {self.minutes:g}")
        require_at_least("threads", self.threads, 1)
        require_at_least("ranks", self.ranks, 1)
        if self.ranks > MOST_RANKS:
            raise ConfigError(f"ranks must be {MOST_RANKS} or fewer, got {self.ranks}")
        if self.device != "cpu":
            raise ConfigError(
                f"steps on {self.device} cannot be measured part by part", hint="use --device cpu"
            )
