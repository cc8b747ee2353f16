"""Options of a run on several ranks, and whether this process is one. Imports nothing heavy."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ...pipeline.errors import ConfigError
from ...stats.exchange.homes_name import HomesName
from .exchange_options import ExchangeOptions

MOST_SECONDS = 86_400


@dataclass(frozen=True, kw_only=True)
class RankOptions(ExchangeOptions):
    """Options of a run on several ranks. Only codecs change a bit of it."""

    homes: HomesName = "by-use"
    """Rank where an embedding row and its optimizer state live, on several ranks: striped over them by id, at
    the one whose samples use it in most batches (by-use), or moving with its vectors to ranks that use it
    where a plan of the epoch saves bytes, which takes more memory."""

    rank_timeout: float = 60.0
    """Seconds that a rank waits for another before it stops the run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rank_timeout <= MOST_SECONDS:
            raise ConfigError(
                f"rank_timeout must be above 0 and at most {MOST_SECONDS}, got {self.rank_timeout:g}"
            )


def is_launched() -> bool:
    """Whether this process was started as one of several ranks.

    Raises:
        ConfigError: the launcher's number of ranks is none.
    """
    number = os.environ.get("WORLD_SIZE") or "1"
    if not number.isdecimal():
        raise ConfigError(f"the environment variable WORLD_SIZE is {number!r}, want the number of ranks")
    return int(number) > 1


def is_first() -> bool:
    """Whether this process speaks for the run: it is alone, or rank 0."""
    return not is_launched() or os.environ.get("RANK") == "0"
