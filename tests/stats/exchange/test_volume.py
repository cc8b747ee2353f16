"""Crossings between ranks, against sets of users; and that nothing is below the bound."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from hotset.stats.batches.batch_lookups import of_matrix
from hotset.stats.batches.lookups_by_row import group_lookups
from hotset.stats.exchange.fixed_homes import striped_owners
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
    messages_of_owner,
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


@given(drawn_steps())
@settings(max_examples=50)
def test_crossings_are_those_of_sets_of_users_and_above_the_lower_bound(drawn: DrawnSteps) -> None:
    owners = striped_owners(drawn.num_rows, drawn.num_ranks)
    is_used = np.zeros(drawn.num_rows, np.bool_)
    users = np.zeros(drawn.num_rows, np.uint8)
    total = NOTHING
    least = 0
    for number in range(len(drawn.steps)):
        rows = drawn.rows(number)
        total += count_crossings(StepRows(rows, drawn.masks(number), owners[rows], ~is_used[rows]))
        is_used[rows] = True
        least += least_crossings(rows, drawn.masks(number), users)
    uses = [drawn.uses_of(row) for row in range(drawn.num_rows)]
    assert total.rows == sum(map(messages_of_owner, uses, owners.tolist()))
    assert least == sum(map(least_messages, uses)) <= total.rows


def test_every_lookup_of_another_owner_counts() -> None:
    ids = np.array([0, 1, 0, 1, 1, 2], np.int32)
    lookups = group_lookups(of_matrix(ids, np.array([3])))
    ranks = np.array([0, 0, 0, 1, 1, 1], np.uint8)
    # Rank 1 owns rows 0 and 1, rank 0 owns row 2: lookups 0, 2 | 1 | 5 are remote.
    assert count_remote_lookups(lookups, ranks, np.array([1, 1, 0], np.uint8)) == 4
