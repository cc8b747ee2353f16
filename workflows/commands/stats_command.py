"""``hotset stats``: the frequency statistics of a preprocessed folder, or the rows of one of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...pipeline.errors import ConfigError, require_at_least
from ...pipeline.runtime.tasks import Resources
from ...pipeline.statistics.folder import Inspected
from ...pipeline.statistics.frequencies import QUICK, frequency_statistics
from ...pipeline.statistics.table_rows import TableHead, open_table
from ...pipeline.statistics.traffic import exchange_of_ranks
from ..command_list import Command
from ..console import print_json, progress_bars, say, stdout_console
from ..options import Dir
from ..printing.show_stats import show_ranks, show_rows, show_statistics
from ..report.report_commands import preprocess_command
from ..report.write_report import check_html, check_parquet, write_html, write_parquet

_TOP = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class StatsCommand(Command):
    """Show how lookups are distributed over rows."""

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

    json: bool = False
    """Print one JSON object on stdout."""

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
    # One row that was asked for, or the most important ones.
    if options.id is not None:
        rows = [table.by_id(options.id)]
    elif options.category is not None:
        rows = [table.by_category(options.category)]
    else:
        rows = table.head(options.top or _TOP)
    found: TableHead = {
        "feature": feature,
        "kind": table.kind,
        "num_rows": table.counts.shape[0],
        "num_lookups": int(table.counts.sum()),
        "rows": rows,
    }
    if options.json:
        print_json(found)
    else:
        show_rows(found, stdout_console())
    return 0


COMMANDS: dict[str, type[Command]] = {"stats": StatsCommand}
