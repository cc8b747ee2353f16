"""Exchanges of more ranks than a byte has bits, counted by sets; tests `exchange`, too.

Drawn epochs elsewhere have few ranks, whose masks fit in a byte. Here masks take up to 64 bits, so that a
shift or a conversion that loses upper bits is seen.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.exchange import (
    RankedEpoch,
    StepRows,
    count_crossings,
    list_messages,
    mask_type,
    ranks_of_samples,
)
from hotset.stats.exchange_volume import count_exchange
from hotset.tests.support.naive.naive_exchange import least_messages, messages_of_owner

Users = dict[int, frozenset[int]]
"""The ranks that use each row of a step."""
NUM_ROWS = 12
WIDE = (8, 16, 64)


def drawn(num_ranks: int, rng: np.random.Generator, num_steps: int = 7) -> list[Users]:
    """Steps in which most rows have a few users, and the last rank always is one of some row."""
    steps = []
    for _ in range(num_steps):
        rows = np.flatnonzero(rng.random(NUM_ROWS) < 0.7).tolist() or [0]
        step = {row: frozenset(rng.integers(0, num_ranks, rng.integers(1, 6)).tolist()) for row in rows}
        step[rows[0]] |= {num_ranks - 1}
        steps.append(step)
    return steps


def masks_of(step: Users, num_ranks: int) -> NDArray[np.unsignedinteger]:
    return np.array([sum(1 << rank for rank in step[row]) for row in sorted(step)], mask_type(num_ranks))


def epoch_of(steps: list[Users], num_ranks: int) -> RankedEpoch:
    lookups = [sum(len(step.get(row, ())) for step in steps) for row in range(NUM_ROWS)]
    return RankedEpoch(
        num_ranks=num_ranks,
        num_samples=0,
        offsets=np.cumsum([0, *map(len, steps)]),
        keys=np.concatenate([np.array(sorted(step), np.int32) for step in steps]),
        masks=np.concatenate([masks_of(step, num_ranks) for step in steps]),
        lookups_of_rows=np.array(lookups),
        remote_lookups=0,
    )


def of_owners(steps: list[Users], owners: list[int]) -> int:
    uses = [[step[row] for step in steps if row in step] for row in range(NUM_ROWS)]
    return sum(map(messages_of_owner, uses, owners))


@pytest.mark.parametrize("num_ranks", WIDE)
def test_the_counts_of_an_epoch_are_those_of_sets(num_ranks: int, rng: np.random.Generator) -> None:
    steps = drawn(num_ranks, rng)
    epoch = epoch_of(steps, num_ranks)
    assert epoch.num_rows == NUM_ROWS and epoch.num_steps == len(steps)
    found = count_exchange(epoch)
    # Owners by number, and where the rows have most uses, the rank with fewer rows first.
    striped = [row % num_ranks for row in range(NUM_ROWS)]
    assert found.striped.rows == of_owners(steps, striped)
    away = sum(len(users - {row % num_ranks}) for step in steps for row, users in step.items())
    assert found.deduplicated == 2 * away
    by_use, loads = [], [0] * num_ranks
    for row in range(NUM_ROWS):
        uses = [sum(rank in step.get(row, ()) for step in steps) for rank in range(num_ranks)]
        best = min(range(num_ranks), key=lambda rank: (-uses[rank], loads[rank], rank))
        loads[best] += max(uses) > 0
        by_use.append(best if max(uses) else row % num_ranks)
    assert found.by_use.rows == of_owners(steps, by_use)
    uses_of = [[step[row] for step in steps if row in step] for row in range(NUM_ROWS)]
    assert found.least == sum(map(least_messages, uses_of))


@pytest.mark.parametrize("num_ranks", WIDE)
def test_the_lists_of_all_ranks_are_what_is_counted(num_ranks: int, rng: np.random.Generator) -> None:
    for users in drawn(num_ranks, rng, 3):
        rows = np.array(sorted(users), np.int32)
        owners = rng.integers(0, num_ranks, rows.size).astype(np.uint8)
        step = StepRows(rows, masks_of(users, num_ranks), owners, rng.random(rows.size) < 0.3)
        crossings = count_crossings(step)
        every = [list_messages(step, rank, num_ranks) for rank in range(num_ranks)]
        assert crossings.vectors == sum(each.vectors_out.positions.size for each in every)
        assert crossings.vectors == sum(each.vectors_in.positions.size for each in every)
        assert crossings.gradients == sum(each.gradients_out.positions.size for each in every)
        for rank, each in enumerate(every):
            for lists in each:
                assert lists.starts_W1.size == num_ranks + 1 and lists.of(rank) == slice(
                    int(lists.starts_W1[rank]), int(lists.starts_W1[rank])
                )
                assert all(
                    (np.diff(lists.positions[lists.of(other)]) > 0).all() for other in range(num_ranks)
                )


@pytest.mark.parametrize(
    ("num_ranks", "bits"), [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (33, 64), (64, 64)]
)
def test_masks_take_the_fewest_bytes(num_ranks: int, bits: int) -> None:
    assert np.dtype(mask_type(num_ranks)).itemsize * 8 == bits


@pytest.mark.parametrize(("batch_size", "num_shares", "num_ranks"), [(64, 64, 64), (100, 12, 3), (7, 4, 2)])
def test_samples_go_to_ranks_by_the_definition(batch_size: int, num_shares: int, num_ranks: int) -> None:
    wanted = [i * num_shares // batch_size * num_ranks // num_shares for i in range(batch_size)]
    for num_samples in (0, 1, batch_size // 2, batch_size):
        assert (
            ranks_of_samples(num_samples, batch_size, num_shares, num_ranks).tolist() == wanted[:num_samples]
        )
    assert all(after - before in (0, 1) for before, after in pairwise(wanted))
    assert set(wanted) == set(range(num_ranks))
