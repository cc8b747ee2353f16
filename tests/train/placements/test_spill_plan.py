"""Arrays in nameless files: zeros, and arrays appended and mapped.

The fetches of a whole run: the same for any memory, and each where its row was written back.

How the memory is divided: within the limit, and refused in one line where it is too little.

Used rows are counted by cells, and ranges are cut by them: against plain loops over rows.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.pipeline.errors import GIB, KIB, MIB, ConfigError, HotsetError
from hotset.tests.support.compiled import compiled_only
from hotset.tests.support.spilled_runs import all_used, choose_sizes, plan_epochs
from hotset.train.placements import spill_plan
from hotset.train.placements.spill_plan import (
    NUM_READERS,
    EpochPlans,
    RunFetches,
    SpillShape,
    SpillSizes,
    SpooledArrays,
    UsedRows,
    find_fetches,
    least_bytes,
    mapped_zeros,
)


@pytest.mark.parametrize("count", [0, 1, 5000])
@pytest.mark.parametrize("room", [0, 1 << 20])
def test_mapped_zeros_may_be_written(count: int, room: int, tmp_path: Path) -> None:
    zeros = mapped_zeros(tmp_path, count, np.int32, room)
    assert zeros.shape == (count,) and not zeros.any()
    zeros[:] = 7
    assert (zeros == 7).all() and zeros.dtype == np.int32 and list(tmp_path.iterdir()) == []


def test_spooled_arrays_come_back_in_order(tmp_path: Path, rng: np.random.Generator) -> None:
    arrays: list[NDArray[Any]] = [
        rng.integers(0, 9, 17),
        np.empty(0, np.float32),
        rng.random(1000) < 0.5,
        rng.integers(0, 9, 3).astype(np.int32),
        rng.integers(0, 100, 20)[::3],
    ]
    spooled = SpooledArrays(tmp_path)
    for array in arrays:
        spooled.append(array)
    found = spooled.map()
    for array, mapped in zip(arrays, found, strict=True):
        assert mapped.dtype == array.dtype
        np.testing.assert_array_equal(mapped, array)
    assert list(tmp_path.iterdir()) == []


def test_nothing_spooled_is_nothing(tmp_path: Path) -> None:
    spooled = SpooledArrays(tmp_path)
    spooled.append(np.empty(0, np.int64))
    assert [array.size for array in spooled.map()] == [0]


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HotsetError, match="no room for 40 B of step plans: No space left"):
        mapped_zeros(tmp_path, 10, np.int32)


def test_a_file_cut_short_is_noticed(tmp_path: Path) -> None:
    spooled = SpooledArrays(tmp_path)
    spooled.append(np.arange(100_000))
    os.ftruncate(spooled._file.fileno(), 10)
    with pytest.raises(HotsetError, match="does not keep 800000 bytes"):
        spooled.map()


def flat(fetches: RunFetches) -> list[int]:
    found: list[int] = []
    for epoch in fetches.epochs:
        for chunk in epoch.chunks:
            found += chunk.of_write_backs.tolist()
        found += epoch.of_residents.tolist()
    return found


def test_memory_does_not_change_what_is_found(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = plan_epochs(rng, 500, 60)
    whole = find_fetches(epochs, 500, tmp_path, 1 << 20)
    monkeypatch.setattr(spill_plan, "_LEAST_ROWS", 1)
    for memory_bytes in (8 * 499, 8 * 100, 8):
        assert flat(find_fetches(epochs, 500, tmp_path, memory_bytes)) == flat(whole)


def test_a_row_is_fetched_next_where_it_was_written_for(rng: np.random.Generator, tmp_path: Path) -> None:
    epochs = plan_epochs(rng, 500, 60)
    fetches = find_fetches(epochs, 500, tmp_path, 1 << 20)
    rows = fetches.rows
    assert rows.size == fetches.fetches_of_items.sum() > 0
    for epoch, found in zip(epochs, fetches.epochs, strict=True):
        for chunk, chunk_found in zip(epoch.chunks, found.chunks, strict=True):
            numbers = chunk_found.of_write_backs
            wanted = numbers >= 0
            np.testing.assert_array_equal(rows[numbers[wanted]], chunk.write_back_rows[wanted])
    assert fetches.epochs[1].first_fetch == int(
        sum(np.count_nonzero(~chunk.fetch_is_first) for chunk in epochs[0].chunks)
    )
    # Rows of the first epoch's end are fetched in the second, those of the last are not.
    assert (fetches.epochs[0].of_residents >= fetches.epochs[1].first_fetch).any()
    assert (fetches.epochs[1].of_residents == -1).all()
    used = np.unique(np.concatenate([chunk.fetch_rows for epoch in epochs for chunk in epoch.chunks]))
    assert fetches.used.total == used.size


@pytest.mark.parametrize("epochs", [[], [EpochPlans((), np.empty(0, np.int64))]])
def test_nothing_to_fetch(epochs: list[EpochPlans], tmp_path: Path) -> None:
    fetches = find_fetches(epochs, 10, tmp_path, 0)
    assert fetches.rows.size == fetches.used.total == 0 and len(fetches.epochs) == len(epochs)


def test_restored_rows_are_written_back_too(rng: np.random.Generator, tmp_path: Path) -> None:
    epochs = plan_epochs(rng, 500, 60, num_epochs=1, num_steps=3)
    num_first = find_fetches(epochs, 500, tmp_path, 0).used.total
    restored = np.array([3, 499])
    assert find_fetches(epochs, 500, tmp_path, 0, restored).used.total == num_first + 2


def shape_of(
    fetches: int = 5000, items: int = 2000, *, dim: int = 16, width: int = 1, tables: tuple[int, ...] = ()
) -> SpillShape:
    tables = tables or (30_000_000, 900_000, 1000)
    used = all_used(sum(tables))
    return SpillShape(dim, width, tables, np.full(items, fetches, np.int64), used)


def bytes_taken(shape: SpillShape, sizes: SpillSizes) -> int:
    """All that a row store allocates, counted anew."""
    arenas = 2 * sizes.arena_rows * (4 * (shape.embedding_dim + shape.state_width) + 1)
    blocks = (sizes.num_buffers + NUM_READERS + 1) * sizes.block_bytes
    evaluation = sizes.evaluation_rows * (4 * shape.embedding_dim + 40)
    lists = sizes.group_first.nbytes + sizes.range_first.nbytes + 8 * (sizes.num_groups + sizes.num_ranges)
    return arenas + blocks + evaluation + lists + shape.used.num_bytes


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("limit", [32 * MIB, 100 * MIB, 512 * MIB, 4 * GIB])
@pytest.mark.parametrize("width", [0, 1, 33])
def test_memory_is_divided_within_the_limit(limit: int, width: int) -> None:
    shape = shape_of(width=width)
    sizes = choose_sizes(shape, limit)
    assert bytes_taken(shape, sizes) <= sizes.num_bytes <= limit
    # Most of the limit is used, in large blocks, and a group's rows fit in an arena.
    assert sizes.num_bytes > 0.8 * limit and (sizes.block_bytes >= 64 * KIB or limit < 100 * MIB)
    assert (np.diff(sizes.group_first) <= sizes.arena_rows).all()
    assert sizes.group_first[-1] == shape.fetches_of_items.sum() and sizes.range_first[-1] == shape.num_rows


@compiled_only
def test_too_little_memory_is_refused_with_what_would_do() -> None:
    shape = shape_of()
    enough = least_bytes(shape)
    with pytest.raises(ConfigError, match="a transfer loads up to 5,000 of them") as caught:
        choose_sizes(shape, enough - KIB)
    assert f"--slow-bytes {enough // KIB}KiB would do" in str(caught.value.hint)
    assert bytes_taken(shape, choose_sizes(shape, enough)) <= enough


def test_a_row_wider_than_a_block_gets_blocks_of_its_own_size() -> None:
    shape = shape_of(10, 10, dim=100_000, width=0, tables=(100,))
    sizes = choose_sizes(shape, 64 * MIB)
    assert sizes.block_bytes >= shape.record_bytes and sizes.block_bytes % (4 * KIB) == 0


def test_nothing_to_fetch_needs_little() -> None:
    sizes = choose_sizes(SpillShape(16, 1, (10, 0), np.zeros(3, np.int64), all_used(10)), MIB)
    assert (sizes.num_groups, sizes.num_ranges) == (1, 1)


@compiled_only
def test_rows_that_are_never_used_take_no_block() -> None:
    shape = shape_of(items=100)
    used = UsedRows(shape.num_rows)
    used.add(np.arange(0, shape.num_rows, 100))
    few = replace(shape, used=used)
    limit = 16 * MIB
    dense = choose_sizes(shape, limit)
    sizes = choose_sizes(few, limit)
    assert dense.block_bytes <= 16 * KIB and dense.num_ranges > 100
    assert sizes.block_bytes >= 64 * KIB and sizes.num_ranges < 20
    assert bytes_taken(few, sizes) <= sizes.num_bytes <= limit
    assert least_bytes(few) < least_bytes(shape)


def naive_cut(used: set[int], tables: list[int], cell_rows: int, most_used: int, most_rows: int) -> list[int]:
    """Walk all rows; a range ends at a cell whose rows it has no room for, and at the end of a table."""
    bounds = [0]
    row = 0
    for num_rows in tables:
        stop = row + num_rows
        in_range = 0
        while row < stop:
            end = min((row // cell_rows + 1) * cell_rows, stop)
            first_of_cell = row // cell_rows * cell_rows
            in_cell = sum(each in used for each in range(first_of_cell, first_of_cell + cell_rows))
            in_cell = min(in_cell, end - row)
            is_full = in_range + in_cell > most_used and end - bounds[-1] > most_rows
            if is_full and row > bounds[-1]:
                bounds.append(row)
                in_range = 0
            in_range += in_cell
            row = end
        if num_rows:
            bounds.append(stop)
    return bounds if len(bounds) > 1 else [0, 0]


@given(st.data())
def test_ranges_agree_with_a_walk_over_all_rows(data: st.DataObject) -> None:
    tables = data.draw(st.lists(st.integers(0, 60), max_size=5))
    num_rows = sum(tables)
    cell_rows = data.draw(st.integers(1, 9))
    # Often less than a cell.
    most_used = data.draw(st.integers(1, 5) | st.integers(1, 70))
    most_rows = data.draw(st.integers(1, 5) | st.integers(1, 70))
    is_used = data.draw(st.lists(st.booleans(), min_size=num_rows, max_size=num_rows))
    used = {row for row in range(num_rows) if is_used[row]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill_plan, "_LEAST_CELL_ROWS", cell_rows)
        counts = UsedRows(num_rows)
    counts.add(np.array(sorted(used), np.int64))
    assert counts.total == len(used)
    bounds = counts.cut(tables, most_used, most_rows).tolist()
    assert bounds == naive_cut(used, tables, cell_rows, most_used, most_rows)
    # A range with too many rows and too many used ones is a single cell.
    for first, stop in pairwise(bounds):
        num_used = sum(first <= row < stop for row in used)
        assert num_used <= most_used or stop - first <= max(most_rows, cell_rows)
    table_stops = np.cumsum(tables).tolist()
    assert {stop for stop in table_stops if stop} <= set(bounds)


@pytest.mark.parametrize(
    ("tables", "most", "wanted"),
    [
        ((), 5, [0, 0]),
        ((0, 0), 5, [0, 0]),
        ((5, 0, 6, 1), 5, [0, 5, 10, 11, 12]),
        ((10,), 3, [0, 3, 6, 9, 10]),
    ],
)
def test_where_every_row_is_used_ranges_have_so_many_rows(
    tables: tuple[int, ...], most: int, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill_plan, "_LEAST_CELL_ROWS", 1)
    used = all_used(sum(tables))
    assert used.total == sum(tables)
    assert used.cut(tables, most, 1).tolist() == used.cut(tables, 1, most).tolist() == wanted


def test_a_cell_of_two_tables_counts_as_far_as_its_rows_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_plan, "_LEAST_CELL_ROWS", 5)
    # The second cell has one row of the first table and four of the second, which go with the third cell.
    assert all_used(20).cut([6, 14], 9, 1).tolist() == [0, 6, 15, 20]


def test_a_table_of_which_no_row_is_used_is_one_range() -> None:
    assert UsedRows(3_000_000_000).cut([1_000_000_000, 2_000_000_000], 1, 1).tolist() == [
        0,
        1_000_000_000,
        3_000_000_000,
    ]


def test_rows_are_counted_in_parts(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rng.permutation(10_000)[:4000].astype(np.int32)
    whole = UsedRows(10_000)
    whole.add(rows)
    monkeypatch.setattr(spill_plan, "_PART_ROWS", 7)
    parts = UsedRows(10_000)
    parts.add(rows)
    for most in (1, 100, 3000):
        np.testing.assert_array_equal(whole.cut([10_000], most, 1), parts.cut([10_000], most, 1))


def test_counts_take_little_memory_whatever_the_number_of_rows() -> None:
    assert UsedRows(0).num_bytes == 0
    assert UsedRows(2000).num_bytes <= 256
    used = UsedRows((1 << 40) + 1)
    assert used.num_bytes <= 64 << 10
    used.add(np.array([0, 1 << 40], np.int64))
    assert used.total == 2
