"""Histories in training: where each element's embedding and gradient go, whatever the placement.

The step on tiles against torch's graph, finite differences, and itself with other numbers of threads.

Means of bags against torch's graph over single lookups.

Tests `tiles`, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

from hotset.pipeline.errors import HotsetError, ShardError
from hotset.tests.support.products.watched_products import moved, watch_products
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import STAGING, STATELESS, assert_equal_bits, trained
from hotset.train.build import build_trainer
from hotset.train.config import ModelConfig, TrainConfig
from hotset.train.data.batch import Batch, BatchShares, EmbeddingTable, FeatureBags, IdReader, with_histories
from hotset.train.data.shards import Shards
from hotset.train.dense.dense_step import HistoryStep, MeanPooling, TiledStep, build_dense_step
from hotset.train.dense.gradients import DenseDtype, TileGradients
from hotset.train.dense.graph_step import GraphStep
from hotset.train.model.dcn import Dcn
from hotset.train.model.dense_model import DenseModel
from hotset.train.model.dlrm import Dlrm
from hotset.train.model.shapes import DcnShape, DlrmShape, dlrm_shape, tables_by_dim
from hotset.train.model.tbsm import Tbsm
from hotset.train.threads import WorkThreads

SPEC = ShardSpec(
    num_rows=(30, 90, 40, 60),
    num_hot=(3, 5, 7, 4),
    num_hot_only=20,
    num_mixed=90,
    num_evaluation=20,
    skew=1.2,
    batch_size=16,
    multi_hot=(1, 2),
    equal_lengths=True,
    table_dims=(4, 4, 2, 4),
)
FIELDS: dict[str, Any] = {
    "model": "tbsm",
    "model_args": '{"history_length": 5}',
    "embedding_optimizer": "adagrad",
    "staging_bytes": 1_000,
    "prefetch": 2,
}


def batch_of(one_hot: list[int], lists: list[list[list[int]]]) -> Batch:
    """A batch of one one-hot feature and some lists, given by sample."""
    bags = []
    for of_feature in lists:
        offsets = np.cumsum([0, *map(len, of_feature)]).astype(np.int32)
        bags.append(FeatureBags(offsets, np.array([x for bag in of_feature for x in bag], np.int32)))
    ids_BF = np.array(one_hot, np.int32)[:, None]
    nothing = torch.zeros(len(one_hot), 0)
    return Batch(torch.zeros(len(one_hot)), nothing, ids_BF, None, False, tuple(bags))


@given(
    lists=st.lists(
        st.tuples(*(st.lists(st.integers(0, 20), max_size=4) for _ in range(2))), min_size=1, max_size=6
    ),
    place=st.integers(0, 2),
)
@settings(max_examples=60, deadline=None)
def test_every_lookup_is_in_its_bag(lists: list[tuple[list[int], list[int]]], place: int) -> None:
    """The one-hot feature stands before, between or after two histories of any lengths."""
    one_hot = [7] * len(lists)
    of_features = [[sample[feature] for sample in lists] for feature in range(2)]
    names = ["h0", "h1"]
    names.insert(place, "x")
    tables = [EmbeddingTable(name, 21, 0, 4, is_multi_hot=name != "x") for name in names]
    reader = IdReader(with_histories(tables, 4), range(3))
    ids = reader.read(batch_of(one_hot, of_features))
    assert (ids.num_samples, ids.num_features) == (len(lists), 9)
    wanted = []
    for sample in range(len(lists)):
        bag = 9 * sample
        for name in names:
            found = [7] if name == "x" else of_features[int(name[1])][sample]
            size = 1 if name == "x" else 4
            wanted += [(row, bag + size - len(found) + i) for i, row in enumerate(found)]
            bag += size
    assert ids.bags_N is not None and ids.bags_of_features is not None
    assert list(zip(ids.ids_N.tolist(), ids.bags_N.tolist(), strict=True)) == wanted
    # By row they are the lookups of a reader that adds bags up.
    pooled = IdReader(tables, range(3))
    other = pooled.read(batch_of(one_hot, of_features))
    for mine, theirs in zip(reader.by_row(ids), pooled.by_row(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(ids.bags_of_features, other.bags_N)


def test_a_history_that_is_too_long_is_refused() -> None:
    tables = [EmbeddingTable("x", 21, 0, 4), EmbeddingTable("items", 21, 0, 4, is_multi_hot=True)]
    reader = IdReader(with_histories(tables, 3), [0, 1])
    with pytest.raises(ShardError, match="4 elements in items, and the model takes 3 at most") as caught:
        reader.read(batch_of([1, 2], [[[1], [1, 2, 3, 4]]]))
    assert caught.value.hint is not None and '{"history_length": 3}' in caught.value.hint


def test_histories_of_different_lengths_are_refused() -> None:
    tables = [EmbeddingTable(name, 21, 0, 4, is_multi_hot=True) for name in ("items", "shops")]
    never: Any = None
    step = HistoryStep(type("Step", (), {"dtype": "fp32", "predict": never})(), tables)
    with pytest.raises(HotsetError, match="a sample has 2 elements in items and 1 in shops"):
        step.predict(batch_of([1, 2], [[[1], [1, 2]], [[1], [3]]]), [])


def naive_embeddings(tables_ND: list[torch.Tensor], batch: Batch, num_elements: int) -> list[torch.Tensor]:
    """(B, S, d) of each width, element by element: a history ends with its last place."""
    found = []
    for tables in tables_by_dim(SPEC.table_dims or ()).values():
        samples = []
        for sample in range(batch.num_samples):
            rows = []
            for table in tables:
                weights_ND = tables_ND[table]
                if table in SPEC.multi_hot:
                    bags = batch.bags[SPEC.multi_hot.index(table)]
                    ids = bags.ids_N[bags.offsets_B1[sample] : bags.offsets_B1[sample + 1]].tolist()
                    rows += [torch.zeros_like(weights_ND[0])] * (num_elements - len(ids))
                    rows += [weights_ND[row] for row in ids]
                else:
                    rows.append(weights_ND[int(batch.ids_BF[sample, (0, 3).index(table)])])
            samples.append(torch.stack(rows))
        found.append(torch.stack(samples))
    return found


def test_gradients_are_those_of_a_graph_in_float64(tmp_path: Path) -> None:
    """One step of SGD with a rate of 1, against torch's graph from the rows to the loss."""
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    fields = FIELDS | {"embedding_optimizer": "sgd", "dense_optimizer": "sgd", "placement": "all-fast"}
    fields |= {"embedding_lr": 1.0, "dense_lr": 1.0}
    begun = build_trainer(shards, TrainConfig(**fields))
    before = {name: begun.weights()[name].double() for name in begun.weights()}
    stepped = trained(shards, [3], **fields)
    batch = shards.training_batch(3)

    model = begun.model.double()
    assert isinstance(model, Tbsm)
    tables = [before[table.name].clone().requires_grad_() for table in shards.tables]
    lengths_B1 = torch.from_numpy(np.diff(batch.bags[0].offsets_B1)).double()[:, None]
    assert {0, 4} <= set(lengths_B1.flatten().tolist()), "an empty and a long history"
    dense_BK = torch.cat([batch.dense_BK.double(), lengths_B1], dim=1)
    logit_B = model.logits(dense_BK, naive_embeddings(tables, batch, model.shape.num_elements))
    loss = binary_cross_entropy_with_logits(logit_B, batch.label_B.double(), reduction="sum")
    (loss / shards.batch_size).backward()  # type: ignore[no-untyped-call]

    after = stepped.weights()
    wanted = {table.name: leaf.grad for table, leaf in zip(shards.tables, tables, strict=True)}
    wanted |= {f"dense.{name}": each.grad for name, each in model.named_parameters()}
    for name, gradient in wanted.items():
        assert gradient is not None and gradient.any(), name
        torch.testing.assert_close(before[name] - after[name].double(), gradient, rtol=1e-4, atol=2e-6)


def test_placements_end_with_equal_bits(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    all_fast = trained(shards, placement="all-fast", **FIELDS)
    for placement in (*STATELESS, *STAGING, {"placement": "all-fast", "threads": 3}):
        assert_equal_bits(trained(shards, **placement, **FIELDS), all_fast)
    fae = trained(shards, all_fast.batch_numbers, placement="fae", **FIELDS)
    assert_equal_bits(fae, all_fast)
    # The length of histories is a size of the model.
    with pytest.raises(AssertionError):
        assert_equal_bits(
            trained(shards, placement="all-fast", **FIELDS | {"model_args": '{"history_length": 6}'}),
            all_fast,
        )


def test_the_order_inside_lists_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists read backwards are other histories."""
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    forward = trained(shards, placement="all-fast", **FIELDS)
    read = Shards.training_batch

    def backward(self: Shards, number: int) -> Batch:
        batch = read(self, number)
        turned = [
            np.concatenate([part[::-1] for part in np.split(bags.ids_N, bags.offsets_B1[1:-1])])
            for bags in batch.bags
        ]
        bags = tuple(
            FeatureBags(bags.offsets_B1, ids_N) for bags, ids_N in zip(batch.bags, turned, strict=True)
        )
        return replace(batch, bags=bags)

    monkeypatch.setattr(Shards, "training_batch", backward)
    with pytest.raises(AssertionError):
        assert_equal_bits(trained(shards, placement="all-fast", **FIELDS), forward)


KAGGLE = dlrm_shape("kaggle", 13, 26, 16)
SHAPES = {
    "kaggle": KAGGLE,
    "without dense features": dlrm_shape("small", 0, 3, 4),
    "one table": dlrm_shape("small", 2, 1, 5),
    "three widths": dlrm_shape("small", 2, 5, 4, [2, 4, 3, 2, 4]),
    "no hidden layers": DlrmShape(2, 3, 4, (), ()),
    "widths that are not rounded": DlrmShape(33, 3, 4, (37,), (50, 41)),
}
AMD = frozenset({"AuthenticAMD", "avx512f"})
"""Features of a CPU on which oneDNN multiplies large layers."""
Embeddings = list[torch.Tensor]


def drawn(shape: DlrmShape, num_samples: int, seed: int = 0) -> tuple[Batch, Embeddings]:
    """A batch and its embeddings, one tensor per row width."""
    generator = torch.Generator().manual_seed(seed)
    dims = shape.table_dims or (shape.embedding_dim,) * shape.num_tables
    embeddings = [
        torch.randn(num_samples, len(tables), dim, generator=generator)
        for dim, tables in tables_by_dim(dims).items()
    ]
    batch = Batch(
        label_B=(torch.rand(num_samples, generator=generator) < 0.3).float(),
        dense_BK=torch.rand(num_samples, shape.num_dense, generator=generator),
        ids_BF=np.zeros((num_samples, shape.num_tables), np.int32),
        is_hot_B=None,
        is_hot_only=False,
    )
    return batch, embeddings


def tiled(
    shape: DlrmShape,
    batch_size: int = 64,
    *,
    threads: int = 1,
    dtype: DenseDtype = "fp32",
    num_shares: int = 1,
) -> tuple[Dlrm, TiledStep]:
    model = Dlrm(shape, 3)
    return model, TiledStep(model, BatchShares(batch_size, num_shares), WorkThreads(threads), dtype)


def exact_gradients(
    shape: DlrmShape, batch: Batch, embeddings: Embeddings, batch_size: int = 64, scale: float = 1.0
) -> tuple[float, dict[str, torch.Tensor], Embeddings]:
    """Loss and gradients of the same model, its parameters times ``scale``, by torch's graph in float64."""
    model = Dlrm(shape, 3).double()
    for parameter in model.parameters():
        parameter.data *= scale
    leaves = [emb.double().requires_grad_() for emb in embeddings]
    logit_B = model(batch.dense_BK.double(), model.join(leaves))
    loss = binary_cross_entropy_with_logits(logit_B, batch.label_B.double(), reduction="sum")
    (loss / batch_size).backward()  # type: ignore[no-untyped-call]
    gradients = {name: _gradient(parameter) for name, parameter in model.named_parameters()}
    return loss.item(), gradients, [_gradient(leaf) for leaf in leaves]


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The length of the difference over that of the tensor."""
    length: float = wanted.double().norm().item()
    difference: float = (found.double() - wanted.double()).norm().item()
    return difference / max(length, 1e-6)


def assert_near(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    assert distance(found, wanted) <= tolerance


@pytest.mark.parametrize(("num_samples", "tolerance"), [(1, 1e-5), (37, 1e-5), (1300, 1e-3)])
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_those_of_a_graph_in_float64_in_dense_step(
    name: str, num_samples: int, tolerance: float
) -> None:
    """A float32 sum of n products is off by about the root of n roundings. Of a million sums before ReLU a
    few lie so near to zero that float64 has the other sign: then the gradient of one sample differs."""
    shape = SHAPES[name]
    batch, embeddings = drawn(shape, num_samples)
    wanted_loss, wanted, wanted_rows = exact_gradients(shape, batch, embeddings)
    model, step = tiled(shape)
    loss = step.train(batch, embeddings)
    assert loss.item() == pytest.approx(wanted_loss, rel=1e-5)
    for name, parameter in model.named_parameters():
        assert_near(_gradient(parameter), wanted[name], tolerance)
    for emb, rows in zip(embeddings, wanted_rows, strict=True):
        assert_near(_gradient(emb), rows, tolerance)


def autocast_gradients(
    shape: DlrmShape, batch: Batch, embeddings: Embeddings
) -> tuple[dict[str, torch.Tensor], Embeddings]:
    """Gradients by torch's graph with the MLPs under bf16 autocast."""
    model = Dlrm(shape, 3)
    leaves = [emb.detach().clone().requires_grad_() for emb in embeddings]
    emb_BFD = model.join(leaves)

    def rounded(mlp: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs: torch.Tensor = mlp(inputs)
        return outputs.float()

    inputs_BP = vectors_BVD = emb_BFD
    if model.bottom is not None:
        inputs_BP = rounded(model.bottom, batch.dense_BK)
        vectors_BVD = torch.cat([inputs_BP.unsqueeze(1), emb_BFD], dim=1)
    rows, columns = torch.tril_indices(shape.num_vectors, shape.num_vectors, -1)
    dots_BP = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))[:, rows, columns]
    inputs_BP = dots_BP if model.bottom is None else torch.cat([inputs_BP, dots_BP], dim=1)
    logit_B = rounded(model.top, inputs_BP).squeeze(1)
    loss = binary_cross_entropy_with_logits(logit_B, batch.label_B, reduction="sum")
    (loss / 64).backward()  # type: ignore[no-untyped-call]
    gradients = {name: _gradient(parameter) for name, parameter in model.named_parameters()}
    return gradients, [_gradient(leaf) for leaf in leaves]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "kaggle" else []) for name in SHAPES]
)
def test_bf16_gradients_are_as_near_to_float64_as_those_of_autocast(name: str) -> None:
    """Both round inputs, weights and gradients of each layer to 8 bits, and then some ReLUs flip: 7 %."""
    shape = SHAPES[name]
    batch, embeddings = drawn(shape, 700)
    wanted_loss, wanted, wanted_rows = exact_gradients(shape, batch, embeddings)
    others, other_rows = autocast_gradients(shape, batch, embeddings)
    model, step = tiled(shape, dtype="bf16")
    assert step.train(batch, embeddings).item() == pytest.approx(wanted_loss, rel=1e-3)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        allowed = max(2 * distance(others[name], wanted[name]), 0.01)
        assert_near(_gradient(parameter), wanted[name], allowed)
    for emb, other, rows in zip(embeddings, other_rows, wanted_rows, strict=True):
        assert_near(_gradient(emb), rows, max(2 * distance(other, rows), 0.01))


def test_bf16_rounds_the_weights_anew_in_every_step() -> None:
    batch, embeddings = drawn(KAGGLE, 5)
    model, step = tiled(KAGGLE, dtype="bf16")
    before = step.predict(batch, embeddings)
    with torch.no_grad():
        model.get_parameter("top.0.weight").mul_(1.5)
    after = step.predict(batch, embeddings)
    assert not torch.equal(before, after)
    exact = model(batch.dense_BK, model.join(embeddings)).detach()
    torch.testing.assert_close(after, exact, rtol=0.05, atol=0.05)
    assert not torch.equal(after, exact)


@given(
    shape=st.sampled_from([SHAPES["three widths"], SHAPES["without dense features"], SHAPES["one table"]]),
    num_samples=st.integers(1, 5),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_gradients_are_the_slopes_of_the_loss(shape: DlrmShape, num_samples: int, seed: int) -> None:
    """Finite differences of the float64 loss along the gradient; steps that cross a ReLU's kink are rare."""
    batch, embeddings = drawn(shape, num_samples, seed)
    _, step = tiled(shape)
    step.train(batch, embeddings)
    grads = [_gradient(emb) for emb in embeddings]
    slope = sum((grad.double() ** 2).sum().item() for grad in grads)
    length = 1e-4 / max(slope, 1e-12) ** 0.5
    exact = Dlrm(shape, 3).double()

    def loss(step_length: float) -> float:
        moved = [
            emb.double() + step_length * grad.double() for emb, grad in zip(embeddings, grads, strict=True)
        ]
        with torch.no_grad():
            logit_B = exact(batch.dense_BK.double(), exact.join(moved))
        found = binary_cross_entropy_with_logits(logit_B, batch.label_B.double(), reduction="sum")
        return found.item() / 64

    found = (loss(length) - loss(-length)) / (2 * length)
    assert found == pytest.approx(slope, rel=1e-2, abs=1e-9)


def bits(step: TiledStep, model: Dlrm, batch: Batch, embeddings: Embeddings) -> list[torch.Tensor]:
    loss = step.train(batch, embeddings)
    grads = [_gradient(tensor).clone() for tensor in (*model.parameters(), *embeddings)]
    return [loss, *grads, step.predict(batch, embeddings)]


def assert_equal(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("name", "num_samples", "dtype"),
    [
        # A processor without bf16 takes seconds for large layers.
        pytest.param(name, size, dtype, marks=pytest.mark.slow if is_slow and dtype == "bf16" else [])
        for name in ("kaggle", "three widths")
        for size, is_slow in ((1, False), (600, name == "kaggle"), (2500, True))
        for dtype in ("fp32", "bf16")
    ],
)
def test_bits_do_not_depend_on_the_number_of_threads(name: str, num_samples: int, dtype: DenseDtype) -> None:
    batch, embeddings = drawn(SHAPES[name], num_samples)
    model, step = tiled(SHAPES[name], threads=1, dtype=dtype)
    wanted = bits(step, model, batch, embeddings)
    for threads in (2, 3, 5):
        model, step = tiled(SHAPES[name], threads=threads, dtype=dtype)
        assert_equal(bits(step, model, batch, embeddings), wanted)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize(("num_shares", "num_samples"), [(2, 2500), (4, 1900), (3, 2500), (8, 600)])
def test_gradients_of_shares_are_added_by_the_tree(num_shares: int, num_samples: int) -> None:
    """A batch of nominally 2,500 samples; the shorter ones leave shares short or empty."""
    batch, embeddings = drawn(KAGGLE, num_samples)
    model, step = tiled(KAGGLE, 2500, num_shares=num_shares, threads=2)
    loss, *found = bits(step, model, batch, embeddings)[:-1]
    alone, whole = tiled(KAGGLE, 2500)
    sums = []
    for first, stop in BatchShares(2500, num_shares).bounds(num_samples):
        parts = [emb[first:stop].clone() for emb in embeddings]
        sums.append(bits(whole, alone, batch.cut(first, stop), parts)[:-1])
        assert torch.equal(sums[-1].pop(), found[-1][first:stop])
    while len(sums) > 1:
        added = [
            [a + b for a, b in zip(*pair, strict=True)] for pair in zip(sums[::2], sums[1::2], strict=False)
        ]
        sums = added + sums[2 * len(added) :]
    assert_equal([loss, *found[:-1]], sums[0])


def test_many_threads_take_memory_for_the_tiles_there_are() -> None:
    batch, embeddings = drawn(KAGGLE, 600)
    _, step = tiled(KAGGLE, threads=1000)
    step.train(batch, embeddings)
    assert len(step._tiles) <= 2


def test_a_step_leaves_no_trace_in_the_next() -> None:
    """Large, small and large again: the memory of all three is the same."""
    large, small = drawn(KAGGLE, 1300), drawn(KAGGLE, 7, seed=1)
    model, step = tiled(KAGGLE, threads=2)
    wanted = bits(step, model, *large)
    bits(step, model, *small)
    assert_equal(bits(step, model, *large), wanted)
    alone, fresh = tiled(KAGGLE)
    assert_equal(bits(step, model, *small), bits(fresh, alone, *small))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_products_of_onednn_are_those_of_a_graph_in_float64(name: str, threads: int) -> None:
    shape = SHAPES[name]
    batch, embeddings = drawn(shape, 37)
    model = Dlrm(shape, 3)
    step = TiledStep(model, BatchShares(64), WorkThreads(threads), features=AMD)
    for scale in (1.0, 1.25):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(scale)
        wanted_loss, wanted, wanted_rows = exact_gradients(shape, batch, embeddings, scale=scale)
        assert step.train(batch, embeddings).item() == pytest.approx(wanted_loss, rel=1e-5)
        for parameter_name, parameter in model.named_parameters():
            assert_near(_gradient(parameter), wanted[parameter_name], 1e-5)
        for emb, row_gradients in zip(embeddings, wanted_rows, strict=True):
            assert_near(_gradient(emb), row_gradients, 1e-5)


def test_products_of_onednn_have_the_same_bits_with_any_number_of_threads() -> None:
    batch, embeddings = drawn(KAGGLE, 1300)
    found = []
    for threads in (1, 2, 3):
        model = Dlrm(KAGGLE, 3)
        step = TiledStep(model, BatchShares(2048), WorkThreads(threads), features=AMD)
        found += [bits(step, model, *there) for there in ((batch, embeddings), drawn(KAGGLE, 1300))]
    for each in found[1:]:
        assert_equal(each, found[0])


@pytest.mark.parametrize("features", [frozenset(), AMD])
def test_a_diverged_model_predicts_nan(features: frozenset[str]) -> None:
    batch, embeddings = drawn(KAGGLE, 70)
    model = Dlrm(KAGGLE, 3)
    step = TiledStep(model, BatchShares(128), WorkThreads(1), features=features)
    with torch.no_grad():
        model.get_parameter("top.0.weight")[0, 0] = torch.nan
    assert step.predict(batch, embeddings).isnan().all()


@pytest.mark.parametrize("features", [frozenset(), AMD])
def test_predictions_are_those_of_the_model_in_float64(features: frozenset[str]) -> None:
    for shape in SHAPES.values():
        batch, embeddings = drawn(shape, 70)
        model, exact = Dlrm(shape, 3), Dlrm(shape, 3).double()
        step = TiledStep(model, BatchShares(64), WorkThreads(1), features=features)
        with torch.no_grad():
            wanted = exact(batch.dense_BK.double(), exact.join([emb.double() for emb in embeddings]))
        assert_near(step.predict(batch, embeddings), wanted, 1e-6)


def test_an_empty_batch_has_no_predictions() -> None:
    batch, embeddings = drawn(KAGGLE, 0)
    assert tiled(KAGGLE)[1].predict(batch, embeddings).shape == (0,)


def test_a_short_batch_takes_a_small_step() -> None:
    batch, embeddings = drawn(KAGGLE, 1)
    gradients = []
    for batch_size in (1, 64):
        model, step = tiled(KAGGLE, batch_size)
        step.train(batch, embeddings)
        gradients.append(_gradient(model.get_parameter("top.0.weight")).clone())
    assert_near(gradients[1] * 64, gradients[0], 1e-6)


def test_weights_that_are_loaded_later_are_used() -> None:
    batch, embeddings = drawn(KAGGLE, 5)
    model, step = tiled(KAGGLE)
    model.load_state_dict(Dlrm(KAGGLE, 8).state_dict())
    other = TiledStep(Dlrm(KAGGLE, 8), BatchShares(64), WorkThreads(1))
    assert torch.equal(step.predict(batch, embeddings), other.predict(batch, embeddings))


def test_the_graph_leaves_the_same_gradients() -> None:
    batch, embeddings = drawn(SHAPES["three widths"], 90)
    copies = [emb.clone() for emb in embeddings]
    model, step = tiled(SHAPES["three widths"])
    twin = Dlrm(SHAPES["three widths"], 3)
    graph = GraphStep(twin, BatchShares(64))
    assert step.train(batch, embeddings).item() == pytest.approx(graph.train(batch, copies).item(), rel=1e-6)
    for own, other in zip((*model.parameters(), *embeddings), (*twin.parameters(), *copies), strict=True):
        assert_near(_gradient(own), _gradient(other), 1e-5)
    torch.testing.assert_close(
        step.predict(batch, embeddings), graph.predict(batch, copies), rtol=1e-5, atol=1e-6
    )


def test_the_host_takes_tiles() -> None:
    assert isinstance(build_dense_step(Dlrm(KAGGLE, 0), BatchShares(64), WorkThreads(1)), TiledStep)
    assert isinstance(
        build_dense_step(Dlrm(KAGGLE, 0).to("meta"), BatchShares(64), WorkThreads(1)), GraphStep
    )


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


ADDRESSED: dict[str, tuple[DlrmShape, Callable[[], DenseModel]]] = {
    **{name: (shape, partial(Dlrm, shape, 3)) for name, shape in SHAPES.items() if name != "kaggle"},
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
    step = build_dense_step(model, BatchShares(64), WorkThreads(1))

    def results(floats: int) -> list[torch.Tensor]:
        there = replace(batch, dense_BK=moved(batch.dense_BK, floats))
        rows = [moved(emb, floats) for emb in embeddings]
        predicted = step.predict(there, rows)
        found = [predicted, step.train(there, rows)]
        found += [_gradient(parameter).clone() for parameter in model.parameters()]
        return found + [_gradient(emb).clone() for emb in rows]

    wanted = results(0)
    for floats in (1, 4, 6, 8, 12):
        assert all(torch.equal(a, b) for a, b in zip(results(floats), wanted, strict=True)), floats


@pytest.mark.parametrize("name", SHAPES)
def test_every_product_reads_matrices_that_begin_with_cache_lines(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which products depend on addresses differs between processors: none may."""
    offsets = watch_products(monkeypatch, "mm", "mv", "bmm")
    batch, embeddings = drawn(SHAPES[name], 601)
    _, step = tiled(SHAPES[name])
    there = replace(batch, dense_BK=moved(batch.dense_BK, 4))
    rows = [moved(emb, 4) for emb in embeddings]
    step.train(there, rows)
    step.predict(there, rows)
    assert set(offsets) == {0}


DIMS = (4, 2, 4, 2)
MEAN_SPEC = ShardSpec(num_rows=(5, 40, 30, 20), num_hot=(5, 10, 20, 3), multi_hot=(1, 2), table_dims=DIMS)


def pooled(tables_ND: list[torch.Tensor], batch: Batch, *, mean: bool) -> list[torch.Tensor]:
    """(B, F, d) embeddings of each width, sample by sample, lookup by lookup."""
    num_samples = batch.num_samples
    found = []
    for feature, table_ND in enumerate(tables_ND):
        rows = []
        for sample in range(num_samples):
            if feature in MEAN_SPEC.multi_hot:
                bags = batch.bags[MEAN_SPEC.multi_hot.index(feature)]
                ids = bags.ids_N[bags.offsets_B1[sample] : bags.offsets_B1[sample + 1]].tolist()
            else:
                ids = [int(batch.ids_BF[sample, (0, 3).index(feature)])]
            total = torch.stack([table_ND[row] for row in ids]).sum(0) if ids else torch.zeros(DIMS[feature])
            rows.append(total / max(len(ids), 1) if mean else total)
        found.append(torch.stack(rows))
    widths = tables_by_dim(DIMS)
    return [torch.stack([found[table] for table in tables], dim=1) for tables in widths.values()]


def test_logits_and_gradients_are_those_of_means(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", MEAN_SPEC)
    shards = Shards.open(tmp_path)
    batch = shards.training_batch(3)
    assert any((bags.offsets_B1[1:] - bags.offsets_B1[:-1] == 0).any() for bags in batch.bags), "an empty bag"
    model = Dcn(DcnShape(2, DIMS, ModelConfig(kind="dcnv2", top_widths=(8,), cross_layers=1)), 0)
    generator = torch.Generator().manual_seed(0)
    tables = [
        torch.randn(rows, dim, generator=generator)
        for rows, dim in zip(MEAN_SPEC.num_rows, DIMS, strict=True)
    ]

    # By the graph: the mean of the looked-up rows, sample by sample.
    leaves = [table.clone().requires_grad_() for table in tables]
    logit_B = model.logits(batch.dense_BK, pooled(leaves, batch, mean=True))
    loss = binary_cross_entropy_with_logits(logit_B, batch.label_B, reduction="sum")
    loss.backward()  # type: ignore[no-untyped-call]

    # By the step, which is given sums; their gradients go back to the rows through the graph of the sums.
    summed = [table.clone().requires_grad_() for table in tables]
    sums = pooled(summed, batch, mean=False)
    step = MeanPooling(build_dense_step(model, BatchShares(1), WorkThreads(1)), shards.tables)
    given = [emb_BFd.detach().clone() for emb_BFd in sums]
    predicted_B = step.predict(batch, given)
    assert all(torch.equal(a, b) for a, b in zip(given, sums, strict=True)), "sums stay as they are"
    found = step.train(batch, given)
    torch.testing.assert_close(found.float(), loss.detach())
    torch.testing.assert_close(predicted_B, logit_B.detach())
    torch.autograd.backward(sums, [emb_BFd.grad for emb_BFd in given])
    for own, wanted in zip(summed, leaves, strict=True):
        assert own.grad is not None and wanted.grad is not None
        torch.testing.assert_close(own.grad, wanted.grad)
