"""Ids of one part, one-hot and in lists: unknown ones become oov, and samples are tagged by all of them.

The distinct cold rows of a batch against a walk over its lookups, one-hot and in lists.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.totals import PlannedTable, VocabularyTable
from hotset.pipeline.formats.ids import (
    ONE_EACH,
    ColdWidth,
    FoundIds,
    PartIds,
    TableLookups,
    distinct_cold_rows,
    join_lookups,
)

NUM_ROWS = (6, 9, 5, 7)
NUM_HOT = (3, 5, 2, 4)
TABLES = [
    VocabularyTable(
        name=f"C{number}",
        num_rows=rows,
        oov_id=rows - 1,
        missing_id=0,
        oov_count=1,
        is_multi_hot=number in (1, 3),
    )
    for number, rows in enumerate(NUM_ROWS)
]
Bags = list[list[list[int]]]
"""By sample and table, the ids looked up."""


def draw_bags(num_samples: int, rng: np.random.Generator) -> Bags:
    return [
        [
            rng.integers(-1, rows, rng.integers(0, 4) if table.is_multi_hot else 1).tolist()
            for table, rows in zip(TABLES, NUM_ROWS, strict=True)
        ]
        for _ in range(num_samples)
    ]


def part_of(bags: Bags) -> PartIds:
    matrix = np.array([[sample[0][0], sample[2][0]] for sample in bags], np.int32).reshape(len(bags), 2)
    lists = {}
    for number in (1, 3):
        offsets = np.cumsum([0, *(len(sample[number]) for sample in bags)]).astype(np.int32)
        flat = [row for sample in bags for row in sample[number]]
        lists[f"C{number}"] = (offsets, np.array(flat, np.int32))
    return PartIds(TABLES, matrix, lists)


@pytest.mark.parametrize(("num_samples", "num_train"), [(0, 0), (1, 0), (1, 1), (40, 0), (40, 25), (40, 40)])
def test_unknown_ids_become_oov_and_are_counted_by_half(
    num_samples: int, num_train: int, rng: np.random.Generator
) -> None:
    bags = draw_bags(num_samples, rng)
    unsettled = part_of(bags)
    found = FoundIds(TABLES, np.ascontiguousarray(unsettled.matrix.T), unsettled.lists)
    part, facts = found.settle(num_train, np.empty_like(unsettled.matrix))
    settled = [
        [[table.oov_id if row < 0 else row for row in bag] for table, bag in zip(TABLES, sample, strict=True)]
        for sample in bags
    ]
    halves = (settled[:num_train], settled[num_train:])
    num_oov = [
        tuple(
            sum(row == table.oov_id for sample in half for row in sample[number])
            for number, table in enumerate(TABLES)
        )
        for half in halves
    ]
    assert (facts.oov_train, facts.oov_evaluation) == tuple(num_oov)
    assert facts.lookups == {
        f"C{number}": tuple(sum(len(sample[number]) for sample in half) for half in halves)
        for number in (1, 3)
    }
    for number, ids in enumerate(part.ids):
        assert ids.tolist() == [row for sample in settled for row in sample[number]]


@pytest.mark.parametrize("num_samples", [0, 1, 60])
def test_a_sample_is_hot_if_all_of_its_rows_are(num_samples: int, rng: np.random.Generator) -> None:
    bags = [[[max(row, 0) for row in bag] for bag in sample] for sample in draw_bags(num_samples, rng)]
    wanted = [
        int(all(row < hot for bag, hot in zip(sample, NUM_HOT, strict=True) for row in bag))
        for sample in bags
    ]
    assert part_of(bags).tags(NUM_HOT).tolist() == wanted


def test_columns_are_read_back_as_they_were_written(rng: np.random.Generator) -> None:
    part = part_of(draw_bags(12, rng))
    columns = part.columns()
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    found = PartIds.read(batch, TABLES)
    np.testing.assert_array_equal(found.matrix, part.matrix)
    for name, (offsets, ids) in part.lists.items():
        np.testing.assert_array_equal(found.lists[name][0], offsets)
        np.testing.assert_array_equal(found.lists[name][1], ids)
    with pytest.raises(ManifestError, match="lists of 2, want 3"):
        PartIds.read(batch, [*TABLES, TABLES[0]])


@pytest.mark.parametrize(
    ("table", "row"), [(0, -1), (0, 6), (2, 5), (2, 2**31 - 1), (1, -(2**31)), (1, 9), (3, -1), (3, 7)]
)
def test_an_id_outside_its_table_is_refused(table: int, row: int, rng: np.random.Generator) -> None:
    bags = [[[max(one, 0) for one in bag] for bag in sample] for sample in draw_bags(20, rng)]
    part_of(bags).check_ids(Path("part.arrow"))
    part_of([]).check_ids(Path("part.arrow"))
    bags[7][table] = [row]
    wanted = f"part.arrow is damaged: id {row} in table C{table} of {NUM_ROWS[table]} rows"
    with pytest.raises(ManifestError, match=wanted):
        part_of(bags).check_ids(Path("part.arrow"))


COLD_ROWS = (30, 12, 50)
HOT_ROWS = (4, 12, 7)


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
        for number, (rows, hot) in enumerate(zip(COLD_ROWS, HOT_ROWS, strict=True))
    ]


def width_of(tables: tuple[int, ...]) -> ColdWidth:
    first = np.array([HOT_ROWS[table] for table in tables], np.int64)
    last = np.array([COLD_ROWS[table] for table in tables], np.int64)
    return ColdWidth(4, tables, first, last, np.cumsum(last - first) - (last - first))


def draw_ids(num_samples: int, multi_hot: tuple[int, ...], rng: np.random.Generator) -> PartIds:
    tables = tables_of(multi_hot)
    plain = [number for number in range(3) if number not in multi_hot]
    columns = [rng.integers(0, COLD_ROWS[number], num_samples) for number in plain]
    matrix = np.stack(columns, axis=1).astype(np.int32) if columns else np.empty((num_samples, 0), np.int32)
    lists = {}
    for number in multi_hot:
        offsets = np.cumsum([0, *rng.integers(0, 4, num_samples)]).astype(np.int32)
        lists[f"C{number}"] = (offsets, rng.integers(0, COLD_ROWS[number], offsets[-1]).astype(np.int32))
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


@given(
    samples=st.lists(st.tuples(*(st.lists(st.integers(0, 9), max_size=3) for _ in range(3))), max_size=6),
    one_each=st.sets(st.integers(0, 2)),
)
def test_lookups_of_features_are_joined_sample_by_sample(
    samples: list[tuple[list[int], ...]], one_each: set[int]
) -> None:
    of_features = [
        [[7] if feature in one_each else sample[feature] for sample in samples] for feature in range(3)
    ]
    lookups = []
    for feature, bags in enumerate(of_features):
        offsets = np.cumsum([0, *map(len, bags)]).astype(np.int32)
        ids = np.array([row for bag in bags for row in bag], np.int32)
        lookups.append(TableLookups(ids, ONE_EACH if feature in one_each else offsets))
    joined = join_lookups(lookups)
    assert joined.num_samples == len(samples)
    for number, of_sample in enumerate(zip(*of_features, strict=True)):
        first, stop = joined.all_offsets[number : number + 2]
        assert joined.ids[first:stop].tolist() == [row for bag in of_sample for row in bag]
    # The lookups of one feature are as they were, without a copy.
    assert join_lookups(lookups[:1]) is lookups[0]
