"""The options of ``hotset preprocess`` and of its stages one by one.

The defaults depend on the log: a schema's recipe sets them, and ``--like DIR`` takes those of another folder.
So each parser here finds the defaults first and then parses once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

from ...pipeline.errors import ByteSize
from ...pipeline.folders.manifest import MANIFEST, Manifest
from ...pipeline.folders.totals import ColumnsSettings
from ...pipeline.preprocess import PreprocessConfig
from ...pipeline.runtime.tasks import EngineName
from ...pipeline.schema.schema_file import setting_of
from ...pipeline.stages.stage_order import FOLDERS
from ..command_list import STAGE_INTERRUPTED, Command
from ..options import Arg, Dir, RecipeFile, find_options, parse_options, values_of
from ..recipe_file import with_recipe
from ..recipes import DEFAULT_SCHEMA, recipe_for, recipe_like

T = TypeVar("T")

Raw = Annotated[tuple[Path, ...], Arg("RAW", is_positional=True)]
StageName = Annotated[str | None, Arg("STAGE")]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options that say how the stages run."""

    workers: int = 0
    """Number of threads, or of processes of the Ray cluster; 0 takes every core."""

    engine: EngineName = "threads"
    """Kind of the workers: threads, or processes of the Ray cluster that RAY_ADDRESS names (without
    RAY_ADDRESS, of one started here)."""

    memory: ByteSize | None = None
    """Limit on the anonymous resident memory of all processes together. Default: a quarter of the machine's
    memory."""

    durable: bool = False
    """Sync every file to the device, so that finished files survive a power cut too."""

    json: bool = False
    """Print one JSON object on stdout."""


@dataclass(frozen=True, kw_only=True)
class PreprocessOptions(Command, PreprocessConfig):
    """Turn raw logs into shards, resuming what is unfinished."""

    on_interrupt = STAGE_INTERRUPTED
    main_options = {  # noqa: RUF012
        "log": ("schema", "on_bad_line", "eval_fraction"),
        "rows": ("hot_bytes", "embedding_dim", "embedding_optimizer", "min_count", "rank_by"),
        "batches": ("batch_size", "order", "seed"),
        "this run": ("dry_run", "redo", "extend", "like", "recipe_file"),
        "machine and output": ("workers", "memory", "json"),
    }

    raw: Raw
    """Logs, in order: text (plain, gzip or zstd) or Parquet."""

    out: Path
    """Folder for all stages; other commands call it DIR."""

    dry_run: bool = False
    """Report what the run would do, stage by stage, with bytes, seconds, disk and memory; write nothing."""

    redo: StageName = None
    """Delete this stage and the later ones, then run."""

    extend: bool = False
    """Add the last of these logs to a DIR that was written from the first ones. Only the new logs are read
    and counted; ids and everything that depends on them are rebuilt. DIR/id_map then says which id each row
    of the old vocabulary has now, so that a trained model can continue."""

    like: Path | None = None
    """Take ids, hot rows and batch size from this DIR instead of counting. All samples are then for
    evaluation, which needs labels."""

    shards_only: bool = False
    """Remove the files of columns/ and samples/ at the end. To try another setting on DIR, the log must then
    be parsed again."""

    recipe_file: RecipeFile = None
    """Recipe with options in its table [preprocess]; options on the command line take precedence.
    `hotset recipe` prints one."""

    run: RunOptions = field(default_factory=RunOptions)
    """The same for every stage. None of these changes a byte of the output."""


@dataclass(frozen=True, kw_only=True)
class IngestOptions(Command):
    """Options of ingest besides those of its config."""

    on_interrupt = STAGE_INTERRUPTED

    raw: Raw
    """Logs, in order: text (plain, gzip or zstd) or Parquet."""

    out: Path
    """Folder for all stages; other commands call it DIR."""

    redo: bool = False
    """Delete this stage and the later ones, then run."""

    extend: bool = False
    """Add the last of these logs to columns that were written from the first ones, and delete the folders
    that must be rebuilt."""

    run: RunOptions = field(default_factory=RunOptions)
    """The same for every stage. None of these changes a byte of the output."""


@dataclass(frozen=True, kw_only=True)
class StageOptions(Command):
    """Options of a later stage besides those of its config."""

    on_interrupt = STAGE_INTERRUPTED

    dir: Dir
    """Folder of all stages, as `preprocess --out` or `ingest --out` created it."""

    redo: bool = False
    """Delete this stage and the later ones, then run."""

    run: RunOptions = field(default_factory=RunOptions)
    """The same for every stage. None of these changes a byte of the output."""


def parse_preprocess(kind: type[T], arguments: Sequence[str]) -> T:
    """Parse the arguments of ``hotset preprocess``; ``--like`` and ``--schema`` set the defaults."""
    arguments = with_recipe("preprocess", arguments)
    found, others = find_options(arguments, "--like", "--schema")
    # These two decide the defaults of all other options, so they are read before those.
    schema = setting_of(found["--schema"]) if "--schema" in found else None
    like = Path(found["--like"]) if "--like" in found else None
    recipe = recipe_for(schema or DEFAULT_SCHEMA) if like is None else recipe_like(like, schema)
    stages = {stage: getattr(recipe, stage) for stage in FOLDERS}
    return parse_options(kind, others, command="preprocess", defaults={"like": like, **stages})


def parse_ingest(kind: type[T], arguments: Sequence[str]) -> T:
    """Parse the arguments of ``hotset ingest``."""
    found, others = find_options(_with_bare_redo("ingest", arguments), "--schema")
    recipe = recipe_for(setting_of(found.get("--schema", DEFAULT_SCHEMA)))
    return parse_options(kind, others, command="ingest", defaults=values_of(recipe.ingest))


def parse_stage(kind: type[T], stage: str, arguments: Sequence[str]) -> T:
    """Parse the arguments of a stage after ingest."""
    arguments = _with_bare_redo(stage, arguments)
    default = getattr(_recipe_in(arguments), stage, None)
    return parse_options(kind, arguments, command=stage, defaults=values_of(default) if default else None)


def _with_bare_redo(stage: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a single stage, whose name after ``--redo`` is redundant."""
    joined = [argument.replace(f"--redo={stage}", "--redo") for argument in arguments]
    return [
        argument
        for before, argument in zip(["", *joined], joined, strict=False)
        if (before, argument) != ("--redo", stage)
    ]


def _recipe_in(arguments: Sequence[str]) -> PreprocessConfig:
    """Return the recipe for the log in DIR, the only one of a stage's arguments that is a folder."""
    for argument in arguments:
        columns = Path(argument) / "columns"
        if (columns / MANIFEST).exists():
            return recipe_for(ColumnsSettings.of(Manifest.read(columns)).schema)
    return recipe_for(DEFAULT_SCHEMA)
