"""Blocks of a spill file: whole, at their places, with and without direct input and output.

Rows that leave memory come back bit for bit: random runs against a dict, and planted faults.

Kernels of rows that spill, each against a plain loop over rows.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import KIB, MIB, HotsetError
from hotset.tests.support.spilled_runs import Twin, plan_epochs
from hotset.train.placements import spilled_rows
from hotset.train.placements.spill_plan import BlockFile, aligned_blocks
from hotset.train.placements.spilled_rows import (
    ALL_DONE,
    PAST_GROUP,
    Arenas,
    Buckets,
    append_rows,
    scatter_records,
)

BYTES = 8192


@pytest.fixture(params=["direct", "cached"])
def file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BlockFile:
    if request.param == "cached":
        monkeypatch.setattr(BlockFile, "_use_direct", lambda _: False)
    return BlockFile(tmp_path, BYTES, 3)


def written(file: BlockFile, block: Any) -> int:
    number = file.allocate()
    file.write(number, block)
    return number


def filled(value: int) -> Any:
    block = aligned_blocks(1, BYTES)[0]
    block[:] = value
    return block


def test_blocks_come_back_and_their_places_are_used_again(file: BlockFile, tmp_path: Path) -> None:
    numbers = [written(file, filled(value)) for value in range(5)]
    assert sorted(numbers) == [0, 1, 2, 3, 4]
    block = filled(9)
    for value in (3, 0, 4):
        file.read(numbers[value], block)
        assert (block == value).all()
    file.free(numbers[1])
    assert written(file, filled(7)) == numbers[1]
    file.read(numbers[1], block)
    assert (block == 7).all() and (file.reads, file.writes) == (4, 6)
    assert list(tmp_path.iterdir()) == []
    file.close()


def test_a_file_cut_short_is_noticed(file: BlockFile) -> None:
    number = written(file, filled(1))
    os.ftruncate(file._file.fileno(), 4096)
    with pytest.raises(HotsetError, match="cannot be read: it ends after 4096 of 8192 bytes"):
        file.read(number, filled(0))


def test_parts_of_a_block_are_put_together(file: BlockFile, monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, view, at: write(fd, view[:4096], at))
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: read(fd, [views[0][:4096]], at))
    source = aligned_blocks(1, BYTES)[0]
    source[:] = np.arange(BYTES) % 251
    block = filled(0)
    file.read(written(file, source), block)
    np.testing.assert_array_equal(block, source)


def test_a_disk_without_room_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HotsetError, match="has no room for 80 KiB of rows: No space left") as caught:
        BlockFile(tmp_path, BYTES, 10)
    assert "--slow-dir" in str(caught.value.hint)


def test_a_disk_that_fills_up_later_is_one_line(file: BlockFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(HotsetError, match="cannot be written: No space left on device"):
        written(file, filled(1))


def test_a_file_system_without_direct_access_is_used_through_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control = fcntl.fcntl

    def refusing(file: Any, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return int(control(file, command, flags))

    monkeypatch.setattr(fcntl, "fcntl", refusing)
    file = BlockFile(tmp_path, BYTES, 1)
    block = filled(0)
    file.read(written(file, filled(5)), block)
    assert not file.is_direct and (block == 5).all()


def test_aligned_blocks_begin_with_a_page() -> None:
    assert aligned_blocks(0, BYTES).shape == (0, BYTES)
    assert aligned_blocks(3, BYTES).ctypes.data % 4096 == 0


TABLES = (700, 0, 1300)


def twin_of(
    rng: np.random.Generator, folder: Path, limit: int = 300 * KIB, *, dim: int = 16, width: int = 16
) -> Twin:
    return Twin(plan_epochs(rng, sum(TABLES), 160), TABLES, dim, width, folder, limit)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize(
    ("limit", "dim", "width"),
    [(300 * KIB, 16, 16), (200 * KIB, 16, 1), (160 * KIB, 9, 0), (4 * MIB, 4, 1), (600 * KIB, 33, 67)],
)
def test_every_row_comes_back_as_it_left(
    limit: int, dim: int, width: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    twin = twin_of(rng, tmp_path, limit, dim=dim, width=width)
    twin.run(rng, looks=2)
    np.testing.assert_array_equal(twin.merged(), twin.wanted())
    # What is merged may be read again, as evaluation does.
    np.testing.assert_array_equal(twin.merged(), twin.wanted())
    # Each block in memory is free or is being filled.
    num_filling = int((twin.store._buckets.buffer_of >= 0).sum())
    twin.store.close()
    assert twin.store._free.qsize() + num_filling == twin.sizes.num_buffers
    assert list(tmp_path.iterdir()) == []
    is_tight = limit < MIB
    assert (twin.sizes.num_groups > 3) == is_tight and (twin.store._file.reads > 0) == is_tight


def test_ranges_of_more_records_than_memory_holds_are_read_part_by_part(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    twin = twin_of(rng, tmp_path)
    twin.run(rng)
    before = twin.store._file.reads
    np.testing.assert_array_equal(twin.merged(), twin.wanted())
    read_once = twin.store._file.reads - before
    # Room for 80 rows: every part reads its range anew.
    twin.store.sizes = replace(twin.sizes, arena_rows=40)
    np.testing.assert_array_equal(twin.merged(), twin.wanted())
    assert twin.store._file.reads - before - read_once > 5 * read_once > 0
    twin.store.close()


def test_of_long_ranges_with_few_records_these_are_read_once(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    tables = (9000, 0, 15_000)
    twin = Twin(plan_epochs(rng, sum(tables), 160), tables, 16, 1, tmp_path, 200 * KIB)
    lengths = np.diff(twin.sizes.range_first)
    assert (lengths > 3 * twin.sizes.arena_rows).sum() > 1
    twin.run(rng)
    before = twin.store._file.reads
    np.testing.assert_array_equal(twin.merged(), twin.wanted())
    # Blocks that are not full are written first; then every block that was not read yet is read once.
    file = twin.store._file
    assert 0 < file.reads - before <= file.writes - before
    twin.store.close()


def test_a_record_beyond_its_range_is_noticed(rng: np.random.Generator, tmp_path: Path) -> None:
    twin = twin_of(rng, tmp_path)
    twin.run(rng)
    bounds = twin.sizes.range_first.copy()
    bounds[1] = 10
    twin.store.sizes = replace(twin.sizes, range_first=bounds)
    with pytest.raises(RuntimeError, match="of a block of the spill file is misplaced"):
        twin.merged()
    twin.store.close()


def test_only_blocks_of_later_groups_are_written(rng: np.random.Generator, tmp_path: Path) -> None:
    twin = twin_of(rng, tmp_path)
    rows_written = sum(
        chunk.write_back_rows.size + np.count_nonzero(np.repeat(chunk.is_split, np.diff(chunk.offsets)))
        for epoch in twin.epochs
        for chunk in epoch.chunks
    ) + sum(epoch.residents.size for epoch in twin.epochs)
    twin.run(rng)
    file = twin.store._file
    # Blocks are full, so what is written is at most the rows that were written back.
    per_block = file.block_bytes // twin.shape.record_bytes
    assert 0 < file.writes <= rows_written // per_block
    assert file.reads <= file.writes
    assert twin.store.file_bytes == (file.block_bytes * file.reads, file.block_bytes * file.writes)
    twin.store.close()


def test_a_fetch_of_a_row_that_was_lost_is_a_bug(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(weights: Any, state: Any, slots: Any, *_: Any) -> tuple[int, int]:
        return int(slots.size), spilled_rows.ALL_DONE

    monkeypatch.setattr("hotset.train.placements.spilled_rows.append_rows", lose)
    twin = twin_of(rng, tmp_path)
    with pytest.raises(RuntimeError, match=r"fetch \d+ wants row \d+, which was not written back"):
        twin.run(rng)
    twin.store.close()


def test_a_row_wanted_by_a_fetch_long_made_is_a_bug(rng: np.random.Generator, tmp_path: Path) -> None:
    twin = twin_of(rng, tmp_path)
    twin.run(rng)
    one = np.zeros(1, np.int64)
    with pytest.raises(RuntimeError, match="row 0 is wanted by fetch 0, long made"):
        twin.store.put(one, one, np.zeros((1, 16), np.float32), np.zeros((1, 16), np.float32), one)
    twin.store.close()


DIM, WIDTH, WORDS = 2, 1, 4
GROUP_FIRST = np.array([0, 3, 5, 9], np.int64)
RANGE_FIRST = np.array([0, 10, 15], np.int64)


def empty_arenas() -> Arenas:
    return Arenas(
        np.zeros((2, 4, DIM), np.float32), np.zeros((2, 4, WIDTH), np.float32), np.zeros((2, 4), np.uint8)
    )


def empty_buckets(*, has_buffers: bool = True) -> Buckets:
    memory = np.zeros((5, 3 * WORDS + 2), np.uint32)  # three records and a rest in each block
    buffers = np.arange(5, dtype=np.int32) if has_buffers else np.full(5, -1, np.int32)
    return Buckets(GROUP_FIRST, RANGE_FIRST, memory, memory.view(np.float32), buffers, np.zeros(5, np.int32))


def records(buckets: Buckets, bucket: int) -> list[tuple[int, list[float]]]:
    buffer = buckets.buffer_of[bucket]
    return [
        (int(buckets.words[buffer, first]), buckets.values[buffer, first + 1 : first + WORDS].tolist())
        for first in range(0, int(buckets.num_records[bucket]) * WORDS, WORDS)
    ]


def append(
    rows: list[int], numbers: list[int], present: int, arenas: Arenas, buckets: Buckets
) -> tuple[int, int]:
    slots = np.arange(len(rows))[::-1].copy()
    weights = np.array([[row, row + 0.5] for row in rows[::-1]], np.float32).reshape(-1, DIM)
    state = np.array([[row + 0.25] for row in rows[::-1]], np.float32).reshape(-1, WIDTH)
    arguments = (np.array(rows, np.int64), np.array(numbers, np.int64), 0, present, arenas, buckets)
    return append_rows(weights, state, slots, *arguments)


def test_rows_go_where_their_next_fetch_is() -> None:
    arenas, buckets = empty_arenas(), empty_buckets()
    # Fetch 1 is of the present group, 4 of the next, 8 of one behind; 7 and 12 are fetched no more.
    assert append([3, 9, 2, 7, 12], [1, 4, 8, -1, -1], 0, arenas, buckets) == (5, ALL_DONE)
    assert arenas.weights[0, 1].tolist() == [3, 3.5] and arenas.state[0, 1].tolist() == [3.25]
    assert arenas.weights[1, 1].tolist() == [9, 9.5]
    assert np.argwhere(arenas.is_there).tolist() == [[0, 1], [1, 1]]
    assert [records(buckets, bucket) for bucket in range(5)] == [
        [],
        [],
        [(3, [2, 2.5, 2.25])],
        [(7, [7, 7.5, 7.25])],
        [(2, [12, 12.5, 12.25])],
    ]


@pytest.mark.parametrize(("has_buffers", "done"), [(True, 3), (False, 0)])
def test_a_bucket_without_room_stops_the_kernel(has_buffers: bool, done: int) -> None:
    buckets = empty_buckets(has_buffers=has_buffers)
    assert append([1, 2, 3, 4], [5, 6, 7, 8], 0, empty_arenas(), buckets) == (done, 2)


def test_a_group_that_is_over_takes_no_row() -> None:
    assert append([1, 2], [8, 2], 1, empty_arenas(), empty_buckets()) == (1, PAST_GROUP)


def test_no_rows_are_no_work() -> None:
    assert append([], [], 0, empty_arenas(), empty_buckets()) == (0, ALL_DONE)


def block_of(places: list[int]) -> tuple[np.ndarray, np.ndarray]:
    words = np.zeros(len(places) * WORDS + 1, np.uint32)
    values = words.view(np.float32)
    for i, place in enumerate(places):
        words[i * WORDS] = place
        values[i * WORDS + 1 : (i + 1) * WORDS] = [place, place + 0.5, place + 0.25]
    return words, values


def test_records_go_to_their_places_and_to_no_other() -> None:
    arenas = empty_arenas()
    rows = (arenas.weights[1], arenas.state[1], arenas.is_there[1])
    assert scatter_records(*block_of([2, 0, 3]), 2, 0, 4, *rows) == -1
    assert arenas.is_there[1].tolist() == [1, 0, 1, 0] and arenas.weights[1, 2].tolist() == [2, 2.5]
    assert arenas.state[1, 0].tolist() == [0.25] and not arenas.weights[0].any()
    assert scatter_records(*block_of([1, 2]), 2, 0, 4, *rows) == 1  # taken
    assert scatter_records(*block_of([4]), 1, 0, 4, *rows) == 0  # beyond


def test_of_a_part_only_its_own_records_are_taken() -> None:
    arenas = empty_arenas()
    rows = (arenas.weights[0], arenas.state[0], arenas.is_there[0])
    # The four places from 10 on, of a bucket of 20.
    assert scatter_records(*block_of([9, 10, 13, 14, 19]), 5, 10, 20, *rows) == -1
    assert arenas.is_there[0].tolist() == [1, 0, 0, 1]
    assert arenas.weights[0, :, 0].tolist() == [10, 0, 0, 13]
    assert scatter_records(*block_of([9, 20]), 2, 10, 20, *rows) == 1  # beyond the bucket
    assert scatter_records(*block_of([9, 13]), 2, 10, 20, *rows) == 1  # taken
