"""The order of batches: what every permutation must keep, and pinned values."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.batches.epoch_order import epoch_order, shuffled, spread_evenly


@pytest.mark.parametrize(("num_hot_only", "num_mixed"), [(0, 0), (0, 5), (5, 0), (3, 7), (40, 3), (8, 8)])
def test_hot_only_batches_are_spread_evenly(num_hot_only: int, num_mixed: int) -> None:
    total = num_hot_only + num_mixed
    merged = spread_evenly(
        np.arange(num_hot_only, dtype=np.int32), np.arange(num_hot_only, total, dtype=np.int32)
    )
    assert sorted(merged.tolist()) == list(range(total))
    hot_so_far = np.cumsum(merged < num_hot_only)
    expected = np.arange(1, total + 1) * num_hot_only / max(total, 1)
    assert np.all(np.abs(hot_so_far - expected) <= 1)


def kinds(num_hot_only: int, num_mixed: int) -> NDArray[np.bool_]:
    return np.arange(num_hot_only + num_mixed) < num_hot_only


@pytest.mark.parametrize("spread", [True, False])
def test_an_epoch_visits_every_batch_once(spread: bool) -> None:
    order = epoch_order(kinds(13, 29), seed=3, epoch=1, spread=spread)
    assert sorted(order.tolist()) == list(range(42))


def test_an_order_is_a_function_of_seed_and_epoch() -> None:
    orders = [shuffled(50, seed, epoch).tolist() for seed, epoch in [(0, 0), (0, 0), (0, 1), (1, 0)]]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2] and orders[0] != orders[3] and orders[2] != orders[3]


def test_a_shuffle_never_changes() -> None:
    assert shuffled(8, seed=0, epoch=0).tolist() == [0, 1, 4, 2, 3, 6, 7, 5]
