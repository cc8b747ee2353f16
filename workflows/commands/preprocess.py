"""``hotset preprocess``, its stages one by one, and ``--dry-run`` as a table.

The defaults of options depend on the log: a schema's recipe sets them, and ``--like DIR`` takes those of
another folder. So each parser here finds the defaults first and then parses once.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from rich.console import Console
from rich.table import Table

from ...pipeline.errors import (
    ByteSize,
    ConfigError,
    exact_byte_size,
    format_byte_size,
    local_path,
    require_at_least,
)
from ...pipeline.folders.disk import durable_files
from ...pipeline.folders.manifest import MANIFEST, Manifest, is_sealed
from ...pipeline.folders.totals import ColumnsSettings, IdMapTotals, PlanSettings, ShardsTotals
from ...pipeline.preprocess import (
    CONFIGS,
    FOLDERS,
    ID_MAP,
    PreprocessConfig,
    StageReport,
    check_extension,
    check_resources,
    check_stage,
    preprocess,
    remove_from,
    remove_stale,
    run_stage,
)
from ...pipeline.raw.log_files import inspect_logs
from ...pipeline.runtime.limits import Node, default_memory_bytes, machine_bytes
from ...pipeline.runtime.tasks import EngineName, Resources, num_workers, use_engine
from ...pipeline.schema.schema_file import schema_named, setting_of
from ...pipeline.stages.ingest import IngestConfig, ingest, ingest_identity, workers_for
from ...pipeline.stages.rank import counted_samples, rare_shares
from ...pipeline.stages.split import AUTO_PERCENT, MOST_AUTO_BYTES
from ...stats.compile_notice import working_clock
from ..command_list import STAGE_INTERRUPTED, Command, command_options, config_of
from ..console import (
    describe_rate,
    message_width,
    print_json,
    print_line,
    progress_bars,
    say,
    say_next,
    stdout_console,
)
from ..option_texts import with_recipe
from ..options import (
    Arg,
    Dir,
    RecipeFile,
    field_docstrings,
    find_options,
    values_of,
)
from ..recipes import DEFAULT_SCHEMA, RECIPES, default_settings, recipe_for

if TYPE_CHECKING:
    from ...pipeline.dry_run import RunEstimate, StagePlan

_log = logging.getLogger(__name__)
_MOST_RARE = 0.9
"""Share of categories without a row, or of lookups of single ones, above which a log is warned of."""
_LEAST_SAMPLES = 1000
"""Training samples of a log that is judged."""

Raw = Annotated[tuple[Path, ...], Arg("RAW", is_positional=True)]
StageName = Annotated[str | None, Arg("STAGE")]


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """The options that say how a single stage runs."""

    workers: int = 0
    """Number of threads, or of processes of the Ray cluster; 0 takes every core."""

    memory: ByteSize | None = None
    """Limit on the anonymous resident memory of all processes of one machine together. Default: a quarter of
    the memory that the machine has."""

    json: bool = False
    """Print what was done, and the totals, as one JSON object on stdout."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(StageRun):
    """The options that say how all stages run."""

    engine: EngineName = "threads"
    """Kind of the workers: threads, or processes of the Ray cluster that RAY_ADDRESS names (without
    RAY_ADDRESS, of one started here)."""

    durable: bool = False
    """Sync every file to the device, so that finished files survive a power cut too."""


@dataclass(frozen=True, kw_only=True)
class PreprocessCommand(Command, PreprocessConfig):
    """Turn raw logs into shards, resuming what is unfinished."""

    on_interrupt = STAGE_INTERRUPTED
    main_options = {  # noqa: RUF012
        "log": ("schema", "on_bad_line", "eval_fraction"),
        "rows": ("hot_bytes", "embedding_dim", "embedding_optimizer", "min_count", "rank_by"),
        "batches": ("batch_size", "order", "seed"),
        "this run": ("dry_run", "nodes", "node_memory", "redo", "extend", "like", "recipe_file"),
        "machine and output": ("workers", "memory", "json"),
    }

    raw: Raw
    """Logs, in order: text or JSON Lines (plain, gzip, zstd, bz2, xz or lz4), Parquet, Arrow or ORC. A folder
    or a quoted pattern stands for its files."""

    out: Path
    """Folder for all stages; other commands call it DIR."""

    dry_run: bool = False
    """Report what the run would do, stage by stage, with tasks, bytes, memory and seconds; write nothing."""

    nodes: int = 0
    """Number of machines of a Ray cluster that --dry-run plans for; 0 plans for this machine."""

    node_memory: ByteSize | None = None
    """Memory of each of these machines. Default: that of this machine."""

    redo: StageName = None
    """Delete this stage and the later ones, then run."""

    extend: bool = False
    """Add the last of these logs to a DIR that was written from the first ones, whose settings it keeps. Only
    the new logs are read and counted; ids and everything that depends on them are rebuilt. DIR/id_map then
    says which id each row of the old vocabulary has now, so that a trained model can continue."""

    trust_names: bool = False
    """Take logs that were read before as unchanged where name and size are the same. By default they are read
    and compared with what was made of them."""

    like: Path | None = None
    """Take ids, hot rows and batch size from this DIR instead of counting. All samples are then for
    evaluation, which needs labels."""

    shards_only: bool = False
    """Remove the files of columns/ and samples/ at the end. To try another setting on DIR, the log must then
    be parsed again."""

    recipe_file: RecipeFile = None
    """Recipe with options in its table [preprocess]; options on the command line take precedence.
    `hotset recipe` prints one."""

    scratch: Path | None = None
    """Folder for large temporary files, where memory holds less than a third of the samples. Default: inside
    --out."""

    run: RunOptions = field(default_factory=RunOptions)
    """The same for every stage. None of these changes a byte of the output."""

    @classmethod
    def resolve(cls, arguments: Sequence[str]) -> tuple[Sequence[str], Mapping[str, Any]]:
        """Insert those of a recipe; other folders and ``--schema`` set the defaults."""
        arguments = with_recipe("preprocess", arguments)
        found, others = find_options(arguments, "--like", "--schema")
        # These decide the defaults of all other options, so they are read before those.
        schema = setting_of(found["--schema"]) if "--schema" in found else None
        like = local_path(found["--like"]) if "--like" in found else None
        recipe = default_settings(schema, like, _extended(others))
        stages = {stage: getattr(recipe, stage) for stage in FOLDERS}
        return others, {"like": like, **stages}

    def execute(self) -> int:
        """Run ``hotset preprocess``."""
        if self.dry_run:
            return self._dry_run()
        if self.nodes or self.node_memory is not None:
            raise ConfigError(
                "--nodes and --node-memory describe machines that --dry-run plans for",
                hint="give --dry-run too; --engine ray runs on a cluster",
            )
        # Stages report as they end: on stderr immediately, and with --json in one object at the end.
        reports: list[StageReport] = []

        def report_stage(report: StageReport) -> None:
            reports.append(report)
            say(describe_stage(report, message_width()))
            if report.stage == "split" and self.split.hot_bytes == "auto" and not report.was_sealed:
                say(describe_auto(report.manifest))
            if report.stage == "rank" and not report.was_sealed:
                warning = describe_rare(Manifest.read(self.out / "counts"), report.manifest, self)
                if warning is not None:
                    _log.warning(warning)

        run = self.run
        with (
            durable_files(run.durable),
            use_engine(run.engine),
            _running(run, self.scratch, run.engine) as resources,
        ):
            # Nothing is deleted before all options are known to be valid.
            if self.redo:
                from ...pipeline.dry_run import check_stages

                ways: dict[str, Any] = {"extend": self.extend, "redo": self.redo, "like": self.like}
                check_resources(self.raw, self, self.out, resources, **ways)
                check_stages(self.raw, self, self.out, **ways)
                _report_removed(remove_from(self.redo, self.out))
            shards = preprocess(
                self.raw,
                self,
                self.out,
                resources,
                on_stage=report_stage,
                shards_only=self.shards_only,
                like=self.like,
                extend=self.extend,
                trust_names=self.trust_names,
                on_removed=_report_outdated,
            )
        # There is no map if no vocabulary was replaced.
        if self.extend and (self.out / ID_MAP / MANIFEST).exists():
            say(describe_id_map(Manifest.read(self.out / ID_MAP)))
        if self.run.json:
            stages = [
                {"stage": report.stage, "seconds": report.seconds, "was_finished": report.was_sealed}
                for report in reports
            ]
            print_json({"stages": stages, "dir": str(self.out)} | shards.totals)
        else:
            print_line(stdout_console(), f"{self.out}: {describe_shards(shards)}")
            self._say_next(ShardsTotals.of(shards))
        return 0

    def _say_next(self, totals: ShardsTotals) -> None:
        """Print what the shards are for."""
        out = shlex.quote(str(self.out))
        # A log that is only evaluated has nothing to place.
        if totals.samples.hot_only + totals.samples.mixed == 0:
            say_next(f"evaluate RUN {out}")
            return
        if totals.num_hot_rows == totals.num_rows:
            say(
                f"note: all {totals.num_rows:,} rows fit in --hot-bytes, so placements make no difference; "
                "--redo split --hot-bytes auto takes those of 90% of the lookups"
            )
        say_next(f"train {out} --out RUN")

    def _machines(self) -> list[Node]:
        """Return the machines to plan for, each with as many cores as this one or as its share of workers."""
        require_at_least("--nodes", self.nodes, 0)
        require_at_least("--node-memory", self.node_memory, 1)
        if not self.nodes:
            if self.node_memory is not None:
                raise ConfigError("--node-memory is that of machines of --nodes: give --nodes too")
            return []
        workers = self.run.workers or self.nodes * num_workers(0)
        return [Node(-(-workers // self.nodes), self.node_memory or machine_bytes())] * self.nodes

    def _dry_run(self) -> int:
        # A run starts sooner without what estimates one.
        from ...pipeline.dry_run import estimate_run

        # The plan follows the same rules as the run: both call `decide` on a folder's state.
        plan = estimate_run(
            self.raw,
            self,
            self.out,
            Resources(self.run.workers, self.run.memory, scratch=self.scratch),
            redo=self.redo,
            extend=self.extend,
            like=self.like,
            machines=self._machines(),
        )
        if self.run.json:
            print_json({"dir": str(self.out)} | plan.to_json())
        else:
            show_plan(plan, stdout_console())
        # The table shows which stage is refused; the error then says why, with exit status 1.
        if plan.refusal is not None:
            raise plan.refusal
        return 0


@dataclass(frozen=True, kw_only=True)
class IngestOptions(Command):
    """Options of ingest besides those of its config."""

    on_interrupt = STAGE_INTERRUPTED

    raw: Raw
    """Logs, in order: text or JSON Lines (plain, gzip, zstd, bz2, xz or lz4), Parquet, Arrow or ORC. A folder
    or a quoted pattern stands for its files."""

    out: Path
    """Folder for all stages; other commands call it DIR."""

    redo: bool = False
    """Delete this stage and the later ones, then run."""

    extend: bool = False
    """Add the last of these logs to columns that were written from the first ones, and delete the folders
    that must be rebuilt."""

    trust_names: bool = False
    """Take logs that were read before as unchanged where name and size are the same. By default they are read
    and compared with what was made of them."""

    run: StageRun = field(default_factory=StageRun)
    """The same for every stage. None of these changes a byte of the output."""

    @classmethod
    def resolve(cls, arguments: Sequence[str]) -> tuple[Sequence[str], Mapping[str, Any]]:
        """Take the defaults from ``--schema`` or the folder that is extended."""
        found, others = find_options(_with_bare_redo("ingest", arguments), "--schema")
        schema = setting_of(found["--schema"]) if "--schema" in found else None
        recipe = default_settings(schema, None, _extended(others))
        return others, values_of(recipe.ingest)

    def execute(self) -> int:
        """Run ``hotset ingest``."""
        config = config_of(IngestConfig, self)
        with _running(self.run) as resources:
            if self.redo:
                workers_for(inspect_logs(self.raw), config, resources)
                _report_removed(remove_from("ingest", self.out))
            was_sealed = not self.extend and is_sealed(self.out / "columns")
            started = working_clock()
            # A refused extension must leave the old columns as they are, so it is refused first.
            if self.extend:
                check_extension(self.out, {"ingest": ingest_identity(config)})
            folder = self.out / "columns"
            extend, trusts = self.extend, self.trust_names
            columns = ingest(self.raw, config, folder, resources, extend=extend, trust_names=trusts)
            # The new columns are sealed: folders written from fewer logs would now contradict them.
            if self.extend:
                _report_outdated(remove_stale(self.out))
        seconds = working_clock() - started
        return _finish("ingest", columns, seconds, as_json=self.run.json, was_sealed=was_sealed)


@dataclass(frozen=True, kw_only=True)
class StageOptions(Command):
    """Options of a later stage besides those of its config."""

    on_interrupt = STAGE_INTERRUPTED
    stage: ClassVar[str]
    config_type: ClassVar[type]

    dir: Dir
    """Folder of all stages, as `preprocess --out` or `ingest --out` created it."""

    redo: bool = False
    """Delete this stage and the later ones, then run."""

    run: StageRun = field(default_factory=StageRun)
    """The same for every stage. None of these changes a byte of the output."""

    @classmethod
    def resolve(cls, arguments: Sequence[str]) -> tuple[Sequence[str], Mapping[str, Any]]:
        """Take the defaults from the folder."""
        arguments = _with_bare_redo(cls.stage, arguments)
        default = getattr(_recipe_in(arguments), cls.stage)
        return arguments, values_of(default)

    def execute(self) -> int:
        """Run the stage."""
        config: Any = config_of(self.config_type, self)
        with _running(self.run, getattr(self, "scratch", None)) as resources:
            # The stage and what follows it go first; then it runs as if it had never been there.
            if self.redo:
                check_stage(self.stage, config, self.dir, resources)
                _report_removed(remove_from(self.stage, self.dir))
            was_sealed = is_sealed(self.dir / FOLDERS[self.stage])
            started = working_clock()
            folder = run_stage(self.stage, config, self.dir, resources)
            seconds = working_clock() - started
        if getattr(config, "hot_bytes", None) == "auto" and not was_sealed:
            say(describe_auto(folder))
        return _finish(self.stage, folder, seconds, as_json=self.run.json, was_sealed=was_sealed)


@dataclass(frozen=True, kw_only=True)
class PackOptions(StageOptions):
    """Options of pack besides those of its config."""

    scratch: Path | None = None
    """Folder for large temporary files, where memory holds less than a third of the samples. Default: inside
    DIR."""


def _extended(arguments: Sequence[str]) -> Path | None:
    """Return the DIR that the arguments extend; None where they extend none."""
    found, others = find_options(arguments, "--out")
    return local_path(found["--out"]) if "--extend" in others and "--out" in found else None


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


@contextmanager
def _running(
    options: StageRun, scratch: Path | None = None, engine: EngineName = "threads"
) -> Iterator[Resources]:
    """Apply what holds for all stages of a command."""
    with progress_bars() as progress:
        resources = Resources(options.workers, options.memory, progress, scratch)
        _log.info(
            "%s workers (%s), at most %s of anonymous memory",
            num_workers(resources.workers),
            engine,
            format_byte_size(resources.memory_bytes or default_memory_bytes()),
        )
        yield resources


def _finish(stage: str, folder: Manifest, seconds: float, *, as_json: bool, was_sealed: bool) -> int:
    """Print what a single stage wrote, in this run or in an earlier one."""
    if as_json:
        facts = {"stage": stage, "dir": str(folder.folder), "seconds": seconds, "was_finished": was_sealed}
        print_json(facts | folder.totals)
        return 0
    num_bytes = format_byte_size(sum(entry.num_bytes for entry in folder.files))
    num_files = len(folder.files)
    files = f"{num_files:,} file{'' if num_files == 1 else 's'}"
    when = ", already done" if was_sealed else f" in {seconds:.1f} s"
    print_line(stdout_console(), f"{folder.folder}: {files}, {num_bytes}{when}")
    return 0


def _report_outdated(removed: Sequence[Path]) -> None:
    for path in removed:
        then = "; it will be rebuilt" if path.name in FOLDERS.values() else ""
        say(f"removed {path}, which was written from fewer logs{then}")


def _report_removed(removed: Sequence[Path]) -> None:
    for path in removed:
        say(f"removed {path}")


def _stage_command(stage: str, more: Any) -> type[Command]:
    """Return the command of one stage, whose options are those of its config and of ``more``."""
    kind = command_options(CONFIGS[stage], more)
    kind.__doc__ = field_docstrings(PreprocessConfig)[stage]
    kind.stage, kind.config_type = stage, CONFIGS[stage]
    return kind


IngestCommand = _stage_command("ingest", IngestOptions)
CountCommand, RankCommand, EncodeCommand, SplitCommand = (
    _stage_command(stage, StageOptions) for stage in ("count", "rank", "encode", "split")
)
PackCommand = _stage_command("pack", PackOptions)


_HEADINGS = {
    "stage": "left",
    "tasks": "right",
    "passes": "right",
    "read": "right",
    "written": "right",
    "temporary": "right",
    "memory": "right",
    "time": "right",
    "state": "left",
}


def show_plan(plan: RunEstimate, console: Console) -> None:
    """Print what each stage would do, and the disk and memory that the run needs."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name, justify in _HEADINGS.items():
        # Reasons wrap where the terminal is narrow, so that no number is cut.
        table.add_column(name, justify=justify, no_wrap=name != "state", overflow="fold")  # type: ignore[arg-type]
    for stage in plan.stages:
        table.add_row(stage.stage, *_cells_of(stage))
    console.print(table)
    # Below the table the run as a whole.
    estimate = plan.estimate
    total = sum(stage.seconds for stage in plan.stages)
    console.print(
        f"\nAbout {estimate.num_samples:,.0f} samples in {format_byte_size(plan.text_bytes)} of raw data, "
        f"{estimate.num_rows:,.0f} rows; "
        f"about {_duration(total)} of computing on {_describe_machines(plan.machines)}."
    )
    free = "" if plan.machines else f" ({format_byte_size(plan.disk_free)} free)"
    peak, cap = format_byte_size(plan.memory_peak), format_byte_size(plan.memory_cap)
    each = " on each machine" if plan.machines else ""
    temporary = max(
        (stage.work.temporary_bytes for stage in plan.stages if stage.work is not None), default=0
    )
    meanwhile = f", and up to {format_byte_size(temporary)} while a stage runs" if temporary else ""
    console.print(f"Disk: about {format_byte_size(plan.disk_needed)} more{meanwhile}{free}.")
    console.print(f"Memory: at most about {peak}{each} (limit {cap}).")
    console.print("Nothing was written. These are estimates from a few MiB of the log.")


def _cells_of(stage: StagePlan) -> list[str]:
    """Return the cells of a stage after its name."""
    from ...pipeline.dry_run import REFUSED

    state = stage.state if stage.state == REFUSED or not stage.why else f"{stage.state} ({stage.why})"
    # Finished stages cost nothing, and a column of zeros would hide which ones do.
    work = stage.work
    if work is None:
        return ["", "", "", "", "", "", "", state]
    sizes = (work.bytes_read, work.bytes_written, work.temporary_bytes, work.memory_bytes)
    shown = [format_byte_size(size) if size else "" for size in sizes]
    return [f"{work.tasks:,}", f"{work.passes:,}", *shown, _duration(stage.seconds), state]


def _duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 36_000 else f"{seconds / 3600:,.0f} h"


def _describe_machines(machines: Sequence[Node]) -> str:
    if not machines:
        return "an idle machine"
    node = machines[0]
    number = f"{len(machines)} idle machines" if len(machines) > 1 else "an idle machine"
    return f"{number} of {node.cores} cores and {format_byte_size(node.memory_bytes)}"


def describe_stage(report: StageReport, width: int | None = None) -> str:
    """Return one line: the stage, its folder, how long it took and how fast that was.

    Where this is longer than ``width``, the folder is shown without those that it is in.
    """
    # A stage may end within the clock's resolution.
    rate = report.num_samples / max(report.seconds, 1e-9)
    num_bytes = format_byte_size(sum(entry.num_bytes for entry in report.manifest.files))
    figures = f"{num_bytes} in {report.seconds:.1f} s, {describe_rate(rate)}"
    folder = report.manifest.folder
    line, shorter = (
        f"{report.stage:<8} {name}: {'already done' if report.was_sealed else figures}"
        for name in (folder, folder.name)
    )
    return line if width is None or len(line) <= width else shorter


def describe_rare(counts: Manifest, vocabulary: Manifest, config: PreprocessConfig) -> str | None:
    """Return one line on a log whose categories are nearly all unknown, or occur once; None for others."""
    no_row, unknown, single = rare_shares(counts, vocabulary)
    if len(counted_samples(counts)) < _LEAST_SAMPLES:
        return None
    if single > _MOST_RARE:
        return (
            f"{single:.0%} of the lookups are of categories that occur once, which teach a model nothing: "
            "`hotset schema LOG` proposes columns that repeat"
        )
    # A recipe for a large log keeps few categories of a small one; a threshold of the user's is no surprise.
    name, least = config.ingest.schema, config.rank.min_count
    if no_row < _MOST_RARE or name not in RECIPES or least != recipe_for(name).rank.min_count:
        return None
    others = [other for other in RECIPES if schema_named(other) == schema_named(name)]
    other = min(others, key=lambda each: recipe_for(each).rank.min_count)
    if recipe_for(other).rank.min_count == least:
        return None
    return (
        f"{no_row:.0%} of the categories, with {unknown:.0%} of the lookups, occur fewer than {least} times "
        f"and share one row of their table: if the log is not that of {name}, give --schema {other}"
    )


def describe_auto(plan: Manifest) -> str:
    """Return one line: the bytes that ``--hot-bytes auto`` stands for in a plan."""
    settings = PlanSettings.of(plan)
    found = settings.hot_bytes
    why = f"the rows that serve {AUTO_PERCENT}% of the training lookups"
    if settings.mode != "budget":
        why = "the default of FAE's code"
    elif found >= MOST_AUTO_BYTES:
        why = "the most it takes"
    return f"--hot-bytes auto is {exact_byte_size(found)}: {why}"


def describe_shards(shards: Manifest) -> str:
    """Return one line: samples and batches of each kind, and how many rows are hot."""
    totals = ShardsTotals.of(shards)
    samples = totals.samples
    batches = totals.batches
    return (
        f"{samples.hot_only:,} samples in {_batches(batches.hot_only, 'hot-only')}, "
        f"{samples.mixed:,} in {_batches(batches.mixed, 'mixed')}, "
        f"{samples.evaluation:,} for evaluation; "
        f"{totals.num_hot_rows:,} of {totals.num_rows:,} rows are hot"
    )


def _batches(count: int, kind: str) -> str:
    return f"{count:,} {kind} batch{'' if count == 1 else 'es'}"


def describe_id_map(id_map: Manifest) -> str:
    """Return one line: how many rows are kept, and the share of lookups they serve."""
    totals = IdMapTotals.of(id_map)
    share = totals.kept_lookups / max(1, totals.new_lookups)
    num_new = totals.num_new_rows - totals.num_kept
    return (
        f"{id_map.folder}: {totals.num_kept:,} of {totals.num_old_rows:,} old rows are kept; "
        f"they serve {share:.1%} of the lookups counted for the new vocabulary. "
        f"{num_new:,} rows start fresh"
    )
