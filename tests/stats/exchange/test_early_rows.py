"""Marks of rows that the step before does not use, and marks that are wrong, against naive twins."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.exchange.early_rows import early_rows, first_stale_step, last_keys
from hotset.stats.exchange.home_moves import NO_HOME
from hotset.stats.exchange.rank_steps import RankSteps

KEYS = st.sets(st.integers(0, 12), max_size=9).map(sorted)


@given(KEYS, KEYS, st.data())
@settings(max_examples=60, deadline=None)
def test_rows_of_the_step_before_and_first_uses_are_not_early(
    keys: list[int], earlier: list[int], data: st.DataObject
) -> None:
    before = [data.draw(st.sampled_from([0, 3, NO_HOME])) for _ in keys]
    found = early_rows(np.array(keys, np.int32), np.array(before, np.uint8), np.array(earlier, np.int32))
    assert found.tolist() == [
        home != NO_HOME and key not in earlier for key, home in zip(keys, before, strict=True)
    ]


def drawn_steps(draw: Any) -> RankSteps:
    batches = draw(st.lists(KEYS, max_size=5))
    size = sum(map(len, batches))
    homes = [draw(st.sampled_from([0, 1, NO_HOME])) for _ in range(size)]
    marks = [home != NO_HOME and draw(st.booleans()) for home in homes]
    return RankSteps(
        starts_S1=np.cumsum([0, *map(len, batches)]).astype(np.int64),
        keys_N=np.array([key for batch in batches for key in batch], np.int32),
        masks_N=np.ones(size, np.uint8),
        before_N=np.array(homes, np.uint8),
        after_N=np.zeros(size, np.uint8),
        is_early_N=np.array(marks, np.uint8),
        passed_starts_S1=np.zeros(len(batches) + 1, np.int64),
        passed_keys_P=np.empty(0, np.int32),
        passed_homes_P=np.empty(0, np.uint8),
    )


@given(st.data(), KEYS)
@settings(max_examples=80, deadline=None)
def test_a_mark_on_a_row_of_the_step_before_is_found_at_its_home(
    data: st.DataObject, first: list[int]
) -> None:
    steps = drawn_steps(data.draw)
    wanted = None
    earlier = first
    for step in range(steps.num_steps):
        part = slice(steps.starts_S1[step], steps.starts_S1[step + 1])
        rows = zip(steps.keys_N[part], steps.before_N[part], steps.is_early_N[part], strict=True)
        if wanted is None and any(mark and home == 1 and key in earlier for key, home, mark in rows):
            wanted = step
        earlier = steps.keys_N[part].tolist()
    given_first = np.array(first, np.int32)
    assert first_stale_step(steps, 1, given_first) == wanted
    assert last_keys(steps, given_first).tolist() == earlier
    # Files are mapped, and cannot be written.
    for each in steps:
        each.flags.writeable = False
    assert first_stale_step(steps, 1, given_first) == wanted
