"""The staging area between epochs: empty, as a new one is."""

from __future__ import annotations

import numpy as np

from hotset.stats.staging.staging_area import end_epoch, new_area
from hotset.stats.staging.staging_state import NOBODY, AreaState

NUM_SLOTS = 5
ANY_RANKS = np.empty(0, np.int32)


def naive_records(state: AreaState) -> None:
    """Empty the slots of ``state`` field by field."""
    for name, value in {
        "row": -1,
        "vacated_by": -1,
        "last_use": NOBODY,
        "is_pinned": 0,
        "is_listed": 0,
    }.items():
        state.records[name] = value
    state.free[:] = np.arange(NUM_SLOTS - 1, -1, -1)


def test_an_ended_epoch_leaves_every_slot_empty_and_free(rng: np.random.Generator) -> None:
    state = new_area(40, NUM_SLOTS, ANY_RANKS, finds_uses=False)
    for name in state.records.dtype.names or ():
        state.records[name] = rng.integers(0, 2, NUM_SLOTS)
    state.records["row"] = [7, -1, 3, 30, 12]
    state.free[:] = 0
    wanted = state._replace(records=state.records.copy(), free=state.free.copy())
    naive_records(wanted)
    end_epoch(state)
    np.testing.assert_array_equal(state.records, wanted.records)
    np.testing.assert_array_equal(state.free, wanted.free)
    assert state.area[0].num_free == NUM_SLOTS
