"""Lists of lookups: offsets that a kernel may trust, and what is refused before one sees it.

Tests `lookups`, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.formats.ids import ONE_EACH, TableLookups
from hotset.pipeline.formats.tables import as_lists, lookups_of, multi_hot, offsets_of, one_hot, table_named


@dataclass(frozen=True)
class Named:
    """A table by name."""

    name: str
    is_multi_hot: bool


TABLES = [Named("C1", False), Named("L1", True), Named("C2", False), Named("L2", True)]


def lists_of(*lists: list[int]) -> pa.Array:
    return pa.array(lists, pa.list_(pa.int32()))


def with_offsets(offsets: list[int], num_values: int) -> pa.Array:
    """A list column whose offsets are what a damaged file may hold."""
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32))]
    values = pa.array(range(num_values), pa.int32())
    return pa.Array.from_buffers(pa.list_(pa.int32()), len(offsets) - 1, buffers, children=[values])


def test_a_table_is_found_by_name_or_the_manifest_is_damaged(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path, "rank", 1, {}, [], [], {}, "")
    assert table_named(manifest, TABLES, "L1") is TABLES[1]
    for tables, found in ((TABLES, 0), ([*TABLES, Named("x", False), Named("x", True)], 2)):
        with pytest.raises(
            ManifestError, match=f"manifest.json is damaged: it has {found} tables 'x', want 1"
        ):
            table_named(manifest, tables, "x")


def test_tables_keep_their_order_of_either_kind() -> None:
    assert [table.name for table in one_hot(TABLES)] == ["C1", "C2"]
    assert [table.name for table in multi_hot(TABLES)] == ["L1", "L2"]


@pytest.mark.parametrize("lists", [[], [[]], [[], [], []], [[5]], [[1, 2], [], [3]]])
def test_offsets_and_values_make_the_lists_again(lists: list[list[int]]) -> None:
    array = lists_of(*lists)
    offsets = offsets_of(array)
    assert offsets.tolist() == np.cumsum([0, *map(len, lists)]).tolist()
    values = array.values.to_numpy(zero_copy_only=False).astype(np.int32)
    assert as_lists(offsets, values).to_pylist() == lists


def test_lookups_of_the_first_samples_are_their_elements() -> None:
    array = lists_of([1, 2], [], [3])
    values, num_lookups = lookups_of(array, 2)
    assert values.to_pylist() == [1, 2, 3] and num_lookups == 2
    flat = pa.array([7, 8, 9], pa.uint64())
    assert lookups_of(flat, 2) == (flat, 2)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (with_offsets([0, 3, 2, 4], 4), "do not cut its 4 elements into 3 lists"),
        (with_offsets([0, 2, 3], 4), "do not cut its 4 elements into 2 lists"),
        (with_offsets([1, 2, 4], 4), "do not cut its 4 elements into 2 lists"),
        (with_offsets([0, 9, 4], 4), "do not cut"),
        (with_offsets([0, -1, 4], 4), "do not cut"),
        (lists_of([1], [2], [3])[1:], "not one of lists that are all there"),
        (pa.array([[1], None], pa.list_(pa.int32())), "not one of lists that are all there"),
        (pa.array([1, 2]), "a column of int64"),
        (pa.array([[1]], pa.large_list(pa.int32())), "a column of large_list"),
    ],
)
def test_offsets_that_a_kernel_could_run_away_with_are_refused(array: pa.Array, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        offsets_of(array)


@pytest.mark.parametrize("start", range(5))
def test_the_lookups_of_some_samples_are_those_of_their_lists(start: int) -> None:
    lists = [[1, 2], [], [3], [4, 5, 6]]
    offsets = np.cumsum([0, *map(len, lists)]).astype(np.int32)
    whole = TableLookups(np.array([1, 2, 3, 4, 5, 6], np.int32), offsets)
    for stop in range(start, 5):
        part = whole.of_samples(start, stop)
        assert part.num_samples == stop - start
        found = [part.ids[a:b].tolist() for a, b in zip(part.offsets, part.offsets[1:], strict=False)]
        assert found == lists[start:stop]
    plain = TableLookups(np.arange(4, dtype=np.int32), ONE_EACH)
    assert plain.of_samples(start, 4).ids.tolist() == list(range(start, 4))
