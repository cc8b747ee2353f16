"""The commands of ``hotset``: their purposes and their modules."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar, cast

T = TypeVar("T")

COMMANDS = {
    "demo": ("demo", "generate a log, preprocess it, train on it three ways and compare"),
    "generate": ("data", "write a synthetic click log with the statistics of a real one"),
    "schema": ("data", "propose a schema for your own log"),
    "preprocess": (
        "preprocess",
        "turn raw logs into shards: all stages, resuming after an interruption",
    ),
    "ingest": ("preprocess", "parse and check raw logs"),
    "count": ("preprocess", "count how often each category occurs"),
    "rank": ("preprocess", "give each category an id, the most important first"),
    "encode": ("preprocess", "replace categories by their ids"),
    "split": ("preprocess", "choose hot rows within a byte budget"),
    "pack": ("preprocess", "shuffle samples into hot-only and mixed batches"),
    "export-shards": ("data", "write shards as Parquet, CSV or another program's files"),
    "recipe": ("data", "print the options in force as a recipe file"),
    "stats": ("stats", "show frequency statistics, or write a report"),
    "advise": ("stats", "predict which placement and how much fast memory pay off"),
    "characterise": ("stats", "measure how a model decides the speed of training"),
    "verify": ("data", "check every manifest, checksum and invariant"),
    "train": ("train", "train a model on shards"),
    "evaluate": ("train", "evaluate a trained run"),
    "predict": ("train", "predict the probability of a click for every line of a raw log"),
    "export": ("train", "write a run as files that serve it without hotset"),
    "apply": ("train", "update an exported folder with the rows that changed since"),
    "runs": ("runs", "compare the runs of a folder"),
    "completion": ("data", "print a script that completes commands and options in a shell"),
}
"""For each command, the module of `commands` that has its class, such as `ExportShardsCommand`, and a line of
help."""
GROUPS = {
    "the main job": (
        *("demo", "generate", "schema", "preprocess", "stats", "characterise", "advise", "train", "evaluate"),
        *("predict", "export", "apply"),
    ),
    "single stages": ("ingest", "count", "rank", "encode", "split", "pack"),
    "upkeep": ("recipe", "runs", "verify", "export-shards", "completion"),
}
"""The commands in the order of `hotset --help`, by the heading of their group."""
REMOVED = {
    "bench": "python -m hotset.workflows.bench.NAME runs a benchmark in a checkout of hotset",
    "map-ids": "hotset preprocess with --extend maps the ids, and hotset train finds the map in DIR",
    "schedule": "leave it out: hotset train plans by itself",
    "transpose": "leave it out: hotset train groups lookups by itself",
    "version": "hotset --version",
}
"""For each command that an earlier version or another program has, what replaces it."""
REMOVED_OPTIONS = {
    **{
        f"{stage} {option}": f"hotset preprocess {option}, which runs the stages that are left"
        for stage in GROUPS["single stages"]
        for option in ("--durable", "--engine")
    },
    **{
        f"advise {option}": "--speeds FILE, a file that hotset characterise --out FILE writes"
        for option in ("--link-gbps", "--host-gbps", "--teraflops")
    },
    "generate --start": "--seed N, which writes other samples of the same statistics",
    "predict --batch-size": "leave it out, batches are those of training; hotset.predict takes batch_size",
}
"""For each command and option that an earlier version has, what replaces it."""
HELP_FLAGS = frozenset({"-h", "--help", "--help-all"})
STAGE_INTERRUPTED = "finished work is kept; run the same command to resume"


class Command:
    """A command: a dataclass of its options; its docstring describes it, `execute` does the work."""

    on_interrupt: ClassVar[str] = "nothing was written"
    """Message after Ctrl-C on what remains of the command."""
    needs_torch: ClassVar[bool] = False
    """Whether it imports torch when it runs."""
    main_options: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Fields that ``--help`` shows, by the title of their group; all of them where it is empty."""

    @classmethod
    def parse(cls, command: str, arguments: Sequence[str]) -> Any:
        """Return an instance with the options that follow the command's name; exit after ``--help``."""
        from .options import options_of, parse_options  # here, so that the list of commands imports nothing

        known, defaults = cls.resolve(arguments)
        if not HELP_FLAGS.isdisjoint(known):
            from .option_texts import help_of

            options = options_of(cls, defaults)
            print(help_of(cls, command, options, is_full="--help-all" in known), end="")
            raise SystemExit(0)
        return parse_options(cls, known, command=command, defaults=defaults)

    @classmethod
    def resolve(cls, arguments: Sequence[str]) -> tuple[Sequence[str], Mapping[str, Any]]:
        """Return the arguments to parse, and defaults that a folder or another option sets."""
        return arguments, {}

    @classmethod
    def after_interrupt(
        cls, arguments: Sequence[str], error: KeyboardInterrupt
    ) -> tuple[str, str | None] | None:
        """Return what remains and a hint how to continue; None to print nothing."""
        return cls.on_interrupt, None

    def execute(self) -> int:
        """Run the command and return its exit status."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class JsonCommand(Command):
    """A command that prints one JSON object, if asked to."""

    json_object: ClassVar[str] = ""
    """What the object holds, for the help."""

    json: bool = False
    """Print one JSON object on stdout."""


def command_class(name: str) -> type[Command]:
    """Import the command ``name``; what the others need is not imported."""
    module = importlib.import_module(f".commands.{COMMANDS[name][0]}", __package__)
    kind: type[Command] = getattr(module, f"{name.title().replace('-', '')}Command")
    return kind


def command_options(config: type, more: type) -> type[Any]:
    """Return a dataclass with the fields of ``config`` followed by those of ``more``."""
    name = config.__name__.removesuffix("Config") + "Command"
    return dataclass(frozen=True, kw_only=True)(type(name, (more, config), {"__doc__": more.__doc__}))


def config_of(kind: type[T], options: Any) -> T:
    """Return the config of type ``kind`` whose fields are among those of ``options``."""
    return kind(**{field.name: getattr(options, field.name) for field in fields(cast(Any, kind))})
