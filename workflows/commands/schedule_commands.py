"""``hotset schedule`` and ``hotset transpose``, which `preprocess` does not run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...pipeline.errors import ConfigError
from ...pipeline.stages.schedule import ScheduleConfig
from ...pipeline.stages.schedule_ranks import RankScheduleConfig
from ...pipeline.stages.transpose import TransposeConfig
from ...stats.exchange.homes_name import HomesName
from ..command_list import Command
from ..options import config_of
from .preprocess_commands import StageCommand, stage_command


@dataclass(frozen=True, kw_only=True)
class ScheduleCommand(StageCommand):
    """Options of schedule that make it plan for several ranks."""

    ranks: int | None = None
    """Plan what crosses between so many ranks in each step, to DIR/exchange, instead of row movement."""

    homes: HomesName = "by-use"
    """With --ranks: rank where a row lives, as in training."""

    def chosen(self) -> tuple[str, Any]:
        """Return the schedule of one process or, with ``--ranks``, of several."""
        of_ranks = rank_schedule_of(self)
        return super().chosen() if of_ranks is None else ("schedule-ranks", of_ranks)


def rank_schedule_of(options: Any) -> Any:
    """Return the settings of a schedule of several ranks; None where ``--ranks`` is not given.

    Args:
        options: of ``hotset schedule``.

    Raises:
        ConfigError: options of the other kind of schedule are given.
    """
    if options.ranks is None:
        if options.homes != ScheduleCommand.homes:
            raise ConfigError("--homes is of a schedule of several ranks", hint="give --ranks, too")
        return None
    # Each rank plans its slots in training, with what it has for them.
    names = ("staging_bytes", "prefetch", "window", "split_batches")
    given = [name for name in names if getattr(options, name) != getattr(ScheduleConfig(), name)]
    if given:
        raise ConfigError(
            f"--{given[0].replace('_', '-')} is of a schedule of one process, and --ranks of several",
            hint="leave it out: each rank plans its own slots in training",
        )
    return config_of(RankScheduleConfig, options)


COMMANDS: dict[str, type[Command]] = {
    "schedule": stage_command(
        "schedule", ScheduleConfig, ScheduleCommand, "Plan which cold rows batches load, or what ranks send."
    ),
    "transpose": stage_command(
        "transpose", TransposeConfig, StageCommand, "Group each batch's lookups by row, once for all epochs."
    ),
}
