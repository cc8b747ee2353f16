"""Counts of an epoch (`exchange`): no scheme is below the bound.

The expected exchange of an epoch agrees with drawn epochs, scheme by scheme.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.exchange import RankedEpoch, mask_type
from hotset.stats.exchange_volume import count_exchange, expected_exchange, most_uses
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.shards import Shards
from hotset.train.ranks.exchange import RankReader, read_epoch


@pytest.fixture
def epoch(tmp_path: Path) -> RankedEpoch:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec(num_mixed=400)))
    return read_epoch(RankReader(shards, [0, 1, 2], 4), range(shards.num_training_batches))


def test_schemes_stand_in_their_order(epoch: RankedEpoch) -> None:
    counts = count_exchange(epoch)
    assert counts.least <= counts.by_use.rows <= counts.striped.rows < counts.deduplicated
    assert counts.deduplicated <= 2 * epoch.remote_lookups


NUM_ROWS = 2_000


def drawn_epoch(
    num_ranks: int, num_steps: int, rank_samples: int, skew: float, rng: np.random.Generator
) -> RankedEpoch:
    """Three lookups a sample; what is looked up does not depend on the step."""
    weights = np.arange(1, NUM_ROWS + 1) ** -skew
    drawn = rng.choice(NUM_ROWS, (num_steps, num_ranks, rank_samples * 3), p=weights / weights.sum())
    # Ids follow frequency; by a random number instead, so that striped homes serve equally many lookups.
    drawn = rng.permutation(NUM_ROWS)[drawn]
    keys: list[NDArray[np.int32]] = []
    masks = []
    remote = 0
    for step in drawn:
        uses = np.zeros((NUM_ROWS, num_ranks), np.bool_)
        for rank, rows in enumerate(step):
            uses[rows, rank] = True
            remote += int((rows % num_ranks != rank).sum())
        used = np.flatnonzero(uses.any(axis=1))
        keys.append(used.astype(np.int32))
        masks.append((uses[used] << np.arange(num_ranks)).sum(axis=1).astype(mask_type(num_ranks)))
    return RankedEpoch(
        num_ranks=num_ranks,
        num_samples=num_steps * num_ranks * rank_samples,
        offsets=np.cumsum([0, *(each.size for each in keys)]),
        keys=np.concatenate(keys),
        masks=np.concatenate(masks),
        lookups_of_rows=np.bincount(drawn.ravel(), minlength=NUM_ROWS),
        remote_lookups=remote,
    )


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("skew", [0.0, 1.1])
def test_expected_rows_are_those_of_drawn_epochs(
    num_ranks: int, skew: float, rng: np.random.Generator
) -> None:
    epoch = drawn_epoch(num_ranks, 60, 40, skew, rng)
    counted = count_exchange(epoch)
    found = asdict(
        expected_exchange(epoch.lookups_of_rows, epoch.num_samples, epoch.num_steps, epoch.num_ranks)
    )
    wanted = {
        "every_lookup": 2 * epoch.remote_lookups,
        "deduplicated": counted.deduplicated,
        "first_uses_computed": counted.striped.rows,
        "homes_by_use": counted.by_use.rows,
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
    assert found.homes_by_use == pytest.approx(0, abs=0.05)
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
    assert found.homes_by_use == pytest.approx(found.least_possible, rel=0.01)


def test_rows_of_equal_counts_are_expected_alike_and_add_up() -> None:
    counts = np.array([1, 4, 4, 90, 1, 700, 0])
    whole = asdict(expected_exchange(counts, 4_000, 20, 4))
    parts = [asdict(expected_exchange(counts[i : i + 1], 4_000, 20, 4)) for i in range(counts.size)]
    assert whole == pytest.approx({name: sum(part[name] for part in parts) for name in whole})
    assert asdict(expected_exchange(counts[::-1], 4_000, 20, 4)) == whole
