"""``hotset schedule`` and ``hotset transpose``, which `preprocess` does not run."""

from __future__ import annotations

from ...pipeline.stages.schedule import ScheduleConfig
from ...pipeline.stages.transpose import TransposeConfig
from ..command_list import Command
from .preprocess_commands import StageCommand, stage_command

COMMANDS: dict[str, type[Command]] = {
    "schedule": stage_command("schedule", ScheduleConfig, StageCommand, "Plan which cold rows batches load."),
    "transpose": stage_command(
        "transpose", TransposeConfig, StageCommand, "Group each batch's lookups by row, once for all epochs."
    ),
}
