"""``rank``: counts/ -> vocabulary/, the id of each category and its place over all tables.

An id is the place of a category in its table's order of importance, so that hot is a comparison
(``id < num_hot``) and a hot set a prefix. The place over all tables gives ``num_hot`` for every budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..stats.ranking import RankedTable, places_over_all_tables, rank_by_frequency
from .arrow_files import read_batch, values_of, write_batch
from .errors import ConfigError
from .manifest import FileEntry, Manifest
from .output import Output, input_of
from .tasks import ProgressCallback, run_tasks, silent

VERSION = 1
_MAX_ROWS = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RankConfig:
    """What a run of the rank stage may vary; part of its fingerprint."""

    rank_by: Literal["frequency"] = "frequency"
    """Order of importance: frequency, the one that moves the fewest bytes."""

    min_count: int = 1
    """Categories seen fewer times than this in the training part share the oov row (look-ups)."""

    def __post_init__(self) -> None:
        if self.rank_by != "frequency":
            raise ConfigError(f"rank_by must be frequency, got {self.rank_by!r}")
        if self.min_count < 1:
            raise ConfigError(f"min_count must be 1 or more, got {self.min_count}")


def rank(
    config: RankConfig,
    counts: Manifest,
    out: Path,
    *,
    workers: int = 0,
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
    entries = {entry.path: entry for entry in counts.files}
    names = [table["name"] for table in counts.totals["tables"]]
    tasks = ((config, counts, entries[f"{name}.arrow"]) for name in names)
    ranked, kinds, done = [], [], 0
    for table, kind in run_tasks(_rank_table, tasks, workers=workers):
        ranked.append(table)
        kinds.append(kind)
        done += int(table.counts.sum())
        progress("rank", done, len(names) * counts.totals["num_train_samples"])
    places = places_over_all_tables([table.counts for table in ranked])
    tasks_ = zip(names, ranked, places, kinds, [output] * len(names), strict=True)
    tables = list(run_tasks(_write_table, tasks_, workers=workers))
    kept = ("num_samples", "num_train_samples")
    totals = {key: counts.totals[key] for key in kept} | {"tables": tables}
    return output.seal(totals | {"num_rows": sum(table["num_rows"] for table in tables)})


def _rank_table(config: RankConfig, counts: Manifest, entry: FileEntry) -> tuple[RankedTable, Any]:
    batch = read_batch(counts, entry)
    kind = batch.schema.field("category").type
    categories = values_of(batch.column("category"), kind.to_pandas_dtype()).astype(np.uint64)
    occurrences = values_of(batch.column("count"), np.int64)
    ranked = rank_by_frequency(categories, occurrences, entry.facts["num_missing"], config.min_count)
    if ranked.counts.shape[0] > _MAX_ROWS:
        name = Path(entry.path).stem
        raise ConfigError(
            f"table {name} has {ranked.counts.shape[0]} rows, an id goes to {_MAX_ROWS}",
            hint="raise --min-count",
        )
    return ranked, kind


def _write_table(
    name: str, ranked: RankedTable, places: NDArray[np.int64], kind: Any, output: Output
) -> dict[str, Any]:
    num_rows = ranked.counts.shape[0]
    is_null = np.zeros(num_rows, np.bool_)
    is_null[[ranked.missing_id, ranked.oov_id]] = True
    columns = {
        "category": pa.array(ranked.categories, mask=is_null).cast(kind),
        "count": pa.array(ranked.counts),
        "place": pa.array(places),
    }
    if not output.has(f"{name}.arrow"):
        with output.writing(f"{name}.arrow", num_rows) as path:
            write_batch(path, columns)
    ids = {"oov_id": ranked.oov_id, "missing_id": ranked.missing_id}
    return {"name": name, "num_rows": num_rows, **ids, "oov_count": int(ranked.counts[ranked.oov_id])}
