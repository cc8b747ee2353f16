"""The frequency statistics as tables people read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...pipeline.errors import format_byte_size
from ...pipeline.statistics.default_runs import DefaultRuns
from ...pipeline.statistics.drift import Drift
from ...pipeline.statistics.frequencies import SERIES, Statistics
from ...pipeline.statistics.log import LogSeries
from ...pipeline.statistics.table_rows import TableHead
from ...pipeline.statistics.traffic import RankStatistics
from ..console import plain_table, print_line, print_table
from ..report import log_tables
from ..report import series_tables as tables
from .describe_stages import explain_all_hot


def show_statistics(statistics: Statistics, console: Console) -> None:
    """Print what `frequency_statistics` returned: series by series, then the split and any warning."""
    # Most series are a title and a table of cells; the others have a function of their own.
    # In the order of the series, whatever order they were computed in.
    found: Mapping[str, object] = statistics
    for name in SERIES:
        if name not in found:
            continue
        match name:
            case "features":
                title = f"Lookups of {statistics['num_train_samples']:,} training samples"
                _print_table(title, tables.features(statistics["features"]), console)
            case "budgets":
                _show_budgets(statistics, console)
            case "drift":
                _show_drift(statistics["drift"], console)
            case "log":
                _show_log(statistics["log"], console)
            case "default_runs":
                _show_default_runs(statistics["default_runs"], console)
            case _:
                title, table = _SHOWN[name]
                _print_table(title, table(found[name]), console)
    # How the log was split and what was left out come last, below the figures they qualify.
    _show_split(statistics, console)
    for line in statistics["left_out"]:
        print_line(console, f"Left out: {line}.")
    for warning in statistics["warnings"]:
        print_line(console, f"Warning: {warning}.", style="bold yellow")


def show_rows(found: TableHead, console: Console) -> None:
    """Print rows of one table, as `TableRows.rows` returns them."""
    # The title says what the shares are shares of.
    rows = f"{found['num_rows']:,} rows"
    lookups = f"{found['num_lookups']:,} lookups"
    table = _table(
        f"{found['feature']} ({found['kind']}): {rows}, {lookups}",
        "id", "category", "lookups", "share", "up to here", "",
    )  # fmt: skip
    for row in found["rows"]:
        shares = [f"{row[key]:.4%}" for key in ("share", "cumulative_share")]
        hot = "hot" if row["is_hot"] else ""
        table.add_row(f"{row['id']:,}", _shown(row["category"]), f"{row['count']:,}", *shares, hot)
    console.print(table)
    # A category outside the vocabulary is shown as the row that its lookups use.
    for row in found["rows"]:
        if not row.get("is_known", True):
            asked = f"{row['asked']} has no id: its lookups use the out-of-vocabulary row, shown here."
            print_line(console, asked)


def _shown(category: str) -> str:
    """Return a category as one line of printable characters, with its brackets escaped."""
    return escape("".join(letter if letter.isprintable() else " " for letter in category))


def _table(title: str, *columns: str) -> Table:
    return plain_table(title, columns, texts=("feature",))


def _show_budgets(statistics: Statistics, console: Console) -> None:
    dim = statistics["embedding_dim"]
    width = statistics["row_bytes"]
    table = _table(
        f"What fast memory buys (dim {dim}, {width} bytes per row, {statistics['num_rows']:,} rows)",
        "hot bytes", "hot rows", "of all rows", "hot lookups", "fully hot samples", "",
    )  # fmt: skip
    # The budget of the plan stands among round ones, marked.
    for budget in statistics["budgets"]:
        share = budget["num_hot_rows"] / max(1, statistics["num_rows"])
        table.add_row(
            format_byte_size(budget["bytes"]),
            f"{budget['num_hot_rows']:,}",
            f"{share:.2%}",
            f"{budget['hot_lookup_share']:.1%}",
            f"{budget['hot_sample_share']:.1%}",
            "<- chosen" if budget["is_chosen"] else "",
            style="bold" if budget["is_chosen"] else None,
        )
    print_table(console, table)


_SHOWN: dict[str, tuple[str, Callable[[Any], tables.TextTable]]] = {
    "coverage": ("Share of lookups served by the most looked-up rows of each table", tables.coverage),
    "hot_samples": ("Fully hot samples by memory for hot rows and order of rows", tables.hot_samples),
    "miss_ratios": ("Refetched rows by cache policy", tables.miss_ratios),
    "unique_rows": ("Distinct rows per batch", tables.unique_rows),
    "hot_tables": ("Hot rows by table", log_tables.hot_tables),
    "categories": ("Top categories of each table", log_tables.categories),
}


def _show_drift(drift: Drift, console: Console) -> None:
    _print_table("Parts of the log", tables.drift_parts(drift), console)
    budget = format_byte_size(drift["budget_bytes"])
    title = f"Hot rows of {budget} by age"
    _print_table(title, tables.drift_by_age(drift), console)


def _show_log(log: LogSeries, console: Console) -> None:
    """Print labels, missing values and dense features; nothing of a log whose columns were discarded."""
    if not log["labels"]:
        return
    _print_table("Labels", log_tables.labels(log), console)
    _print_table("Labels by part of the log", log_tables.parts(log), console)
    _print_table("Missing values", log_tables.missing(log), console)
    if log["dense"]:
        _print_table("Dense features", log_tables.dense(log), console)


def _show_default_runs(found: DefaultRuns, console: Console) -> None:
    if found["placements"]:
        _print_table("Bytes that the placements move by default", log_tables.default_runs(found), console)
        print_line(console, log_tables.describe_default_runs(found))


def show_ranks(found: RankStatistics, console: Console) -> None:
    """Print what crosses between ranks, a table for each number of them."""
    is_whole = found["num_samples"] == found["num_train_samples"]
    for row in found["ranks"]:
        columns = ["scheme", "expected", "counted"]
        if not is_whole:
            columns += ["expected, whole epoch"]
        samples = f"{row['rank_samples']:,.0f} samples each on average"
        title = f"{row['ranks']} ranks, {samples}: rows to a rank in a step"
        table = _table(title, *columns)
        table.columns[0].justify = "left"
        for scheme in row["schemes"]:
            figures = [scheme["expected"], scheme["counted"]]
            if not is_whole:
                figures.append(scheme["expected_of_epoch"])
            table.add_row(scheme["scheme"], *("-" if each is None else f"{each:,.0f}" for each in figures))
        print_table(console, table)
    print_line(
        console,
        f"Vectors and gradients together, in batches of {found['batch_size']:,}. Counted in the first "
        f"{found['num_samples']:,} of {found['num_train_samples']:,} samples in the shuffled order.",
    )


def _print_table(title: str, cells: tables.TextTable, console: Console) -> None:
    table = _table(title, *cells.columns)
    for column in table.columns[: cells.num_texts]:
        column.justify = "left"
    for row in cells.rows:
        table.add_row(*map(escape, row))
    print_table(console, table)


def _show_split(statistics: Statistics, console: Console) -> None:
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
    # What a reader may wonder about: that nothing moves, what sampling lost, what has no id.
    chosen = [budget for budget in statistics.get("budgets", []) if budget["is_chosen"]]
    all_hot = explain_all_hot(statistics["num_rows"], chosen[0]["num_hot_rows"]) if chosen else None
    if all_hot:
        print_line(console, all_hot)
    if statistics["calibration"]:
        print_line(console, _describe_calibration(statistics, statistics["calibration"]))
    share = statistics["oov"]["evaluation_share"]
    if share is not None:
        print_line(console, f"{share:.2%} of the evaluation lookups fall on the out-of-vocabulary row.")


def _describe_calibration(statistics: Statistics, facts: dict[str, Any]) -> str:
    """Return what FAE's sampling chose, what it estimated, and what exact counts would achieve."""
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
