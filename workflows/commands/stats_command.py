"""``hotset stats``: the frequency statistics of a preprocessed folder, or rows of one of its tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ...pipeline.errors import ConfigError
from ...pipeline.inspect.frequency_series import QUICK, frequency_statistics
from ...pipeline.inspect.table_rows import open_table
from ..console import print_json, progress_bars, say, stdout_console
from ..options import parse_options
from ..report.write_report import check_html, check_parquet, write_html, write_parquet
from .show_stats import show_rows, show_statistics

_TOP = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class StatsCommand:
    """What to look at."""

    dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """Folder that `preprocess --out` made."""

    feature: str | None = None
    """Show the head of this feature's table: id, category, look-ups, share of them."""

    top: int | None = None
    """With --feature: how many rows; default 20."""

    id: int | None = None
    """With --feature: the one row that has this id."""

    category: str | None = None
    """With --feature: the row of this category, written as in the log, or (missing) or (oov)."""

    series: tuple[str, ...] | None = None
    """What to find out: features, budgets, coverage, hot_samples, miss_ratios, unique_rows, drift; default
    the first two, with --json and --parquet all."""

    html: Path | None = None
    """Write a report to this file: one page with charts and tables that needs no network."""

    parquet: Path | None = None
    """Write every series to this folder, a Parquet file each."""

    parts: int | None = None
    """Cut the training part into so many parts, whose hot sets drift compares; default raw files, or 6."""

    workers: int = 0
    """Threads; 0 takes every core."""

    json: bool = False
    """Print one JSON object on stdout."""

    def __post_init__(self) -> None:
        given = [name for name in ("top", "id", "category") if getattr(self, name) is not None]
        if given and self.feature is None:
            raise ConfigError(f"--{given[0]} needs a table: name one with --feature")
        wide = [name for name in ("html", "parquet", "series", "parts") if getattr(self, name) is not None]
        if wide and self.feature is not None:
            raise ConfigError(f"--{wide[0]} is of all tables: leave --feature out")
        if self.html is not None and self.series is not None:
            raise ConfigError("--html shows every series: leave --series out")
        if len(given) > 1:
            raise ConfigError(f"--{given[0]} and --{given[1]} ask for different rows: give one of them")
        if self.top is not None and self.top < 1:
            raise ConfigError(f"--top must be 1 or more, got {self.top}")


def run(command: str, words: list[str]) -> int:
    """Run ``hotset stats``."""
    options = parse_options(
        StatsCommand,
        words,
        command=command,
        description="How look-ups fall on rows, and what each budget of hot bytes buys.",
    )
    if options.feature is not None:
        return _show_table(options, options.feature)
    is_quick = not options.json and options.html is None and options.parquet is None
    if options.html is not None:
        check_html(options.html)
    if options.parquet is not None:
        check_parquet(options.parquet)
    with progress_bars() as progress:
        statistics = frequency_statistics(
            options.dir,
            series=QUICK if is_quick and options.series is None else options.series,
            num_parts=options.parts,
            workers=options.workers,
            progress=progress,
        )
    if options.html is not None:
        write_html(options.dir, statistics, options.html, workers=options.workers)
        say(f"{options.html} is the report: open it in a browser")
    if options.parquet is not None:
        files = write_parquet(statistics, options.parquet)
        say(f"{options.parquet} holds {', '.join(path.name for path in files)}")
    if options.json:
        print_json(statistics)
    elif is_quick:
        show_statistics(statistics, stdout_console())
    return 0


def _show_table(options: StatsCommand, feature: str) -> int:
    table = open_table(options.dir, feature)
    if options.id is not None:
        rows = [table.by_id(options.id)]
    elif options.category is not None:
        rows = [table.by_category(options.category)]
    else:
        rows = table.head(options.top or _TOP)
    facts = {"feature": feature, "kind": table.kind, "num_rows": table.counts.shape[0]}
    found = facts | {"num_lookups": int(table.counts.sum()), "rows": rows}
    if options.json:
        print_json(found)
    else:
        show_rows(found, stdout_console())
    return 0
