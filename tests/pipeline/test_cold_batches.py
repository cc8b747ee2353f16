"""The distinct cold rows of a batch against a walk over its lookups, one-hot and in lists."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.pipeline.cold_batches import ColdWidth, distinct_cold_rows
from hotset.pipeline.folders.totals import PlannedTable
from hotset.pipeline.formats.ids import PartIds

NUM_ROWS = (30, 12, 50)
NUM_HOT = (4, 12, 7)


def tables_of(multi_hot: tuple[int, ...]) -> list[PlannedTable]:
    return [
        PlannedTable(
            name=f"C{number}",
            num_rows=rows,
            oov_id=rows - 1,
            missing_id=0,
            is_multi_hot=number in multi_hot,
            num_hot=hot,
        )
        for number, (rows, hot) in enumerate(zip(NUM_ROWS, NUM_HOT, strict=True))
    ]


def width_of(tables: tuple[int, ...]) -> ColdWidth:
    first = np.array([NUM_HOT[table] for table in tables], np.int64)
    last = np.array([NUM_ROWS[table] for table in tables], np.int64)
    return ColdWidth(4, tables, first, last, np.cumsum(last - first) - (last - first))


def draw_ids(num_samples: int, multi_hot: tuple[int, ...], rng: np.random.Generator) -> PartIds:
    tables = tables_of(multi_hot)
    plain = [number for number in range(3) if number not in multi_hot]
    columns = [rng.integers(0, NUM_ROWS[number], num_samples) for number in plain]
    matrix = np.stack(columns, axis=1).astype(np.int32) if columns else np.empty((num_samples, 0), np.int32)
    lists = {}
    for number in multi_hot:
        offsets = np.cumsum([0, *rng.integers(0, 4, num_samples)]).astype(np.int32)
        lists[f"C{number}"] = (offsets, rng.integers(0, NUM_ROWS[number], offsets[-1]).astype(np.int32))
    return PartIds(tables, matrix, lists)


def naive_rows(ids: PartIds, num_samples: int, width: ColdWidth) -> dict[int, int]:
    """Lookups of each cold row by its key."""
    found: dict[int, int] = {}
    for sample in range(num_samples):
        for place, table in enumerate(width.tables):
            values = ids.ids[table]
            name = f"C{table}"
            bag = (
                values[slice(*ids.lists[name][0][sample : sample + 2])]
                if name in ids.lists
                else [values[sample]]
            )
            for row in bag:
                if row >= width.first[place]:
                    key = int(row - width.first[place] + width.base[place])
                    found[key] = found.get(key, 0) + 1
    return found


@pytest.mark.parametrize("multi_hot", [(), (0,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("tables", [(0, 1, 2), (0, 2), (1,)])
def test_rows_come_in_the_order_of_table_and_id(
    multi_hot: tuple[int, ...], tables: tuple[int, ...], rng: np.random.Generator
) -> None:
    for num_samples in (0, 1, 90):
        ids = draw_ids(num_samples, multi_hot, rng)
        rows, lookups = distinct_cold_rows(ids, width_of(tables))
        wanted = naive_rows(ids, num_samples, width_of(tables))
        assert dict(zip(rows.tolist(), lookups.tolist(), strict=True)) == wanted
        assert rows.tolist() == sorted(wanted)
