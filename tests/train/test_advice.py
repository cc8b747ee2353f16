"""Advice from a preprocessed folder: what fits, what is fastest, and the command that prints it.

The file of speeds: what is written is read, and what is no such file is refused in one line.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hotset.pipeline.errors import GIB, MIB, ByteSize, ConfigError, HotsetError, ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.statistics.coverage import unique_rows
from hotset.pipeline.statistics.folder import Inspected
from hotset.stats.lookahead.planner import MOST_PREFETCH
from hotset.stats.replication import Network
from hotset.stats.step_times import Budget, Machine, Prediction, Workload, predict
from hotset.tests.support.trained_models import trained
from hotset.train import advice as module
from hotset.train.advice import (
    AdviceConfig,
    MachineSpeeds,
    activation_bytes,
    advise,
    dense_bytes,
    read_inputs,
    read_workload,
)
from hotset.train.build import build_dense_optimizers
from hotset.train.config import TrainConfig
from hotset.train.data.shards import ShardSet
from hotset.train.model.dlrm import Dlrm
from hotset.train.model.shapes import dlrm_shape
from hotset.train.placements.fae import ShuffleScheduler
from hotset.workflows.bench.placements import simulate_epoch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("advice")
    generate(GenerateConfig(samples=20_000), out / "log.tsv", workers=1)
    preprocess([out / "log.tsv"], PreprocessConfig(), out / "data", Resources(workers=1), until="split")
    return out / "data"


def test_what_fits_fits_and_the_fastest_comes_first(folder: Path) -> None:
    advice = advise(folder, AdviceConfig(batch_size=256), Machine(), Resources(workers=1))
    sizes = [option["fast_bytes"] for option in advice["options"]]
    assert sizes == sorted(sizes) and len(sizes) > 2
    for option in advice["options"]:
        seconds = [one["step_seconds"] for one in option["placements"]]
        assert seconds == sorted(seconds)
        assert all(one["memory_bytes"] <= option["fast_bytes"] for one in option["placements"])
        assert all(one["memory_bytes"] > option["fast_bytes"] for one in option["too_large"])
        named = [one["placement"] for one in (*option["placements"], *option["too_large"])]
        assert sorted(named) == ["all-fast", "cache", "fae", "hybrid", "hybrid-dedup", "lookahead"]
    assert advice["best"]["step_seconds"] <= advice["enough"]["step_seconds"]
    assert advice["enough"]["fast_bytes"] <= advice["best"]["fast_bytes"]
    assert "all-fast" in {one["placement"] for one in advice["options"][-1]["placements"]}


def test_steps_have_the_batch_size_of_the_shards_unless_one_is_set(folder: Path, tmp_path: Path) -> None:
    def steps_of(folder: Path, **fields: Any) -> int:
        advice = advise(folder, AdviceConfig(fast_bytes=(GIB,), **fields), Machine(), Resources(workers=1))
        return int(advice["workload"]["batch_size"])

    assert steps_of(folder) == 2048  # there are no shards yet
    packed = tmp_path / "data"
    shutil.copytree(folder, packed)
    config = PreprocessConfig(pack=PackConfig(batch_size=300))
    preprocess([folder.parent / "log.tsv"], config, packed, Resources(workers=1))
    assert steps_of(packed) == 300
    assert steps_of(packed, batch_size=64) == 64
    # Damaged shards are an error, not a reason to take another batch size.
    (packed / "shards/manifest.json").write_text("{}")
    with pytest.raises(ManifestError):
        steps_of(packed)


def test_memory_that_holds_nothing_is_refused_with_what_would_do(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no placement fits in 1 MiB") as refused:
        advise(folder, AdviceConfig(fast_bytes=(MIB,)), Machine(), Resources(workers=1))
    assert refused.value.hint is not None and "KiB would do; a smaller --batch-size" in refused.value.hint
    with pytest.raises(ConfigError, match="model terabyte has embedding_dim 64"):
        advise(folder, AdviceConfig(model="terabyte"), Machine(), Resources(workers=1))
    with pytest.raises(ManifestError):
        advise(folder / "none", AdviceConfig(), Machine(), Resources(workers=1))
    with pytest.raises(ConfigError, match="batch_size"):
        AdviceConfig(batch_size=0)


def test_what_a_budget_leaves_is_room_for_the_rest_of_a_step(folder: Path) -> None:
    workload, budgets_of = read_inputs(folder, AdviceConfig(batch_size=256), Resources(workers=1))
    # The label, dense features and ids of a sample, 4 bytes each.
    assert workload.input_bytes == 4 * (1 + 13 + 26)
    for size, budgets in budgets_of.items():
        for budget in budgets:
            predicted = {one.placement: one for one in predict(workload, Machine(), budget)}
            for placement in ("lookahead", "cache"):
                assert sum(predicted[placement].memory.values()) <= size
            memory = predicted["lookahead"].memory
            rest = memory["dense"] + memory["activations"] + 256 * (2 + MOST_PREFETCH) * workload.input_bytes
            moved = 2 * predicted["hybrid-dedup"].to_fast_bytes / workload.vector_bytes * workload.row_bytes
            assert budget.hot_bytes + budget.staging_bytes == pytest.approx(size - rest - moved, abs=2)


def test_more_budgets_than_one_pass_counts_are_counted_in_several(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for most in (255, 3):
        monkeypatch.setattr(module, "MAX_BUDGETS", most)
        found.append(read_inputs(folder, AdviceConfig(batch_size=256), Resources(workers=1))[1])
    assert found[0] == found[1]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed")
    generate(GenerateConfig(samples=10_000), out / "log.tsv", workers=1)
    config = PreprocessConfig()
    config = replace(
        config,
        split=replace(config.split, hot_bytes=ByteSize(MIB)),
        pack=replace(config.pack, batch_size=128),
    )
    preprocess([out / "log.tsv"], config, out / "data", Resources(workers=1))
    return out / "data"


BOUNDS = {"hybrid": 1e-9, "fae": 1e-9, "hybrid-dedup": 0.03, "lookahead": 0.02, "cache": 0.1}
"""How far predicted bytes are from counted ones: nothing where a placement moves one vector per lookup or
every hot row, and little where rows are counted by expectation."""


def predicted(packed: Path, shards: ShardSet, staging_bytes: int) -> tuple[dict[str, Prediction], Workload]:
    """Predictions for the budget that the shards were packed with."""
    vocabulary, plan, columns = (Manifest.read(packed / name) for name in ("vocabulary", "plan", "columns"))
    workload = read_workload(vocabulary, plan, columns, "auto", shards.batch_size)
    num_hot = sum(table.num_hot for table in shards.tables)
    kinds = [
        (shards.is_hot_only[n], shards.training_batch(n).num_samples)
        for n in range(shards.num_training_batches)
    ]
    hot_share = sum(count for is_hot, count in kinds if is_hot) / shards.num_training_samples
    assert 0.1 < hot_share < 0.9
    budget = Budget(
        hot_bytes=num_hot * workload.row_bytes,
        num_hot_rows=num_hot,
        hot_sample_share=hot_share,
        staging_bytes=staging_bytes,
    )
    return {one.placement: one for one in predict(workload, Machine(), budget)}, workload


def test_predicted_bytes_are_those_that_a_run_counts(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = ShardSet.open(packed / "shards")
    staging_bytes = 300_000
    found, workload = predicted(packed, shards, staging_bytes)
    # Advice takes FAE's first rate, R(50), for the whole epoch.
    monkeypatch.setattr(ShuffleScheduler, "observe", lambda *_: None)
    for name, bound in BOUNDS.items():
        # Small layers: what moves does not depend on them.
        fields: dict[str, Any] = {
            "placement": name,
            "fae_variant": "paper",
            "bottom_mlp": (4,),
            "top_mlp": (4,),
        }
        if name in ("lookahead", "cache"):
            fields |= {"staging_bytes": ByteSize(staging_bytes)}
        trainer = trained(shards, **fields)
        to_fast, to_slow = trainer.meter.training_bytes()
        made = sum(table.get("made", 0) for table in trainer.embeddings.rows_by_table())
        made_bytes = made * workload.row_bytes
        epoch = workload.steps_per_epoch
        one = found[name]
        # Rows at their first use are exact; what is fetched is bounded together with them.
        assert one.initialized_bytes * epoch == pytest.approx(made_bytes), name
        loaded = (one.to_fast_bytes + one.initialized_bytes) * epoch
        assert loaded == pytest.approx(to_fast + made_bytes, rel=bound), name
        assert one.to_slow_bytes * epoch == pytest.approx(to_slow, rel=bound), name
        if name == "lookahead":
            assert one.prefetch == trainer.config.prefetch


@pytest.mark.parametrize("staging_bytes", [20_000, 130_000, 200_000, 700_000, 3_000_000])
def test_predicted_rows_are_those_of_step_plans(staging_bytes: int, packed: Path) -> None:
    """From batches in passes over few slots to slots for every row, at the depth that `train` takes."""
    shards = ShardSet.open(packed / "shards")
    found, workload = predicted(packed, shards, staging_bytes)
    order = list(range(shards.num_training_batches))
    for name in ("lookahead", "cache"):
        moved = simulate_epoch(
            shards, TrainConfig(placement=name, staging_bytes=ByteSize(staging_bytes)), order
        )
        one = found[name]
        loaded = (one.to_fast_bytes + one.initialized_bytes) * workload.steps_per_epoch
        assert loaded == pytest.approx(moved.bytes_to_fast + moved.bytes_made, rel=BOUNDS[name]), name
        assert one.to_slow_bytes * workload.steps_per_epoch == pytest.approx(
            moved.bytes_to_slow, rel=BOUNDS[name]
        )


@pytest.mark.slow
@pytest.mark.real_data
def test_predicted_rows_are_those_of_step_plans_of_a_real_log(real_data: Path, tmp_path: Path) -> None:
    config = PreprocessConfig()
    config = replace(
        config,
        split=replace(config.split, hot_bytes=ByteSize(MIB)),
        pack=replace(config.pack, batch_size=512),
    )
    preprocess([real_data / "criteo_kaggle_uniform_110k.tsv.gz"], config, tmp_path)
    for staging_bytes in (300_000, MIB, 4 * MIB):
        test_predicted_rows_are_those_of_step_plans(staging_bytes, tmp_path)


@pytest.mark.parametrize(("model", "dim"), [("kaggle", 16), ("terabyte", 64), ("mlperf", 128), ("small", 8)])
def test_dense_bytes_are_those_of_the_model_and_its_default_optimizer(model: str, dim: int) -> None:
    shape = dlrm_shape(model, 13, 26, dim)
    dlrm = Dlrm(shape, 0)
    (dense_optimizer,) = build_dense_optimizers(dlrm, TrainConfig().optimizers("adagrad"), 1, is_tiled=True)
    dlrm(torch.rand(4, 13), torch.rand(4, 26, dim)).sum().backward()
    dense_optimizer.step()
    # Without the step counts, one number for each tensor of parameters.
    states = [
        value
        for state in dense_optimizer.state.values()
        for name, value in state.items()
        if torch.is_tensor(value) and name != "step"
    ]
    gradients = [weight.grad for weight in dlrm.parameters() if weight.grad is not None]
    tensors = [*dlrm.parameters(), *gradients, *states]
    assert dense_bytes(shape) == sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize(("model", "dim"), [("kaggle", 16), ("terabyte", 64), ("mlperf", 128), ("small", 8)])
def test_activation_bytes_are_what_the_forward_pass_keeps_and_as_many_gradients(model: str, dim: int) -> None:
    shape = dlrm_shape(model, 13, 26, dim)
    dlrm = Dlrm(shape, 0)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*dlrm.parameters(), *dlrm.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if (start := tensor.untyped_storage().data_ptr()) not in own:
            kept[start] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        dlrm(torch.rand(8, 13), torch.rand(8, 26, dim, requires_grad=True))
    saved = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / 8
    # The products of all pairs of vectors are built for a moment and not kept.
    products = 4 * shape.num_vectors**2
    assert activation_bytes(shape) / 2 == pytest.approx(saved + products, rel=0.02)


def test_advice_is_for_the_model_of_the_log(folder: Path) -> None:
    advice = advise(folder, AdviceConfig(batch_size=256), Machine(), Resources(workers=1))
    shape = dlrm_shape("kaggle", 13, 26, 16)
    found = advice["workload"]
    assert found["dense_bytes"] == dense_bytes(shape)
    assert found["activation_bytes"] == activation_bytes(shape)
    assert (found["vector_bytes"], found["row_bytes"], found["input_bytes"]) == (64, 128, 4 * (1 + 13 + 26))
    # A product and a sum for each weight, and for each pair of vectors, forward and twice backward.
    weights = sum(tensor.numel() for tensor in Dlrm(shape, 0).parameters() if tensor.dim() == 2)
    assert found["flops_per_sample"] == 6 * (weights + 27 * 27 * 16)


def test_unique_rows_are_predicted_within_one_per_cent(folder: Path) -> None:
    found = unique_rows(Inspected.open(folder), [16, 64, 512, 8192, 16_384, 100_000])
    assert [one["batch_size"] for one in found] == [16, 64, 512, 8192, 16_384]
    for one in found:
        assert one["measured"] == pytest.approx(one["expected"], rel=0.01)
        assert one["num_lookups"] == 26 * one["batch_size"]


@pytest.mark.real_data
def test_unique_rows_of_a_real_log_are_predicted_within_two_per_cent(real_data: Path, tmp_path: Path) -> None:
    log = real_data / "criteo_kaggle_uniform_110k.tsv.gz"
    preprocess([log], PreprocessConfig(), tmp_path / "data", until="split")
    for one in unique_rows(Inspected.open(tmp_path / "data"), [64, 512, 2048, 8192, 32_768]):
        assert one["measured"] == pytest.approx(one["expected"], rel=0.02)


def test_advice_knows_the_models_of_hotset_alone(folder: Path) -> None:
    config = AdviceConfig(batch_size=256, model="dcnv2")
    found = advise(folder, config, Machine(), Resources(workers=1))["workload"]
    # Cross layers of 429 numbers, the deep network, the logit: weights, gradients and the state of Adam.
    weights = 3 * 430 * 429 + 430 * 512 + 513 * 256 + 257
    assert found["dense_bytes"] == 16 * weights
    with pytest.raises(ConfigError, match=r"model must be one of auto, .* got 'nets:Net'"):
        advise(folder, AdviceConfig(batch_size=256, model="nets:Net"), Machine(), Resources(workers=1))


SPEEDS = MachineSpeeds(
    device_name="A CPU",
    threads=2,
    flops=2e11,
    host_rows_per_second=5e7,
    row_bytes=64,
    link_bytes_per_second=9e9,
    loader_samples_per_second=1.5e7,
    cores=4,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    SPEEDS.write(path)
    assert MachineSpeeds.read(path) == SPEEDS
    with pytest.raises(HotsetError, match="exists"):
        SPEEDS.write(path)
    assert len(path.read_text().splitlines()) <= 12


def test_predictions_take_rows_as_bytes_and_the_typical_fixed_time() -> None:
    assert SPEEDS.machine() == Machine(
        link_bytes_per_second=9e9,
        host_bytes_per_second=64 * 5e7,
        flops=2e11,
        step_seconds=Machine().step_seconds,
        loader_samples_per_second=1.5e7,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "hotset machine"}, "its format is not 'hotset speeds 1'"),
        ({"flops": 0.0}, "flops is 0.0, want a number above 0"),
        ({"link_bytes_per_second": -1.0}, "link_bytes_per_second is -1.0"),
        ({"all_reduce_bytes_per_second": 0.0}, "all_reduce_bytes_per_second is 0.0"),
        ({"exchange_seconds": -1.0}, "exchange_seconds is -1.0, want a number of 0 or more"),
        ({"host_rows_per_second": "many"}, "host_rows_per_second"),
        ({"row_bytes": 0}, "row_bytes is 0"),
    ],
)
def test_a_file_of_something_else_is_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    SPEEDS.write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=f"machine.json cannot be read as speeds: .*{message}"):
        MachineSpeeds.read(path)


def test_messages_without_a_time_of_their_own_may_say_so(tmp_path: Path) -> None:
    replace(SPEEDS, exchange_seconds=0.0).write(tmp_path / "machine.json")
    assert MachineSpeeds.read(tmp_path / "machine.json").network() == Network()


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_a_damaged_file_and_a_missing_one_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(text)
    for name in ("machine.json", "missing.json"):
        with pytest.raises(ConfigError, match=f"{name} cannot be read as speeds"):
            MachineSpeeds.read(tmp_path / name)
