"""The evictable rows of look-ahead: a list of slots per next use, and a bit per list that is not empty."""

from __future__ import annotations

import numpy as np

from ..kernel import kernel
from .staging_state import TIE_BITS, AreaState
from .step_plans import NEVER

ONE = np.uint64(1)


@kernel
def next_use_of(key: int) -> int:
    """The next use in a key of look-ahead, which is -(next use << TIE_BITS) + less than 1 << TIE_BITS."""
    return ((1 << TIE_BITS) - 1 - key) >> TIE_BITS


@kernel
def enter_bucket(state: AreaState, slot: int) -> None:
    """List ``slot`` behind those with the same next use; rows without a next use are found by the queue."""
    area = state.area[0]
    record = state.records[slot]
    use = next_use_of(record.key)
    if record.is_listed or use >= NEVER:
        return
    # A chain of slots for each next use, and a bit for each chain that is not empty.
    if state.heads[use] < 0:
        state.heads[use] = slot
        state.filled[use >> 6] |= ONE << np.uint64(use & 63)
        area.top_word = max(area.top_word, use >> 6)
    else:
        state.links[state.tails[use]] = slot
    state.tails[use] = slot
    state.links[slot] = -1
    record.is_listed = 1


@kernel
def empty_bucket(state: AreaState, use: int) -> None:
    """Empty the bucket of step ``use``: all its rows are used now, or were evicted."""
    if use < state.heads.size:
        state.heads[use] = -1
        state.filled[use >> 6] &= ~(ONE << np.uint64(use & 63))
