"""What the kernel of planners reads, keeps and writes: tuples of arrays, which compiled code takes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Rule(NamedTuple):
    """What a planner was told to do."""

    policy: int
    prefetch: int
    """Item t waits for compute(t - prefetch - 1)."""
    group: int
    """Batches served by one item."""
    window: int
    """Batches known ahead; -1: next uses are given with the stream."""
    splits: bool
    """A batch of too many rows runs in passes instead of being refused."""


class Steps(NamedTuple):
    """The arrays of a RowStream."""

    offsets: NDArray[np.int64]
    rows: NDArray[np.int64]
    lookups: NDArray[np.int64]
    next_uses: NDArray[np.int64]


class Warm(NamedTuple):
    """Rows that come in with an epoch's first item, while slots are free."""

    rows: NDArray[np.int64]
    """(num_warm,); the most important first."""
    counts: NDArray[np.int64]
    """(num_warm,); look-ups that LFU takes them to have had."""


class Staging(NamedTuple):
    """State of a staging area between steps."""

    slot_of_row: NDArray[np.int32]
    rank_of_row: NDArray[np.int32]
    last_entry: NDArray[np.int64]
    """(num_rows,) where look-ahead is limited: number in the run of the row's last known use."""
    records: NDArray[np.int64]
    """(num_slots, 8), row -1 where free."""
    queue: NDArray[np.int32]
    """(2 * num_slots + 1, 2), slot and step of each use; in use from ``_FRONT`` to ``_TAIL``."""
    heap_keys: NDArray[np.int64]
    """(2 * num_slots + 1,); the least key leaves first."""
    heap_slots: NDArray[np.int32]
    heads: NDArray[np.int32]
    """(steps,): the first slot whose row is used next in the step and may leave, -1 where none."""
    tails: NDArray[np.int32]
    """(steps,): the last of them."""
    filled: NDArray[np.uint64]
    """(steps / 64,): a bit a step, set where it has some."""
    links: NDArray[np.int32]
    """(num_slots,): the slot behind, -1 for the last."""
    free: NDArray[np.int32]
    victims: NDArray[np.int32]
    scalars: NDArray[np.int64]


class Emitted(NamedTuple):
    """The arrays of StepPlans, long enough, and running totals of the lists in ``ends`` (fetches,
    write-backs)."""

    slots: NDArray[np.int32]
    fetch_offsets: NDArray[np.int64]
    fetch_rows: NDArray[np.int64]
    fetch_slots: NDArray[np.int32]
    fetch_is_first: NDArray[np.bool_]
    write_back_offsets: NDArray[np.int64]
    write_back_rows: NDArray[np.int64]
    write_back_slots: NDArray[np.int32]
    after: NDArray[np.int64]
    waits_for: NDArray[np.int64]
    is_shortened: NDArray[np.bool_]
    is_split: NDArray[np.bool_]
    num_hits: NDArray[np.int64]
    num_misses: NDArray[np.int64]
    ends: NDArray[np.int64]
