"""``hotset preprocess``, its stages one by one, and ``--dry-run`` as a table."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table

from ...pipeline.dry_run import MAKING, REFUSED, RunPlan
from ...pipeline.errors import format_byte_size
from ...pipeline.folders.manifest import MANIFEST, Manifest, is_sealed
from ...pipeline.folders.partial import durable_files
from ...pipeline.folders.totals import ShardsTotals
from ...pipeline.preprocess import (
    PreprocessConfig,
    StageReport,
    check_resources,
    preprocess,
    remove_from,
    run_stage,
)
from ...pipeline.raw.raw_file import RawFile
from ...pipeline.runtime.memory import default_memory_bytes
from ...pipeline.runtime.tasks import Resources, num_workers, use_engine
from ...pipeline.stages.ingest import IngestConfig, ingest, ingest_identity, workers_for
from ...pipeline.stages.other_vocabulary import ID_MAP
from ...pipeline.stages.preflight import refuse_stage
from ...pipeline.stages.stage_order import FOLDERS, refuse_extension, remove_stale
from ..command_list import Command
from ..console import message_width, print_json, print_line, progress_bars, say, stdout_console
from ..options import command_options, config_of, field_docstrings
from .describe_stages import describe_id_map, describe_shards, describe_stage, explain_all_hot
from .preprocess_options import (
    IngestOptions,
    PreprocessOptions,
    RunOptions,
    StageOptions,
    parse_ingest,
    parse_preprocess,
    parse_stage,
)

_log = logging.getLogger(__name__)


@contextmanager
def _running(options: RunOptions) -> Iterator[Resources]:
    """Apply what holds for all stages of a command."""
    with durable_files(options.durable), use_engine(options.engine), progress_bars() as progress:
        resources = Resources(workers=options.workers, memory_bytes=options.memory, progress=progress)
        _log.info(
            "%s workers (%s), at most %s of anonymous memory",
            num_workers(resources.workers),
            options.engine,
            format_byte_size(resources.memory_bytes or default_memory_bytes()),
        )
        yield resources


@dataclass(frozen=True, kw_only=True)
class PreprocessCommand(PreprocessOptions):
    """Turn raw logs into shards, resuming what is unfinished."""

    @classmethod
    def parse(cls, command: str, arguments: Sequence[str]) -> PreprocessCommand:
        """Parse the arguments of ``hotset preprocess``."""
        return parse_preprocess(cls, arguments)

    def execute(self) -> int:
        """Run ``hotset preprocess``."""
        return _preprocess(self)


class IngestCommand(IngestOptions):
    """Parse raw logs, check every field, and write columns."""

    @classmethod
    def parse(cls, command: str, arguments: Sequence[str]) -> Any:
        """Parse the arguments of ``hotset ingest``."""
        return parse_ingest(cls, arguments)

    def execute(self) -> int:
        """Run ``hotset ingest``."""
        return _ingest(self)


class StageCommand(StageOptions):
    """One stage after ingest."""

    stage: ClassVar[str]
    config_type: ClassVar[type]

    @classmethod
    def parse(cls, command: str, arguments: Sequence[str]) -> Any:
        """Parse the arguments of the stage."""
        return parse_stage(cls, cls.stage, arguments)

    def chosen(self) -> tuple[str, Any]:
        """Return the stage to run and its settings."""
        return self.stage, config_of(self.config_type, self)

    def execute(self) -> int:
        """Run the stage."""
        return _stage(self)


def _preprocess(options: PreprocessCommand) -> int:
    if options.dry_run:
        return _dry_run(options)
    # Stages report as they end: on stderr immediately, and with --json in one object at the end.
    reports: list[StageReport] = []

    def report_stage(report: StageReport) -> None:
        reports.append(report)
        say(describe_stage(report, message_width()))

    with _running(options.run) as resources:
        # Nothing is deleted before all options are known to be valid.
        if options.redo:
            check_resources(
                options.raw,
                options,
                options.out,
                resources,
                extend=options.extend,
                redo=options.redo,
            )
            _report_removed(remove_from(options.redo, options.out))
        shards = preprocess(
            options.raw,
            options,
            options.out,
            resources,
            on_stage=report_stage,
            shards_only=options.shards_only,
            like=options.like,
            extend=options.extend,
            on_removed=_report_outdated,
        )
    # There is no map if no vocabulary was replaced.
    if options.extend and (options.out / ID_MAP / MANIFEST).exists():
        say(describe_id_map(Manifest.read(options.out / ID_MAP)))
    if options.run.json:
        print_json(
            {"stages": [_stage_json(report) for report in reports], "dir": str(options.out)} | shards.totals
        )
    else:
        print_line(stdout_console(), f"{options.out}: {describe_shards(shards)}")
        totals = ShardsTotals.of(shards)
        # A log that is only evaluated has nothing to place.
        is_trained = totals.samples.hot_only + totals.samples.mixed > 0
        all_hot = explain_all_hot(totals.num_rows, totals.num_hot_rows) if is_trained else None
        if all_hot:
            say(all_hot)
    return 0


def _dry_run(options: PreprocessCommand) -> int:
    # A run starts sooner without what estimates one.
    from ...pipeline.dry_run import plan_run

    pass

    # The plan follows the same rules as the run: both call `decide` on a folder's state.
    plan = plan_run(
        options.raw,
        options,
        options.out,
        Resources(workers=options.run.workers, memory_bytes=options.run.memory),
        redo=options.redo,
        extend=options.extend,
        like=options.like,
    )
    if options.run.json:
        print_json({"dir": str(options.out)} | plan.to_json())
    else:
        show_plan(plan, stdout_console())
    # The table shows which stage is refused; the error then says why, with exit status 1.
    if plan.refusal is not None:
        raise plan.refusal
    return 0


def _ingest(options: Any) -> int:
    config = config_of(IngestConfig, options)
    with _running(options.run) as resources:
        if options.redo:
            workers_for([RawFile.inspect(path) for path in options.raw], config, resources)
            _report_removed(remove_from("ingest", options.out))
        was_sealed = not options.extend and is_sealed(options.out / "columns")
        started = time.perf_counter()
        # A refused extension must leave the old columns as they are, so it is refused first.
        if options.extend:
            refuse_extension(options.out, {"ingest": ingest_identity(config)})
        columns = ingest(
            options.raw,
            config,
            options.out / "columns",
            resources,
            extend=options.extend,
        )
        # The new columns are sealed: folders written from fewer logs would now contradict them.
        if options.extend:
            _report_outdated(remove_stale(options.out))
    seconds = time.perf_counter() - started
    return _finish("ingest", columns, seconds, as_json=options.run.json, was_sealed=was_sealed)


def _stage(options: Any) -> int:
    stage, config = options.chosen()
    with _running(options.run) as resources:
        # The stage and what follows it go first; then it runs as if it had never been there.
        if options.redo:
            refuse_stage(stage, config, options.dir, resources)
            _report_removed(remove_from(stage, options.dir))
        was_sealed = is_sealed(options.dir / FOLDERS[stage])
        started = time.perf_counter()
        folder = run_stage(stage, config, options.dir, resources)
        seconds = time.perf_counter() - started
    return _finish(stage, folder, seconds, as_json=options.run.json, was_sealed=was_sealed)


def _finish(stage: str, folder: Manifest, seconds: float, *, as_json: bool, was_sealed: bool) -> int:
    """Print what a single stage wrote, in this run or in an earlier one."""
    if as_json:
        told = {"stage": stage, "dir": str(folder.folder), "seconds": seconds, "was_finished": was_sealed}
        print_json(told | folder.totals)
        return 0
    num_bytes = format_byte_size(sum(entry.num_bytes for entry in folder.files))
    num_files = len(folder.files)
    files = f"{num_files:,} file{'' if num_files == 1 else 's'}"
    when = ", already done" if was_sealed else f" in {seconds:.1f} s"
    print_line(stdout_console(), f"{folder.folder}: {files}, {num_bytes}{when}")
    return 0


def _stage_json(report: StageReport) -> dict[str, Any]:
    return {"stage": report.stage, "seconds": report.seconds, "was_finished": report.was_sealed}


def _report_outdated(removed: Sequence[Path]) -> None:
    for path in removed:
        then = "; it will be rebuilt" if path.name in FOLDERS.values() else ""
        say(f"removed {path}, which was written from fewer logs{then}")


def _report_removed(removed: Sequence[Path]) -> None:
    for path in removed:
        say(f"removed {path}")


def stage_command(stage: str, config: Any, more: Any, description: str) -> type[Command]:
    """Return the command of one stage, whose options are those of its config and of ``more``."""
    kind = command_options(config, more)
    kind.__doc__, kind.stage, kind.config_type = description, stage, config
    return kind


COMMANDS: dict[str, type[Command]] = {"preprocess": PreprocessCommand}
for _field in fields(PreprocessConfig):
    _more = IngestCommand if _field.name == "ingest" else StageCommand
    _description = field_docstrings(PreprocessConfig)[_field.name]
    COMMANDS[_field.name] = stage_command(_field.name, _field.default_factory, _more, _description)


def show_plan(plan: RunPlan, console: Console) -> None:
    """Print what each stage would do, and the disk and memory that the run needs."""
    table = Table(box=None, pad_edge=False)
    for name in ("stage", "folder", "bytes", "seconds", "state"):
        # Folders and reasons wrap where the terminal is narrow, so that no number is cut.
        is_long = name in ("folder", "state")
        table.add_column(
            name,
            justify="right" if name in ("bytes", "seconds") else "left",
            no_wrap=not is_long,
            overflow="fold",
        )
    for stage in plan.stages:
        state = stage.state
        # Finished stages cost nothing, and a column of zeros would hide which ones do.
        is_work = state.state in MAKING
        why = f" ({state.why})" if state.why and state.state != REFUSED else ""
        table.add_row(
            state.stage,
            str(state.folder),
            format_byte_size(stage.new_bytes) if is_work else "",
            f"{stage.seconds:.1f}" if is_work else "",
            state.state + why,
        )
    console.print(table)
    # Below the table the run as a whole.
    estimate = plan.estimate
    total = sum(stage.seconds for stage in plan.stages)
    console.print(
        f"\nAbout {estimate.num_samples:,.0f} samples in {format_byte_size(plan.text_bytes)} of raw data, "
        f"{estimate.num_rows:,.0f} rows; about {total:.1f} s on an idle machine."
    )
    disk = f"about {format_byte_size(plan.disk_needed)} more ({format_byte_size(plan.disk_free)} free)"
    memory = f"at most about {format_byte_size(plan.memory_peak)} (limit {format_byte_size(plan.memory_cap)})"
    console.print(f"Disk: {disk}. Memory: {memory}.")
    console.print("Nothing was written. These are estimates from a few MiB of the log.")
