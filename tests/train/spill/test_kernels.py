"""Kernels of rows that spill, each against a plain loop over rows."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.train.spill.kernels import ALL_DONE, PAST_GROUP, Arenas, Buckets, append_rows, scatter_records

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
