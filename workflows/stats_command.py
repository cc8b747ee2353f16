"""``hotset stats``: the frequency statistics of a preprocessed folder, or rows of one of its tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..pipeline.errors import ConfigError
from ..pipeline.inspect import QUICK, frequency_statistics
from ..pipeline.table_rows import open_table
from .console import print_json, progress_bars, stdout_console
from .options import parse_options
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
    """What to find out: features, budgets, coverage, hot_samples, miss_ratios, drift; default the first two,
    with --json all."""

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
    quick = None if options.json else QUICK
    with progress_bars() as progress:
        statistics = frequency_statistics(
            options.dir,
            series=quick if options.series is None else options.series,
            num_parts=options.parts,
            workers=options.workers,
            progress=progress,
        )
    if options.json:
        print_json(statistics)
    else:
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
