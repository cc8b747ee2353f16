"""Histories in training: where each element's embedding and gradient go, whatever the placement.

Means of bags against torch's graph over single lookups.

Steps by torch's graph: tiles against the whole batch, threads against one, and what a model draws. Steps with
weights and several labels, against torch's graph in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from hotset.pipeline.errors import ConfigError, HotsetError, ShardError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import (
    EACH_WAY,
    LABEL_COLUMNS,
    assert_equal_bits,
    assert_placements_agree,
    labeled_batch,
    trained,
)
from hotset.train.build import build_trainer
from hotset.train.config import TrainConfig
from hotset.train.config_parts import ModelConfig
from hotset.train.data.batch import Batch, EmbeddingTable, FeatureBags, IdReader, MicroBatches, with_histories
from hotset.train.data.shards import ShardSet
from hotset.train.model.dcn import Dcn
from hotset.train.model.dense_step import (
    DenseStep,
    GraphStep,
    GraphTiles,
    HistoryStep,
    MeanPooling,
    build_dense_step,
    random_numbers_of,
)
from hotset.train.model.dlrm import DenseModel, Dlrm
from hotset.train.model.kernels import Objective
from hotset.train.model.shapes import DcnShape, dlrm_shape, tables_by_dim
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
    longest=st.tuples(st.sampled_from([1, 4, 6]), st.sampled_from([1, 4])),
)
@settings(max_examples=60, deadline=None)
def test_every_lookup_is_in_its_bag(
    lists: list[tuple[list[int], list[int]]], place: int, longest: tuple[int, int]
) -> None:
    """The one-hot feature is before, between or after two histories; of a longest 1 they are added up."""
    one_hot = [7] * len(lists)
    of_features = [[sample[feature] for sample in lists] for feature in range(2)]
    names = ["h0", "h1"]
    names.insert(place, "x")
    tables = [EmbeddingTable(name, 21, 0, 4, is_multi_hot=name != "x") for name in names]
    histories = {f"h{number}": size for number, size in enumerate(longest) if size > 1}
    reader = IdReader(with_histories(tables, histories), range(3))
    ids = reader.read(batch_of(one_hot, of_features))
    num_bags = 1 + sum(longest)
    assert (ids.num_samples, ids.num_features) == (len(lists), num_bags)
    wanted = []
    for sample in range(len(lists)):
        bag = num_bags * sample
        for name in names:
            found = [7] if name == "x" else of_features[int(name[1])][sample]
            size = histories.get(name, 1)
            # A history ends with its last bag; what is added up is in one.
            first = bag + size - len(found)
            wanted += [(row, first + i if name in histories else bag) for i, row in enumerate(found)]
            bag += size
    assert ids.bags_N is not None and ids.bags_of_tables is not None
    assert list(zip(ids.ids_N.tolist(), ids.bags_N.tolist(), strict=True)) == wanted
    # By row they are the lookups of a reader that adds bags up.
    pooled = IdReader(tables, range(3))
    other = pooled.read(batch_of(one_hot, of_features))
    for mine, theirs in zip(reader.by_row(ids), pooled.by_row(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(ids.bags_of_tables, other.bags_N)


def test_a_history_that_is_too_long_is_refused() -> None:
    tables = [EmbeddingTable("x", 21, 0, 4), EmbeddingTable("items", 21, 0, 4, is_multi_hot=True)]
    reader = IdReader(with_histories(tables, {"items": 3}), [0, 1])
    with pytest.raises(ShardError, match="4 elements in items, and the model takes 3 at most") as caught:
        reader.read(batch_of([1, 2], [[[1], [1, 2, 3, 4]]]))
    assert caught.value.hint is not None and '{"history_length": 3}' in caught.value.hint


def test_histories_of_different_lengths_are_refused() -> None:
    tables = [EmbeddingTable(name, 21, 0, 4, is_multi_hot=True) for name in ("items", "shops")]
    never: Any = None
    own = type("Step", (), {"dtype": "fp32", "objective": None, "predict": never})()
    step = HistoryStep(own, with_histories(tables, {"items": 9, "shops": 9}), are_equal=True)
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
    shards = ShardSet.open(write_shards(tmp_path / "shards", SPEC))
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
    shards = ShardSet.open(write_shards(tmp_path / "shards", SPEC))
    all_fast = assert_placements_agree(shards, (*EACH_WAY, {"placement": "all-fast", "threads": 3}), **FIELDS)
    # The length of histories is a size of the model.
    with pytest.raises(AssertionError):
        assert_equal_bits(
            trained(shards, placement="all-fast", **FIELDS | {"model_args": '{"history_length": 6}'}),
            all_fast,
        )


def test_histories_may_share_a_table_with_other_features(tmp_path: Path) -> None:
    spec = replace(
        SPEC, num_rows=(30, 30, 30, 60), num_hot=(3, 3, 3, 4), same_table=(1, 2), table_dims=(4, 2)
    )
    shards = ShardSet.open(write_shards(tmp_path / "shards", spec))
    assert_placements_agree(shards, (*EACH_WAY[:3], {"placement": "hybrid", "device": "late:2"}), **FIELDS)
    # A device has room for all bags of a sample, of one feature or of several.
    apart = ShardSet.open(write_shards(tmp_path / "apart", SPEC))
    on_host = trained(apart, placement="hybrid", **FIELDS)
    assert_equal_bits(trained(apart, placement="hybrid", device="late", **FIELDS), on_host)


def test_the_order_inside_lists_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists read backwards are other histories."""
    shards = ShardSet.open(write_shards(tmp_path / "shards", SPEC))
    forward = trained(shards, placement="all-fast", **FIELDS)
    read = ShardSet.training_batch

    def backward(self: ShardSet, number: int) -> Batch:
        batch = read(self, number)
        turned = [
            np.concatenate([part[::-1] for part in np.split(bags.ids_N, bags.offsets_B1[1:-1])])
            for bags in batch.bags
        ]
        bags = tuple(
            FeatureBags(bags.offsets_B1, ids_N) for bags, ids_N in zip(batch.bags, turned, strict=True)
        )
        return replace(batch, bags=bags)

    monkeypatch.setattr(ShardSet, "training_batch", backward)
    with pytest.raises(AssertionError):
        assert_equal_bits(trained(shards, placement="all-fast", **FIELDS), forward)


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


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
    shards = ShardSet.open(tmp_path)
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
    step = MeanPooling(build_dense_step(model, MicroBatches(1), WorkThreads(1)), shards.tables)
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
    assert all(grad is not None and grad.any() for grad in grads)
    return [loss, *(grad.clone() for grad in grads if grad is not None), step.predict(batch, embeddings)]


def assert_equal(found: Rows, wanted: Rows) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_model_whose_samples_depend_on_each_other_has_no_shares() -> None:
    with pytest.raises(ConfigError, match="computes whole batches"):
        GraphStep(Noisy(), MicroBatches(8, 2))


def test_bits_of_whole_batches_do_not_depend_on_torchs_threads() -> None:
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(5)
            model = Noisy()
            found.append(results(GraphStep(model, MicroBatches(BATCH_SIZE), seed=2), model, 700))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert_equal(found[1], found[0])


def noisy_results(seed: int, number: int) -> Rows:
    torch.manual_seed(5)
    model = Noisy()
    return results(GraphStep(model, MicroBatches(BATCH_SIZE), seed=seed), model, 50, number)


def test_a_model_draws_by_the_seed_and_the_step_alone() -> None:
    wanted = noisy_results(2, 7)
    torch.rand(3)  # what others draw meanwhile
    assert_equal(noisy_results(2, 7), wanted)
    for other in (noisy_results(2, 8), noisy_results(3, 7)):
        assert not torch.equal(other[0], wanted[0])


def test_ranks_draw_apart() -> None:
    found = []
    for rank in ((), (0,), (1,), (2,)):
        with random_numbers_of(3, 5, torch.device("cpu"), *rank):
            found.append(torch.rand(2).tolist())
    assert found[0] == found[1] and len(set(map(tuple, found))) == 3


def test_a_step_leaves_torchs_generator_as_it_was() -> None:
    model = Noisy()
    torch.manual_seed(9)
    wanted = torch.rand(2)
    torch.manual_seed(9)
    results(GraphStep(model, MicroBatches(BATCH_SIZE)), model, 20)
    assert torch.equal(torch.rand(2), wanted)


def test_predictions_drop_nothing_and_leave_the_statistics_as_they_are() -> None:
    model = Noisy()
    step = GraphStep(model, MicroBatches(BATCH_SIZE))
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
            GraphStep(model, MicroBatches(8))
            if threads is None
            else GraphTiles(model, MicroBatches(8), threads)
        )
        batch, rows = drawn(20)
        unused = torch.randn(20, 1, 2)
        step.train(batch, [*rows, unused])
        assert unused.grad is not None and not unused.grad.any()
        assert model.unused.grad is None or not model.unused.grad.any()


def test_micro_batches_have_the_gradients_of_the_batch() -> None:
    model = HalfUsed()
    found = []
    for number in (1, 4):
        batch, rows = drawn(20)
        GraphStep(model, MicroBatches(20, number)).train(batch, [*rows, torch.randn(20, 1, 2)])
        (rows_BFD,) = rows
        assert rows_BFD.grad is not None and model.used.grad is not None and rows_BFD.grad.any()
        found.append([rows_BFD.grad, model.used.grad.clone()])
    torch.testing.assert_close(found[1], found[0])


def test_gradients_of_an_earlier_step_are_not_added() -> None:
    model = Noisy()
    step = GraphStep(model, MicroBatches(BATCH_SIZE))
    batch, embeddings = drawn(30)
    step.train(batch, embeddings, 1)
    assert embeddings[0].grad is not None
    wanted = embeddings[0].grad.clone()
    step.train(batch, embeddings, 1)
    assert torch.equal(embeddings[0].grad, wanted)


NUM_DENSE, THREE_DIMS = 3, (4, 4, 4)


def models(num_logits: int) -> dict[str, DenseModel]:
    """Models of each kind of step, with their initial values."""
    deep = ModelConfig(kind="dcnv2", top_widths=(8,), cross_layers=2)
    parallel = replace(deep, structure="parallel")
    shape = dlrm_shape(((8,), (16, 8)), NUM_DENSE, len(THREE_DIMS), 4)
    no_layer = dlrm_shape(((), ()), NUM_DENSE, len(THREE_DIMS), 4)
    return {
        "dlrm": Dlrm(replace(shape, num_logits=num_logits), 0),
        "dlrm without top": Dlrm(replace(no_layer, num_logits=num_logits), 0),
        "dlrm that drops": Dlrm(replace(shape, num_logits=num_logits, dropout=1e-9), 0),
        "dcn": Dcn(DcnShape(NUM_DENSE, THREE_DIMS, deep, num_logits), 0),
        "parallel dcn": Dcn(DcnShape(NUM_DENSE, THREE_DIMS, parallel, num_logits), 0),
    }


@pytest.mark.parametrize("kind", models(1))
@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("by_graph", [False, True])
def test_steps_of_all_models_have_the_gradients_of_torch(kind: str, num_labels: int, by_graph: bool) -> None:
    """Several tiles of a batch shorter than the nominal one, against the graph of the whole in float64."""
    rng = np.random.default_rng(num_labels)
    labels = rng.choice([0, 1, np.nan], (1100, num_labels)).astype(np.float32)
    weights = rng.choice([0, 0.5, 2], 1100).astype(np.float32)
    dense = torch.from_numpy(rng.random((1100, NUM_DENSE), np.float32))
    batch = replace(labeled_batch(labels, weights), dense_BK=dense, ids_BF=np.zeros((1100, 3), np.int32))
    emb_BFD = torch.from_numpy(rng.normal(0, 0.5, (1100, len(THREE_DIMS), 4)).astype(np.float32))
    objective = Objective(LABEL_COLUMNS[:num_labels], (1.0, 0.2, 5.0)[:num_labels])
    micro_batches = MicroBatches(1200)
    model = models(num_labels)[kind]
    step = (
        GraphStep(model, micro_batches, objective=objective)
        if by_graph
        else build_dense_step(model, micro_batches, WorkThreads(2), objective=objective)
    )
    own = emb_BFD.clone()
    loss_sum = step.train(batch, [own])

    twin = models(num_labels)[kind].double().eval()
    leaf = emb_BFD.double().requires_grad_()
    logits = twin.logits(dense.double(), [leaf]).view(1100, num_labels)
    is_there = torch.from_numpy(~np.isnan(labels))
    losses = binary_cross_entropy_with_logits(
        logits, torch.from_numpy(labels).double().nan_to_num(), reduction="none"
    )
    scales = torch.from_numpy(weights).double()[:, None] * torch.tensor(objective.loss_weights).double()
    wanted = (losses * scales * is_there).sum()
    (wanted / 1200).backward()  # type: ignore[no-untyped-call]
    assert loss_sum.item() == pytest.approx(wanted.item(), rel=1e-4)
    assert own.grad is not None and leaf.grad is not None
    torch.testing.assert_close(own.grad.double(), leaf.grad, rtol=1e-3, atol=1e-7)
    for (name, found), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert found.grad is not None and other.grad is not None, name
        torch.testing.assert_close(found.grad.double(), other.grad, rtol=1e-3, atol=1e-6)
    # Predictions have the logits of training.
    predicted = step.predict(batch, [emb_BFD])
    assert predicted.shape == ((1100,) if num_labels == 1 else (1100, num_labels))
    torch.testing.assert_close(predicted.view(1100, -1).double(), logits.detach(), rtol=1e-3, atol=1e-4)


def step_of(
    model: DenseModel, batch: Batch, emb_BFD: torch.Tensor, columns: Sequence[str]
) -> list[torch.Tensor]:
    """Return the gradients of the parameters."""
    objective = Objective(tuple(columns), (1.0,) * len(columns))
    step = build_dense_step(model, MicroBatches(64), WorkThreads(1), objective=objective)
    step.train(batch, [emb_BFD])
    return [each.grad.clone() for each in model.parameters() if each.grad is not None]


@given(seed=st.integers(0, 10**6), num_labels=st.integers(1, 2))
@settings(max_examples=15, deadline=None)
def test_a_weight_counts_samples(seed: int, num_labels: int) -> None:
    """2 is the sample twice, 0 the batch without it."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([0, 1, np.nan], (20, num_labels)).astype(np.float32)
    dense = torch.from_numpy(rng.random((20, NUM_DENSE), np.float32))
    emb_BFD = torch.from_numpy(rng.normal(0, 0.5, (20, len(THREE_DIMS), 4)).astype(np.float32))
    weights = rng.integers(0, 4, 20).astype(np.float32)
    rows = np.repeat(np.arange(20), weights.astype(int))
    found, wanted = (
        step_of(
            models(num_labels)["dlrm"],
            replace(
                labeled_batch(labels[chosen], own),
                dense_BK=dense[chosen],
                ids_BF=np.zeros((len(chosen), 3), np.int32),
            ),
            emb_BFD[chosen].clone(),
            LABEL_COLUMNS[:num_labels],
        )
        for chosen, own in ((np.arange(20), weights), (rows, np.ones(len(rows), np.float32)))
    )
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
