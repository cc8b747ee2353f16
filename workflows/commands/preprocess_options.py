"""The options of ``hotset preprocess`` and of its stages one by one.

The defaults depend on the log: a schema's recipe sets them, and ``--like DIR`` takes those of another folder.
So each parser here finds the defaults first and then parses once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import tyro

from ...pipeline.errors import ConfigError
from ...pipeline.folders.manifest import MANIFEST, Manifest
from ...pipeline.formats.stage_settings import ColumnsSettings
from ...pipeline.runtime.engines import EngineName
from ...pipeline.schema.schema_file import setting_of
from ...pipeline.sizes import ByteSize
from ...pipeline.stages.ingest import IngestConfig
from ...pipeline.stages.preprocess import PreprocessConfig
from ...pipeline.stages.stage_order import FOLDERS
from ...stats.exchange.homes_name import HomesName
from ..option_help import field_docstrings
from ..options import Dir, RecipeFile, command_options, config_of, find_options, parse_options
from ..recipe_file import with_recipe
from ..recipes import DEFAULT_SCHEMA, recipe_for, recipe_like

Raw = Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RAW", help_behavior_hint="")]
StageName = Annotated[str | None, tyro.conf.arg(metavar="STAGE", help_behavior_hint="")]
Folders = Annotated[str, tyro.conf.arg(metavar="FOLDER,...", help_behavior_hint="")]

_DESCRIPTIONS = {
    "schedule": "Plan which cold rows batches load, or what ranks send.",
    "transpose": "Group each batch's lookups by row, once for all epochs.",
}
"""The first sentence of the help of stages that `PreprocessConfig` does not describe."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where and how the stages run."""

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
class PreprocessCommand(PreprocessConfig):
    """Options of all stages, and of the run as a whole."""

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
    and counted; ids and everything that depends on them are rebuilt."""

    map_ids: bool = False
    """With --extend: also write to DIR/id_map which id each row of the old vocabulary has now."""

    transpose: bool = False
    """Also group the lookups of each training batch by row at the end, as `hotset transpose` does."""

    like: Path | None = None
    """Take ids, hot rows and batch size from this DIR instead of counting. All samples are then for
    evaluation, which needs labels."""

    discard: Folders = ""
    """Empty these folders at the end: columns, samples, or both with a comma between. To try another setting
    on DIR, the log must then be parsed again."""

    recipe_file: RecipeFile = None
    """Recipe with options in its table [preprocess]; options on the command line take precedence.
    `hotset recipe` prints one."""

    run: RunOptions = field(default_factory=RunOptions)
    """The same for every stage. None of these changes a byte of the output."""


@dataclass(frozen=True, kw_only=True)
class IngestOptions:
    """Options of ingest besides those of its config."""

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
class StageOptions:
    """Options of a later stage besides those of its config."""

    dir: Dir
    """Folder of all stages, as `preprocess --out` or `ingest --out` created it."""

    redo: bool = False
    """Delete this stage and the later ones, then run."""

    run: RunOptions = field(default_factory=RunOptions)
    """The same for every stage. None of these changes a byte of the output."""


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions(StageOptions):
    """Options of schedule that make it plan for several ranks."""

    ranks: int | None = None
    """Plan what crosses between so many ranks in each step, to DIR/exchange, instead of row movement."""

    homes: HomesName = "by-use"
    """With --ranks: rank where a row lives, as in training."""


def parse_preprocess(arguments: Sequence[str]) -> PreprocessCommand:
    """Parse the arguments of ``hotset preprocess``; ``--like`` and ``--schema`` set the defaults."""
    arguments = with_recipe("preprocess", arguments)
    found, others = find_options(arguments, "--like", "--schema")
    # These two decide the defaults of all other options, so they are read before those.
    schema = setting_of(found["--schema"]) if "--schema" in found else None
    like = Path(found["--like"]) if "--like" in found else None
    recipe = recipe_for(schema or DEFAULT_SCHEMA) if like is None else recipe_like(like, schema)
    stages = {stage: getattr(recipe, stage) for stage in FOLDERS}
    return parse_options(
        PreprocessCommand,
        others,
        command="preprocess",
        description="Turn raw logs into shards, resuming what is unfinished.",
        default=PreprocessCommand(raw=tyro.MISSING, out=tyro.MISSING, like=like, **stages),
    )


def parse_ingest(arguments: Sequence[str]) -> Any:
    """Parse the arguments of ``hotset ingest`` into an `IngestOptions` with the fields of `IngestConfig`."""
    found, others = find_options(_with_bare_redo("ingest", arguments), "--schema")
    recipe = recipe_for(setting_of(found.get("--schema", DEFAULT_SCHEMA)))
    command = command_options(IngestConfig, IngestOptions)
    return _parse_stage("ingest", command, recipe.ingest, others, raw=tyro.MISSING, out=tyro.MISSING)


def parse_stage(stage: str, arguments: Sequence[str]) -> tuple[StageOptions, Any]:
    """Parse the arguments of a stage after ingest; returns its options, and its config's type."""
    default = _settings_of(stage) or getattr(_recipe_in(arguments), stage)
    own = ScheduleOptions if stage == "schedule" else StageOptions
    command = command_options(type(default), own)
    arguments = _with_bare_redo(stage, arguments)
    # The schedule of several ranks is a stage of its own, which messages name.
    if stage == "schedule":
        arguments = _with_bare_redo("schedule-ranks", arguments)
    return _parse_stage(stage, command, default, arguments, dir=tyro.MISSING), type(default)


def rank_schedule_of(options: Any) -> Any:
    """Return the settings of a schedule of several ranks; None where ``--ranks`` is not given.

    Args:
        options: of ``hotset schedule``.

    Raises:
        ConfigError: options of the other kind of schedule are given.
    """
    from ...pipeline.stages.schedule import ScheduleConfig
    from ...pipeline.stages.schedule_ranks import RankScheduleConfig

    if options.ranks is None:
        if options.homes != ScheduleOptions.homes:
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


def _settings_of(stage: str) -> Any:
    """Return the defaults of a stage that no recipe sets; None for the others."""
    # `preprocess` starts sooner without these two stages, which it does not run.
    if stage == "schedule":
        from ...pipeline.stages.schedule import ScheduleConfig

        return ScheduleConfig()
    if stage == "transpose":
        from ...pipeline.stages.transpose import TransposeConfig

        return TransposeConfig()
    return None


def _with_bare_redo(stage: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a single stage, where its name behind ``--redo`` says nothing new."""
    joined = [argument.replace(f"--redo={stage}", "--redo") for argument in arguments]
    return [
        argument
        for before, argument in zip(["", *joined], joined, strict=False)
        if (before, argument) != ("--redo", stage)
    ]


def _parse_stage(
    stage: str, command: type[Any], config: Any, arguments: Sequence[str], **missing: Any
) -> Any:
    settings = {field.name: getattr(config, field.name) for field in fields(config)}
    return parse_options(
        command,
        arguments,
        command=stage,
        description=_DESCRIPTIONS.get(stage) or field_docstrings(PreprocessConfig)[stage],
        default=command(**settings, **missing),
    )


def _recipe_in(arguments: Sequence[str]) -> PreprocessConfig:
    """Return the recipe for the log in DIR, the only one of a stage's arguments that is a folder."""
    for argument in arguments:
        columns = Path(argument) / "columns"
        if (columns / MANIFEST).exists():
            return recipe_for(ColumnsSettings.of(Manifest.read(columns)).schema)
    return recipe_for(DEFAULT_SCHEMA)
