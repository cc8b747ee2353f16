"""Dense gradients summed over ranks: the tree of one process, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hotset.train.exchange.chosen_exchange import ChosenExchange
from hotset.train.exchange.coded_exchange import CodedExchange
from hotset.train.exchange.dense_sums import DenseSums
from hotset.train.exchange.row_messages import NotFiniteRowError
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
        sums = DenseSums(ranks, CodedExchange(ranks.rank, 0), num_numbers)
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
        DenseSums(ranks, CodedExchange(ranks.rank, 0), 5).add(gradient, 0.0)
        return bool(gradient.signbit().all())

    assert run_thread_ranks(3, work) == [True] * 3


@pytest.mark.parametrize(("name", "error", "ratio"), [("bf16", 2e-2, 2), ("int8", 5e-2, 3.9)])
def test_coded_sums_are_near_and_the_same_at_all_ranks(
    name: str, error: float, ratio: float, rng: np.random.Generator
) -> None:
    parts = torch.from_numpy(rng.normal(size=(3, 1500)).astype(np.float32))

    def work(ranks: Ranks) -> tuple[bytes, bytes, int]:
        coded = CodedExchange(ranks.rank, 0)
        coded.use(ChosenExchange(dense=name))
        found = []
        for step in (0, 1):
            coded.step = step
            gradient = parts[ranks.rank].clone()
            assert DenseSums(ranks, coded, 1500).add(gradient, 1.0) == 3.0
            torch.testing.assert_close(gradient, parts.sum(0), atol=3 * error, rtol=error)
            found.append(gradient.numpy().tobytes())
        return found[0], found[1], coded.counts.sent_bytes["dense"]

    found = run_thread_ranks(3, work)
    assert len({each[:2] for each in found}) == 1
    # Steps round by other bits; the bytes are known beforehand.
    assert found[0][0] != found[0][1]
    whole = 2 * 2 * 4 * 1536 * 2 / 3
    assert found[0][2] == pytest.approx(whole / ratio, rel=0.02)


def test_a_dense_gradient_that_is_not_finite_is_refused_by_its_step() -> None:
    def work(ranks: Ranks) -> None:
        coded = CodedExchange(ranks.rank, 0, step=6)
        coded.use(ChosenExchange(dense="bf16"))
        gradient = torch.ones(40)
        gradient[7] = float("nan")
        DenseSums(ranks, coded, 40).add(gradient, 1.0)

    with pytest.raises(NotFiniteRowError, match="gradient of the dense layers is not finite at step 7"):
        run_thread_ranks(2, work)
