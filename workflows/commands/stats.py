"""``hotset stats``, ``advise`` and ``characterise``: what a log looks up, and what pays off for it.

Statistics of a folder, or rows of a table; predictions from counts and from speeds that are measured.
"""

from __future__ import annotations

import errno
import io
import os
import resource
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ...pipeline.errors import (
    GIB,
    ByteSize,
    ConfigError,
    HotsetError,
    MissingExtraError,
    SystemFaultError,
    format_byte_size,
    install_hint,
    require_at_least,
)
from ...pipeline.folders.disk import check_target, whole_file
from ...pipeline.runtime.tasks import Resources, num_workers
from ...pipeline.statistics.coverage import replication_of
from ...pipeline.statistics.folder import Inspected, open_table
from ...pipeline.statistics.frequencies import QUICK, frequency_statistics
from ...pipeline.statistics.traffic import exchange_of_ranks
from ...stats.replication import Network
from ...stats.step_times import Machine
from ...train.advice import AdviceConfig, MachineSpeeds, advise
from ..command_list import JsonCommand
from ..console import (
    TextTable,
    print_json,
    print_line,
    print_table,
    progress_bars,
    say,
    stdout_console,
)
from ..machine import cpu_model
from ..options import Dir
from ..report.sentences import TYPICAL_DEVICE, placement_sentence, preprocess_command, splits_sentence
from ..report.tables import (
    advice_rows,
    describe_default_runs,
    named_tables,
    series_frames,
    text_table,
)

_TITLES = {
    "features": "Lookups of {num_train_samples:,} training samples",
    "budgets": "What fast memory buys (dim {embedding_dim}, {row_bytes} bytes per row, {num_rows:,} rows)",
    "coverage": "Share of lookups served by the most looked-up rows of each table",
    "hot_samples": "Fully hot samples by memory for hot rows and order of rows",
    "miss_ratios_curve": "Rows loaded again by cache policy",
    "default_runs_placements": "Bytes that the placements move by default",
    "unique_rows": "Distinct rows per batch",
    "drift_parts": "Parts of the log",
    "drift_by_age": "Hot rows of {budget} by age",
    "hot_tables": "Hot rows by table",
    "log_labels": "Labels",
    "log_label_rates": "Labels by name",
    "log_parts": "Labels by part of the log",
    "log_missing": "Missing values",
    "log_dense": "Dense features",
    "categories": "Top categories of each table",
}
"""Titles of the tables that the terminal shows."""


def show_statistics(statistics: dict[str, Any], console: Console) -> None:
    """Print the series, then the split and any warning."""
    budget = format_byte_size(statistics["drift"]["budget_bytes"]) if "drift" in statistics else ""
    for name, rows in named_tables(statistics):
        # A series that could not be found out has no rows; the lines at the end say why.
        if name not in _TITLES or not rows:
            continue
        if name == "budgets":
            num_rows = max(1, statistics["num_rows"])
            rows = [row | {"row_share": row["num_hot_rows"] / num_rows} for row in rows]
        print_table(console, text_table(name, rows, _TITLES[name].format(**statistics, budget=budget)))
        if name == "default_runs_placements":
            print_line(console, describe_default_runs(statistics["default_runs"]))
    # The split of the log and what was left out are last, below the figures they qualify.
    _show_split(statistics, console)
    for line in statistics["left_out"]:
        print_line(console, f"Left out: {line}.")
    for warning in statistics["warnings"]:
        print_line(console, f"Warning: {warning}.", style="bold yellow")


def show_rows(found: dict[str, Any], console: Console) -> None:
    """Print rows of one table, as `TableRows.rows` returns them."""
    # The title says what the shares are shares of.
    shared = f", table {found['table']} of {', '.join(found['features'])}" if "table" in found else ""
    title = f"{found['feature']} ({found['kind']}){shared}: "
    title += f"{found['num_rows']:,} rows, {found['num_lookups']:,} lookups"
    print_table(console, text_table("rows_of_table", found["rows"], title))
    # A category outside the vocabulary is shown as the row that its lookups use.
    for row in found["rows"]:
        if not row.get("is_known", True):
            asked = f"{row['asked']} has no id: its lookups use the out-of-vocabulary row, shown here."
            print_line(console, asked)


def show_ranks(found: dict[str, Any], console: Console) -> None:
    """Print what crosses between ranks, a table for each number of them."""
    is_whole = found["num_samples"] == found["num_train_samples"]
    for row in found["ranks"]:
        samples = f"{row['rank_samples']:,.0f} samples each on average"
        title = f"{row['ranks']} ranks, {samples}: rows to a rank in a step"
        columns = {"expected": "expected", "counted": "counted"}
        if not is_whole:
            columns["expected, whole epoch"] = "expected_of_epoch"
        rows = []
        for scheme in row["schemes"]:
            figures = [scheme[key] for key in columns.values()]
            rows.append([scheme["scheme"], *("-" if each is None else f"{each:,.0f}" for each in figures)])
        print_table(console, TextTable(["scheme", *columns], rows, title))
    print_line(
        console,
        f"Vectors and gradients together, in batches of {found['batch_size']:,}. Counted in the first "
        f"{found['num_samples']:,} of {found['num_train_samples']:,} samples in the shuffled order.",
    )


def _show_split(statistics: dict[str, Any], console: Console) -> None:
    samples = statistics["samples"]
    batches = statistics["batches"]
    line = (
        f"Samples: {samples['hot']:,} hot, {samples['mixed']:,} mixed, "
        f"{samples['evaluation']:,} for evaluation"
    )
    # Before `pack` there are no batches.
    if batches:
        line += (
            f". Batches of {batches['batch_size']:,}: {batches['hot_only']:,} hot-only, "
            f"{batches['mixed']:,} mixed, {batches['evaluation']:,} for evaluation"
        )
    print_line(console, f"{line}.")
    # What a reader may wonder about: what sampling lost, what has no id.
    if statistics["calibration"]:
        print_line(console, _describe_calibration(statistics, statistics["calibration"]))
    share = statistics["oov"]["evaluation_share"]
    if share is not None:
        print_line(console, f"{share:.2%} of the evaluation lookups fall on the out-of-vocabulary row.")


def _describe_calibration(statistics: dict[str, Any], facts: dict[str, Any]) -> str:
    """Return what FAE's sampling chose, next to exact counts."""
    num_train = max(1, statistics["num_train_samples"])
    found = statistics["samples"]["hot"] / num_train
    exact = facts["exact"]["hot_samples"] / num_train
    chosen = f"{statistics['num_hot_rows']:,} rows, {format_byte_size(facts['hot_bytes'])}"
    # Only `fae-paper` estimates sizes; `fae-code` takes as many rows as fit.
    if "estimated_bytes" in facts:
        low, _, high = map(format_byte_size, facts["estimated_bytes"])
        covers = "covers" if facts["is_covered"] else "does not cover"
        chosen += (
            f" (its estimate of {low} to {high} {covers} that; so do the estimates of "
            f"{facts['num_covered_tables']} of {facts['num_large_tables']} tables)"
        )
    return (
        f"{statistics['mode']} counted {facts['num_drawn_samples']:,} samples and chose {chosen}; "
        f"{facts['num_unsampled_hot_rows']:,} of these rows never occurred in its sample. "
        f"{found:.1%} of the samples are fully hot; "
        f"with exact counts {exact:.1%} would be, in the same memory."
    )


_TOP = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class StatsCommand(JsonCommand):
    """Show how lookups are distributed over rows."""

    json_object = "all statistics"

    dir: Dir
    """Folder that `preprocess --out` created."""

    feature: str | None = None
    """Show the first rows of the table of this feature: id, category, lookups and their share."""

    top: int | None = None
    """With --feature: number of rows to show. Default: 20."""

    id: int | None = None
    """With --feature: show only the row with this id."""

    category: str | None = None
    """With --feature: show only the row of this category, written as in the log, or (missing) or (oov)."""

    series: tuple[str, ...] | None = None
    """Series to compute: features, budgets, coverage, hot_samples, miss_ratios, default_runs, unique_rows,
    drift, hot_tables, log, categories. Default: the first two; all of them with --json or --parquet."""

    html: Path | None = None
    """Write a report to this file: one page with charts and tables that loads nothing from the network."""

    parquet: Path | None = None
    """Write every series to this folder, one Parquet file each."""

    parts: int | None = None
    """Number of parts of the training data whose hot rows drift compares. Default: one per raw file, or 6 for
    a single file."""

    ranks: tuple[int, ...] | None = None
    """Show the rows that would cross between so many ranks, such as 2,4,8: expected, and counted."""

    workers: int = 0
    """Number of threads; 0 takes every core."""

    def __post_init__(self) -> None:
        # Options of one table and those of all tables exclude each other.
        given = [name for name in ("top", "id", "category") if getattr(self, name) is not None]
        if given and self.feature is None:
            raise ConfigError(f"--{given[0]} needs --feature, which names a table")
        wide = [name for name in ("html", "parquet", "series", "parts") if getattr(self, name) is not None]
        if wide and self.feature is not None:
            raise ConfigError(f"--{wide[0]} covers all tables and cannot be combined with --feature")
        if self.html is not None and self.series is not None:
            raise ConfigError("--html shows every series and cannot be combined with --series")
        if self.ranks is not None and (wide or self.feature is not None):
            other = wide[0] if wide else "feature"
            raise ConfigError(f"--ranks shows rows between ranks and cannot be combined with --{other}")
        if len(given) > 1:
            raise ConfigError(f"--{given[0]} and --{given[1]} select different rows and cannot be combined")
        require_at_least("--top", self.top, 1)

    def execute(self) -> int:
        """Run ``hotset stats``."""
        if self.feature is not None:
            return _show_table(self, self.feature)
        if self.ranks is not None:
            return _show_ranks(self, self.ranks)
        # In a terminal only the series that take no time; files and JSON get all of them.
        is_quick = not self.json and self.html is None and self.parquet is None
        # What would fail at the end is refused before the work begins.
        if self.html is not None:
            check_html(self.html)
        if self.parquet is not None:
            check_parquet(self.parquet)
        with progress_bars() as progress:
            statistics = frequency_statistics(
                self.dir,
                Resources(workers=self.workers, progress=progress),
                series=QUICK if is_quick and self.series is None else self.series,
                num_parts=self.parts,
            )
        # The command is the command line's to word; the report and --json print it.
        provenance = statistics["provenance"]
        provenance["command"] = preprocess_command(provenance, self.dir)
        if self.html is not None:
            write_html(self.dir, statistics, self.html, workers=self.workers)
            say(f"wrote {self.html}")
        if self.parquet is not None:
            files = write_parquet(statistics, self.parquet)
            say(f"wrote {len(files)} files to {self.parquet}: {', '.join(path.name for path in files)}")
        if self.json:
            print_json(statistics)
        elif is_quick:
            show_statistics(statistics, stdout_console())
        return 0


def _show_ranks(options: StatsCommand, ranks: Sequence[int]) -> int:
    with progress_bars() as progress:
        resources = Resources(workers=options.workers, progress=progress)
        found = exchange_of_ranks(Inspected.open(options.dir, resources), ranks)
    if options.json:
        print_json(found)
    else:
        show_ranks(found, stdout_console())
    return 0


def _show_table(options: StatsCommand, feature: str) -> int:
    table = open_table(options.dir, feature)
    # The requested row, or the most important ones.
    if options.id is not None:
        rows = [table.by_id(options.id)]
    elif options.category is not None:
        rows = [table.by_category(options.category)]
    else:
        rows = table.head(options.top or _TOP)
    found: dict[str, Any] = {
        "feature": feature,
        "kind": table.kind,
        "num_rows": table.counts.shape[0],
        "num_lookups": int(table.counts.sum()),
        "rows": rows,
    }
    # The lookups of a shared table are those of all its features.
    if table.table.features:
        found |= {"table": table.table.name, "features": [each.name for each in table.table.features]}
    if options.json:
        print_json(found)
    else:
        show_rows(found, stdout_console())
    return 0


_GIGA = 1e9
_TERA = 1e12
_MICRO = 1e-6
MOST_DEVICES = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class AdviseCommand(JsonCommand):
    """Predict the time per step by placement and fast memory."""

    json_object = "the predictions"

    dir: Dir
    """Folder that `preprocess --out` created."""

    engine: Literal["hotset", "torchrec"] = "hotset"
    """Engine to advise for: hotset compares placements on one device, torchrec ways to divide rows among
    several."""

    devices: tuple[int, ...] | None = None
    """With --engine torchrec: one or more numbers of devices. Default: 2, 4 and 8."""

    fast_bytes: tuple[ByteSize, ...] = ()
    """One or more sizes of fast memory to consider, for all uses together. Default: a range of sizes, or
    no limit with --engine torchrec."""

    batch_size: int | None = None
    """Number of samples per step. Default: that of the shards in DIR."""

    model: str = "auto"
    """Model: auto, a preset of DLRM (kaggle, terabyte, mlperf, small), or dcnv2 with its default layers."""

    speeds: Path | None = None
    """File of measured speeds that `characterise` wrote. Default: typical speeds, which the output names."""

    def __post_init__(self) -> None:
        """Raise ConfigError for an option of the other engine."""
        if self.engine == "hotset":
            if self.devices is not None:
                raise ConfigError("--devices needs --engine torchrec: hotset's own advice is for one device")
            return
        for option, is_given in (
            ("--batch-size", self.batch_size is not None),
            ("--model", self.model != "auto"),
        ):
            if is_given:
                raise ConfigError(f"{option} changes nothing with --engine torchrec: leave it out")
        if len(self.fast_bytes) > 1:
            raise ConfigError("give one size of --fast-bytes with --engine torchrec")
        if not all(1 <= devices <= MOST_DEVICES for devices in self.devices or ()):
            raise ConfigError(f"--devices must be from 1 to {MOST_DEVICES}")

    def measured_speeds(self) -> MachineSpeeds | None:
        """Return the speeds of the file; None where there is none.

        Raises:
            ConfigError: the file cannot be read.
        """
        return None if self.speeds is None else MachineSpeeds.read(self.speeds)

    def machine(self) -> Machine:
        """Return the speeds of the file, or typical ones.

        Raises:
            ConfigError: the file of speeds cannot be read.
        """
        speeds = self.measured_speeds()
        return Machine() if speeds is None else speeds.machine()

    @property
    def device(self) -> str:
        """The device whose steps are predicted, for the title of the output."""
        speeds = self.measured_speeds()
        if speeds is None:
            return TYPICAL_DEVICE
        cores = "an unknown number of" if speeds.cores is None else speeds.cores
        name = f"{speeds.device_name}, {cores} core{'' if cores == 1 else 's'}"
        is_here = (speeds.device_name, speeds.cores) == (cpu_model(), num_workers(0))
        return f"{'this' if is_here else 'another'} machine ({name})"

    @property
    def source(self) -> str:
        """Origin of the speeds, for the title of the output."""
        return "typical speeds" if self.speeds is None else f"speeds of {self.speeds.name}"

    def execute(self) -> int:
        """Run ``hotset advise``."""
        if self.engine == "torchrec":
            return self._compare_splits()
        config = AdviceConfig(fast_bytes=self.fast_bytes, batch_size=self.batch_size, model=self.model)
        machine = self.machine()
        with progress_bars() as progress:
            advice = advise(self.dir, config, machine, Resources(progress=progress))
        if self.json:
            print_json(advice)
        else:
            show_advice(advice, stdout_console(), self.source, self.device)
        return 0

    def _compare_splits(self) -> int:
        speeds = self.measured_speeds()
        network = Network() if speeds is None else speeds.network()
        device_bytes = self.fast_bytes[0] if self.fast_bytes else None
        # These import torch, as hotset's own advice does not.
        from ...train.data.shards import ShardSet
        from ...train.torchrec.sharding import count_uses

        shards = ShardSet.open(self.dir)
        with progress_bars() as progress:
            uses = count_uses(shards, self.devices or (2, 4, 8), progress=progress)
        found = replication_of(shards.manifest, uses, device_bytes=device_bytes, network=network)
        if self.json:
            print_json({"network": asdict(network), "device_bytes": device_bytes, "devices": found})
        else:
            show_splits(found, network, stdout_console())
        return 0


def show_splits(found: Sequence[dict[str, Any]], network: Network, console: Console) -> None:
    """Print what `replication_of` returned: a table and a verdict for each number of devices."""
    for row in found:
        devices = f"{row['devices']} device{'' if row['devices'] == 1 else 's'}"
        title = (
            f"{devices}, batches of {row['batch_size']:,} samples: bytes of embedding rows that each device "
            "hands to collectives"
        )
        print_table(console, text_table("splits", row["splits"], title))
        print_line(console, splits_sentence(row, network))
    print_line(
        console,
        f"Counted in {found[0]['num_batches']} training batches as TorchRec would exchange them; nothing was "
        "trained. Gradients of dense layers come on top, alike for all.",
    )


def show_advice(
    advice: dict[str, Any],
    console: Console,
    source: str = "typical speeds",
    device: str = TYPICAL_DEVICE,
) -> None:
    """Print what `advise` returned: speeds, memory, and what to do.

    Args:
        advice: predictions.
        console: where to print.
        source: where the speeds of the machine are from.
        device: the one whose steps are predicted.
    """
    # Placements that do not fit are rows too: how much they lack is the next question.
    every = text_table("placements", advice_rows(advice, with_too_large=True), _title(advice, source, device))
    print_table(console, every, num_keys=2)
    fastest = "Fast memory of the fastest placement, by use"
    print_table(console, text_table("memory", advice_rows(advice, only_fastest=True), fastest), num_keys=2)
    print_line(console, placement_sentence(advice, where="above", device=device))
    print_line(
        console,
        "These are predictions from counts and the speeds in the title, not measurements; "
        "`hotset characterise --out FILE` measures the speeds of this machine for --speeds FILE.",
    )


def _title(advice: dict[str, Any], source: str, device: str) -> str:
    machine = advice["machine"]
    return (
        f"Predicted for {device}: steps of {advice['workload']['batch_size']:,} samples, {source} "
        f"(link {machine['link_bytes_per_second'] / _GIGA:.3g} GB/s, "
        f"host {machine['host_bytes_per_second'] / _GIGA:.3g} GB/s, "
        f"{machine['flops'] / _TERA:.3g} TFLOP/s, {machine['step_seconds'] / _MICRO:.3g} µs a step)"
    )


@dataclass(frozen=True, kw_only=True)
class CharacteriseCommand(JsonCommand):
    """Measure training speed by model on this machine."""

    json_object = "the findings"
    on_interrupt = "finished cells are kept; run the same command to resume"
    needs_torch = True

    out: Path
    """File for the speeds, such as machine.json. Its cells go next to it, to machine.cells.jsonl."""

    minutes: float = 8.0
    """Minutes that measuring may take."""

    threads: int | None = None
    """Number of threads of a step. Default: the cores this process may use."""

    html: Path | None = None
    """File for a page with the findings: charts of speed by factor, verdicts on published observations."""

    def __post_init__(self) -> None:
        if not 0 < self.minutes < float("inf"):
            raise ConfigError(f"minutes must be above 0, got {self.minutes:g}")
        require_at_least("threads", self.threads, 1)

    def execute(self) -> int:
        """Run ``hotset characterise``."""
        # torch takes a second and more to import: not before the options are known to be right.
        from ..characterise import characterise
        from ..report.findings import findings_page, findings_record, show_findings

        # A page that cannot be drawn or written is refused before minutes of work.
        if self.html is not None:
            check_html(self.html)
            check_target(self.html, overwrite=False, option="--html")
        result = characterise(self.out, self.minutes, self.threads, say)
        say(f"wrote {self.out}")
        if self.html is not None:
            with whole_file(self.html, option="--html") as file:
                file.write(findings_page(result).encode())
            say(f"wrote {self.html}")
        if self.json:
            print_json(findings_record(result))
        else:
            show_findings(result, stdout_console())
        return 0


_ADDRESSES_OF_ENGINE = 80 * GIB
"""Address space with which the drawing package's engine starts; with 64 GiB it does not."""


def check_html(out: Path) -> None:
    """Check that a report can be drawn and written.

    Raises:
        MissingExtraError: the packages that draw are not installed.
        SystemFaultError: the process may have too few addresses for them.
        HotsetError: ``out`` is no regular file, or its folder does not exist or is read-only.
    """
    # The engine that draws reserves addresses, few of which become memory, and ends the process without them.
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY and most < _ADDRESSES_OF_ENGINE:
        raise SystemFaultError(
            f"--html needs {format_byte_size(_ADDRESSES_OF_ENGINE)} of addresses to draw, "
            f"`ulimit -v` allows {format_byte_size(most)}",
            hint="`ulimit -v unlimited`, or --json, which draws nothing",
        )
    try:
        import altair
        import vl_convert
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"--html needs {error.name}", hint=install_hint("report")) from error
    del altair, vl_convert
    check_target(out, overwrite=True, option="--html")


def check_parquet(folder: Path) -> None:
    """Raise ConfigError where no folder for Parquet files can be created."""
    above = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    if not above.is_dir():
        raise _not_written(folder, f"{above} is not a directory")
    if not os.access(above, os.W_OK | os.X_OK):
        raise _not_written(folder, os.strerror(errno.EACCES))


def _not_written(folder: Path, reason: str) -> ConfigError:
    return ConfigError(f"{folder} cannot be written: {reason}", hint="give another --parquet FOLDER")


def write_html(folder: Path, statistics: dict[str, Any], out: Path, *, workers: int = 0) -> None:
    """Write the report of ``folder`` to ``out`` atomically.

    Args:
        folder: the preprocessed folder that the statistics describe.
        statistics: every series, as `frequency_statistics` returns them.
        out: replaced where it exists.

    Raises:
        HotsetError: it cannot be written, or the folder has no training samples.
    """
    # Altair and vl-convert come with an extra, without which the other outputs of `hotset stats` still work.
    from ..report.page import build_page, render

    if not statistics["num_train_samples"]:
        raise ConfigError(
            f"{folder} has no training samples to report on", hint="report on the folder its ids come from"
        )
    try:
        advice = advise(folder, AdviceConfig(), Machine(), Resources(workers=workers))
    except HotsetError:  # no preset fits such a log; the report does without predictions
        advice = None
    page = render(build_page(folder, statistics, advice))
    with whole_file(out, overwrite=True, option="--html") as file:
        # Names of files that are not UTF-8 hold surrogates, which a page cannot.
        file.write(page.encode(errors="replace"))


def write_parquet(statistics: dict[str, Any], folder: Path) -> list[Path]:
    """Write every series as ``folder/NAME.parquet``; return the files.

    Raises:
        HotsetError: they cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, error.strerror or str(error)) from error
    written = []
    for name, frame in series_frames(statistics):
        # Polars raises special errors if a disk is full, and takes no path that is not UTF-8.
        content = io.BytesIO()
        frame.write_parquet(content)
        path = folder / f"{name}.parquet"
        with whole_file(path, overwrite=True, option="--parquet") as file:
            file.write(content.getbuffer())
        written.append(path)
    return written
