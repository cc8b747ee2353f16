"""The commands of ``hotset``: what each is for, and the module that runs it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

COMMANDS = {
    "demo": ("demo", "generate a log, preprocess it, train on it three ways and compare"),
    "generate": ("generate_command", "write a synthetic click log with the statistics of a real one"),
    "schema": ("schema_command", "propose a schema for your own log"),
    "preprocess": (
        "preprocess_commands",
        "turn raw logs into shards: all stages, resuming after an interruption",
    ),
    "ingest": ("preprocess_commands", "parse and check raw logs"),
    "count": ("preprocess_commands", "count how often each category occurs"),
    "rank": ("preprocess_commands", "give each category an id, the most important first"),
    "encode": ("preprocess_commands", "replace categories by their ids"),
    "split": ("preprocess_commands", "choose hot rows within a byte budget"),
    "pack": ("preprocess_commands", "shuffle samples into hot-only and mixed batches"),
    "export-shards": ("export_shards_command", "write shards as Parquet, CSV or another program's files"),
    "recipe": ("recipe_command", "print the options in force as a recipe file"),
    "stats": ("stats_command", "show frequency statistics, or write a report"),
    "advise": ("planning.advise_command", "predict which placement and how much fast memory pay off"),
    "characterise": (
        "planning.characterise_command",
        "measure how a model decides the speed of training",
    ),
    "verify": ("verify_command", "check every manifest, checksum and invariant"),
    "train": ("train_commands", "train a model on shards"),
    "evaluate": ("train_commands", "evaluate a trained run"),
    "predict": ("serving.predict_command", "predict the probability of a click for every line of a raw log"),
    "export": ("serving.export_command", "write a run as files that serve it without hotset"),
    "apply": ("serving.apply_command", "lead an exported folder to a later run by what changed since"),
    "runs": ("runs_command", "compare the runs of a folder"),
    "completion": ("completion_command", "print a script that completes commands and options in a shell"),
}
"""For each command, the module of `commands` that runs it and a line of help."""
REMOVED = {
    "bench": "python -m hotset.workflows.bench.NAME runs a benchmark in a checkout of hotset",
    "map-ids": "hotset preprocess with --extend maps the ids, and hotset train finds the map in DIR",
    "schedule": "leave it out: hotset train plans by itself",
    "transpose": "leave it out: hotset train groups lookups by itself",
}
"""For each command that an earlier version had, what replaces it."""
STAGE_INTERRUPTED = "finished work is kept; run the same command to resume"


class Command:
    """A command: a dataclass of its options; its docstring describes it, `execute` does the work."""

    on_interrupt: ClassVar[str] = "nothing was written"
    """What is left of the command after Ctrl-C."""
    needs_torch: ClassVar[bool] = False
    """Whether it imports torch when it runs."""
    main_options: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Fields that ``--help`` shows, by the title of their group; all of them where it is empty."""

    @classmethod
    def parse(cls, command: str, arguments: Sequence[str]) -> Any:
        """Return an instance with the options that are typed behind the name of the command."""
        from .options import parse_options  # here, so that the list of commands imports nothing

        return parse_options(cls, arguments, command=command)

    @classmethod
    def after_interrupt(
        cls, arguments: Sequence[str], error: KeyboardInterrupt
    ) -> tuple[str, str | None] | None:
        """Return what is left and a hint how to go on; None where nothing is to be printed."""
        return cls.on_interrupt, None

    def execute(self) -> int:
        """Run the command and return its exit status."""
        raise NotImplementedError


def command_class(name: str) -> type[Command]:
    """Import the command ``name``; what the others need is not imported."""
    module = importlib.import_module(f".commands.{COMMANDS[name][0]}", __package__)
    commands: dict[str, type[Command]] = module.COMMANDS
    return commands[name]
