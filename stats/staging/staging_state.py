"""The arrays that the kernel of planners reads, keeps and writes, as tuples, which compiled code takes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LOOKAHEAD, LRU, LFU, DATASET, STATIC = 0, 1, 2, 3, 4
"""Policies: the row evicted has the farthest next use; the oldest last use; the fewest lookups since it was
loaded; the last place in the order of importance; is not pinned (and is evicted as soon as it may be)."""

LONG_AGO = -(1 << 30)
"""Last use of a row that was loaded before step 0."""
NOBODY = -(1 << 31)
"""Last use of a free slot."""
TIE_BITS = 33
"""Low bits of a key, which order the rows that the policy holds for equal."""

SLOT_RECORD = np.dtype(
    (
        np.record,
        [
            ("row", np.int64),  # key of the row in the slot, -1 where the slot is free
            ("last_use", np.int64),  # step of the row's last use
            ("key", np.int64),  # by which the policy evicts: the least first
            ("previous_location", np.int64),  # location of the row before it was loaded
            ("vacated_by", np.int64),  # last item that wrote a row back from the slot, or else loaded one
            ("is_clean", np.int64),  # loaded before step 0 and not used yet: nothing to write back
            ("is_pinned", np.int64),  # never evicted
            ("is_listed", np.int64),  # listed for eviction by its present key, in the heap or a bucket
        ],
    )
)
"""One slot. Eight words, a line of cache: a use of a row costs one miss."""

AREA_RECORD = np.dtype(
    (
        np.record,
        [
            ("step", np.int64),  # the next step to plan, within the epoch
            ("epoch_base", np.int64),  # steps of the epochs before, so that items are numbered over the run
            ("after", np.int64),  # rows unused since this step may be evicted
            ("num_evictable", np.int64),  # how many those are
            ("front", np.int64),  # ``queue`` is in use from here to ``tail``
            ("boundary", np.int64),  # uses in ``queue`` before here are those up to step ``after``
            ("tail", np.int64),
            ("sequence", np.int64),  # uses so far, which break ties between keys
            ("heap_size", np.int64),
            ("num_free", np.int64),
            ("num_pinned", np.int64),
            ("top_word", np.int64),  # no word of ``filled`` beyond it has a bit
            ("num_known", np.int64),  # steps of the epoch whose rows are known
            ("reach", np.int64),  # of the present item: see `PlanArrays.reach`
            ("split_step", np.int64),  # the last step that ran in passes
        ],
    )
)
"""The scalars of a staging area."""


class Rule(NamedTuple):
    """The settings of a planner, fixed for a run."""

    policy: int
    prefetch: int
    """Item t waits for compute(t - prefetch - 1)."""
    group: int
    """Batches served by one item."""
    finds_uses: bool
    """Next uses are found as batches become known, and not given with them."""
    splits: bool
    """A batch of too many rows runs in passes instead of being refused."""


class HeldSteps(NamedTuple):
    """The steps known and not planned yet, in ring buffers whose lengths are powers of two.

    Entry n of the epoch is at n modulo the length of ``rows``, and the first entry of step t is at t modulo
    the length of ``starts``; the entry after the last step is there, too.
    """

    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    lookups: NDArray[np.int32]
    next_uses: NDArray[np.int32]


class WarmRows(NamedTuple):
    """Rows that are loaded with an epoch's first item, while slots are free."""

    rows: NDArray[np.int64]
    """(num_warm,); the most important first."""
    counts: NDArray[np.int64]
    """(num_warm,); lookups that LFU takes them to have had."""


class AreaState(NamedTuple):
    """The state of a staging area between steps."""

    location_of_row: NDArray[np.int32]
    """(num_rows,); the slot of each row, or where else it is: see `row_locations`."""
    rank_of_row: NDArray[np.int32]
    last_place: NDArray[np.int32]
    """(num_rows,) where next uses are found: where in `HeldSteps.rows` the row's last known use was put."""
    records: NDArray[np.record]
    """(num_slots,) of SLOT_RECORD."""
    queue: NDArray[np.int32]
    """(2 * num_slots + 1, 2), slot and step of each use in the order of uses."""
    heap_keys: NDArray[np.int64]
    """(2 * num_slots + 1,); the least key is evicted first."""
    heap_slots: NDArray[np.int32]
    heads: NDArray[np.int32]
    """(steps,): the first slot whose row is used next in the step and may be evicted, -1 where none."""
    tails: NDArray[np.int32]
    """(steps,): the last of them."""
    filled: NDArray[np.uint64]
    """(steps / 64,): a bit per step, set where it has some."""
    links: NDArray[np.int32]
    """(num_slots,): the slot behind, -1 for the last."""
    free: NDArray[np.int32]
    """(num_slots,), a stack: the first ``num_free`` are free slots."""
    victims: NDArray[np.int32]
    """(num_slots,): the slots whose rows the present item evicts."""
    area: NDArray[np.record]
    """(1,) of AREA_RECORD."""


class PlanArrays(NamedTuple):
    """The arrays of StepPlans, long enough, and running totals of the lists in ``ends`` (fetches,
    write-backs)."""

    slots: NDArray[np.int32]
    fetch_offsets: NDArray[np.int64]
    fetch_rows: NDArray[np.int32]
    fetch_slots: NDArray[np.int32]
    fetch_is_first: NDArray[np.bool_]
    write_back_offsets: NDArray[np.int64]
    write_back_rows: NDArray[np.int32]
    write_back_slots: NDArray[np.int32]
    after: NDArray[np.int64]
    waits_for: NDArray[np.int64]
    is_shortened: NDArray[np.bool_]
    is_split: NDArray[np.bool_]
    num_hits: NDArray[np.int64]
    num_misses: NDArray[np.int64]
    reach: NDArray[np.int64]
    """(num_steps,): how far ahead the nearest known next use of a row evicted by look-ahead is; 0 where none
    has one; -1 where no row was evicted."""
    ends: NDArray[np.int64]
