"""The kernel of every planner of staging slots: which rows come in and which go, step by step.

Residents stand in a list by last use. Those unused since ``after`` may leave; a boundary in the list parts
them from the others, and only they stand in a heap by the policy's key, so a victim costs O(log num_slots)
and a step O(its distinct rows). Memory: 4 bytes a row (12 where look-ahead is limited) and about 60 a slot.
Policies differ in the key alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

LOOKAHEAD, LRU, LFU, DATASET, STATIC = 0, 1, 2, 3, 4
"""Policies: the row that leaves has the farthest next use; the oldest last use; the fewest look-ups since it
came; the last place in the order of importance; is not pinned (and leaves as soon as it may)."""

_UNSEEN, _AWAY, _PENDING = -1, -2, -(1 << 31)
"""``slot_of_row`` below 0: never used in the run; home since before this epoch; about to come in. Else -3 -
w: went home by item w, counted over the run."""
_LONG_AGO = -(1 << 40)
_TIE_BITS = 33
_NEVER = (1 << 30) - 1  # as in step_plan_stream; kernels see constants of their own file alone

(_HEAD, _TAIL, _BOUNDARY, _HEAP, _FREE, _SEQUENCE, _STEP, _EPOCH_BASE, _FLOOR, _ENTRY, _ENTERED, _PINNED) = (
    range(12)
)
_NUM_SCALARS = 12


class Rule(NamedTuple):
    """What a planner was told to do."""

    policy: int
    prefetch: int
    """Steps a transfer may run ahead of the compute it waits for."""
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
    rank_of_row: NDArray[np.int64]
    last_entry: NDArray[np.int64]
    """(num_rows,) where look-ahead is limited: number in the run of the row's last known use."""
    row: NDArray[np.int64]
    last_use: NDArray[np.int64]
    key: NDArray[np.int64]
    before: NDArray[np.int32]
    """What ``slot_of_row`` said before the row came."""
    vacated: NDArray[np.int64]
    is_clean: NDArray[np.bool_]
    is_pinned: NDArray[np.bool_]
    next: NDArray[np.int32]
    previous: NDArray[np.int32]
    heap: NDArray[np.int32]
    place: NDArray[np.int32]
    """Place in the heap, -1 where not."""
    free: NDArray[np.int32]
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


def new_staging(num_rows: int, num_slots: int, rank_of_row: NDArray[np.int64], *, limited: bool) -> Staging:
    """An empty staging area of a new run."""
    slots32, slots64 = (num_slots, np.int32), (num_slots, np.int64)
    staging = Staging(
        slot_of_row=np.full(num_rows, _UNSEEN, np.int32),
        rank_of_row=rank_of_row,
        last_entry=np.full(num_rows if limited else 0, -1, np.int64),
        row=np.zeros(*slots64),
        last_use=np.zeros(*slots64),
        key=np.zeros(*slots64),
        before=np.zeros(*slots32),
        vacated=np.zeros(*slots64),
        is_clean=np.zeros(num_slots, np.bool_),
        is_pinned=np.zeros(num_slots, np.bool_),
        next=np.zeros(*slots32),
        previous=np.zeros(*slots32),
        heap=np.zeros(*slots32),
        place=np.zeros(*slots32),
        free=np.zeros(*slots32),
        scalars=np.zeros(_NUM_SCALARS, np.int64),
    )
    _begin_epoch(staging)
    return staging


@numba.njit(cache=True, nogil=True)
def _begin_epoch(state: Staging) -> None:
    at, num_slots = state.scalars, state.row.size
    at[_EPOCH_BASE] += at[_STEP]
    at[_HEAD] = at[_TAIL] = at[_BOUNDARY] = at[_FLOOR] = -1
    at[_HEAP] = at[_SEQUENCE] = at[_STEP] = at[_ENTERED] = at[_PINNED] = 0
    at[_FREE] = num_slots
    for i in range(num_slots):
        state.free[i] = num_slots - 1 - i
        state.row[i] = state.place[i] = state.vacated[i] = -1
        state.is_pinned[i] = False


@numba.njit(cache=True, nogil=True)
def _settle(state: Staging, slot: int, place: int) -> None:
    """Put ``slot`` in the heap at ``place`` or wherever its key wants it above or below."""
    heap, key, places = state.heap, state.key, state.place
    mine, end = key[slot], state.scalars[_HEAP]
    while place > 0 and key[heap[(place - 1) >> 1]] > mine:
        heap[place] = heap[(place - 1) >> 1]
        places[heap[place]] = place
        place = (place - 1) >> 1
    while 2 * place + 1 < end:
        child = 2 * place + 1
        if child + 1 < end and key[heap[child + 1]] < key[heap[child]]:
            child += 1
        if key[heap[child]] >= mine:
            break
        heap[place] = heap[child]
        places[heap[place]] = place
        place = child
    heap[place] = slot
    places[slot] = place


@numba.njit(cache=True, nogil=True)
def _enter_heap(state: Staging, slot: int) -> None:
    if not state.is_pinned[slot]:
        state.scalars[_HEAP] += 1
        _settle(state, slot, state.scalars[_HEAP] - 1)


@numba.njit(cache=True, nogil=True)
def _leave_heap(state: Staging, slot: int) -> None:
    place = state.place[slot]
    state.place[slot] = -1
    state.scalars[_HEAP] -= 1
    last = state.heap[state.scalars[_HEAP]]
    if last != slot:
        _settle(state, last, place)


@numba.njit(cache=True, nogil=True)
def _append(state: Staging, slot: int) -> None:
    at = state.scalars
    tail = at[_TAIL]
    state.previous[slot], state.next[slot] = tail, -1
    if tail >= 0:
        state.next[tail] = slot
    else:
        at[_HEAD] = slot
    at[_TAIL] = slot
    if at[_BOUNDARY] < 0:
        at[_BOUNDARY] = slot


@numba.njit(cache=True, nogil=True)
def _prepend(state: Staging, slot: int) -> None:
    """Put a slot that may leave at once at the head of the list."""
    at = state.scalars
    head = at[_HEAD]
    state.previous[slot], state.next[slot] = -1, head
    if head >= 0:
        state.previous[head] = slot
    else:
        at[_TAIL] = slot
    at[_HEAD] = slot


@numba.njit(cache=True, nogil=True)
def _unlink(state: Staging, slot: int) -> None:
    at = state.scalars
    before, after = state.previous[slot], state.next[slot]
    if before >= 0:
        state.next[before] = after
    else:
        at[_HEAD] = after
    if after >= 0:
        state.previous[after] = before
    else:
        at[_TAIL] = before
    if at[_BOUNDARY] == slot:
        at[_BOUNDARY] = after


@numba.njit(cache=True, nogil=True)
def _write_back(state: Staging, slot: int, step: int, out: Emitted) -> None:
    """Take the row out of ``slot``, free it, and list it where it was updated."""
    row = state.row[slot]
    if state.is_clean[slot]:
        state.slot_of_row[row] = state.before[slot]
        state.vacated[slot] = 0  # no copy out of the slot, but the one into it: clean rows came with item 0
    else:
        end = out.ends[1]
        out.write_back_rows[end], out.write_back_slots[end] = row, slot
        out.ends[1] = end + 1
        state.slot_of_row[row] = -3 - (state.scalars[_EPOCH_BASE] + step)
        state.vacated[slot] = step
    _unlink(state, slot)
    state.row[slot] = -1
    state.free[state.scalars[_FREE]] = slot
    state.scalars[_FREE] += 1


@numba.njit(cache=True, nogil=True)
def _fetch(state: Staging, row: int, code: int, slot: int, waits: int, step: int, out: Emitted) -> int:
    """List ``row`` as coming to ``slot``; returns the later of ``waits`` and the item it has to wait for."""
    end = out.ends[0]
    out.fetch_rows[end], out.fetch_slots[end], out.fetch_is_first[end] = row, slot, code == _UNSEEN
    out.ends[0] = end + 1
    if code < _AWAY:
        waits = max(waits, -3 - code - state.scalars[_EPOCH_BASE])
    if state.vacated[slot] < step:
        waits = max(waits, state.vacated[slot])
    return waits


@numba.njit(cache=True, nogil=True)
def _bring(state: Staging, row: int, code: int, waits: int, step: int, out: Emitted) -> int:
    """Give ``row`` a free slot and list its fetch; the caller links the slot."""
    state.scalars[_FREE] -= 1
    slot = state.free[state.scalars[_FREE]]
    waits = _fetch(state, row, code, slot, waits, step, out)
    state.slot_of_row[row], state.row[slot], state.before[slot] = slot, row, code
    return waits


@numba.njit(cache=True, nogil=True)
def _see_ahead(state: Staging, rule: Rule, steps: Steps, local: int, num_known: int) -> None:
    """Learn the next uses that the batches up to ``window`` ahead of step ``local`` reveal."""
    at, step = state.scalars, state.scalars[_STEP]
    first_local = step - local
    for other in range(max(at[_ENTERED] - first_local, local), min(local + rule.window + 1, num_known)):
        for i in range(steps.offsets[other], steps.offsets[other + 1]):
            row = steps.rows[i]
            known = state.last_entry[row] - at[_ENTRY]
            if known >= steps.offsets[local]:
                steps.next_uses[known] = first_local + other
            else:
                slot = state.slot_of_row[row]
                if slot >= 0:
                    use = np.int64(first_local + other)
                    state.key[slot] = state.key[slot] + ((np.int64(_NEVER) - use) << _TIE_BITS)
                    if state.place[slot] >= 0:
                        _settle(state, slot, state.place[slot])
            state.last_entry[row] = at[_ENTRY] + i
        at[_ENTERED] = first_local + other + 1


@numba.njit(cache=True, nogil=True)
def _touch(state: Staging, rule: Rule, slot: int, lookups: int, next_use: int) -> None:
    """Give a row in use its new key."""
    at = state.scalars
    at[_SEQUENCE] += 1
    sequence, row = at[_SEQUENCE], state.row[slot]
    state.is_clean[slot] = False
    if rule.policy == LOOKAHEAD:
        state.key[slot] = -(np.int64(next_use) << _TIE_BITS) + sequence
    elif rule.policy == LFU:
        count = (state.key[slot] >> _TIE_BITS) + lookups
        state.key[slot] = (count << _TIE_BITS) + sequence
    elif rule.policy == DATASET:
        state.key[slot] = -state.rank_of_row[row]
    else:
        state.key[slot] = sequence


@numba.njit(cache=True, nogil=True)
def _advance(state: Staging, after: int) -> None:
    """Let those leave that are unused since step ``after``."""
    at = state.scalars
    while at[_BOUNDARY] >= 0 and state.last_use[at[_BOUNDARY]] <= after:
        _enter_heap(state, at[_BOUNDARY])
        at[_BOUNDARY] = state.next[at[_BOUNDARY]]


@numba.njit(cache=True, nogil=True)
def _gather(
    state: Staging,
    steps: Steps,
    local: int,
    missing: NDArray[np.int64],
    codes: NDArray[np.int32],
    num_missing: int,
    out: Emitted,
) -> int:
    """Keep the residents that step ``local`` uses, and list what it misses; returns how many are listed."""
    step = state.scalars[_STEP]
    hits, misses = 0, 0
    for i in range(steps.offsets[local], steps.offsets[local + 1]):
        row = steps.rows[i]
        lookups = steps.lookups[i]
        slot = state.slot_of_row[row]
        if slot >= 0 or slot == _PENDING:
            hits += lookups
            if slot >= 0 and state.last_use[slot] < step:
                if state.place[slot] >= 0:
                    _leave_heap(state, slot)
                state.last_use[slot] = step
        else:
            misses += lookups
            missing[num_missing], codes[num_missing] = row, slot
            state.slot_of_row[row] = _PENDING
            num_missing += 1
    out.num_hits[local], out.num_misses[local] = hits, misses
    return num_missing


@numba.njit(cache=True, nogil=True)
def _num_new(state: Staging, steps: Steps, local: int) -> int:
    """Rows of step ``local`` that are not pinned and that the group of the present item does not hold yet."""
    step, num_new = state.scalars[_STEP], 0
    for i in range(steps.offsets[local], steps.offsets[local + 1]):
        slot = state.slot_of_row[steps.rows[i]]
        if slot >= 0:
            num_new += state.last_use[slot] < step and not state.is_pinned[slot]
        else:
            num_new += slot != _PENDING
    return num_new


@numba.njit(cache=True, nogil=True)
def _make_room(state: Staging, rule: Rule, num_missing: int, after: int, out: Emitted) -> int:
    """Write back until ``num_missing`` slots are free; returns the step to wait for, ``step`` if none will
    do."""
    at, step = state.scalars, state.scalars[_STEP]
    need = num_missing - at[_FREE]
    first_lent = at[_BOUNDARY]
    while at[_HEAP] < need:
        slot = at[_BOUNDARY]
        while slot >= 0 and state.last_use[slot] >= step:
            slot = state.next[slot]
        if slot < 0:
            return step  # type: ignore[no-any-return]
        after = state.last_use[slot]
        while slot >= 0 and (state.last_use[slot] <= after or state.last_use[slot] >= step):
            if state.last_use[slot] < step:
                _enter_heap(state, slot)
            slot = state.next[slot]
        at[_BOUNDARY] = slot
    if rule.policy == STATIC:
        need = at[_HEAP]
    for _ in range(need):
        slot = state.heap[0]
        _leave_heap(state, slot)
        if slot == first_lent:
            first_lent = state.next[slot]
        _write_back(state, slot, step, out)
    slot = first_lent
    while slot != at[_BOUNDARY]:  # those lent to this item alone
        if state.place[slot] >= 0:
            _leave_heap(state, slot)
        slot = state.next[slot]
    at[_BOUNDARY] = first_lent
    return after


@numba.njit(cache=True, nogil=True)
def _warm_up(state: Staging, rule: Rule, warm: Warm, waits: int, out: Emitted) -> int:
    """Bring the first rows of ``warm`` that are not there and for which slots are free."""
    for i in range(warm.rows.size):
        row = warm.rows[i]
        code = state.slot_of_row[row]
        if code < 0:
            if state.scalars[_FREE] == 0:
                continue
            waits = _bring(state, row, code, waits, 0, out)
        slot = state.slot_of_row[row]
        if rule.policy == STATIC:
            state.is_pinned[slot] = True
            state.scalars[_PINNED] += 1
        if code < 0:
            state.is_clean[slot], state.last_use[slot] = True, _LONG_AGO
            state.key[slot] = -state.rank_of_row[row] if rule.policy == DATASET else -1 - i
            _prepend(state, slot)
        if rule.policy == LFU:
            state.key[slot] += warm.counts[i] << _TIE_BITS
        if code < 0:
            _enter_heap(state, slot)
    return waits


@numba.njit(cache=True, nogil=True)
def _split(state: Staging, steps: Steps, local: int, out: Emitted) -> None:
    """Empty the staging area for a batch that runs in passes."""
    at, step, num_slots = state.scalars, state.scalars[_STEP], state.row.size
    while at[_HEAD] >= 0:
        slot = at[_HEAD]
        if state.place[slot] >= 0:
            _leave_heap(state, slot)
        state.is_pinned[slot] = False
        _write_back(state, slot, step, out)
    waits, misses = -1, 0
    first = steps.offsets[local]
    for i in range(first, steps.offsets[local + 1]):
        row, slot = steps.rows[i], (i - first) % num_slots
        waits = _fetch(state, row, state.slot_of_row[row], slot, waits, step, out)
        state.slot_of_row[row] = -3 - (at[_EPOCH_BASE] + step)
        out.slots[i] = slot
        misses += steps.lookups[i]
    state.vacated[:] = step
    out.num_hits[local], out.num_misses[local] = 0, misses
    out.after[local], out.waits_for[local] = step - 1, min(waits, step - 1)
    out.is_split[local], out.is_shortened[local] = True, False
    at[_FLOOR] = step


@numba.njit(cache=True, nogil=True)
def _serve(state: Staging, rule: Rule, steps: Steps, local: int, out: Emitted) -> None:
    """List the slots of step ``local``, all of whose rows are there, and count its uses."""
    step = state.scalars[_STEP]
    for i in range(steps.offsets[local], steps.offsets[local + 1]):
        slot = state.slot_of_row[steps.rows[i]]
        out.slots[i] = slot
        _unlink(state, slot)
        _append(state, slot)
        state.last_use[slot] = step
        next_use = steps.next_uses[i] if rule.policy == LOOKAHEAD else 0
        _touch(state, rule, slot, steps.lookups[i], next_use)


@numba.njit(cache=True, nogil=True)
def plan_steps(
    state: Staging, rule: Rule, steps: Steps, warm: Warm, is_last: bool, out: Emitted
) -> tuple[int, int]:
    """Plan the steps of ``steps`` that can be planned now.

    Args:
        state: updated.
        rule: fixed for a run.
        steps: from the first step not yet planned; ``next_uses`` is written where look-ahead is limited.
        warm: rows to bring with step 0.
        is_last: no further step follows in this epoch.
        out: written.

    Returns:
        Steps planned, and 0; or the number of slots that the next step needs, where there are too few. Exact.
    """
    at, num_slots, num_known = state.scalars, state.row.size, steps.offsets.size - 1
    largest = 0
    for local in range(num_known):
        largest = max(largest, steps.offsets[local + 1] - steps.offsets[local])
    missing = np.empty(min(num_slots, rule.group * largest), np.int64)
    codes = np.empty(missing.size, np.int32)
    ahead = max(rule.group - 1, rule.window)
    local = 0
    while local < num_known and (is_last or local + ahead < num_known):
        step = at[_STEP]
        if rule.window >= 0 and rule.policy == LOOKAHEAD:
            _see_ahead(state, rule, steps, local, num_known)
        num_rows = steps.offsets[local + 1] - steps.offsets[local]
        if num_rows > num_slots:
            if not rule.splits:
                return local, num_rows
            _split(state, steps, local, out)
            at[_STEP] += 1
            local += 1
            out.fetch_offsets[local], out.write_back_offsets[local] = out.ends[0], out.ends[1]
            continue
        wanted = max(step - rule.prefetch - 1, -1)
        least = step - 1 if at[_FLOOR] == step - 1 else wanted
        _advance(state, least)
        num_missing, num_held, stop = 0, 0, local
        while stop < min(local + rule.group, num_known):
            if rule.group > 1:
                num_held += _num_new(state, steps, stop)
                if num_held > num_slots - at[_PINNED] and stop > local:
                    break
            num_missing = _gather(state, steps, stop, missing, codes, num_missing, out)
            stop += 1
        after = _make_room(state, rule, num_missing, least, out)
        if after == step:
            return local, num_slots + num_missing - at[_FREE] - at[_HEAP]
        waits = np.int64(-1)
        for i in range(num_missing):
            waits = _bring(state, missing[i], codes[i], waits, step, out)
            slot = state.slot_of_row[missing[i]]
            state.is_clean[slot] = False
            state.key[slot] = 0
            state.last_use[slot] = step
            _append(state, slot)
        first = local
        while local < stop:
            _serve(state, rule, steps, local, out)
            out.after[local] = after if local == first else max(at[_STEP] - rule.prefetch - 1, -1)
            out.waits_for[local] = -1 if local > first else waits
            out.is_shortened[local] = local == first and after > wanted
            out.is_split[local] = False
            at[_STEP] += 1
            if at[_STEP] == 1:
                out.waits_for[local] = _warm_up(state, rule, warm, waits, out)
            local += 1
            out.fetch_offsets[local], out.write_back_offsets[local] = out.ends[0], out.ends[1]
    at[_ENTRY] += steps.offsets[local]
    return local, 0


@numba.njit(cache=True, nogil=True)
def end_epoch(state: Staging, rows: NDArray[np.int64], slots: NDArray[np.int32]) -> int:
    """Empty the staging area; list the rows that go home and return how many there are.

    Args:
        state: left as at the start of an epoch, knowing still which rows were used before.
        rows: (num_slots,), the first are written.
        slots: (num_slots,), likewise.
    """
    num_listed = 0
    for slot in range(state.row.size):
        row = state.row[slot]
        if row < 0:
            continue
        if state.is_clean[slot]:
            state.slot_of_row[row] = state.before[slot]
        else:
            rows[num_listed], slots[num_listed] = row, slot
            num_listed += 1
            state.slot_of_row[row] = _AWAY
    _begin_epoch(state)
    return num_listed
