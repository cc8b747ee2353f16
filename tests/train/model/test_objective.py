"""Losses with weights, several labels and gaps: against torch's own, and the same bits in every run."""

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
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from hotset.pipeline.errors import ConfigError
from hotset.tests.support.late_runs import PLACEMENTS
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.tests.support.trained_models import TIGHT, assert_equal_bits, assert_placements_agree, trained
from hotset.train.build import build_trainer
from hotset.train.config import TrainConfig
from hotset.train.config_parts import ModelConfig
from hotset.train.data.batch import Batch, MicroBatches
from hotset.train.data.shards import Shards
from hotset.train.evaluate import Predictor
from hotset.train.loop import Trainer, run_steps
from hotset.train.metrics import Quality
from hotset.train.model.dcn import Dcn
from hotset.train.model.dense_step import GraphStep, build_dense_step
from hotset.train.model.dlrm import DenseModel, Dlrm
from hotset.train.model.kernels import Objective, Targets
from hotset.train.model.shapes import DcnShape, dlrm_shape
from hotset.train.ranks.ranks import Ranks
from hotset.train.threads import WorkThreads

NAMES = ("click", "buy", "share")
COLUMNS = ("label", "label_buy", "label_share")
VALUES = st.sampled_from([0.0, 1.0, float("nan")])


def batch_of(labels_BL: NDArray[np.float32], weights_B: NDArray[np.float32] | None = None) -> Batch:
    """A batch without features, whose further labels are columns of samples."""
    others = {name: labels_BL[:, number] for number, name in enumerate(COLUMNS[: labels_BL.shape[1]])}
    of_samples: dict[str, Any] = {name: np.ascontiguousarray(found) for name, found in others.items()}
    label_B = torch.from_numpy(of_samples.pop("label"))
    if weights_B is not None:
        of_samples["weight"] = weights_B
    nothing = torch.zeros(len(labels_BL), 0)
    return Batch(
        label_B, nothing, np.zeros((len(labels_BL), 0), np.int32), None, False, of_samples=of_samples
    )


@given(data=st.data(), num_labels=st.integers(1, 3), num_samples=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_loss_and_gradients_are_those_of_torch(
    data: st.DataObject, num_labels: int, num_samples: int
) -> None:
    """In float64, over the labels that are there alone."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    labels = rng.choice([0, 1, np.nan], (num_samples, num_labels)).astype(np.float32)
    weights = (
        rng.choice([0, 0.25, 1, 7], num_samples).astype(np.float32) if data.draw(st.booleans()) else None
    )
    loss_weights = tuple(rng.choice([0.5, 1, 3], num_labels).tolist())
    logits = torch.from_numpy(rng.normal(0, 4, (num_samples, num_labels)))

    wanted, wanted_grad = torch.zeros((), dtype=torch.float64), torch.zeros_like(logits)
    for sample in range(num_samples):
        for label in range(num_labels):
            if not np.isnan(labels[sample, label]):
                logit = logits[sample, label].clone().requires_grad_()
                target = torch.tensor(float(labels[sample, label]), dtype=torch.float64)
                weight = loss_weights[label] * (1.0 if weights is None else float(weights[sample]))
                loss = binary_cross_entropy_with_logits(logit, target) * weight
                (wanted_grad[sample, label],) = torch.autograd.grad(loss, [logit])
                wanted = wanted + loss.detach()

    targets = Objective(COLUMNS[:num_labels], loss_weights).targets(batch_of(labels, weights))
    found = logits.float() if num_labels > 1 else logits.float().squeeze(1)
    grads = torch.full_like(found, 9.0)
    loss_sum = targets.write_gradients(found, 1 / 64, grads)
    assert loss_sum == pytest.approx(wanted.item(), rel=1e-5, abs=1e-6)
    torch.testing.assert_close(grads.view(num_samples, -1).double() * 64, wanted_grad, rtol=1e-5, atol=1e-6)
    # The graph of a user's module has the same.
    leaf = found.clone().requires_grad_()
    by_graph = targets.loss_sum(leaf)
    torch.testing.assert_close(by_graph.item(), loss_sum, rtol=1e-5, atol=1e-5)
    (grad,) = torch.autograd.grad(by_graph / 64, [leaf])
    torch.testing.assert_close(grad, grads, rtol=1e-5, atol=1e-7)


def test_a_loss_of_a_user_has_the_same_gradients(rng: np.random.Generator) -> None:
    def own(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return binary_cross_entropy_with_logits(logits, labels, weights, reduction="none")

    logits = torch.from_numpy(rng.normal(0, 3, (40, 2)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 2, (40, 2)).astype(np.float32))
    weights = torch.from_numpy(rng.random((40, 2), np.float32))
    found = [torch.empty(40, 2) for _ in range(2)]
    losses = [
        Targets(labels, weights, loss).write_gradients(logits, 1 / 64, grads)
        for loss, grads in zip((None, own), found, strict=True)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-8)


NUM_DENSE, DIMS = 3, (4, 4, 4)


def models(num_logits: int) -> dict[str, DenseModel]:
    """Models of each kind of step, with their initial values."""
    deep = ModelConfig(kind="dcnv2", top_widths=(8,), cross_layers=2)
    shape = dlrm_shape(((8,), (16, 8)), NUM_DENSE, len(DIMS), 4)
    no_layer = dlrm_shape(((), ()), NUM_DENSE, len(DIMS), 4)
    return {
        "dlrm": Dlrm(replace(shape, num_logits=num_logits), 0),
        "dlrm without top": Dlrm(replace(no_layer, num_logits=num_logits), 0),
        "dlrm that drops": Dlrm(replace(shape, num_logits=num_logits, dropout=1e-9), 0),
        "dcn": Dcn(DcnShape(NUM_DENSE, DIMS, deep, num_logits), 0),
        "parallel dcn": Dcn(DcnShape(NUM_DENSE, DIMS, replace(deep, structure="parallel"), num_logits), 0),
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
    batch = replace(batch_of(labels, weights), dense_BK=dense, ids_BF=np.zeros((1100, 3), np.int32))
    emb_BFD = torch.from_numpy(rng.normal(0, 0.5, (1100, len(DIMS), 4)).astype(np.float32))
    objective = Objective(COLUMNS[:num_labels], (1.0, 0.2, 5.0)[:num_labels])
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
    emb_BFD = torch.from_numpy(rng.normal(0, 0.5, (20, len(DIMS), 4)).astype(np.float32))
    weights = rng.integers(0, 4, 20).astype(np.float32)
    rows = np.repeat(np.arange(20), weights.astype(int))
    found, wanted = (
        step_of(
            models(num_labels)["dlrm"],
            replace(
                batch_of(labels[chosen], own),
                dense_BK=dense[chosen],
                ids_BF=np.zeros((len(chosen), 3), np.int32),
            ),
            emb_BFD[chosen].clone(),
            COLUMNS[:num_labels],
        )
        for chosen, own in ((np.arange(20), weights), (rows, np.ones(len(rows), np.float32)))
    )
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


FIELDS: dict[str, Any] = {"embedding_optimizer": "adagrad", "staging_bytes": 2_000, "prefetch": 3}
LABELED = replace(TIGHT, labels=NAMES[:2], has_weight=True, num_evaluation=40)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return Shards.open(write_shards(tmp_path_factory.mktemp("labeled") / "shards", LABELED))


@pytest.mark.parametrize("model", ["small", "dcnv2"])
def test_placements_end_with_equal_bits(model: str, shards: Shards) -> None:
    all_fast = assert_placements_agree(shards, model=model, **FIELDS)
    # Each of weights, labels and loss weights matters.
    for loss_weights in ("buy=0.5", "buy=0", "click=2"):
        other = trained(shards, placement="all-fast", model=model, loss_weights=loss_weights, **FIELDS)
        with pytest.raises(AssertionError):
            assert_equal_bits(other, all_fast)


def test_histories_and_means_have_weights_and_labels(tmp_path: Path) -> None:
    spec = replace(LABELED, num_rows=(300, 400), multi_hot=(0, 1), equal_lengths=True)
    shards = Shards.open(write_shards(tmp_path / "shards", spec))
    tbsm = {"model": "tbsm", "model_args": '{"history_length": 5}'}
    fields: dict[str, Any]
    for fields in (tbsm, {"pooling": "mean"}, {"batch_norm": True, "dropout": 0.2}):
        all_fast = trained(shards, placement="all-fast", **fields, **FIELDS)
        assert all_fast.model.num_logits == 2
        assert_equal_bits(trained(shards, placement="lookahead", **fields, **FIELDS), all_fast)
        with pytest.raises(AssertionError):
            other = trained(shards, placement="all-fast", loss_weights="buy=0.5", **fields, **FIELDS)
            assert_equal_bits(other, all_fast)


def test_several_logits_in_bf16_are_near_those_in_fp32(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.train.build_embeddings.cpu_features", lambda: frozenset({"amx_bf16"}))
    logits = [
        np.concatenate([found.copy() for _, found in each.predictor.logits()])
        for each in (trained(shards, placement="all-fast", dense_dtype=dtype) for dtype in ("fp32", "bf16"))
    ]
    assert logits[0].shape == logits[1].shape == (LABELED.num_evaluation, 2)
    assert 0 < np.abs(logits[0] - logits[1]).max() < 0.1


def test_threads_end_with_equal_bits(tmp_path: Path) -> None:
    spec = replace(LABELED, batch_size=1300, num_hot_only=1300, num_mixed=3000, order="original")
    shards = Shards.open(write_shards(tmp_path / "shards", spec))
    alone = trained(shards, placement="all-fast", threads=1)
    assert_equal_bits(trained(shards, placement="lookahead", threads=3), alone)


@pytest.mark.slow
def test_ranks_end_with_equal_bits_and_scores(shards: Shards) -> None:
    config = TrainConfig(placement="all-fast", micro_batches=2, threads=1)
    alone = build_trainer(shards, config)
    run_steps(alone, lambda *_: None)
    wanted = {name: alone.weights()[name] for name in alone.weights()}
    score = alone.predictor.score()
    assert score.labels is not None and score.total_weight

    def train(ranks: Ranks) -> tuple[dict[str, torch.Tensor], Quality]:
        trainer = build_trainer(shards, config, ranks=ranks)
        run_steps(trainer, lambda *_: None)
        weights = trainer.weights()
        dense = {name: weights[name] for name in weights if name.startswith("dense.")}
        return dense, trainer.predictor.score()

    for dense, found in run_thread_ranks(2, train):
        assert dense and all(torch.equal(tensor, wanted[name]) for name, tensor in dense.items())
        assert found == score


@pytest.mark.parametrize("placement", [each["placement"] for each in PLACEMENTS[:2] + PLACEMENTS[4:]])
def test_a_device_that_runs_late_ends_with_equal_bits(placement: str, shards: Shards) -> None:
    base = "fae" if placement == "fae" else "all-fast"
    wanted = trained(shards, placement=base, **FIELDS)
    assert_equal_bits(trained(shards, placement=placement, device="late:1", **FIELDS), wanted)


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: trainer.weights()[name] for name in trainer.weights()}


def test_a_label_left_out_is_as_if_the_log_had_none(shards: Shards, tmp_path: Path) -> None:
    """A single label that all samples have, without weights, is trained by the plain step."""
    one = trained(shards, placement="all-fast", loss_weights="buy=0")
    assert one.model.num_logits == 1 and isinstance(one.predictor, Predictor)
    no_others = Shards.open(write_shards(tmp_path / "shards", LABELED))
    no_others.labels = ("click",)
    assert_equal_bits(trained(no_others, placement="all-fast"), one)
    second = trained(shards, placement="all-fast", loss_weights="click=0")
    with pytest.raises(AssertionError):
        assert_equal_bits(second, one)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("like=1", "--loss-weights names 'like', and the log has labels click, buy"),
        ("click=0,buy=0", "--loss-weights leaves out every label of the log"),
    ],
)
def test_loss_weights_that_do_not_fit_are_refused(setting: str, message: str, shards: Shards) -> None:
    with pytest.raises(ConfigError, match=message):
        build_trainer(shards, TrainConfig(loss_weights=setting))


def test_loss_weights_of_a_log_with_one_label_are_refused(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec()))
    with pytest.raises(ConfigError, match="names 'click', and the log has a single label without a name"):
        build_trainer(shards, TrainConfig(loss_weights="click=1"))


@pytest.mark.parametrize(
    "setting", ["", "click", "click=", "click=-1", "click=nan", "click=1e99", "=1", "a=1,a=2"]
)
def test_loss_weights_are_numbers_by_name(setting: str) -> None:
    with pytest.raises(ConfigError, match="loss_weights: want LABEL=WEIGHT with commas between"):
        TrainConfig(loss_weights=setting)


def test_a_label_that_is_any_number_needs_a_loss_of_values(tmp_path: Path) -> None:
    spec = replace(LABELED, number_labels=("click",))
    shards = Shards.open(write_shards(tmp_path / "shards", spec))
    for loss_weights in (None, "buy=0"):
        with pytest.raises(ConfigError, match="the label 'click' is any number, and a probability is of 0"):
            build_trainer(shards, TrainConfig(loss_weights=loss_weights))
    assert build_trainer(shards, TrainConfig(loss_weights="click=0")).model.num_logits == 1


def test_recalibration_is_of_one_label(shards: Shards) -> None:
    with pytest.raises(ConfigError, match="--negative-rate recalibrates the probability of a single label"):
        build_trainer(shards, TrainConfig(negative_rate=0.1))
    assert build_trainer(shards, TrainConfig(negative_rate=0.1, loss_weights="buy=0"))
