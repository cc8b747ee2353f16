"""Planners of a staging area: batches in, step plans out.

One rule of transfers serves every policy: item t waits for compute(t - P - 1), P being
the prefetch depth, and evicts among the rows unused in steps t - P to t. If too few of them may be evicted,
it waits for a later step, t - 1 at most; such steps are marked as shortened. So no plan reads a row before
its last update is written back, and at P = 0 `lookahead` is Belady's algorithm. Policies: see `policies`;
`cache` policies after Fang et al., arXiv 2208.05321, as released, with state of rows, dirty rows and
transfers handled here. In a run the staging area begins empty, and is emptied at the end of each epoch.

Slots and depth are chosen together. A transfer that runs P batches ahead may evict none of the rows of P + 1
batches. With few slots it is therefore shortened, and evicts rows that are needed soon. Measured on one
epoch, against Belady with as many slots and nothing ahead (110,000 samples of Criteo Kaggle in batches of
512; slots in multiples of the cold rows of the largest batch, at P = 1 and P = 2):

    slots       2x     2.5x    3x     4x     6x     8x
    P = 1     1.25     1.16  1.12   1.08   1.04   1.02    times the bytes
    P = 2     1.25*    1.49* 1.32   1.18   1.09   1.04    * 99 % and 32 % of the transfers shortened

So each batch of depth, and the batch itself, gets slots for twice its rows: at most 1.1 times the bytes, and
no transfer shortened. On 300,000 generated samples in batches of 2,048 the same rule costs 1.03 and 1.02.

The default is both more slots and less depth. On the real sample, slots for as many bytes as its 512 KiB of
hot rows moved 39 MB at P = 2, all of it late, and 32 MB at P = 0, none of it hidden; four batches' rows (958
KiB) move 21 MB at P = 1, on time.

Miss ratios of the policies over sizes of the fast tier come from the step plans of a simulated trace. Its
rows are numbered by first appearance, so memory follows the trace and not the tables. The most important rows
that the trace does not use get numbers, too, because a policy that fills its slots with them in advance pays
for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..batch_rows import find_distinct
from ..kernel import kernel
from ..row_bytes import share_slots
from .kernel import hold_steps, move_steps, plan_steps
from .policies import (
    AREA_RECORD,
    DATASET,
    LFU,
    LONG_AGO,
    LOOKAHEAD,
    LRU,
    NOBODY,
    SLOT_RECORD,
    STATIC,
    TIE_BITS,
    UNSEEN,
    WRITTEN_BACK,
    AreaState,
    HeldSteps,
    Rule,
    WarmRows,
)
from .step_plans import (
    NEVER,
    Residents,
    RowStream,
    RowTraffic,
    StepPlans,
    TooFewSlotsError,
    Window,
    next_uses,
)


def new_area(
    num_rows: int,
    num_slots: int,
    rank_of_row: NDArray[np.int32],
    *,
    finds_uses: bool,
    location_of_row: NDArray[np.int32] | None = None,
) -> AreaState:
    """Return the empty staging area of a new run; to find next uses takes 4 bytes more a row.

    Memory for the largest array, (num_rows,), may be given: it is overwritten.
    """
    # The caller may lend the largest array, that of locations, to use its memory again.
    if location_of_row is None:
        location_of_row = np.empty(num_rows, np.int32)
    location_of_row[:] = UNSEEN
    state = AreaState(
        location_of_row=location_of_row,
        rank_of_row=rank_of_row,
        last_place=np.full(num_rows if finds_uses else 0, -1, np.int32),
        records=np.zeros(num_slots, SLOT_RECORD),
        # Twice as many entries as slots: stale ones stay until the queue or the heap is compacted.
        queue=np.zeros((2 * num_slots + 1, 2), np.int32),
        heap_keys=np.zeros(2 * num_slots + 1, np.int64),
        heap_slots=np.zeros(2 * num_slots + 1, np.int32),
        heads=np.full(64, -1, np.int32),
        tails=np.full(64, -1, np.int32),
        filled=np.zeros(1, np.uint64),
        links=np.zeros(num_slots, np.int32),
        free=np.zeros(num_slots, np.int32),
        victims=np.zeros(num_slots, np.int32),
        area=np.zeros(1, AREA_RECORD),
    )
    _start_epoch(state)
    return state


def with_buckets(state: AreaState, num_steps: int) -> AreaState:
    """Return ``state`` with room for next uses below ``num_steps``."""
    if num_steps <= state.heads.size:
        return state
    num_words = max(2 * state.filled.size, num_steps // 64 + 1)
    heads = np.full(64 * num_words, -1, np.int32)
    heads[: state.heads.size] = state.heads
    tails = np.full(64 * num_words, -1, np.int32)
    tails[: state.tails.size] = state.tails
    filled = np.zeros(num_words, np.uint64)
    filled[: state.filled.size] = state.filled
    return state._replace(heads=heads, tails=tails, filled=filled)


def end_epoch(state: AreaState) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Empty the staging area and return the rows to write back, with their slots, by ascending slot.

    ``state`` is left as at the start of an epoch, but still knows which rows were used before.
    """
    rows = np.empty(state.records.size, np.int32)
    slots = np.empty(state.records.size, np.int32)
    num_listed = _list_residents(state, rows, slots)
    _start_epoch(state)
    return rows[:num_listed].copy(), slots[:num_listed].copy()


def _start_epoch(state: AreaState) -> None:
    """Set everything but ``location_of_row`` and ``last_place`` to the state of an empty area at step 0."""
    area = state.area[0]
    num_slots = state.records.size
    state.area[:] = 0
    area.split_step = -2  # not the step before step 0
    area.num_free = num_slots
    area.after = LONG_AGO - 1
    area.sequence = 1 << (TIE_BITS - 1)  # ties of warm rows count down from here
    state.heads[:] = -1
    state.filled[:] = 0
    _empty_slots(state)


@kernel
def _empty_slots(state: AreaState) -> None:
    """Make every slot empty and free; keys and locations in the records are written with the next row.

    In one pass over the records: assigning field by field reads each line of memory five times, which is a
    third of the time that a planner of many slots takes for a short epoch.

    Args:
        state: ``records`` and ``free`` are written.
    """
    num_slots = state.records.shape[0]
    for slot in range(num_slots):
        record = state.records[slot]
        record.row = -1
        record.last_use = NOBODY
        record.is_pinned = 0
        record.is_listed = 0
        state.free[slot] = num_slots - 1 - slot  # a stack: slot 0 is taken first


@kernel
def _list_residents(state: AreaState, rows: NDArray[np.int32], slots: NDArray[np.int32]) -> int:
    """List the rows to write back at the end of an epoch; returns how many.

    Args:
        state: locations of all residents are updated.
        rows: (num_slots,), the first are written.
        slots: (num_slots,), likewise.
    """
    num_listed = 0
    for slot in range(state.records.shape[0]):
        record = state.records[slot]
        row = record.row
        if row < 0:
            continue
        # A row that was never updated here is still where it was loaded from.
        if record.is_clean:
            state.location_of_row[row] = record.previous_location
        else:
            rows[num_listed] = row
            slots[num_listed] = slot
            num_listed += 1
            state.location_of_row[row] = WRITTEN_BACK
    return num_listed


CachePolicy = Literal["static", "lru", "lfu", "dataset"]
CACHE_POLICIES: dict[CachePolicy, int] = {"static": STATIC, "lru": LRU, "lfu": LFU, "dataset": DATASET}
DEFAULT_WARMUP_RATIO = 0.7
_LAST_RANK = np.iinfo(np.int32).max
_NOTHING = np.empty(0, np.int64)
_NO_RANKS = np.empty(0, np.int32)
_LEAST_STEPS, _LEAST_ENTRIES = 128, 1 << 12
"""Lengths of the first buffers of steps held back."""
_REST_STEPS, _REST_ENTRIES = 1024, 1 << 17
"""Steps of the end of an epoch that are planned together, at most, and about how many entries they have."""


class StagingPlanner:
    """Plans one epoch after another, for rows of one width; created by the functions below.

    `plan` may hold batches back until those after them are known, and `plan_rest` plans them.
    All that a planner remembers from epoch to epoch is which rows were used before, and its window.
    """

    def __init__(
        self,
        rule: Rule,
        num_rows: int,
        num_slots: int,
        *,
        window: Window | None = None,
        warm: WarmRows | None = None,
        rank_of_row: NDArray[np.int32] = _NO_RANKS,
        location_of_row: NDArray[np.int32] | None = None,
    ) -> None:
        if num_rows > _LAST_RANK:
            raise ValueError(f"{num_rows} rows are more than 32 bits can name")
        if num_slots < 1:
            raise ValueError(f"num_slots must be 1 or more, got {num_slots}")
        if rule.prefetch < 0:
            raise ValueError(f"the prefetch depth must be 0 or more, got {rule.prefetch}")
        self.num_slots = num_slots
        self.window = window
        """Number of batches held back to find next uses; None: no next use is found."""
        self._rule = rule
        self._warm = warm or WarmRows(_NOTHING, _NOTHING)
        self._state = new_area(
            num_rows, num_slots, rank_of_row, finds_uses=rule.finds_uses, location_of_row=location_of_row
        )
        self._held = _new_buffers(_LEAST_STEPS, _LEAST_ENTRIES)
        self._next_step = 0
        self._num_known = 0

    @property
    def num_held_back(self) -> int:
        """Batches given whose steps are not planned yet."""
        return self._num_known - self._next_step

    def mark_used(self, rows_N: NDArray[np.int64]) -> None:
        """Mark rows as used before and written back; only before the first batch of a run."""
        self._state.location_of_row[rows_N] = WRITTEN_BACK

    def plan(self, batches: RowStream) -> list[StepPlans]:
        """Return the step plans, in chunks, that are known now that ``batches`` follow those before.

        Raises:
            TooFewSlotsError: a batch has more rows than there are slots, and is not to be split.
        """
        if batches.next_uses is None and self._rule.policy == LOOKAHEAD and not self._rule.finds_uses:
            raise ValueError("this planner needs the next use of every row with the batches")
        if self.window is None:
            self._hold(batches)
            return self._plan_up_to(self._num_known - self._rule.group + 1)
        # The window may change after every step, so that the plans do not depend on how batches are given.
        chunks: list[StepPlans] = []
        for first, stop in pairwise(batches.offsets.tolist()):
            lookups = None if batches.lookups is None else batches.lookups[first:stop]
            one = RowStream(np.array([0, stop - first]), batches.rows[first:stop], lookups)
            while self._is_due(self.window, stop - first):
                chunks += self._plan_up_to(self._next_step + 1, self.window)
            self._hold(one)
        while self.window.is_covered(self.num_held_back, self._num_entries):
            chunks += self._plan_up_to(self._next_step + 1, self.window)
        return chunks

    def plan_rest(self) -> Iterator[StepPlans]:
        """Yield the step plans of the batches held back, some at a time: no batch follows in this epoch."""
        while self.num_held_back:
            # Steps with about this number of entries, at least one.
            step = self._next_step
            stop = min(step + _REST_STEPS, self._num_known)
            while stop > step + 1 and self._entry(stop) - self._entry(step) > _REST_ENTRIES:
                stop -= 1
            yield from self._plan_up_to(stop)

    def end_epoch(self) -> Residents:
        """Return the rows to write back after all planned steps; the next step is 0 again."""
        residents = Residents(*end_epoch(self._state))
        self._next_step = 0
        self._num_known = 0
        self._held.starts[0] = 0
        return residents

    @property
    def _num_entries(self) -> int:
        """Rows of the batches held back."""
        return self._entry(self._num_known) - self._entry(self._next_step)

    def _entry(self, step: int) -> int:
        """The first entry of a step that is held, or of the one after the last."""
        return int(self._held.starts[step & (self._held.starts.size - 1)])

    def _hold(self, batches: RowStream) -> None:
        """Append batches to those held back."""
        num_steps = self.num_held_back + batches.num_steps
        num_entries = self._num_entries + batches.rows.size
        if num_steps >= self._held.starts.size or num_entries > self._held.rows.size:
            larger = _new_buffers(num_steps + 1, num_entries, self._held)
            move_steps(self._state, self._rule, self._held, larger)
            self._held = larger
        # Look-ahead has a bucket for every step that may be a next use.
        last_step = self._num_known + batches.num_steps
        uses = _NOTHING if batches.next_uses is None else batches.next_uses
        if self._rule.policy == LOOKAHEAD:
            last_step = max(last_step, int(uses[uses < NEVER].max(initial=0)))
            self._state = with_buckets(self._state, last_step + 1)
        lookups = np.ones(batches.rows.size, np.int64) if batches.lookups is None else batches.lookups
        if self._rule.finds_uses or self._rule.policy != LOOKAHEAD:
            uses = batches.rows  # never read, or not by this policy
        hold_steps(self._state, self._rule, batches.offsets, batches.rows, lookups, uses, self._held)
        self._num_known += batches.num_steps

    def _is_due(self, window: Window, num_new: int) -> bool:
        """Return whether the next step is planned before a batch with ``num_new`` rows is added."""
        if window.is_covered(self.num_held_back, self._num_entries):
            return True
        is_full = self._num_entries + num_new > window.most_entries
        if is_full and self.num_held_back:
            window.cap(self.num_held_back)
            return True
        return False

    def _plan_up_to(self, stop: int, window: Window | None = None) -> list[StepPlans]:
        """Plan the steps before ``stop`` and those that the last item serves; ``window`` follows them."""
        first_step = self._next_step
        if stop <= first_step:
            return []
        most = min(stop + self._rule.group - 1, self._num_known)
        plans = self._new_plans(first_step, most)
        num_needed = plan_steps(self._state, self._rule, self._held, self._warm, stop - 1, plans)
        if num_needed:
            raise TooFewSlotsError(int(self._state.area[0].step), self.num_slots, num_needed)
        area = self._state.area[0]
        self._next_step = int(area.step)
        num_steps = self._next_step - first_step
        if window is not None:
            window.follow(plans.reach[:num_steps].tolist())
        offsets = np.array([self._entry(step) for step in range(first_step, self._next_step + 1)])
        plans.offsets[: num_steps + 1] = offsets - offsets[0]
        return [plans.cut(num_steps, int(area.num_loads), int(area.num_write_backs))]

    def _new_plans(self, first: int, stop: int) -> StepPlans:
        """Room for the plans of some steps, each list as long as it may get."""
        # At most every used row is loaded, and the warm ones. An item evicts no more rows than it loads,
        # except where it empties all slots.
        num_entries = self._entry(stop) - self._entry(first)
        empties = self._rule.policy == STATIC or (self._rule.splits and num_entries > self.num_slots)
        num_write_backs = num_entries + (self.num_slots if empties else 0)
        return StepPlans.unset(
            first, stop - first, num_entries, num_entries + self._warm.rows.size, num_write_backs
        )


def _new_buffers(num_steps: int, num_entries: int, before: HeldSteps | None = None) -> HeldSteps:
    """Return empty buffers for these steps and entries, at least twice as large as ``before``."""
    sizes = (num_steps, num_entries)
    if before is not None:
        sizes = (max(num_steps, before.starts.size), max(num_entries, before.rows.size))
    starts, entries = (1 << (size - 1).bit_length() for size in sizes)
    return HeldSteps(np.zeros(starts, np.int64), *(np.empty(entries, np.int32) for _ in range(3)))


def lookahead_planner(
    num_rows: int,
    num_slots: int,
    *,
    prefetch: int,
    window: Window | None = None,
    splits: bool = False,
    location_of_row: NDArray[np.int32] | None = None,
) -> StagingPlanner:
    """Return a planner that evicts the row with the farthest next use, then the least recent.

    Args:
        num_rows: all keys are below it.
        num_slots: slots of the staging area.
        prefetch: P, the prefetch depth.
        window: how many batches are known ahead of the one planned: a row unused in them is as far as any
            other such row. None: `plan` gets the next use of every row, see `step_plans.next_uses`, and
            holds nothing back.
        splits: a batch of too many rows runs in passes; else it is refused.
        location_of_row: (num_rows,), memory to use for the only array that grows with the rows.

    Source:
        Belady, IBM Systems Journal 5 (1966); Mattson et al., IBM Systems Journal 9 (1970), for its
        optimality.
    """
    rule = Rule(LOOKAHEAD, prefetch, 1, window is not None, splits)
    return StagingPlanner(rule, num_rows, num_slots, window=window, location_of_row=location_of_row)


def cache_planner(
    policy: CachePolicy,
    num_rows: int,
    num_slots: int,
    *,
    prefetch: int,
    batches_per_item: int = 1,
    warmup_ratio: float = DEFAULT_WARMUP_RATIO,
    warm_rows: NDArray[np.int64] = _NOTHING,
    warm_counts: NDArray[np.int64] | None = None,
    rank_of_row: NDArray[np.integer[Any]] = _NO_RANKS,
    splits: bool = False,
) -> StagingPlanner:
    """Return a planner that evicts as a run-time cache does, which knows no next uses.

    Args:
        policy: ``lru`` evicts the row used longest ago (earlier batch; within a batch the one that appears
            earlier). ``lfu`` evicts the one with the fewest lookups since it was loaded; ties as in lru.
            ``dataset`` evicts the one with the last rank. ``static`` keeps the warm rows for good, and
            evicts every other row as soon as the rule of transfers allows.
        num_rows: all keys are below it.
        num_slots: slots of the staging area.
        prefetch: P, the prefetch depth.
        batches_per_item: N; the rows of N batches are loaded by one item, before the first of them, and none
            of them is evicted before the last. A window of too many rows ends earlier, with the last batch
            that fits.
        warmup_ratio: share of the slots filled before step 0, but for those that step 0 needs, in [0, 1].
        warm_rows: (at least that many, or fewer,); keys in the order of importance, the most important first.
        warm_counts: (as many,); lookups that ``lfu`` takes them to have had; None: 0.
        rank_of_row: (num_rows,), for ``dataset``; position of each row in the order of importance, 0 the most
            important; all from 2^31 - 1 on are equal.
        splits: as in `lookahead_planner`; not for ``static``.
    """
    # Refuse settings that make no sense; the kernel checks none.
    if policy not in CACHE_POLICIES:
        raise ValueError(f"no cache policy {policy!r}: want one of {', '.join(CACHE_POLICIES)}")
    if not 0 <= warmup_ratio <= 1:
        raise ValueError(f"warmup_ratio must be in [0, 1], got {warmup_ratio}")
    if batches_per_item < 1:
        raise ValueError(f"batches_per_item must be 1 or more, got {batches_per_item}")
    if policy == "dataset" and rank_of_row.size != num_rows:
        raise ValueError(f"dataset needs the rank of {num_rows} rows, got {rank_of_row.size}")
    # As many warm rows as the ratio grants of the slots, the most important first.
    rows = warm_rows[: math.ceil(num_slots * warmup_ratio)]
    counts = np.zeros(rows.size, np.int64) if warm_counts is None else warm_counts[: rows.size]
    rule = Rule(CACHE_POLICIES[policy], prefetch, batches_per_item, False, splits and policy != "static")
    # Only ``dataset`` reads ranks; those beyond 32 bits are all as unimportant as the last one.
    ranks = np.minimum(rank_of_row, _LAST_RANK).astype(np.int32) if policy == "dataset" else _NO_RANKS
    return StagingPlanner(rule, num_rows, num_slots, warm=WarmRows(rows, counts), rank_of_row=ranks)


LEAST_PREFETCH = 1
"""Batches that transfers run ahead with the default slots at least: with none ahead nothing is hidden."""
MOST_PREFETCH = 2
"""Default limit of batches that transfers run ahead: further ones hide little more."""
_BATCHES_EACH = 2
"""Largest batches whose rows fit in the slots, for each batch of depth and for the batch itself."""


@dataclass(frozen=True, slots=True)
class WidthSizes:
    """The rows of one width that staging slots are for."""

    num_hot: int
    """Rows that live on the fast tier."""
    num_cold: int
    """Rows that are staged."""
    row_bytes: int
    """Bytes of a row with its optimizer state."""
    num_in_batch: int
    """Distinct cold rows of a large batch."""


def default_staging_bytes(widths: Sequence[WidthSizes], prefetch: int | None) -> int:
    """Return the bytes of the hot rows, or more if ``prefetch`` batches ahead need more.

    Args:
        widths: of all tables.
        prefetch: the requested depth; None: at least ``LEAST_PREFETCH``.
    """
    depth = LEAST_PREFETCH if prefetch is None else prefetch
    hot_bytes = sum(width.num_hot * width.row_bytes for width in widths)
    cold_bytes = sum(width.num_cold * width.row_bytes for width in widths)
    # Slots are shared in proportion to all cold bytes, so the table group with the largest need decides.
    # One byte more per table group makes up for rounding.
    wanted = [
        -(-min(_slots_for(depth, width), width.num_cold) * cold_bytes // width.num_cold) + width.row_bytes
        for width in widths
        if width.num_cold and width.num_in_batch
    ]
    return max([hot_bytes, *wanted]) if cold_bytes else hot_bytes


def slots_of_widths(widths: Sequence[WidthSizes], num_bytes: int) -> list[int]:
    """Return the staging slots of each width."""
    return share_slots(num_bytes, [width.num_cold for width in widths], [width.row_bytes for width in widths])


def deepest_prefetch(widths: Sequence[WidthSizes], num_bytes: int) -> int:
    """Return how many batches transfers may run ahead with these slots, ``MOST_PREFETCH`` at most."""
    slots = slots_of_widths(widths, num_bytes)
    for depth in range(MOST_PREFETCH, 0, -1):
        # Where every cold row has a slot nothing is evicted, whatever the depth.
        needed = (min(_slots_for(depth, width), width.num_cold) for width in widths)
        if all(number >= least for number, least in zip(slots, needed, strict=True)):
            return depth
    return 0


def _slots_for(prefetch: int, width: WidthSizes) -> int:
    return _BATCHES_EACH * (prefetch + 1) * width.num_in_batch


POLICIES = ("lookahead", "lru", "lfu", "dataset", "static")


def distinct_stream(rows: NDArray[np.int64], starts: NDArray[np.int64]) -> RowStream:
    """Return the distinct rows of each batch.

    Args:
        rows: (num_lookups,), each at least 0, in the order of training.
        starts: (num_batches + 1,), where the lookups of each batch begin.
    """
    batches = [rows[first:stop] for first, stop in pairwise(starts)]
    return RowStream.of([find_distinct(batch)[0] for batch in batches])


class CacheSweep:
    """A trace of batches, ready to be run through any policy and number of slots."""

    def __init__(self, stream: RowStream, place_of_row: NDArray[np.int64], max_slots: int) -> None:
        """
        Args:
            stream: rows numbered from 0, without gaps.
            place_of_row: (num_rows,), place of each in the order of importance over all rows.
            max_slots: the largest number of slots to evaluate.
        """
        self._stream = stream
        num_rows = place_of_row.shape[0]
        self._num_keys = num_rows + max_slots
        self._key_of_place = np.arange(num_rows, self._num_keys, dtype=np.int64)
        # Keys beyond the rows of the trace are of important rows that it does not use.
        is_near = place_of_row < max_slots
        self._key_of_place[place_of_row[is_near]] = np.flatnonzero(is_near)
        # Ranks put both kinds in one order.
        place_of_key = np.empty(self._num_keys, np.int64)
        place_of_key[num_rows:] = np.arange(max_slots)  # rows occupy some of these places
        place_of_key[:num_rows] = place_of_row
        self._rank_of_key = np.empty(self._num_keys, np.int32)
        self._rank_of_key[np.argsort(place_of_key, kind="stable")] = np.arange(self._num_keys, dtype=np.int32)
        uses = next_uses(stream.offsets, stream.rows, self._num_keys)
        self._exact = RowStream(stream.offsets, stream.rows, None, uses)

    @property
    def least_slots(self) -> int:
        """The distinct rows of the largest batch: no policy can do with fewer."""
        return int(np.diff(self._stream.offsets).max(initial=1))

    def refetches(self, policy: str, num_slots: int) -> int:
        """Count the rows that have to be loaded again; at its first use a row is initialized in its slot.

        At prefetch depth 0. ``lookahead`` starts empty and is then Belady's algorithm, which no policy beats;
        ``lru`` starts empty too; ``lfu`` and ``dataset`` start with 70% of the slots filled with the most
        important rows; ``static`` keeps such rows for good in all slots but those that one batch may need.

        Raises:
            ValueError: no such policy.
            TooFewSlotsError: a batch has more distinct rows than slots.
        """
        if policy == "lookahead":
            planner = lookahead_planner(self._num_keys, num_slots, prefetch=0)
        elif policy == "lru":
            planner = cache_planner("lru", self._num_keys, num_slots, prefetch=0, warmup_ratio=0)
        elif policy in ("lfu", "dataset", "static"):
            # A pinned row keeps its slot, so as many are left as the largest batch needs.
            pinned = self._key_of_place[: max(0, num_slots - self.least_slots)]
            planner = cache_planner(
                policy,  # type: ignore[arg-type]
                self._num_keys,
                num_slots,
                prefetch=0,
                warmup_ratio=1 if policy == "static" else DEFAULT_WARMUP_RATIO,
                warm_rows=pinned if policy == "static" else self._key_of_place,
                rank_of_row=self._rank_of_key,
            )
        else:
            raise ValueError(f"no policy {policy!r}: want one of {', '.join(POLICIES)}")
        traffic = RowTraffic()
        traffic.add(planner.plan(self._exact if policy == "lookahead" else self._stream))
        traffic.add(planner.plan_rest())
        return traffic.rows_to_fast


def slots_to_try(least: int, most: int, num_sizes: int) -> list[int]:
    """Return about ``num_sizes`` sizes from ``least`` to ``most``, evenly in their logarithm, ascending."""
    if most <= least:
        return [least]
    return sorted({int(size) for size in np.geomspace(least, most, num_sizes).round()})
