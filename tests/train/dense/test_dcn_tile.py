"""DCN V2's step on tiles against torch's graph in float64, and itself with other threads and shares.

The biases of cross layers begin at zero, which would hide that one is left out: here all are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

from hotset.tests.support.products.watched_products import moved, watch_products
from hotset.train.config import ModelConfig
from hotset.train.data.batch import Batch, BatchShares
from hotset.train.dense.dense_step import TiledStep, build_dense_step
from hotset.train.dense.gradients import DenseDtype
from hotset.train.dense.graph_step import GraphStep, GraphTiles
from hotset.train.model.dcn import Dcn
from hotset.train.model.shapes import DcnShape, tables_by_dim
from hotset.train.threads import WorkThreads

BATCH_SIZE = 64
Rows = list[torch.Tensor]


def shape_of(num_dense: int, dims: Sequence[int], **fields: Any) -> DcnShape:
    values = {"kind": "dcnv2", "top_widths": [20, 9], "cross_layers": 2} | fields
    return DcnShape(num_dense, tuple(dims), ModelConfig.from_json(values))


MIXED = (4, 2, 4, 3)
SHAPES = {
    "stacked": shape_of(2, MIXED),
    "parallel": shape_of(2, MIXED, structure="parallel"),
    "rank 1": shape_of(2, MIXED, cross_rank=1),
    "a rank that is filled up, in parallel": shape_of(13, [16] * 5, cross_rank=33, structure="parallel"),
    "rows that are filled up": shape_of(13, [16] * 5),
    "no dense features": shape_of(0, [5] * 7),
    "no deep network": shape_of(2, [16] * 4, top_widths=[]),
    "no deep network, in parallel": shape_of(2, [16] * 4, top_widths=[], structure="parallel"),
    "no cross layers": shape_of(3, [5] * 7, cross_layers=0),
    "no cross layers, in parallel": shape_of(3, [5] * 7, cross_layers=0, structure="parallel"),
    "bottom MLP": shape_of(13, [16, 4, 16], bottom_widths=[40, 7]),
    "bottom MLP, in parallel": shape_of(13, [16] * 3, bottom_widths=[5], structure="parallel", cross_rank=2),
    "no tables": shape_of(3, []),
}


def built(shape: DcnShape) -> Dcn:
    model = Dcn(shape, 3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3, generator=generator)
    return model


def drawn(shape: DcnShape, num_samples: int, seed: int = 0) -> tuple[Batch, Rows]:
    generator = torch.Generator().manual_seed(seed)
    embeddings = [
        torch.randn(num_samples, len(tables), dim, generator=generator)
        for dim, tables in tables_by_dim(shape.table_dims).items()
    ]
    batch = Batch(
        label_B=(torch.rand(num_samples, generator=generator) < 0.3).float(),
        dense_BK=torch.rand(num_samples, shape.num_dense, generator=generator),
        ids_BF=np.zeros((num_samples, len(shape.table_dims)), np.int32),
        is_hot_B=None,
        is_hot_only=False,
    )
    return batch, embeddings


def tiled(
    shape: DcnShape,
    batch_size: int = BATCH_SIZE,
    *,
    threads: int = 1,
    dtype: DenseDtype = "fp32",
    num_shares: int = 1,
) -> tuple[Dcn, TiledStep]:
    model = built(shape)
    return model, TiledStep(model, BatchShares(batch_size, num_shares), WorkThreads(threads), dtype)


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


def graph_gradients(
    shape: DcnShape, batch: Batch, embeddings: Rows, dtype: torch.dtype
) -> tuple[float, Rows]:
    """Loss and all gradients by torch's graph in float64, or in bfloat16 under autocast."""
    exact = dtype == torch.float64
    model = built(shape).to(torch.float64 if exact else torch.float32)
    leaves = [emb.detach().to(next(model.parameters()).dtype).clone().requires_grad_() for emb in embeddings]
    with torch.autocast("cpu", torch.bfloat16, enabled=not exact):
        logit_B = model.logits(batch.dense_BK.to(next(model.parameters()).dtype), leaves)
    label_B = batch.label_B.double() if exact else batch.label_B
    loss = binary_cross_entropy_with_logits(logit_B if exact else logit_B.float(), label_B, reduction="sum")
    (loss / BATCH_SIZE).backward()  # type: ignore[no-untyped-call]
    return loss.item(), [_gradient(tensor) for tensor in (*model.parameters(), *leaves)]


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The length of the difference over that of the tensor."""
    difference: float = (found.double() - wanted.double()).norm().item()
    length: float = wanted.double().norm().item()
    return difference / max(length, 1e-6)


def results(step: TiledStep, model: Dcn, batch: Batch, embeddings: Rows) -> Rows:
    loss = step.train(batch, embeddings)
    grads = [_gradient(tensor).clone() for tensor in (*model.parameters(), *embeddings)]
    return [loss, *grads, step.predict(batch, embeddings)]


def assert_equal(found: Rows, wanted: Rows) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(("num_samples", "tolerance"), [(1, 1e-5), (37, 1e-5), (1300, 1e-3)])
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_those_of_a_graph_in_float64(name: str, num_samples: int, tolerance: float) -> None:
    """With many samples a few sums before ReLU have the other sign in float64: see `test_dense_step`."""
    batch, embeddings = drawn(SHAPES[name], num_samples)
    wanted_loss, wanted = graph_gradients(SHAPES[name], batch, embeddings, torch.float64)
    model, step = tiled(SHAPES[name])
    loss, *found = results(step, model, batch, embeddings)[:-1]
    assert loss.item() == pytest.approx(wanted_loss, rel=1e-5)
    assert max(map(distance, found, wanted)) <= tolerance


@pytest.mark.parametrize("name", SHAPES)
def test_bf16_gradients_are_as_near_to_float64_as_those_of_autocast(name: str) -> None:
    """A number has 8 bits, and the products of an MLP are rounded before their bias is added and after: 2 %
    are five roundings, and then some ReLUs flip."""
    batch, embeddings = drawn(SHAPES[name], 700)
    wanted_loss, wanted = graph_gradients(SHAPES[name], batch, embeddings, torch.float64)
    _, others = graph_gradients(SHAPES[name], batch, embeddings, torch.bfloat16)
    model, step = tiled(SHAPES[name], dtype="bf16")
    loss, *found = results(step, model, batch, embeddings)[:-1]
    assert loss.item() == pytest.approx(wanted_loss, rel=1e-3)
    for own, other, exact in zip(found, others, wanted, strict=True):
        assert distance(own, exact) <= max(2 * distance(other, exact), 0.02)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@given(
    num_dense=st.integers(0, 3),
    dims=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    widths=st.lists(st.integers(1, 9), max_size=2),
    rank=st.none() | st.integers(1, 9),
    layers=st.integers(0, 3),
    structure=st.sampled_from(["stacked", "parallel"]),
    num_samples=st.integers(1, 9),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_shape_has_the_gradients_of_the_graph(
    num_dense: int,
    dims: list[int],
    widths: list[int],
    rank: int | None,
    layers: int,
    structure: str,
    num_samples: int,
) -> None:
    fields = {"top_widths": widths, "cross_rank": rank, "cross_layers": layers, "structure": structure}
    shape = shape_of(num_dense, dims, **fields)
    batch, embeddings = drawn(shape, num_samples)
    _, wanted = graph_gradients(shape, batch, embeddings, torch.float64)
    model, step = tiled(shape)
    found = results(step, model, batch, embeddings)[1:-1]
    assert max(map(distance, found, wanted)) <= 1e-4


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("name", ["parallel", "rank 1", "rows that are filled up", "bottom MLP"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_bits_do_not_depend_on_the_number_of_threads(name: str, dtype: DenseDtype) -> None:
    batch, embeddings = drawn(SHAPES[name], 1500)
    model, step = tiled(SHAPES[name], dtype=dtype)
    wanted = results(step, model, batch, embeddings)
    for threads in (2, 5):
        model, step = tiled(SHAPES[name], threads=threads, dtype=dtype)
        assert_equal(results(step, model, batch, embeddings), wanted)


@pytest.mark.parametrize(("num_shares", "num_samples"), [(2, 1500), (4, 1100), (4, 7)])
def test_gradients_of_shares_are_added_by_the_tree(num_shares: int, num_samples: int) -> None:
    """A batch of nominally 1,500 samples; the shorter ones leave shares short or empty."""
    shape = SHAPES["a rank that is filled up, in parallel"]
    batch, embeddings = drawn(shape, num_samples)
    model, step = tiled(shape, 1500, num_shares=num_shares, threads=2)
    loss, *found = results(step, model, batch, embeddings)[:-1]
    alone, whole = tiled(shape, 1500)
    sums = []
    for first, stop in BatchShares(1500, num_shares).bounds(num_samples):
        parts = [emb[first:stop].clone() for emb in embeddings]
        sums.append(results(whole, alone, batch.cut(first, stop), parts)[:-1])
        assert torch.equal(sums[-1].pop(), found[-1][first:stop])
    while len(sums) > 1:
        added = [
            [a + b for a, b in zip(*pair, strict=True)] for pair in zip(sums[::2], sums[1::2], strict=False)
        ]
        sums = added + sums[2 * len(added) :]
    assert_equal([loss, *found[:-1]], sums[0])


@pytest.mark.parametrize("name", SHAPES)
def test_a_step_leaves_no_trace_in_the_next(name: str) -> None:
    large, small = drawn(SHAPES[name], 600), drawn(SHAPES[name], 7, seed=1)
    model, step = tiled(SHAPES[name], threads=2)
    wanted = results(step, model, *large)
    results(step, model, *small)
    assert_equal(results(step, model, *large), wanted)
    alone, fresh = tiled(SHAPES[name])
    assert_equal(results(step, model, *small), results(fresh, alone, *small))


@pytest.mark.parametrize("name", SHAPES)
def test_predictions_are_those_of_the_model_and_of_its_graph(name: str) -> None:
    batch, embeddings = drawn(SHAPES[name], 70)
    model, step = tiled(SHAPES[name])
    found = step.predict(batch, embeddings)
    with torch.no_grad():
        wanted = model.logits(batch.dense_BK, embeddings)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    graph = GraphTiles(built(SHAPES[name]), BatchShares(BATCH_SIZE), WorkThreads(1))
    torch.testing.assert_close(graph.predict(batch, embeddings), found, rtol=1e-5, atol=1e-6)
    empty = drawn(SHAPES[name], 0)
    assert step.predict(*empty).shape == (0,)


@pytest.mark.parametrize("name", SHAPES)
def test_every_product_reads_matrices_that_begin_with_cache_lines(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products take other loops elsewhere, and with them other bits: which ones differs between CPUs."""
    offsets = watch_products(monkeypatch, "mm", "mv", "addmm")
    batch, embeddings = drawn(SHAPES[name], 601)
    model, step = tiled(SHAPES[name])
    there = replace(batch, dense_BK=moved(batch.dense_BK, 4))
    found = results(step, model, there, [moved(emb, 4) for emb in embeddings])
    assert set(offsets) == {0}
    assert_equal(found, results(step, model, batch, embeddings))


def test_cross_layers_that_onednn_multiplies_are_those_of_torch() -> None:
    shape = shape_of(13, [16] * 8, top_widths=[160, 130])
    batch, embeddings = drawn(shape, 70)
    found = []
    for features in (frozenset[str](), frozenset({"AuthenticAMD", "avx512f"})):
        model = built(shape)
        step = TiledStep(model, BatchShares(BATCH_SIZE), WorkThreads(1), features=features)
        found.append(results(step, model, batch, [emb.clone() for emb in embeddings]))
    for by_torch, by_onednn in zip(*found, strict=True):
        assert distance(by_onednn, by_torch) <= 1e-5


def test_bf16_rounds_the_weights_anew_in_every_step() -> None:
    batch, embeddings = drawn(SHAPES["rank 1"], 5)
    model, step = tiled(SHAPES["rank 1"], dtype="bf16")
    before = step.predict(batch, embeddings)
    with torch.no_grad():
        model.get_parameter("cross_layers.0.narrow.weight").mul_(1.5)
    assert not torch.equal(before, step.predict(batch, embeddings))


def test_the_step_suits_the_model() -> None:
    shares, threads = BatchShares(8), WorkThreads(1)
    assert isinstance(build_dense_step(Dcn(SHAPES["stacked"], 0), shares, threads), TiledStep)
    for fields, form in (({"dropout": 0.2}, GraphTiles), ({"batch_norm": True}, GraphStep)):
        assert isinstance(build_dense_step(Dcn(shape_of(2, MIXED, **fields), 0), shares, threads), form)
