"""Dense gradients summed over ranks: the tree of one process, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hotset.train.exchange.dense_sums import DenseSums
from hotset.train.model.sample_tree import add_losses
from hotset.train.ranks.ranks import Ranks
from hotset.train.ranks.thread_ranks import run_thread_ranks


@pytest.mark.parametrize("num_numbers", [1, 5, 4099])
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 6])
def test_the_sum_is_that_of_the_tree(num_ranks: int, num_numbers: int, rng: np.random.Generator) -> None:
    parts = [
        torch.from_numpy((rng.normal(size=num_numbers) * 10.0 ** rng.integers(-6, 6)).astype(np.float32))
        for _ in range(num_ranks)
    ]

    def work(ranks: Ranks) -> bytes:
        sums = DenseSums(ranks, num_numbers)
        for _ in range(2):  # buffers are used again
            gradient = parts[ranks.rank].clone()
            loss = sums.add(gradient, 0.1 * ranks.rank)
        assert loss == add_losses([0.1 * rank for rank in range(num_ranks)])
        return gradient.numpy().tobytes()

    level = list(parts)
    while len(level) > 1:
        level = [sum(level[i : i + 2][1:], level[i]) for i in range(0, len(level), 2)]
    assert set(run_thread_ranks(num_ranks, work)) == {level[0].numpy().tobytes()}


def test_a_rank_without_samples_changes_no_sign() -> None:
    """Its gradient is -0: a zero would turn a -0 of another rank into 0."""

    def work(ranks: Ranks) -> bool:
        gradient = torch.full((5,), -0.0)
        DenseSums(ranks, 5).add(gradient, 0.0)
        return bool(gradient.signbit().all())

    assert run_thread_ranks(3, work) == [True] * 3
