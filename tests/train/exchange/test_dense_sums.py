"""Dense gradients summed over ranks: the tree of one process, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.stats.codecs import codec_of
from hotset.stats.plain_codecs import RowMessage, shape_of
from hotset.train.exchange.chosen_exchange import ChosenExchange
from hotset.train.exchange.coded_exchange import CodedExchange
from hotset.train.exchange.dense_sums import DenseSums
from hotset.train.exchange.row_messages import NotFiniteRowError
from hotset.train.model.tile_gradients import add_losses
from hotset.train.ranks.ranks import OneRank, Ranks
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


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8"])
def test_a_coded_sum_rounds_what_is_sent_and_then_the_sum(name: str, rng: np.random.Generator) -> None:
    """Bit for bit: a rank keeps its own slice as it is, blocks of 128 numbers have keys of their own."""
    # Two slices of two blocks, the last of them with 3 numbers.
    parts = (rng.normal(size=(2, 387)) * 10.0 ** rng.integers(-3, 3, (2, 387))).astype(np.float32)
    codecs = [CodedExchange(rank, 3, step=4) for rank in range(2)]
    for coded in codecs:
        coded.use(ChosenExchange(dense=name))

    def rounded(numbers: NDArray[np.float32], first_block: int, stream: int) -> NDArray[np.float32]:
        message = RowMessage.of(numbers.reshape(-1, 128), stream=stream)
        message = message._replace(keys_N=message.keys_N + first_block)
        codec = codec_of(name)
        data = np.empty(codec.num_bytes(shape_of(message)), np.uint8)
        codec.encode(message, data)
        found = np.empty_like(message.rows_ND)
        codec.decode(data, shape_of(message), found)
        return found.reshape(-1)

    filled = np.zeros((2, 2, 256), np.float32)
    filled.reshape(2, -1)[:, :387] = parts
    wanted = []
    for owner in range(2):
        other = 1 - owner
        arrived = rounded(filled[other, owner], 2 * owner, codecs[other].dense("partials")[1])
        total = filled[owner, owner] + arrived
        wanted.append(rounded(total, 0, codecs[owner].dense("sums")[1]))

    def work(ranks: Ranks) -> bytes:
        gradient = torch.from_numpy(parts[ranks.rank].copy())
        assert DenseSums(ranks, codecs[ranks.rank], 387).add(gradient, 0.5) == 1.0
        return gradient.numpy().tobytes()

    assert run_thread_ranks(2, work) == [np.concatenate(wanted)[:387].tobytes()] * 2
    # A slice to the other rank, and the sum of the own slice with the loss.
    slice_bytes = {"fp16": 512, "bf16": 512, "int8": 2 * 130}[name]
    assert [coded.counts.sent_bytes["dense"] for coded in codecs] == [2 * slice_bytes + 8] * 2


def test_saturated_numbers_of_dense_gradients_are_counted() -> None:
    def work(ranks: Ranks) -> int:
        coded = CodedExchange(ranks.rank, 0)
        coded.use(ChosenExchange(dense="fp16"))
        gradient = torch.zeros(512)
        # In the slice of rank 1: sent by rank 0, and again in the sum that rank 1 sends.
        gradient[300] = 1e6 if ranks.rank == 0 else 64.0
        DenseSums(ranks, coded, 512).add(gradient, 0.0)
        assert gradient[300] == 65_504 and gradient.count_nonzero() == 1
        return coded.counts.num_saturated

    assert run_thread_ranks(2, work) == [1, 1]


def test_one_rank_sends_nothing() -> None:
    coded = CodedExchange(0, 0)
    coded.use(ChosenExchange(dense="int8"))
    gradient = torch.tensor([1e-9, 2.0])
    assert DenseSums(OneRank(), coded, 2).add(gradient, 0.25) == 0.25
    assert gradient.tolist() == torch.tensor([1e-9, 2.0]).tolist() and not any(
        coded.counts.sent_bytes.values()
    )
