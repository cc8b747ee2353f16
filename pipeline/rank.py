"""``rank``: counts/ -> vocabulary/, the id of each category and its place over all tables.

An id is the place of a category in its table's order of importance, so that hot is a comparison
(``id < num_hot``) and a hot set a prefix. The place over all tables gives ``num_hot`` for every budget.
Memory holds runs of equal counts, and the table being written where it fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..stats.ranking import RankedRuns, expand_runs, first_places, place_categories, rank_by_frequency
from .arrow_files import read_batch, values_of, write_batch
from .errors import ConfigError
from .feature_settings import NO_SETTINGS, FeatureSettings, checked_settings, numbers_of
from .manifest import FileEntry, Manifest
from .memory import array_in, room_for
from .output import Output, input_of
from .sizes import MIB
from .tasks import ProgressCallback, num_workers, run_tasks, silent

VERSION = 1
_MAX_ROWS = 2**31 - 1
_LEAST_ROOM = 16 * MIB
"""For each worker: chunks of counts, and runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankConfig:
    """What a run of the rank stage may vary; part of its fingerprint."""

    rank_by: Literal["frequency"] = "frequency"
    """Order of importance: frequency, the one that moves the fewest bytes."""

    min_count: int = 1
    """Categories seen fewer times than this in the training part share the oov row (look-ups)."""

    feature_min_counts: FeatureSettings = NO_SETTINGS
    """Features with a ``min_count`` of their own, and that: C3=10,C5=2 (look-ups)."""

    def __post_init__(self) -> None:
        if self.rank_by != "frequency":
            raise ConfigError(f"rank_by must be frequency, got {self.rank_by!r}")
        if self.min_count < 1:
            raise ConfigError(f"min_count must be 1 or more, got {self.min_count}")
        settings = checked_settings("feature_min_counts", self.feature_min_counts)
        object.__setattr__(self, "feature_min_counts", settings)


def rank(
    config: RankConfig,
    counts: Manifest,
    out: Path,
    *,
    workers: int = 0,
    memory_bytes: int | None = None,
    progress: ProgressCallback = silent,
) -> Manifest:
    """counts -> vocabulary: categories in the order of their ids.

    Reads:   ``{feature}.arrow``: category, count
    Writes:  ``{feature}.arrow``: category (null for missing and oov), count int64 look-ups,
             place int64 in the order over all tables; a row's position is its id
    """
    output = Output.begin("rank", VERSION, config, [input_of(counts)], out)
    if isinstance(output, Manifest):
        return output
    room = (
        room_for("rank", memory_bytes, needed_bytes(workers), workers=workers) // num_workers(workers)
        - _LEAST_ROOM
    )
    entries = {entry.path: entry for entry in counts.files}
    names = [table["name"] for table in counts.totals["tables"]]
    min_counts = numbers_of("feature_min_counts", config.feature_min_counts, names, config.min_count)
    tasks = ((min_counts[name], counts, entries[f"{name}.arrow"]) for name in names)
    ranked, done = [], 0
    for table in run_tasks(_rank_table, tasks, workers=workers):
        ranked.append(table)
        done += counts.totals["num_train_samples"]
        progress("rank", done, len(names) * counts.totals["num_train_samples"])
    tasks_ = (
        (min_counts[name], counts, entries[f"{name}.arrow"], table, firsts, output, room)
        for name, table, firsts in zip(names, ranked, first_places(ranked), strict=True)
    )
    made = run_tasks(_write_table, tasks_, workers=workers)
    tables = [
        table | {key: facts[key] for key in ("num_lookups", "is_multi_hot") if key in facts}
        for table, facts in zip(made, counts.totals["tables"], strict=True)
    ]
    kept = ("num_samples", "num_train_samples", "num_counted_samples")
    totals = {key: counts.totals[key] for key in kept if key in counts.totals} | {"tables": tables}
    return output.seal(totals | {"num_rows": sum(table["num_rows"] for table in tables)})


def needed_bytes(workers: int) -> int:
    """The least that `rank` can do with."""
    return num_workers(workers) * _LEAST_ROOM


def _rank_table(min_count: int, counts: Manifest, entry: FileEntry) -> RankedRuns:
    occurrences = values_of(read_batch(counts, entry).column("count"), np.int64)
    ranked = rank_by_frequency(occurrences, entry.facts["num_missing"], min_count)
    if ranked.num_rows > _MAX_ROWS:
        name = Path(entry.path).stem
        raise ConfigError(
            f"table {name} has {ranked.num_rows} rows, an id goes to {_MAX_ROWS}",
            hint="raise --min-count",
        )
    return ranked


def _write_table(
    min_count: int,
    counts: Manifest,
    entry: FileEntry,
    ranked: RankedRuns,
    firsts: NDArray[np.int64],
    output: Output,
    room: int,
) -> dict[str, Any]:
    num_rows = ranked.num_rows
    if not output.has(entry.path):
        with output.writing(entry.path, num_rows) as path:
            write_batch(path, _columns(min_count, read_batch(counts, entry), ranked, firsts, output, room))
    ids = {"oov_id": ranked.oov_id, "missing_id": ranked.missing_id}
    name = Path(entry.path).stem
    return {"name": name, "num_rows": num_rows, **ids, "oov_count": ranked.oov_count}


def _columns(
    min_count: int, batch: Any, ranked: RankedRuns, firsts: NDArray[np.int64], output: Output, room: int
) -> dict[str, Any]:
    """The vocabulary of one table; a third of ``room`` for each column."""
    kind = batch.schema.field("category").type
    dtype, shape = kind.to_pandas_dtype(), (ranked.num_rows,)
    rows = array_in(room // 3, output, shape, dtype)
    totals, places = (array_in(room // 3, output, shape, np.int64) for _ in range(2))
    categories = values_of(batch.column("category"), dtype)
    occurrences = values_of(batch.column("count"), np.int64)
    place_categories(categories, occurrences, min_count, ranked, rows)
    expand_runs(ranked.counts, ranked.lengths, 0, totals)
    expand_runs(firsts, ranked.lengths, 1, places)
    nulls = [_validity(ranked), pa.py_buffer(rows)]
    null_count = len({ranked.missing_id, ranked.oov_id})
    category = pa.Array.from_buffers(kind, ranked.num_rows, nulls, null_count)
    return {"category": category, "count": pa.array(totals), "place": pa.array(places)}


def _validity(ranked: RankedRuns) -> Any:
    """An Arrow bitmap of all rows but those of missing and oov."""
    bitmap = np.full(-(-ranked.num_rows // 8), 255, np.uint8)
    bitmap[-1] >>= np.uint8(-ranked.num_rows % 8)
    for row in {ranked.missing_id, ranked.oov_id}:
        bitmap[row // 8] &= np.uint8(255 - (1 << row % 8))
    return pa.py_buffer(bitmap)
