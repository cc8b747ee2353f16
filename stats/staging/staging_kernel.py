"""The kernel of every planner of staging slots: which rows come in and which go, step by step.

Uses stand in a queue, a use that is no longer its row's last one being skipped. A boundary in it parts the
rows unused since ``after``, which may leave, from the others. Those enter a heap by the policy's key, unless
the queue is the policy's order already; stale entries of either are dropped when met, or when an array is
full. So a step costs O(its distinct rows), a victim O(log num_slots). Memory: 4 bytes a row (12 where
look-ahead is limited) and 108 a slot.

One file, because compiled kernels are cached by the file of the outermost one.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from .staging_state import Emitted, Rule, Staging, Steps, Warm

LOOKAHEAD, LRU, LFU, DATASET, STATIC = 0, 1, 2, 3, 4
"""Policies: the row that leaves has the farthest next use; the oldest last use; the fewest look-ups since it
came; the last place in the order of importance; is not pinned (and leaves as soon as it may)."""

_UNSEEN, _AWAY, _PENDING = -1, -2, -(1 << 31)
"""``slot_of_row`` below 0: never used in the run; home since before this epoch; about to come in. Else -3 -
w: went home by item w, counted over the run."""
_LONG_AGO, _NOBODY = -(1 << 30), -(1 << 31)
"""Last use of a row that came before step 0, and of a free slot."""
_TIE_BITS = 33
_NEVER = (1 << 30) - 1  # as in step_plan_stream; kernels see constants of their own file alone

(_ROW, _LAST_USE, _KEY, _BEFORE, _VACATED, _IS_CLEAN, _IS_PINNED, _IS_HEAPED) = range(8)
"""Columns of a slot's record: one line of cache. ``_BEFORE`` is what ``slot_of_row`` said before the row
came; ``_VACATED`` the last item that moved a row out of the slot, or in."""
(_AFTER, _ELIGIBLE, _FRONT, _BOUNDARY, _TAIL, _HEAP, _FREE, _SEQUENCE) = range(8)
(_STEP, _EPOCH_BASE, _SPLIT_STEP, _ENTRY, _ENTERED, _PINNED, _TOP) = range(8, 15)
_NUM_SCALARS = 15
_ONE, _ALL = np.uint64(1), np.uint64(2**64 - 1)


def new_staging(num_rows: int, num_slots: int, rank_of_row: NDArray[np.int32], *, limited: bool) -> Staging:
    """An empty staging area of a new run."""
    staging = Staging(
        slot_of_row=np.full(num_rows, _UNSEEN, np.int32),
        rank_of_row=rank_of_row,
        last_entry=np.full(num_rows if limited else 0, -1, np.int64),
        records=np.zeros((num_slots, 8), np.int64),
        queue=np.zeros((2 * num_slots + 1, 2), np.int32),
        heap_keys=np.zeros(2 * num_slots + 1, np.int64),
        heap_slots=np.zeros(2 * num_slots + 1, np.int32),
        heads=np.full(64, -1, np.int32),
        tails=np.full(64, -1, np.int32),
        filled=np.zeros(1, np.uint64),
        links=np.zeros(num_slots, np.int32),
        free=np.zeros(num_slots, np.int32),
        victims=np.zeros(num_slots, np.int32),
        scalars=np.zeros(_NUM_SCALARS, np.int64),
    )
    _begin_epoch(staging)
    return staging


def with_buckets(state: Staging, num_steps: int) -> Staging:
    """``state`` with room for next uses below ``num_steps``."""
    if num_steps <= state.heads.size:
        return state
    num_words = max(2 * state.filled.size, num_steps // 64 + 1)
    heads, tails = np.full(64 * num_words, -1, np.int32), np.full(64 * num_words, -1, np.int32)
    filled = np.zeros(num_words, np.uint64)
    for new, old in ((heads, state.heads), (tails, state.tails), (filled, state.filled)):
        new[: old.size] = old
    return state._replace(heads=heads, tails=tails, filled=filled)


@numba.njit(cache=True, nogil=True)
def _begin_epoch(state: Staging) -> None:
    at, records, num_slots = state.scalars, state.records, state.records.shape[0]
    base, entry = at[_EPOCH_BASE] + at[_STEP], at[_ENTRY]
    at[:] = 0
    at[_EPOCH_BASE], at[_ENTRY], at[_SPLIT_STEP], at[_FREE] = base, entry, -2, num_slots
    at[_AFTER], at[_SEQUENCE] = _LONG_AGO - 1, 1 << (_TIE_BITS - 1)
    state.heads[:], state.filled[:] = -1, 0
    for i in range(num_slots):
        state.free[i] = num_slots - 1 - i
        records[i, _ROW] = records[i, _VACATED] = -1
        records[i, _LAST_USE] = _NOBODY
        records[i, _IS_PINNED] = records[i, _IS_HEAPED] = 0


@numba.njit(cache=True, nogil=True)
def _sift_down(
    keys: NDArray[np.int64], slots: NDArray[np.int32], end: int, key: int, slot: int, place: int
) -> None:
    """Put an entry at the free ``place`` of a heap of ``end`` entries, or below."""
    child = 4 * place + 1
    while child < end:
        least, best = child, keys[child]
        for other in range(child + 1, min(child + 4, end)):
            if keys[other] < best:
                least, best = other, keys[other]
        if best >= key:
            break
        keys[place], slots[place] = best, slots[least]
        place = least
        child = 4 * place + 1
    keys[place], slots[place] = key, slot


@numba.njit(cache=True, nogil=True)
def _push(keys: NDArray[np.int64], slots: NDArray[np.int32], end: int, key: int, slot: int) -> None:
    """Add an entry to a heap of ``end`` entries."""
    place = end
    while place > 0 and keys[(place - 1) >> 2] > key:
        above = (place - 1) >> 2
        keys[place], slots[place] = keys[above], slots[above]
        place = above
    keys[place], slots[place] = key, slot


@numba.njit(cache=True, nogil=True)
def _compact_heap(
    keys: NDArray[np.int64], slots: NDArray[np.int32], records: NDArray[np.int64], end: int
) -> int:
    """Drop stale entries; returns how many are left, one a slot at most."""
    left = 0
    for i in range(end):
        if records[slots[i], _IS_HEAPED] and records[slots[i], _KEY] == keys[i]:
            keys[left], slots[left] = keys[i], slots[i]
            left += 1
    for i in range((left + 2) // 4 - 1, -1, -1):
        _sift_down(keys, slots, left, keys[i], slots[i], i)
    return left


@numba.njit(cache=True, nogil=True)
def _enter_heap(
    keys: NDArray[np.int64],
    slots: NDArray[np.int32],
    records: NDArray[np.int64],
    at: NDArray[np.int64],
    slot: int,
) -> None:
    """Let ``slot`` stand in the heap by its present key."""
    if records[slot, _IS_HEAPED]:
        return
    if at[_HEAP] == keys.size:
        at[_HEAP] = _compact_heap(keys, slots, records, at[_HEAP])
    _push(keys, slots, at[_HEAP], records[slot, _KEY], slot)
    at[_HEAP] += 1
    records[slot, _IS_HEAPED] = 1


@numba.njit(cache=True, nogil=True)
def _compact_queue(queue: NDArray[np.int32], records: NDArray[np.int64], at: NDArray[np.int64]) -> None:
    """Drop uses that are not their row's last, and those before the front."""
    left, boundary = 0, at[_BOUNDARY]
    for i in range(at[_FRONT], at[_TAIL]):
        if i == boundary:
            at[_BOUNDARY] = left
        if records[queue[i, 0], _LAST_USE] == queue[i, 1]:
            queue[left, 0], queue[left, 1] = queue[i, 0], queue[i, 1]
            left += 1
    if boundary == at[_TAIL]:
        at[_BOUNDARY] = left
    at[_FRONT], at[_TAIL] = 0, left


@numba.njit(cache=True, nogil=True)
def _next_use(key: int) -> int:
    """What look-ahead's key says: -(next use << _TIE_BITS) + a number below 1 << _TIE_BITS."""
    return ((1 << _TIE_BITS) - 1 - key) >> _TIE_BITS


@numba.njit(cache=True, nogil=True)
def _enter_bucket(state: Staging, slot: int) -> None:
    """Let ``slot`` stand behind those with the same next use; the others are found by the queue."""
    records = state.records
    use = _next_use(records[slot, _KEY])
    if records[slot, _IS_HEAPED] or use >= _NEVER:
        return
    if state.heads[use] < 0:
        state.heads[use] = slot
        state.filled[use >> 6] |= _ONE << np.uint64(use & 63)
        state.scalars[_TOP] = max(state.scalars[_TOP], use >> 6)
    else:
        state.links[state.tails[use]] = slot
    state.tails[use], state.links[slot] = slot, -1
    records[slot, _IS_HEAPED] = 1


@numba.njit(cache=True, nogil=True)
def _drop_bucket(state: Staging, use: int) -> None:
    """All rows of the bucket are used now."""
    if use < state.heads.size:
        state.heads[use] = -1
        state.filled[use >> 6] &= ~(_ONE << np.uint64(use & 63))


@numba.njit(cache=True, nogil=True)
def _lend(state: Staging, policy: int, after: int, boundary: int) -> tuple[int, int]:
    """Move ``boundary`` past all uses up to step ``after``; returns it and how many rows may now leave."""
    at, queue, records = state.scalars, state.queue, state.records
    num_rows = 0
    while boundary < at[_TAIL] and queue[boundary, 1] <= after:
        slot = queue[boundary, 0]
        if records[slot, _LAST_USE] == queue[boundary, 1]:
            num_rows += 1
            if policy == LOOKAHEAD:
                _enter_bucket(state, slot)
            elif policy == LFU or policy == DATASET:
                _enter_heap(state.heap_keys, state.heap_slots, records, at, slot)
        boundary += 1
    return boundary, num_rows


@numba.njit(cache=True, nogil=True)
def _see_ahead(state: Staging, rule: Rule, steps: Steps, local: int, num_known: int) -> None:
    """Learn the next uses that the batches up to ``window`` ahead of step ``local`` reveal."""
    at, records = state.scalars, state.records
    first_step = at[_STEP] - local
    for other in range(max(at[_ENTERED] - first_step, local), min(local + rule.window + 1, num_known)):
        idle_keys = np.empty(steps.offsets[other + 1] - steps.offsets[other], np.int64)
        idle_slots, num_idle = np.empty(idle_keys.size, np.int32), 0
        for i in range(steps.offsets[other], steps.offsets[other + 1]):
            row = steps.rows[i]
            known = state.last_entry[row] - at[_ENTRY]
            slot = state.slot_of_row[row]
            if known >= steps.offsets[local]:
                steps.next_uses[known] = first_step + other
            elif slot >= 0:
                records[slot, _KEY] += (np.int64(_NEVER) - first_step - other) << _TIE_BITS
                if records[slot, _LAST_USE] <= at[_AFTER]:
                    idle_keys[num_idle], idle_slots[num_idle] = records[slot, _KEY], slot
                    num_idle += 1
            state.last_entry[row] = at[_ENTRY] + i
        for i in np.argsort(idle_keys[:num_idle]):  # the one used longest ago is the first to leave
            _enter_bucket(state, idle_slots[i])
        at[_ENTERED] = first_step + other + 1


@numba.njit(cache=True, nogil=True)
def _num_new(state: Staging, steps: Steps, local: int) -> int:
    """Rows of step ``local`` that are not pinned and that the group of the present item does not hold yet."""
    step, num_new = state.scalars[_STEP], 0
    for i in range(steps.offsets[local], steps.offsets[local + 1]):
        slot = state.slot_of_row[steps.rows[i]]
        if slot >= 0:
            num_new += state.records[slot, _LAST_USE] < step and not state.records[slot, _IS_PINNED]
        else:
            num_new += slot != _PENDING
    return num_new


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
    at, records, slot_of_row = state.scalars, state.records, state.slot_of_row
    step, after, hits, misses = at[_STEP], at[_AFTER], 0, 0
    for i in range(steps.offsets[local], steps.offsets[local + 1]):
        row = steps.rows[i]
        slot = slot_of_row[row]
        out.slots[i] = max(slot, -1)
        if slot >= 0:
            hits += steps.lookups[i]
            last_use = records[slot, _LAST_USE]
            if last_use < step:
                at[_ELIGIBLE] -= last_use <= after and not records[slot, _IS_PINNED]
                records[slot, _LAST_USE] = step
        elif slot == _PENDING:
            hits += steps.lookups[i]
        else:
            misses += steps.lookups[i]
            missing[num_missing], codes[num_missing] = row, slot
            slot_of_row[row] = _PENDING
            num_missing += 1
    out.num_hits[local], out.num_misses[local] = hits, misses
    return num_missing


@numba.njit(cache=True, nogil=True)
def _name_victim(state: Staging, slot: int, num_victims: int) -> int:
    """Write ``slot`` to ``victims``; returns how many there are."""
    at, records = state.scalars, state.records
    state.victims[num_victims] = slot
    at[_ELIGIBLE] -= records[slot, _LAST_USE] <= at[_AFTER]
    records[slot, _LAST_USE], records[slot, _IS_HEAPED] = _NOBODY, 0
    return num_victims + 1


@numba.njit(cache=True, nogil=True)
def _choose_farthest(state: Staging, need: int, after: int, boundary: int) -> None:
    """Victims of look-ahead: rows not used again by the queue, then the last buckets of those that are."""
    at, records, queue = state.scalars, state.records, state.queue
    num_victims, front = 0, at[_FRONT]
    while num_victims < need and front < boundary:
        slot = queue[front, 0]
        if records[slot, _LAST_USE] == queue[front, 1] and _next_use(records[slot, _KEY]) >= _NEVER:
            num_victims = _name_victim(state, slot, num_victims)
        front += 1
    at[_FRONT] = min(front, at[_BOUNDARY])
    word, mask = at[_TOP], _ALL
    while num_victims < need:
        bits = state.filled[word] & mask
        if bits == 0:
            if word == at[_TOP] and state.filled[word] == 0:
                at[_TOP] = max(word - 1, 0)
            word, mask = word - 1, _ALL
            continue
        bit = 63
        while not (bits >> np.uint64(bit)) & _ONE:
            bit -= 1
        use = 64 * word + bit
        slot = state.heads[use]
        if records[slot, _LAST_USE] > after:  # lent before, but not now; those behind it too
            mask = (_ONE << np.uint64(bit)) - _ONE
            continue
        state.heads[use] = state.links[slot]
        if state.heads[use] < 0:
            _drop_bucket(state, use)
        num_victims = _name_victim(state, slot, num_victims)


@numba.njit(cache=True, nogil=True)
def _choose_least(state: Staging, need: int, after: int) -> None:
    """Victims of least key by the heap."""
    at, records, keys, slots = state.scalars, state.records, state.heap_keys, state.heap_slots
    num_victims = 0
    while num_victims < need:
        key, slot = keys[0], slots[0]
        at[_HEAP] -= 1
        end = at[_HEAP]
        _sift_down(keys, slots, end, keys[end], slots[end], 0)
        if not records[slot, _IS_HEAPED] or records[slot, _KEY] != key:
            continue
        records[slot, _IS_HEAPED] = 0
        if records[slot, _LAST_USE] <= after:  # else it enters again when it may leave
            num_victims = _name_victim(state, slot, num_victims)


@numba.njit(cache=True, nogil=True)
def _choose_oldest(state: Staging, need: int) -> None:
    """Victims used longest ago by the queue."""
    at, queue, num_victims = state.scalars, state.queue, 0
    while num_victims < need:
        slot, used = queue[at[_FRONT], 0], queue[at[_FRONT], 1]
        at[_FRONT] += 1
        if state.records[slot, _LAST_USE] == used:
            num_victims = _name_victim(state, slot, num_victims)
    at[_BOUNDARY] = max(at[_BOUNDARY], at[_FRONT])


@numba.njit(cache=True, nogil=True)
def _choose_victims(state: Staging, rule: Rule, num_missing: int) -> tuple[int, int]:
    """List in ``victims`` who leaves so that ``num_missing`` slots are free.

    Returns:
        How many, and the step to wait for; -1 and how many more would be wanted where too few may ever leave.
    """
    at, records, queue = state.scalars, state.records, state.queue
    need = num_missing - at[_FREE]
    after, eligible, boundary = at[_AFTER], at[_ELIGIBLE], at[_BOUNDARY]
    while eligible < need:
        while boundary < at[_TAIL] and records[queue[boundary, 0], _LAST_USE] != queue[boundary, 1]:
            boundary += 1
        if boundary == at[_TAIL]:
            return -1, need - eligible
        after = queue[boundary, 1]
        boundary, lent = _lend(state, rule.policy, after, boundary)
        eligible += lent
    if rule.policy == STATIC:
        need = eligible
    if need <= 0:
        return 0, after
    if rule.policy == LOOKAHEAD:
        _choose_farthest(state, need, after, boundary)
    elif rule.policy == LFU or rule.policy == DATASET:
        _choose_least(state, need, after)
    else:
        _choose_oldest(state, need)
    return need, after


@numba.njit(cache=True, nogil=True)
def _evict(state: Staging, num_victims: int, out: Emitted) -> None:
    """Free the slots listed in ``victims``, and list the rows that were updated there as going home."""
    at, records, end = state.scalars, state.records, out.ends[1]
    step, home = at[_STEP], -3 - (at[_EPOCH_BASE] + at[_STEP])
    for i in range(num_victims):
        slot = state.victims[i]
        row = records[slot, _ROW]
        if records[slot, _IS_CLEAN]:
            state.slot_of_row[row] = records[slot, _BEFORE]
            records[slot, _VACATED] = 0  # nothing moves out, but the row came with item 0
        else:
            state.slot_of_row[row] = home
            records[slot, _VACATED] = step
            out.write_back_rows[end], out.write_back_slots[end] = row, slot
            end += 1
        records[slot, _ROW] = -1
        state.free[at[_FREE] + i] = slot
    at[_FREE] += num_victims
    out.ends[1] = end


@numba.njit(cache=True, nogil=True)
def _bring(
    state: Staging, rows: NDArray[np.int64], codes: NDArray[np.int32], num_rows: int, out: Emitted
) -> int:
    """Give the rows free slots and list their fetches; returns the item they wait for, -1 for none."""
    at, records, end = state.scalars, state.records, out.ends[0]
    step, waits = at[_STEP], np.int64(-1)
    for i in range(num_rows):
        row, code = rows[i], np.int64(codes[i])
        at[_FREE] -= 1
        slot = state.free[at[_FREE]]
        if code < _AWAY:
            waits = max(waits, -3 - code - at[_EPOCH_BASE])
        if records[slot, _VACATED] < step:
            waits = max(waits, records[slot, _VACATED])
        state.slot_of_row[row] = slot
        records[slot, _ROW], records[slot, _LAST_USE], records[slot, _KEY] = row, step, 0
        records[slot, _BEFORE], records[slot, _IS_CLEAN] = code, 0
        out.fetch_rows[end + i], out.fetch_slots[end + i] = row, slot
        out.fetch_is_first[end + i] = code == _UNSEEN
    out.ends[0] = end + num_rows
    return waits  # type: ignore[return-value]


@numba.njit(cache=True, nogil=True)
def _warm_up(state: Staging, rule: Rule, warm: Warm, out: Emitted) -> int:
    """Bring the first rows of ``warm`` that are not there and for which slots are free, as `_bring` does."""
    at, records, slot_of_row = state.scalars, state.records, state.slot_of_row
    waits, first = np.int64(-1), at[_TAIL]
    code = np.empty(1, np.int32)
    for i in range(warm.rows.size):
        code[0] = slot_of_row[warm.rows[i]]
        if code[0] < 0 and at[_FREE] == 0:
            continue
        if code[0] < 0:
            waits = max(waits, _bring(state, warm.rows[i : i + 1], code, 1, out))
        slot = slot_of_row[warm.rows[i]]
        if code[0] < 0:
            records[slot, _IS_CLEAN], records[slot, _LAST_USE] = 1, _LONG_AGO
        if rule.policy == STATIC:
            records[slot, _IS_PINNED] = 1
            at[_PINNED] += 1
        elif code[0] < 0:
            state.queue[at[_TAIL], 0], state.queue[at[_TAIL], 1] = slot, _LONG_AGO
            at[_TAIL] += 1
        if rule.policy == DATASET:
            records[slot, _KEY] = -np.int64(state.rank_of_row[warm.rows[i]])
        elif rule.policy == LFU:
            tie = (1 << (_TIE_BITS - 1)) - 1 - i
            records[slot, _KEY] = (warm.counts[i] << _TIE_BITS) + tie
    for i in range((at[_TAIL] - first) // 2):  # the least important is the first to leave
        other = at[_TAIL] - 1 - i
        slot = state.queue[first + i, 0]
        state.queue[first + i, 0] = state.queue[other, 0]
        state.queue[other, 0] = slot
    return waits  # type: ignore[return-value]


@numba.njit(cache=True, nogil=True)
def _serve(state: Staging, rule: Rule, steps: Steps, local: int, out: Emitted) -> None:
    """List the slots of step ``local``, all of whose rows are there, and count its uses."""
    at, records, queue = state.scalars, state.records, state.queue
    step, policy = at[_STEP], rule.policy
    first, last = steps.offsets[local], steps.offsets[local + 1]
    if at[_TAIL] + last - first > queue.shape[0]:
        _compact_queue(queue, records, at)
    tail, sequence = at[_TAIL], at[_SEQUENCE] - first
    for i in range(first, last):
        slot = np.int64(out.slots[i])
        if slot < 0:
            slot = np.int64(state.slot_of_row[steps.rows[i]])
            out.slots[i] = slot
        records[slot, _LAST_USE] = step
        records[slot, _IS_CLEAN] = 0
        if not records[slot, _IS_PINNED]:
            queue[tail, 0], queue[tail, 1] = slot, step
            tail += 1
        if policy == DATASET:
            records[slot, _KEY] = -np.int64(state.rank_of_row[steps.rows[i]])
        elif policy == LOOKAHEAD:
            records[slot, _KEY] = sequence + i - (steps.next_uses[i] << _TIE_BITS)
            records[slot, _IS_HEAPED] = 0
        elif policy == LFU:
            count = (records[slot, _KEY] >> _TIE_BITS) + steps.lookups[i]
            records[slot, _KEY] = (count << _TIE_BITS) + sequence + i
            records[slot, _IS_HEAPED] = 0
    at[_TAIL] = tail
    at[_SEQUENCE] += last - first


@numba.njit(cache=True, nogil=True)
def _split(state: Staging, steps: Steps, local: int, out: Emitted) -> None:
    """Empty the staging area for a batch that runs in passes, and list what these bring."""
    at, records, num_slots, num_residents = state.scalars, state.records, state.records.shape[0], 0
    for slot in range(num_slots):
        if records[slot, _ROW] >= 0:
            state.victims[num_residents] = slot
            num_residents += 1
        records[slot, _LAST_USE], records[slot, _IS_HEAPED] = _NOBODY, 0
    _evict(state, num_residents, out)
    at[_HEAP] = at[_ELIGIBLE] = at[_FRONT] = at[_BOUNDARY] = at[_TAIL] = 0
    state.heads[:], state.filled[:] = -1, 0
    end, first, misses = out.ends[0], steps.offsets[local], 0
    for i in range(first, steps.offsets[local + 1]):
        row, slot = steps.rows[i], (i - first) % num_slots
        out.slots[i] = out.fetch_slots[end] = slot
        out.fetch_rows[end], out.fetch_is_first[end] = row, state.slot_of_row[row] == _UNSEEN
        end += 1
        state.slot_of_row[row] = -3 - (at[_EPOCH_BASE] + at[_STEP])
        misses += steps.lookups[i]
    records[:, _VACATED] = at[_STEP]
    out.ends[0] = end
    out.num_hits[local], out.num_misses[local] = 0, misses
    out.after[local] = out.waits_for[local] = at[_STEP] - 1
    out.is_split[local], out.is_shortened[local] = True, False
    at[_SPLIT_STEP] = at[_STEP]


@numba.njit(cache=True, nogil=True)
def _plan_group(
    state: Staging,
    rule: Rule,
    steps: Steps,
    warm: Warm,
    local: int,
    missing: NDArray[np.int64],
    codes: NDArray[np.int32],
    out: Emitted,
) -> tuple[int, int]:
    """Plan the item of step ``local`` and the steps it serves; returns the step after, and slots lacking."""
    at, num_slots, num_known = state.scalars, state.records.shape[0], steps.offsets.size - 1
    first_step, at[_AFTER] = at[_STEP], at[_STEP] - rule.prefetch - 1
    at[_BOUNDARY], num_rows = _lend(state, rule.policy, at[_AFTER], at[_BOUNDARY])
    at[_ELIGIBLE] += num_rows
    if rule.policy == LFU or rule.policy == DATASET:
        at[_FRONT] = at[_BOUNDARY]
    elif rule.policy == LOOKAHEAD:
        _drop_bucket(state, first_step)
    num_missing, num_held, stop = 0, 0, local
    while stop < min(local + rule.group, num_known):
        if rule.group > 1:
            num_held += _num_new(state, steps, stop)
            if num_held > num_slots - at[_PINNED] and stop > local:
                break
        num_missing = _gather(state, steps, stop, missing, codes, num_missing, out)
        stop += 1
    num_victims, after = _choose_victims(state, rule, num_missing)
    if num_victims < 0:
        return local, num_slots + after
    _evict(state, num_victims, out)
    waits = _bring(state, missing, codes, num_missing, out)
    if first_step == 0:
        waits = max(waits, _warm_up(state, rule, warm, out))
    if at[_SPLIT_STEP] == first_step - 1:
        after = first_step - 1
    out.is_shortened[local:stop] = False
    out.is_shortened[local] = after > at[_AFTER]
    out.waits_for[local:stop] = -1
    out.waits_for[local] = waits
    out.is_split[local:stop] = False
    for served in range(local, stop):
        out.after[served] = max(after if served == local else at[_STEP] - rule.prefetch - 1, -1)
        _serve(state, rule, steps, served, out)
        at[_STEP] += 1
        out.fetch_offsets[served + 1], out.write_back_offsets[served + 1] = out.ends[0], out.ends[1]
    return stop, 0


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
    at, num_slots, num_known = state.scalars, state.records.shape[0], steps.offsets.size - 1
    largest = 0
    for local in range(num_known):
        largest = max(largest, steps.offsets[local + 1] - steps.offsets[local])
    missing = np.empty(min(num_slots, rule.group * largest), np.int64)
    codes = np.empty(missing.size, np.int32)
    ahead, local, num_needed = max(rule.group - 1, rule.window), 0, 0
    while local < num_known and (is_last or local + ahead < num_known) and num_needed == 0:
        if rule.window >= 0:
            _see_ahead(state, rule, steps, local, num_known)
        num_rows = steps.offsets[local + 1] - steps.offsets[local]
        if num_rows <= num_slots:
            local, num_needed = _plan_group(state, rule, steps, warm, local, missing, codes, out)
        elif rule.splits:
            _split(state, steps, local, out)
            at[_STEP] += 1
            local += 1
            out.fetch_offsets[local], out.write_back_offsets[local] = out.ends[0], out.ends[1]
        else:
            num_needed = num_rows
    at[_ENTRY] += steps.offsets[local]
    return local, num_needed


@numba.njit(cache=True, nogil=True)
def end_epoch(state: Staging, rows: NDArray[np.int64], slots: NDArray[np.int32]) -> int:
    """Empty the staging area; list the rows that go home and return how many there are.

    Args:
        state: left as at the start of an epoch, knowing still which rows were used before.
        rows: (num_slots,), the first are written.
        slots: (num_slots,), likewise.
    """
    records, num_listed = state.records, 0
    for slot in range(records.shape[0]):
        row = records[slot, _ROW]
        if row < 0:
            continue
        if records[slot, _IS_CLEAN]:
            state.slot_of_row[row] = records[slot, _BEFORE]
        else:
            rows[num_listed], slots[num_listed] = row, slot
            num_listed += 1
            state.slot_of_row[row] = _AWAY
    _begin_epoch(state)
    return num_listed
