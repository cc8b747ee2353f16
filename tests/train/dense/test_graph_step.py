"""Steps by torch's graph: tiles against the whole batch, threads against one, and what a model draws.

Tests `layers`, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

from hotset.pipeline.errors import ConfigError
from hotset.train.config import ModelConfig
from hotset.train.data.batch import Batch, BatchShares
from hotset.train.dense.dense_step import DenseStep, TiledStep, build_dense_step
from hotset.train.dense.gradients import DenseDtype
from hotset.train.dense.graph_step import GraphStep, GraphTiles
from hotset.train.model.dcn import Dcn
from hotset.train.model.layers import DenseModel
from hotset.train.model.shapes import DcnShape
from hotset.train.threads import WorkThreads

SHAPE = DcnShape(3, (4, 4, 4, 4), ModelConfig(kind="dcnv2", top_widths=(16, 8), cross_layers=2, cross_rank=3))
BATCH_SIZE = 64
Rows = list[torch.Tensor]


class Noisy(DenseModel):
    """A model with dropout and batch normalization."""

    is_per_sample = False

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(16, 1)

    def logits(self, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        logit_B: torch.Tensor = self.last(self.drop(self.norm(embeddings[0].flatten(1)))).squeeze(1)
        return logit_B


def drawn(num_samples: int) -> tuple[Batch, Rows]:
    generator = torch.Generator().manual_seed(0)
    batch = Batch(
        label_B=(torch.rand(num_samples, generator=generator) < 0.3).float(),
        dense_BK=torch.rand(num_samples, 3, generator=generator),
        ids_BF=np.zeros((num_samples, 4), np.int32),
        is_hot_B=None,
        is_hot_only=False,
    )
    return batch, [torch.randn(num_samples, 4, 4, generator=generator)]


def results(step: DenseStep, model: DenseModel, num_samples: int, number: int = 0) -> Rows:
    """Loss, all gradients and predictions of one step."""
    batch, embeddings = drawn(num_samples)
    loss = step.train(batch, embeddings, number)
    grads = [tensor.grad for tensor in (*model.parameters(), *embeddings)]
    assert all(grad is not None for grad in grads)
    return [loss, *(grad.clone() for grad in grads if grad is not None), step.predict(batch, embeddings)]


def assert_equal(found: Rows, wanted: Rows) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("num_samples", [1, 37, 1300])
def test_tiles_leave_the_gradients_of_the_whole_batch(num_samples: int) -> None:
    models = [Dcn(SHAPE, 3) for _ in range(2)]
    tiles = results(GraphTiles(models[0], BatchShares(BATCH_SIZE), WorkThreads(1)), models[0], num_samples)
    whole = results(GraphStep(models[1], BatchShares(BATCH_SIZE)), models[1], num_samples)
    for found, wanted in zip(tiles, whole, strict=True):
        torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-4, atol=1e-6)


def by_shares(step: DenseStep, model: DenseModel, bounds: list[tuple[int, int]], num_samples: int) -> Rows:
    """Return the gradients of a step given one share after the other, added by the tree."""
    batch, embeddings = drawn(num_samples)
    found = []
    grads = []
    for first, stop in bounds:
        parts = [emb[first:stop].clone() for emb in embeddings]
        loss = step.train(batch.cut(first, stop), parts)
        found.append([loss, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        assert parts[0].grad is not None
        grads.append(parts[0].grad.clone())
    while len(found) > 1:
        sums = [
            [a + b for a, b in zip(*pair, strict=True)] for pair in zip(found[::2], found[1::2], strict=False)
        ]
        found = sums + found[2 * len(sums) :]
    return [*found[0], torch.cat(grads)]


@pytest.mark.parametrize("form", [GraphStep, GraphTiles])
@pytest.mark.parametrize(("num_shares", "num_samples"), [(2, 2000), (4, 1300), (4, 1001), (3, 2000), (4, 7)])
def test_gradients_of_shares_are_added_by_the_tree(
    form: type[GraphStep] | type[GraphTiles], num_shares: int, num_samples: int
) -> None:
    """A batch of nominally 2,000 samples; the shorter ones leave shares short or empty."""
    shares = BatchShares(2000, num_shares)
    extra = () if form is GraphStep else (WorkThreads(2),)
    models = [Dcn(SHAPE, 3) for _ in range(2)]
    found = results(form(models[0], shares, *extra), models[0], num_samples)[:-1]
    alone = form(models[1], BatchShares(2000), *extra)
    assert_equal(found, by_shares(alone, models[1], shares.bounds(num_samples), num_samples))


def test_a_model_whose_samples_depend_on_each_other_has_no_shares() -> None:
    with pytest.raises(ConfigError, match="computes whole batches"):
        GraphStep(Noisy(), BatchShares(8, 2))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_bits_of_tiles_do_not_depend_on_the_number_of_threads(dtype: DenseDtype) -> None:
    found = []
    for threads in (1, 2, 5):
        model = Dcn(SHAPE, 3)
        found.append(
            results(GraphTiles(model, BatchShares(BATCH_SIZE), WorkThreads(threads), dtype), model, 2500)
        )
    assert_equal(found[1], found[0])
    assert_equal(found[2], found[0])


def test_bits_of_whole_batches_do_not_depend_on_torchs_threads() -> None:
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(5)
            model = Noisy()
            found.append(results(GraphStep(model, BatchShares(BATCH_SIZE), seed=2), model, 700))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert_equal(found[1], found[0])


def noisy_results(seed: int, number: int) -> Rows:
    torch.manual_seed(5)
    model = Noisy()
    return results(GraphStep(model, BatchShares(BATCH_SIZE), seed=seed), model, 50, number)


def test_a_model_draws_by_the_seed_and_the_step_alone() -> None:
    wanted = noisy_results(2, 7)
    torch.rand(3)  # what others draw meanwhile
    assert_equal(noisy_results(2, 7), wanted)
    for other in (noisy_results(2, 8), noisy_results(3, 7)):
        assert not torch.equal(other[0], wanted[0])


def test_a_step_leaves_torchs_generator_as_it_was() -> None:
    model = Noisy()
    torch.manual_seed(9)
    wanted = torch.rand(2)
    torch.manual_seed(9)
    results(GraphStep(model, BatchShares(BATCH_SIZE)), model, 20)
    assert torch.equal(torch.rand(2), wanted)


def test_predictions_drop_nothing_and_leave_the_statistics_as_they_are() -> None:
    model = Noisy()
    step = GraphStep(model, BatchShares(BATCH_SIZE))
    results(step, model, 50)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch, embeddings = drawn(50)
    first = step.predict(batch, embeddings)
    assert torch.equal(step.predict(batch, embeddings), first)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    # A single sample has no statistics of its own.
    alone = step.predict(drawn(1)[0], [embeddings[0][:1]])
    torch.testing.assert_close(alone, first[:1])
    step.train(batch, embeddings)
    assert model.norm.num_batches_tracked is not None and model.norm.num_batches_tracked.item() == 2


class HalfUsed(DenseModel):
    """A model that reads one of two row widths, with a parameter that it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.ones(4))
        self.unused = nn.Parameter(torch.ones(2))

    def logits(self, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        return embeddings[0].sum(1) @ self.used


def test_what_a_model_does_not_use_has_no_gradient() -> None:
    for threads in (None, WorkThreads(1)):
        model = HalfUsed()
        step = (
            GraphStep(model, BatchShares(8))
            if threads is None
            else GraphTiles(model, BatchShares(8), threads)
        )
        batch, rows = drawn(20)
        unused = torch.randn(20, 1, 2)
        step.train(batch, [*rows, unused])
        assert unused.grad is not None and not unused.grad.any()
        assert model.unused.grad is None or not model.unused.grad.any()


def test_a_step_leaves_no_trace_in_the_next() -> None:
    model = Dcn(SHAPE, 3)
    step = GraphTiles(model, BatchShares(BATCH_SIZE), WorkThreads(2))
    wanted = results(step, model, 1300)
    results(step, model, 7)
    assert_equal(results(step, model, 1300), wanted)


def test_the_step_suits_the_model() -> None:
    threads = WorkThreads(1)
    assert isinstance(build_dense_step(HalfUsed(), BatchShares(8), threads), GraphTiles)
    assert isinstance(build_dense_step(Noisy(), BatchShares(8), threads), GraphStep)
    assert isinstance(build_dense_step(Dcn(SHAPE, 0), BatchShares(8), threads), TiledStep)
    assert isinstance(build_dense_step(Dcn(SHAPE, 0).to("meta"), BatchShares(8), threads), GraphStep)


def test_gradients_of_an_earlier_step_are_not_added() -> None:
    model = Noisy()
    step = GraphStep(model, BatchShares(BATCH_SIZE))
    batch, embeddings = drawn(30)
    step.train(batch, embeddings, 1)
    assert embeddings[0].grad is not None
    wanted = embeddings[0].grad.clone()
    step.train(batch, embeddings, 1)
    assert torch.equal(embeddings[0].grad, wanted)
