"""``hotset preprocess`` and its stages one by one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, cast

import tyro

from ...pipeline.errors import ConfigError
from ...pipeline.folders.discard import parse_discard
from ...pipeline.folders.manifest import MANIFEST, Manifest
from ...pipeline.folders.partial_folder import durable_files
from ...pipeline.preview.dry_run import plan_run, show_plan
from ...pipeline.runtime.engines import EngineName, use_engine
from ...pipeline.runtime.tasks import ProgressCallback
from ...pipeline.stages.ingest import IngestConfig, ingest, ingest_identity
from ...pipeline.stages.map_ids import ID_MAP
from ...pipeline.stages.preprocess import (
    ALL_FOLDERS,
    FOLDERS,
    PreprocessConfig,
    StageReport,
    preprocess,
    remove_from,
    run_stage,
)
from ...pipeline.stages.schedule import ScheduleConfig
from ...pipeline.stages.stage_order import refuse_extension, remove_stale
from ..console import print_json, progress_bars, say, stdout_console
from ..options import Flag, OptionalPath, OptionalSize, option_value, parse_options
from ..recipes import DEFAULT_SCHEMA, recipe_for, recipe_like, with_schema_text
from .describe_stages import describe_schedule, describe_shards, describe_stage
from .map_ids_command import describe_id_map

ConfigT = TypeVar("ConfigT")
Raw = Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RAW", help_behavior_hint="")]
Dir = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
StageName = Annotated[str | None, tyro.conf.arg(metavar="STAGE", help_behavior_hint="")]
Folders = Annotated[str, tyro.conf.arg(metavar="FOLDER,...", help_behavior_hint="")]


@dataclass(frozen=True, kw_only=True)
class _RunOptions:
    workers: int = 0
    """Threads or processes; 0 takes every core. Changes no byte of the output."""

    engine: EngineName = "threads"
    """What workers are: threads, processes of this machine, or those of a Ray cluster, the one RAY_ADDRESS
    names or else one started here. Changes no byte."""

    memory: OptionalSize = None
    """Cap on anonymous resident memory (bytes), of all processes together; a quarter of the machine's memory
    by default."""

    durable: Flag = False
    """Sync every file to the device, so that what was finished survives a power cut too. Changes no byte."""

    json: Flag = False
    """Print one JSON object on stdout."""


@dataclass(frozen=True, kw_only=True)
class _PreprocessOptions:
    raw: Raw
    """Logs, in order: text plain, gzip or zstd, or Parquet."""

    out: Path
    """Folder for all stages, DIR elsewhere."""

    dry_run: Flag = False
    """Say what the run would do, stage by stage, with bytes, seconds, disk and memory; write nothing."""

    redo: StageName = None
    """Remove this stage and all that follow, then go on."""

    extend: Flag = False
    """Add the last of these logs to a DIR made from the first of them: only they are read and counted; ids,
    and what follows from them, are made again."""

    map_ids: Flag = False
    """With --extend: write which id each row of the old vocabulary has now to DIR/id_map."""

    like: OptionalPath = None
    """Take ids, hot rows and batch size from this folder instead of counting: for evaluation only."""

    discard: Folders = ""
    """Empty these folders at the end: columns, samples, or both with a comma between. No other setting can
    then be tried on DIR without parsing the log again."""


@dataclass(frozen=True, kw_only=True)
class PreprocessCommand(PreprocessConfig, _RunOptions, _PreprocessOptions):
    """Every stage, and where to."""


@dataclass(frozen=True, kw_only=True)
class IngestCommand(IngestConfig, _RunOptions):
    """The first stage."""

    raw: Raw
    """Logs, in order: plain, gzip or zstd."""

    out: Path
    """Folder for all stages, DIR elsewhere."""

    redo: Flag = False
    """Remove this stage and all that follow first."""

    extend: Flag = False
    """Add the last of these logs to columns made from the first of them, and remove what is made again."""


@dataclass(frozen=True, kw_only=True)
class StageCommand(_RunOptions, Generic[ConfigT]):
    """A stage after the first."""

    dir: Dir
    """Folder of the stages, as `preprocess --out` or `ingest --out` made it."""

    config: ConfigT
    """What the stage may vary."""

    redo: Flag = False
    """Remove this stage and all that follow first."""


@contextmanager
def _running(options: _RunOptions) -> Iterator[ProgressCallback]:
    """What holds for all stages of a command."""
    with durable_files(options.durable), use_engine(options.engine), progress_bars() as progress:
        yield progress


def run(command: str, words: list[str]) -> int:
    """Run ``hotset preprocess`` or one stage of it."""
    words = with_schema_text(words)
    if command == "preprocess":
        return _preprocess(words)
    return _ingest(words) if command == "ingest" else _stage(command, words)


def _preprocess(words: list[str]) -> int:
    like = option_value(words, "--like")
    schema = option_value(words, "--schema")
    recipe = recipe_like(Path(like), schema) if like else recipe_for(schema or DEFAULT_SCHEMA)
    stages = {name: getattr(recipe, name) for name in FOLDERS}
    default = PreprocessCommand(raw=tyro.MISSING, out=tyro.MISSING, **stages)
    options = parse_options(
        PreprocessCommand,
        words,
        command="preprocess",
        description="Raw logs to shards. What is finished is skipped, so the same command resumes.",
        default=default,
    )
    discard = parse_discard(options.discard)
    if options.map_ids and not options.extend:
        raise ConfigError("--map-ids goes with --extend", hint="hotset map-ids OLD NEW maps two folders")
    if options.dry_run:
        return _dry_run(options)
    if options.redo:
        _say_removed(remove_from(options.redo, options.out))
    reports: list[StageReport] = []

    def report_stage(report: StageReport) -> None:
        reports.append(report)
        say(describe_stage(report))

    with _running(options) as progress:
        shards = preprocess(
            options.raw,
            options,
            options.out,
            workers=options.workers,
            memory_bytes=options.memory,
            progress=progress,
            on_stage=report_stage,
            discard=discard,
            like=options.like,
            extend=options.extend,
            maps_ids=options.map_ids,
            on_removed=_say_outdated,
        )
    if options.map_ids and (options.out / ID_MAP / MANIFEST).exists():
        say(describe_id_map(Manifest.read(options.out / ID_MAP)))
    if options.json:
        print_json(
            {"stages": [_stage_json(report) for report in reports], "dir": str(options.out)} | shards.totals
        )
    else:
        print(f"{options.out}: {describe_shards(shards)}")
    return 0


def _dry_run(options: PreprocessCommand) -> int:
    plan = plan_run(
        options.raw,
        options,
        options.out,
        workers=options.workers,
        memory_bytes=options.memory,
        redo=options.redo,
        extend=options.extend,
        like=options.like,
    )
    if options.json:
        print_json({"dir": str(options.out)} | plan.to_json())
    else:
        show_plan(plan, stdout_console())
    if plan.refusal is not None:
        raise plan.refusal
    return 0


def _ingest(words: list[str]) -> int:
    options = parse_options(
        IngestCommand,
        words,
        command="ingest",
        description="Raw logs -> columns: parse and check every field.",
    )
    config = IngestConfig(**{field.name: getattr(options, field.name) for field in fields(IngestConfig)})
    if options.redo:
        _say_removed(remove_from("ingest", options.out))
    with _running(options) as progress:
        started = time.perf_counter()
        if options.extend:
            refuse_extension(options.out, {"ingest": ingest_identity(config)})
        made = ingest(
            options.raw,
            config,
            options.out / "columns",
            workers=options.workers,
            progress=progress,
            extend=options.extend,
        )
        if options.extend:
            _say_outdated(remove_stale(options.out))
    return _finish("ingest", made, time.perf_counter() - started, options.json)


def _stage(stage: str, words: list[str]) -> int:
    options = _parse_stage(stage, words, DEFAULT_SCHEMA)
    columns = options.dir / "columns"
    if (columns / MANIFEST).exists():
        options = _parse_stage(stage, words, Manifest.read(columns).config["schema"])
    if options.redo:
        _say_removed(remove_from(stage, options.dir))
    with _running(options) as progress:
        started = time.perf_counter()
        made = run_stage(
            stage,
            options.config,
            options.dir,
            workers=options.workers,
            memory_bytes=options.memory,
            progress=progress,
        )
    return _finish(stage, made, time.perf_counter() - started, options.json)


def _parse_stage(stage: str, words: list[str], schema: str) -> StageCommand[Any]:
    config = ScheduleConfig() if stage == "schedule" else getattr(recipe_for(schema), stage)
    command: type[StageCommand[Any]] = cast(Any, StageCommand)[type(config)]
    description = f"Run the stage {stage} in DIR: writes DIR/{ALL_FOLDERS[stage]}."
    default = StageCommand(dir=tyro.MISSING, config=config)
    return parse_options(command, words, command=stage, description=description, default=default)


def _finish(stage: str, made: Manifest, seconds: float, as_json: bool) -> int:
    if as_json:
        print_json({"stage": stage, "dir": str(made.folder), "seconds": seconds} | made.totals)
    else:
        print(f"{made.folder}: {len(made.files)} files, {sum(e.num_bytes for e in made.files):,} bytes")
        if stage == "schedule":
            print(describe_schedule(made))
    return 0


def _stage_json(report: StageReport) -> dict[str, Any]:
    return {"stage": report.stage, "seconds": report.seconds, "was_finished": report.was_sealed}


def _say_outdated(removed: list[Path]) -> None:
    for path in removed:
        again = ": it is made again" if path.name in FOLDERS.values() else ""
        say(f"removed {path}, made from fewer logs{again}")


def _say_removed(removed: list[Path]) -> None:
    for path in removed:
        say(f"removed {path}")
