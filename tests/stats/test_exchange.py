"""Which ranks use a row, who owns it, what crosses, and what is expected to, against sets of users.

Some masks take up to 64 bits, so that a shift or a conversion that loses upper bits is seen.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.batch_rows import group_lookups, of_bags, of_matrix
from hotset.stats.exchange import (
    RankedEpoch,
    RowLists,
    StepRows,
    count_crossings,
    count_exchange,
    count_remote_lookups,
    count_uses,
    expected_exchange,
    last_users,
    least_crossings,
    list_messages,
    mask_type,
    most_uses,
    owners_by_use,
    rank_masks,
    ranks_of_samples,
    striped_owners,
)
from hotset.tests.support.naive.naive_exchange import (
    DrawnSteps,
    drawn_steps,
    least_messages,
    messages_of_owner,
)


def test_striped_owners_take_turns() -> None:
    assert striped_owners(5, 3).tolist() == [0, 1, 2, 0, 1]


@given(drawn_steps(), st.integers(1, 5))
@settings(max_examples=50)
def test_the_owner_uses_a_row_in_most_steps(drawn: DrawnSteps, rows_of_pass: int) -> None:
    loads = np.zeros(drawn.num_ranks, np.int64)
    owners: list[int] = []
    for first_row in range(0, drawn.num_rows, rows_of_pass):
        num_rows = min(rows_of_pass, drawn.num_rows - first_row)
        uses_KW = np.zeros((num_rows, drawn.num_ranks), np.uint32)
        for number in range(len(drawn.steps)):
            count_uses(drawn.rows(number), drawn.masks(number), first_row, uses_KW)
        owners += owners_by_use(uses_KW, loads, first_row).tolist()
    naive_loads = [0] * drawn.num_ranks
    for row in range(drawn.num_rows):
        counts = [sum(rank in users for users in drawn.uses_of(row)) for rank in range(drawn.num_ranks)]
        if not any(counts):
            assert owners[row] == row % drawn.num_ranks
            continue
        most = [rank for rank in range(drawn.num_ranks) if counts[rank] == max(counts)]
        wanted = min(most, key=lambda rank: (naive_loads[rank], rank))
        naive_loads[wanted] += 1
        assert owners[row] == wanted
    assert loads.tolist() == naive_loads


@st.composite
def drawn_step(draw: st.DrawFn) -> tuple[StepRows, int]:
    """Rows with users and owners, and the number of ranks."""
    num_ranks = draw(st.sampled_from([1, 2, 3, 8, 9]))
    rank = st.integers(0, num_ranks - 1)
    rows = draw(st.lists(st.tuples(st.frozensets(rank, min_size=1), rank, st.booleans()), max_size=6))
    masks = [sum(1 << user for user in users) for users, _, _ in rows]
    return (
        StepRows(
            np.arange(len(rows), dtype=np.int32),
            np.array(masks, mask_type(num_ranks)),
            np.array([owner for _, owner, _ in rows], np.uint8),
            np.array([is_first for _, _, is_first in rows], np.bool_),
        ),
        num_ranks,
    )


def listed(lists: RowLists, rank: int) -> list[int]:
    found: list[int] = lists.positions[slice(*lists.starts_W1[rank : rank + 2])].tolist()
    return found


@given(drawn_step())
@settings(max_examples=50)
def test_sender_and_receiver_list_the_same_rows(drawn: tuple[StepRows, int]) -> None:
    step, num_ranks = drawn
    every = [list_messages(step, rank, num_ranks) for rank in range(num_ranks)]
    rows = list(zip(*(each.tolist() for each in step), strict=True))
    num_vectors = num_gradients = 0
    for owner in range(num_ranks):
        for user in range(num_ranks):
            gradients = [
                i
                for i, (_, mask, of_row, _) in enumerate(rows)
                if of_row == owner != user and mask >> user & 1
            ]
            vectors = [i for i in gradients if not rows[i][3]]
            assert listed(every[owner].vectors_out, user) == vectors
            assert listed(every[user].vectors_in, owner) == vectors
            assert listed(every[user].gradients_out, owner) == gradients
            assert listed(every[owner].gradients_in, user) == gradients
            num_vectors += len(vectors)
            num_gradients += len(gradients)
    counted = count_crossings(step)
    assert (counted.vectors, counted.gradients) == (num_vectors, num_gradients)


@given(st.data(), st.integers(1, 40), st.sampled_from([1, 2, 4, 9, 17, 64]), st.integers(1, 3))
@settings(max_examples=50)
def test_a_mask_has_the_ranks_of_all_samples_that_look_up_the_row(
    data: st.DataObject, batch_size: int, num_ranks: int, shares_of_rank: int
) -> None:
    num_samples = data.draw(st.integers(0, batch_size))
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=2 * num_samples, max_size=2 * num_samples))
    bags_N = np.repeat(np.arange(2 * num_samples), np.array(lengths, np.int64))
    ids = data.draw(st.lists(st.integers(0, 4), min_size=bags_N.size, max_size=bags_N.size))
    lookups = group_lookups(of_bags(np.array(ids, np.int32), bags_N, np.array([5, 5])))
    ranks_B = ranks_of_samples(num_samples, batch_size, shares_of_rank * num_ranks, num_ranks)
    masks = rank_masks(lookups, ranks_B[bags_N // 2], num_ranks)
    users: dict[tuple[int, int], set[int]] = {}
    for bag, row in zip(bags_N.tolist(), ids, strict=True):
        users.setdefault((bag % 2, row), set()).add(int(ranks_B[bag // 2]))
    # Rows come by table, then by id.
    assert masks.tolist() == [sum(1 << rank for rank in users[row]) for row in sorted(users)]
    assert masks.dtype == mask_type(num_ranks)


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="6 micro-batches cannot be divided among 4 ranks"):
        ranks_of_samples(4, 8, 6, 4)
    with pytest.raises(ValueError, match="a batch of 8 has 9 samples"):
        ranks_of_samples(9, 8, 4, 4)
    for num_ranks in (0, 65):
        with pytest.raises(ValueError, match=f"want 1 to 64 ranks, got {num_ranks}"):
            mask_type(num_ranks)


@given(drawn_steps())
@settings(max_examples=50)
def test_crossings_are_those_of_sets_of_users_and_above_the_lower_bound(drawn: DrawnSteps) -> None:
    owners = striped_owners(drawn.num_rows, drawn.num_ranks)
    rows = np.concatenate([np.empty(0, np.int32), *map(drawn.rows, range(len(drawn.steps)))])
    masks = np.concatenate([np.empty(0, np.uint8), *map(drawn.masks, range(len(drawn.steps)))])
    last = last_users(rows, masks)
    total = count_crossings(StepRows(rows, masks, owners[rows], last == 0))
    least = least_crossings(masks, last)
    uses = [drawn.uses_of(row) for row in range(drawn.num_rows)]
    assert total.rows == sum(map(messages_of_owner, uses, owners.tolist()))
    assert least == sum(map(least_messages, uses)) <= total.rows


def test_every_lookup_of_another_owner_counts() -> None:
    ids = np.array([0, 1, 0, 1, 1, 2], np.int32)
    lookups = group_lookups(of_matrix(ids, np.array([3])))
    ranks = np.array([0, 0, 0, 1, 1, 1], np.uint8)
    # Rank 1 owns rows 0 and 1, rank 0 owns row 2: lookups 0, 2 | 1 | 5 are remote.
    assert count_remote_lookups(lookups, ranks, np.array([1, 1, 0], np.uint8)) == 4


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
        num_steps=len(steps),
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
                assert lists.starts_W1.size == num_ranks + 1 and not listed(lists, rank)
                assert all((np.diff(listed(lists, other)) > 0).all() for other in range(num_ranks))


@pytest.mark.parametrize(
    ("num_ranks", "bits"), [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (33, 64), (64, 64)]
)
def test_masks_take_the_fewest_bytes(num_ranks: int, bits: int) -> None:
    assert np.dtype(mask_type(num_ranks)).itemsize * 8 == bits


@pytest.mark.parametrize(
    ("batch_size", "num_shares", "num_ranks"),
    [(64, 64, 64), (100, 12, 3), (7, 4, 2), (8, 4, 4), (3, 8, 8), (80, 8, 4), (4, 2, 1)],
)
def test_samples_go_to_ranks_by_the_definition(batch_size: int, num_shares: int, num_ranks: int) -> None:
    wanted = [i * num_shares // batch_size * num_ranks // num_shares for i in range(batch_size)]
    for num_samples in (0, 1, batch_size // 2, batch_size):
        assert (
            ranks_of_samples(num_samples, batch_size, num_shares, num_ranks).tolist() == wanted[:num_samples]
        )


_NUM_KEYS = 2_000


def drawn_epoch(
    num_ranks: int, num_steps: int, rank_samples: int, skew: float, rng: np.random.Generator
) -> RankedEpoch:
    """Three lookups a sample; what is looked up does not depend on the step."""
    weights = np.arange(1, _NUM_KEYS + 1) ** -skew
    drawn = rng.choice(_NUM_KEYS, (num_steps, num_ranks, rank_samples * 3), p=weights / weights.sum())
    # Ids follow frequency; by a random number instead, so that striped homes serve equally many lookups.
    drawn = rng.permutation(_NUM_KEYS)[drawn]
    keys: list[NDArray[np.int32]] = []
    masks = []
    remote = 0
    for step in drawn:
        uses = np.zeros((_NUM_KEYS, num_ranks), np.bool_)
        for rank, rows in enumerate(step):
            uses[rows, rank] = True
            remote += int((rows % num_ranks != rank).sum())
        used = np.flatnonzero(uses.any(axis=1))
        keys.append(used.astype(np.int32))
        masks.append((uses[used] << np.arange(num_ranks)).sum(axis=1).astype(mask_type(num_ranks)))
    return RankedEpoch(
        num_ranks=num_ranks,
        num_samples=num_steps * num_ranks * rank_samples,
        num_steps=len(keys),
        keys=np.concatenate(keys),
        masks=np.concatenate(masks),
        lookups_of_rows=np.bincount(drawn.ravel(), minlength=_NUM_KEYS),
        remote_lookups=remote,
    )


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("skew", [0.0, 1.1])
def test_expected_rows_are_those_of_drawn_epochs(
    num_ranks: int, skew: float, rng: np.random.Generator
) -> None:
    epoch = drawn_epoch(num_ranks, 60, 40, skew, rng)
    counted = count_exchange(epoch)
    assert counted.least <= counted.by_use.rows <= counted.striped.rows < counted.deduplicated
    assert counted.deduplicated <= 2 * epoch.remote_lookups
    found = asdict(
        expected_exchange(epoch.lookups_of_rows, epoch.num_samples, epoch.num_steps, epoch.num_ranks)
    )
    wanted = {
        "every_lookup": 2 * epoch.remote_lookups,
        "deduplicated": counted.deduplicated,
        "first_uses_computed": counted.striped.rows,
        "owners_by_use": counted.by_use.rows,
        "least_possible": counted.least,
    }
    assert found == pytest.approx(wanted, rel=0.03)


def test_the_most_uses_are_those_of_balls_in_bins() -> None:
    # Every way to put up to five balls into three bins.
    for num_balls in range(6):
        ways = [max(np.bincount(way, minlength=3)) for way in product(range(3), repeat=num_balls)]
        found = most_uses(np.array([float(num_balls)]), 10**9, 3)
        assert found[0] == pytest.approx(np.mean(ways) if num_balls else 0)
    # From 64 on by the normal distribution, without a step between the two.
    exact, normal = most_uses(np.array([64.0, 64.01]), 10**9, 4)
    assert normal == pytest.approx(exact, rel=0.01)
    # A row that all ranks use in every step.
    assert most_uses(np.array([800.0]), 100, 8)[0] == 100


def test_rows_that_are_used_once_send_nothing() -> None:
    found = expected_exchange(np.array([0, 1, 1, 1, 0]), 1_000, 10, 4)
    assert found.first_uses_computed == pytest.approx(3 * 3 / 4, rel=0.05)
    assert found.owners_by_use == pytest.approx(0, abs=0.05)
    assert found.least_possible == pytest.approx(0, abs=0.05)
    assert asdict(expected_exchange(np.zeros(3, np.int64), 0, 0, 2)) == dict.fromkeys(asdict(found), 0.0)


@pytest.mark.parametrize("num_ranks", [2, 8, 64])
@pytest.mark.parametrize("num_steps", [1, 2, 60, 500])
def test_no_scheme_is_expected_below_the_next(num_steps: int, num_ranks: int) -> None:
    for rank_samples in (1, 64, 2048):
        num_samples = num_steps * num_ranks * rank_samples
        # From one lookup in the epoch to several by each sample.
        for lookups in (1, 2, 5, 64, 65, num_samples // 2 + 1, num_samples, 3 * num_samples):
            found = expected_exchange(np.array([lookups]), num_samples, num_steps, num_ranks)
            rows = list(asdict(found).values())
            for before, after in pairwise(rows):
                assert 0 <= after <= before * (1 + 1e-9) + 1e-9, found


def test_one_step_sends_gradients_alone() -> None:
    """Each row is used for the first time, and all but one of its users send a gradient."""
    num_samples, num_ranks = 64, 4
    lookups = np.array([1, 2, 3, 64])
    found = expected_exchange(lookups, num_samples, 1, num_ranks)
    # Samples are drawn one by one: that a rank uses a row is that none of its 16 samples is left out.
    uses = num_ranks * (1 - (1 - lookups / num_samples) ** 16)
    used = 1 - (1 - lookups / num_samples) ** 64
    assert found.every_lookup == pytest.approx(2 * 3 / 4 * lookups.sum())
    assert found.least_possible == pytest.approx((uses - used).sum(), rel=0.1)
    assert found.owners_by_use == pytest.approx(found.least_possible, rel=0.01)


def test_rows_of_equal_counts_are_expected_alike_and_add_up() -> None:
    counts = np.array([1, 4, 4, 90, 1, 700, 0])
    whole = asdict(expected_exchange(counts, 4_000, 20, 4))
    parts = [asdict(expected_exchange(counts[i : i + 1], 4_000, 20, 4)) for i in range(counts.size)]
    assert whole == pytest.approx({name: sum(part[name] for part in parts) for name in whole})
    assert asdict(expected_exchange(counts[::-1], 4_000, 20, 4)) == whole
