"""The steps of DLRM and DCN V2 on tiles against torch's graph, finite differences, and themselves.

The biases of cross layers begin at zero, which would hide that one is left out: here
those of DCN V2 are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

from hotset.tests.support.products.watched_products import moved, watch_products
from hotset.train.config_parts import ModelConfig
from hotset.train.data.batch import Batch, MicroBatches
from hotset.train.model.dcn import Dcn
from hotset.train.model.dense_step import DenseStep, GraphStep, GraphTiles, TiledStep, build_dense_step
from hotset.train.model.dlrm import DenseModel, Dlrm
from hotset.train.model.gradients import DenseDtype, TileGradients
from hotset.train.model.shapes import DcnShape, DlrmShape, dlrm_shape, tables_by_dim
from hotset.train.threads import WorkThreads


def dcn(num_dense: int, dims: Sequence[int], **fields: Any) -> DcnShape:
    values = {"kind": "dcnv2", "top_widths": [20, 9], "cross_layers": 2} | fields
    return DcnShape(num_dense, tuple(dims), ModelConfig.from_json(values))


KAGGLE = dlrm_shape("kaggle", 13, 26, 16)
MIXED = (4, 2, 4, 3)
SHAPES: dict[str, DlrmShape | DcnShape] = {
    "kaggle": KAGGLE,
    "without dense features": dlrm_shape("small", 0, 3, 4),
    "one table": dlrm_shape("small", 2, 1, 5),
    "three widths": dlrm_shape("small", 2, 5, 4, [2, 4, 3, 2, 4]),
    "no hidden layers": DlrmShape(2, 3, 4, (), ()),
    "widths that are not rounded": DlrmShape(33, 3, 4, (37,), (50, 41)),
    "stacked": dcn(2, MIXED),
    "parallel": dcn(2, MIXED, structure="parallel"),
    "rank 1": dcn(2, MIXED, cross_rank=1),
    "a rank that is filled up, in parallel": dcn(13, [16] * 5, cross_rank=33, structure="parallel"),
    "rows that are filled up": dcn(13, [16] * 5),
    "no dense features": dcn(0, [5] * 7),
    "no deep network": dcn(2, [16] * 4, top_widths=[]),
    "no deep network, in parallel": dcn(2, [16] * 4, top_widths=[], structure="parallel"),
    "no cross layers": dcn(3, [5] * 7, cross_layers=0),
    "no cross layers, in parallel": dcn(3, [5] * 7, cross_layers=0, structure="parallel"),
    "bottom MLP": dcn(13, [16, 4, 16], bottom_widths=[40, 7]),
    "bottom MLP, in parallel": dcn(13, [16] * 3, bottom_widths=[5], structure="parallel", cross_rank=2),
    "no tables": dcn(3, []),
}
OF_DLRM = [name for name, shape in SHAPES.items() if isinstance(shape, DlrmShape)]
AMD = frozenset({"AuthenticAMD", "avx512f"})
"""Features of a CPU on which oneDNN multiplies large layers."""
BATCH_SIZE = 64
Tensors = list[torch.Tensor]


def built(shape: DlrmShape | DcnShape, seed: int = 3) -> Dlrm | Dcn:
    if isinstance(shape, DlrmShape):
        return Dlrm(shape, seed)
    model = Dcn(shape, seed)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3, generator=generator)
    return model


def drawn(shape: DlrmShape | DcnShape, num_samples: int, seed: int = 0) -> tuple[Batch, Tensors]:
    """A batch and its embeddings, one tensor per row width."""
    generator = torch.Generator().manual_seed(seed)
    dims = shape.table_dims
    if isinstance(shape, DlrmShape):
        dims = dims or (shape.embedding_dim,) * shape.num_tables
    embeddings = [
        torch.randn(num_samples, len(tables), dim, generator=generator)
        for dim, tables in tables_by_dim(dims).items()
    ]
    batch = Batch(
        label_B=(torch.rand(num_samples, generator=generator) < 0.3).float(),
        dense_BK=torch.rand(num_samples, shape.num_dense, generator=generator),
        ids_BF=np.zeros((num_samples, len(dims)), np.int32),
        is_hot_B=None,
        is_hot_only=False,
    )
    return batch, embeddings


def tiled(
    shape: DlrmShape | DcnShape,
    batch_size: int = BATCH_SIZE,
    *,
    threads: int = 1,
    dtype: DenseDtype = "fp32",
    num_shares: int = 1,
    features: frozenset[str] | None = None,
    form: type[DenseStep] = TiledStep,
) -> tuple[DenseModel, DenseStep]:
    model = built(shape)
    shares = MicroBatches(batch_size, num_shares)
    if form is GraphStep:
        return model, GraphStep(model, shares, dtype=dtype)
    if form is GraphTiles:
        return model, GraphTiles(model, shares, WorkThreads(threads), dtype)
    return model, TiledStep(model, shares, WorkThreads(threads), dtype, features=features)


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


def gradients_of(model: DenseModel, loss: torch.Tensor, leaves: Tensors) -> tuple[float, Tensors]:
    (loss / BATCH_SIZE).backward()  # type: ignore[no-untyped-call]
    return loss.item(), [_gradient(tensor) for tensor in (*model.parameters(), *leaves)]


def exact_gradients(
    shape: DlrmShape | DcnShape, batch: Batch, embeddings: Tensors, scale: float = 1.0
) -> tuple[float, Tensors]:
    """Loss and gradients of the same model, its parameters times ``scale``, by torch's graph in float64."""
    model = built(shape).double()
    for parameter in model.parameters():
        parameter.data *= scale
    leaves = [emb.detach().double().requires_grad_() for emb in embeddings]
    logit_B = model.logits(batch.dense_BK.double(), leaves)
    loss = binary_cross_entropy_with_logits(logit_B, batch.label_B.double(), reduction="sum")
    return gradients_of(model, loss, leaves)


def rounded_logits(model: Dlrm, dense_BK: torch.Tensor, embeddings: Tensors) -> torch.Tensor:
    """Return the logits with the MLPs under bf16 autocast, and the interaction in float32."""

    def rounded(mlp: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs: torch.Tensor = mlp(inputs)
        return outputs.float()

    inputs_BP = vectors_BVD = model.join(embeddings)
    if model.bottom is not None:
        inputs_BP = rounded(model.bottom, dense_BK)
        vectors_BVD = torch.cat([inputs_BP.unsqueeze(1), vectors_BVD], dim=1)
    rows, columns = torch.tril_indices(vectors_BVD.shape[1], vectors_BVD.shape[1], -1)
    dots_BP = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))[:, rows, columns]
    inputs_BP = dots_BP if model.bottom is None else torch.cat([inputs_BP, dots_BP], dim=1)
    return rounded(model.top, inputs_BP).squeeze(1)


def autocast_gradients(shape: DlrmShape | DcnShape, batch: Batch, embeddings: Tensors) -> Tensors:
    """Gradients by torch's graph under bf16 autocast."""
    model = built(shape)
    leaves = [emb.detach().clone().requires_grad_() for emb in embeddings]
    if isinstance(model, Dlrm):
        logit_B = rounded_logits(model, batch.dense_BK, leaves)
    else:
        with torch.autocast("cpu", torch.bfloat16):
            logit_B = model.logits(batch.dense_BK, leaves).float()
    loss = binary_cross_entropy_with_logits(logit_B, batch.label_B, reduction="sum")
    return gradients_of(model, loss, leaves)[1]


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The length of the difference over that of the tensor."""
    length: float = wanted.double().norm().item()
    difference: float = (found.double() - wanted.double()).norm().item()
    return difference / max(length, 1e-6)


def results(step: DenseStep, model: DenseModel, batch: Batch, embeddings: Tensors) -> Tensors:
    """Return loss, gradients of parameters and of embeddings, and predictions."""
    loss = step.train(batch, embeddings)
    grads = [_gradient(tensor).clone() for tensor in (*model.parameters(), *embeddings)]
    return [loss, *grads, step.predict(batch, embeddings)]


def assert_equal(found: Tensors, wanted: Tensors) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(("num_samples", "tolerance"), [(1, 1e-5), (37, 1e-5), (1300, 1e-3)])
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_those_of_a_graph_in_float64(name: str, num_samples: int, tolerance: float) -> None:
    """A float32 sum of n products is off by about the root of n roundings. Of a million sums before ReLU a
    few lie so near to zero that float64 has the other sign: then the gradient of one sample differs."""
    batch, embeddings = drawn(SHAPES[name], num_samples)
    wanted_loss, wanted = exact_gradients(SHAPES[name], batch, embeddings)
    model, step = tiled(SHAPES[name])
    loss, *found = results(step, model, batch, embeddings)[:-1]
    assert loss.item() == pytest.approx(wanted_loss, rel=1e-5)
    assert max(map(distance, found, wanted)) <= tolerance


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "kaggle" else []) for name in SHAPES]
)
def test_bf16_gradients_are_as_near_to_float64_as_those_of_autocast(name: str) -> None:
    """Both round inputs, weights and gradients of each layer to 8 bits, and then some ReLUs flip: 7 %. The
    products of an MLP are rounded before their bias is added and after, which cross layers pass on: 2 %."""
    shape = SHAPES[name]
    batch, embeddings = drawn(shape, 700)
    wanted_loss, wanted = exact_gradients(shape, batch, embeddings)
    others = autocast_gradients(shape, batch, embeddings)
    model, step = tiled(shape, dtype="bf16")
    loss, *found = results(step, model, batch, embeddings)[:-1]
    assert loss.item() == pytest.approx(wanted_loss, rel=1e-3)
    least = 0.01 if name in OF_DLRM else 0.02
    for own, other, exact in zip(found, others, wanted, strict=True):
        assert distance(own, exact) <= max(2 * distance(other, exact), least)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "weight"), [("kaggle", "top.0.weight"), ("rank 1", "cross_layers.0.narrow.weight")]
)
def test_bf16_rounds_the_weights_anew_in_every_step(name: str, weight: str) -> None:
    batch, embeddings = drawn(SHAPES[name], 5)
    model, step = tiled(SHAPES[name], dtype="bf16")
    before = step.predict(batch, embeddings)
    with torch.no_grad():
        model.get_parameter(weight).mul_(1.5)
    after = step.predict(batch, embeddings)
    assert not torch.equal(before, after)
    exact = model.logits(batch.dense_BK, embeddings).detach()
    torch.testing.assert_close(after, exact, rtol=0.05, atol=0.05)
    assert not torch.equal(after, exact)


@given(
    num_dense=st.integers(0, 3),
    dims=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    fields=st.fixed_dictionaries(
        {
            "top_widths": st.lists(st.integers(1, 9), max_size=2),
            "cross_rank": st.none() | st.integers(1, 9),
            "cross_layers": st.integers(0, 3),
            "structure": st.sampled_from(["stacked", "parallel"]),
        }
    ),
    num_samples=st.integers(1, 9),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_shape_of_dcn_has_the_gradients_of_the_graph(
    num_dense: int, dims: list[int], fields: dict[str, Any], num_samples: int
) -> None:
    shape = dcn(num_dense, dims, **fields)
    batch, embeddings = drawn(shape, num_samples)
    _, wanted = exact_gradients(shape, batch, embeddings)
    model, step = tiled(shape)
    found = results(step, model, batch, embeddings)[1:-1]
    assert max(map(distance, found, wanted)) <= 1e-4


_SLOW = {("kaggle", 2500, "bf16"), ("three widths", 2500, "bf16")}
"""A processor without bf16 takes seconds for large layers."""


@pytest.mark.parametrize(
    ("name", "num_samples", "dtype", "form"),
    [
        pytest.param(
            name, size, dtype, form, marks=[pytest.mark.slow] if (name, size, dtype) in _SLOW else []
        )
        for name, form, sizes in (
            *((name, TiledStep, (1, 2500)) for name in ("kaggle", "three widths")),
            *((name, TiledStep, (1500,)) for name in ("parallel", "rank 1", "rows that are filled up")),
            ("bottom MLP", TiledStep, (1500,)),
            ("stacked", GraphTiles, (2500,)),
        )
        for size in sizes
        for dtype in ("fp32", "bf16")
    ],
)
def test_bits_do_not_depend_on_the_number_of_threads(
    name: str, num_samples: int, dtype: DenseDtype, form: type[DenseStep]
) -> None:
    batch, embeddings = drawn(SHAPES[name], num_samples)
    model, step = tiled(SHAPES[name], dtype=dtype, form=form)
    wanted = results(step, model, batch, embeddings)
    for threads in (2, 5):
        model, step = tiled(SHAPES[name], threads=threads, dtype=dtype, form=form)
        assert_equal(results(step, model, batch, embeddings), wanted)


@pytest.mark.parametrize(
    ("form", "name", "batch_size", "num_shares", "num_samples"),
    [
        *((TiledStep, "kaggle", 2500, *sizes) for sizes in ((4, 1900), (3, 2500), (8, 600))),
        *(
            (TiledStep, "a rank that is filled up, in parallel", 1500, *sizes)
            for sizes in ((2, 1500), (4, 1100), (4, 7))
        ),
        *(
            (form, "rank 1", 2000, *sizes)
            for form in (GraphStep, GraphTiles)
            for sizes in ((2, 2000), (4, 1300), (4, 1001), (3, 2000), (4, 7))
        ),
    ],
)
def test_gradients_of_shares_are_added_by_the_tree(
    form: type[DenseStep], name: str, batch_size: int, num_shares: int, num_samples: int
) -> None:
    """Batches with fewer samples leave shares short or empty."""
    batch, embeddings = drawn(SHAPES[name], num_samples)
    num_widths = len(embeddings)
    model, step = tiled(SHAPES[name], batch_size, num_shares=num_shares, threads=2, form=form)
    loss, *found = results(step, model, batch, embeddings)[:-1]
    alone, whole = tiled(SHAPES[name], batch_size, threads=2, form=form)
    sums = []
    for first, stop in MicroBatches(batch_size, num_shares).bounds(num_samples):
        parts = [emb.detach()[first:stop].clone() for emb in embeddings]
        sums.append(results(whole, alone, batch.cut(first, stop), parts)[:-1])
        for grad in reversed(found[-num_widths:]):
            assert torch.equal(sums[-1].pop(), grad[first:stop])
    while len(sums) > 1:
        added = [
            [a + b for a, b in zip(*pair, strict=True)] for pair in zip(sums[::2], sums[1::2], strict=False)
        ]
        sums = added + sums[2 * len(added) :]
    assert_equal([loss, *found[:-num_widths]], sums[0])


def test_many_threads_take_memory_for_the_tiles_there_are() -> None:
    batch, embeddings = drawn(KAGGLE, 600)
    _, step = tiled(KAGGLE, threads=1000)
    assert isinstance(step, TiledStep)
    step.train(batch, embeddings)
    assert len(step._tiles) <= 2


@pytest.mark.parametrize(("name", "form"), [*((name, TiledStep) for name in SHAPES), ("rank 1", GraphTiles)])
def test_a_step_leaves_no_trace_in_the_next(name: str, form: type[DenseStep]) -> None:
    """Large, small and large again: the memory of all three is the same."""
    size = 1300 if name == "kaggle" else 600
    large, small = drawn(SHAPES[name], size), drawn(SHAPES[name], 7, seed=1)
    model, step = tiled(SHAPES[name], threads=2, form=form)
    wanted = results(step, model, *large)
    results(step, model, *small)
    assert_equal(results(step, model, *large), wanted)
    alone, fresh = tiled(SHAPES[name], form=form)
    assert_equal(results(step, model, *small), results(fresh, alone, *small))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", [*OF_DLRM, "large cross layers"])
def test_products_of_onednn_are_those_of_a_graph_in_float64(name: str, threads: int) -> None:
    shape = SHAPES.get(name, dcn(13, [16] * 8, top_widths=[160, 130]))
    batch, embeddings = drawn(shape, 37)
    model, step = tiled(shape, threads=threads, features=AMD)
    for scale in (1.0, 1.25):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(scale)
        wanted_loss, wanted = exact_gradients(shape, batch, embeddings, scale=scale)
        loss, *found = results(step, model, batch, embeddings)[:-1]
        assert loss.item() == pytest.approx(wanted_loss, rel=1e-5)
        assert max(map(distance, found, wanted)) <= 1e-5


def test_products_of_onednn_have_the_same_bits_with_any_number_of_threads() -> None:
    batch, embeddings = drawn(KAGGLE, 1300)
    found = []
    for threads in (1, 2, 3):
        model, step = tiled(KAGGLE, 2048, threads=threads, features=AMD)
        found += [results(step, model, *there) for there in ((batch, embeddings), drawn(KAGGLE, 1300))]
    for each in found[1:]:
        assert_equal(each, found[0])


@pytest.mark.parametrize("features", [frozenset(), AMD])
def test_a_diverged_model_predicts_nan(features: frozenset[str]) -> None:
    batch, embeddings = drawn(KAGGLE, 70)
    model, step = tiled(KAGGLE, 128, features=features)
    with torch.no_grad():
        model.get_parameter("top.0.weight")[0, 0] = torch.nan
    assert step.predict(batch, embeddings).isnan().all()


@pytest.mark.parametrize("features", [frozenset(), AMD])
@pytest.mark.parametrize("name", SHAPES)
def test_predictions_are_those_of_the_model_in_float64(name: str, features: frozenset[str]) -> None:
    batch, embeddings = drawn(SHAPES[name], 70)
    _, step = tiled(SHAPES[name], features=features)
    with torch.no_grad():
        wanted = (
            built(SHAPES[name]).double().logits(batch.dense_BK.double(), [e.double() for e in embeddings])
        )
    assert distance(step.predict(batch, embeddings), wanted) <= 1e-6
    assert step.predict(*drawn(SHAPES[name], 0)).shape == (0,)


@pytest.mark.parametrize("form", [GraphStep, GraphTiles])
@pytest.mark.parametrize(
    ("name", "num_samples"),
    [
        *((name, 70) for name in SHAPES if name not in ("kaggle", "no tables")),
        *(("rank 1", num_samples) for num_samples in (1, 37, 1300)),
    ],
)
def test_graphs_leave_the_same_gradients(name: str, num_samples: int, form: type[DenseStep]) -> None:
    batch, embeddings = drawn(SHAPES[name], num_samples)
    model, step = tiled(SHAPES[name])
    loss, *found = results(step, model, batch, embeddings)
    twin, graph = tiled(SHAPES[name], form=form)
    other_loss, *others = results(graph, twin, batch, [emb.detach().clone() for emb in embeddings])
    assert loss.item() == pytest.approx(other_loss.item(), rel=1e-6)
    assert max(map(distance, found, others)) <= 1e-5


def test_the_step_suits_the_model() -> None:
    shares, threads = MicroBatches(8), WorkThreads(1)
    for model, form in (
        (built(KAGGLE), TiledStep),
        (built(KAGGLE).to("meta"), GraphStep),
        (built(SHAPES["stacked"]), TiledStep),
        (built(dcn(2, MIXED, dropout=0.2)), GraphTiles),
        (built(dcn(2, MIXED, batch_norm=True)), GraphStep),
        (LinearModel(), GraphTiles),
    ):
        assert isinstance(build_dense_step(model, shares, threads), form)


def test_a_rank_without_samples_leaves_a_gradient_that_changes_no_sign() -> None:
    """It is added to those of other ranks: -0 is the identity there, 0 would turn a -0 into 0."""
    gradients = TileGradients(5, WorkThreads(1))
    gradients.add([])
    assert gradients.sums_N.signbit().all() and not gradients.sums_N.any()


class LinearModel(DenseModel):
    """Logistic regression: its one product is that of a matrix and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(13 + 3 * 5, 1)

    def logits(self, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        by_dense = dense_BK @ self.layer.weight[0, :13]
        logit_B: torch.Tensor = by_dense + embeddings[0].flatten(1) @ self.layer.weight[0, 13:]
        return logit_B


ADDRESSED: dict[str, tuple[DlrmShape | DcnShape, Callable[[], DenseModel]]] = {
    **{name: (shape, partial(built, shape)) for name, shape in SHAPES.items() if name != "kaggle"},
    "one output": (shape := DlrmShape(13, 3, 1, (), ()), partial(Dlrm, shape, 3)),
    "a linear model": (DlrmShape(13, 3, 5, (), ()), LinearModel),
}


@pytest.mark.parametrize("num_samples", [7, 64, 600])
@pytest.mark.parametrize("name", ADDRESSED)
def test_bits_do_not_depend_on_where_a_batch_lies(name: str, num_samples: int) -> None:
    """Products take other loops where a matrix does not begin with a cache line."""
    shape, build_model = ADDRESSED[name]
    batch, embeddings = drawn(shape, num_samples)
    torch.manual_seed(1)
    model = build_model()
    step: Any = build_dense_step(model, MicroBatches(64), WorkThreads(1))

    def results_at(floats: int) -> Tensors:
        there = replace(batch, dense_BK=moved(batch.dense_BK, floats))
        return results(step, model, there, [moved(emb, floats) for emb in embeddings])

    wanted = results_at(0)
    for floats in (1, 4, 6, 8, 12):
        assert_equal(results_at(floats), wanted)


@pytest.mark.parametrize("name", SHAPES)
def test_every_product_reads_matrices_that_begin_with_cache_lines(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which products depend on addresses differs between processors: none may."""
    offsets = watch_products(monkeypatch, "mm", "mv", "bmm", "addmm")
    batch, embeddings = drawn(SHAPES[name], 601)
    model, step = tiled(SHAPES[name])
    there = replace(batch, dense_BK=moved(batch.dense_BK, 4))
    results(step, model, there, [moved(emb, 4) for emb in embeddings])
    assert set(offsets) == {0}
