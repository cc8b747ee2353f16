"""``hotset stats``: frequency statistics of a folder, or rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ...pipeline.errors import ConfigError, format_byte_size, require_at_least
from ...pipeline.runtime.tasks import Resources
from ...pipeline.statistics.folder import Inspected, open_table
from ...pipeline.statistics.frequencies import QUICK, frequency_statistics
from ...pipeline.statistics.traffic import exchange_of_ranks
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
from ..options import Dir
from ..report.sentences import preprocess_command
from ..report.tables import describe_default_runs, named_tables, text_table
from ..report.write import check_html, check_parquet, write_html, write_parquet

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
