"""Crossings between ranks, against sets of users; and that nothing is below the bound."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.batches.batch_lookups import of_matrix
from hotset.stats.batches.lookups_by_row import group_lookups
from hotset.stats.exchange.fixed_homes import stay_at, striped_homes
from hotset.stats.exchange.home_moves import (
    NO_HOME,
    HomeChoices,
    RowRange,
    choose_homes_backward,
    follow_choices,
    move_costs,
    unset_choices,
)
from hotset.stats.exchange.volume import (
    NOTHING,
    StepRows,
    count_bits,
    count_crossings,
    count_remote_lookups,
    least_crossings,
)
from hotset.tests.support.naive.naive_exchange import (
    DrawnSteps,
    drawn_steps,
    least_messages,
    path_numbers,
)


def test_bits_are_counted_in_every_mask(rng: np.random.Generator) -> None:
    drawn = rng.integers(0, 2**64, 200, dtype=np.uint64, endpoint=False)
    # Full masks of each length too, whose bytes have all bits.
    for mask in [
        0,
        *((1 << bits) - 1 for bits in range(1, 65)),
        *(255 << bits for bits in range(57)),
        *drawn,
    ]:
        assert int(count_bits(np.uint64(mask))) == int(mask).bit_count()


@given(drawn_steps(), st.data())
@settings(max_examples=50)
def test_crossings_are_those_of_sets_of_users(drawn: DrawnSteps, data: st.DataObject) -> None:
    homes = np.full(drawn.num_rows, NO_HOME, np.uint8)
    last_steps = np.full(drawn.num_rows, -9, np.int32)
    paths: dict[int, list[int]] = {row: [] for row in range(drawn.num_rows)}
    total = NOTHING
    early = 0
    for number, step in enumerate(drawn.steps):
        rows = drawn.rows(number)
        after = np.array([data.draw(st.sampled_from(sorted(users))) for _, users in step], np.uint8)
        before = homes[rows]
        updated = {row for row, _ in drawn.steps[number - 1]} if number else set()
        for (row, users), home in zip(step, before.tolist(), strict=True):
            if home != NO_HOME and row not in updated:
                early += len(users - {home})
        total += count_crossings(StepRows(rows, drawn.masks(number), before, after), number, last_steps)
        homes[rows] = after
        for row, home in zip(rows.tolist(), after.tolist(), strict=True):
            paths[row].append(home)
    assert total.early == early and total.early <= total.vectors
    for vector, state in ((1, 0), (16, 33)):
        naive = sum(path_numbers(drawn.uses_of(row), path, vector, state) for row, path in paths.items())
        assert total.num_numbers(vector, state) == naive


@given(drawn_steps())
@settings(max_examples=50)
def test_homes_without_state_reach_the_lower_bound(drawn: DrawnSteps) -> None:
    users = np.zeros(drawn.num_rows, np.uint8)
    least = sum(
        least_crossings(drawn.rows(number), drawn.masks(number), users) for number in range(len(drawn.steps))
    )
    assert least == sum(least_messages(drawn.uses_of(row)) for row in range(drawn.num_rows))
    offsets = np.concatenate([[0], np.cumsum([len(step) for step in drawn.steps])]).astype(np.int64)
    rows = np.concatenate([np.empty(0, np.int32), *map(drawn.rows, range(len(drawn.steps)))])
    masks = np.concatenate([np.empty(0, np.uint8), *map(drawn.masks, range(len(drawn.steps)))])
    choices = unset_choices(rows.size, drawn.num_ranks)
    part = RowRange(0, np.zeros((drawn.num_rows, drawn.num_ranks), np.int16))
    order = np.arange(len(drawn.steps))
    choose_homes_backward(order, offsets, rows, masks, move_costs(4, 0), part, choices)
    homes = np.full(drawn.num_rows, NO_HOME, np.uint8)
    last_steps = np.full(drawn.num_rows, -9, np.int32)
    moved = stayed = NOTHING
    fixed = striped_homes(drawn.num_rows, drawn.num_ranks)
    fixed_homes = np.full(drawn.num_rows, NO_HOME, np.uint8)
    fixed_steps = last_steps.copy()
    for number in range(len(drawn.steps)):
        entries = slice(offsets[number], offsets[number + 1])
        before, after = follow_choices(
            rows[entries], HomeChoices(*(each[entries] for each in choices)), homes
        )
        step = StepRows(rows[entries], masks[entries], before, after)
        moved += count_crossings(step, number, last_steps)
        step = StepRows(rows[entries], masks[entries], *stay_at(rows[entries], fixed, fixed_homes))
        stayed += count_crossings(step, number, fixed_steps)
    assert least == moved.rows <= stayed.rows and stayed.moves == 0


def test_every_lookup_away_from_its_home_counts() -> None:
    ids = np.array([0, 1, 0, 1, 1, 2], np.int32)
    lookups = group_lookups(of_matrix(ids, np.array([3])))
    ranks = np.array([0, 0, 0, 1, 1, 1], np.uint8)
    # Row 0 lives at rank 1, row 1 at rank 1, row 2 at rank 0: lookups 0, 2 | 1 | 5 are remote.
    assert count_remote_lookups(lookups, ranks, np.array([1, 1, 0], np.uint8)) == 4
