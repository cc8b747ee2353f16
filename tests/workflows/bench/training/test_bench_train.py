"""The benchmark of a training step, very small.

Tests `device_parts`, `show_train` and `train_contestants`, too.
"""

from __future__ import annotations

from io import StringIO

import pytest
import torch
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.train.model.dense_dtype import cpu_features, has_bf16
from hotset.workflows.bench.measuring.step_floors import part_floors
from hotset.workflows.bench.training.bench_train import BenchTrainConfig, bench_train
from hotset.workflows.bench.training.show_train import show_train


def test_contestants_and_parts_are_measured() -> None:
    before = torch.get_num_threads()
    config = BenchTrainConfig(
        samples=1500, batch_sizes=(64, 128), embedding_dims=(8,), threads=(1,), round_samples=128, rounds=2
    )
    result = bench_train(config)
    assert torch.get_num_threads() == before
    names = {record["name"] for record in result["contestants"]}
    in_bf16 = {"torch bf16", "hotset bf16"}
    assert names - in_bf16 >= {"torch fp32", "hotset fp32", "hotset fp32, lookahead"}
    assert names & in_bf16 == (in_bf16 if has_bf16(cpu_features()) else set())
    assert len(result["contestants"]) == 2 * len(names)
    for record in result["contestants"]:
        assert record.keys() >= {"name", "batch_size", "embedding_dim", "threads", "wall_us", "cpu_us"}
        assert record["wall_us"] > 0 and record["cpu_us"] > 0
        assert len(record["rounds"]["wall_us"]) == 2
    of_reference = [ratio for ratio in result["ratios"] if ratio["name"] == "torch fp32"]
    assert all(ratio["wall_ratio"] == ratio["cpu_ratio"] == 1 for ratio in of_reference)
    assert {(part["batch_size"], part["embedding_dim"]) for part in result["parts"]} == {(64, 8), (128, 8)}
    assert all(part["us"] > 0 for part in result["parts"] if part["floor_us"] > 0)
    dtypes = ["fp32", "bf16"] if has_bf16(cpu_features()) else ["fp32"]
    assert len(result["parts"]) == 2 * 9 * len(dtypes)
    assert list(dict.fromkeys(part["dense_dtype"] for part in result["parts"])) == dtypes
    assert result["machine"]["cpu"] and result["machine"]["load_average"] >= 0
    console = Console(file=StringIO(), width=80)
    show_train(result, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "batch size 64, dim 8" in shown and "update rows" in shown


def test_the_kernels_of_a_device_stand_beside_their_lower_bounds() -> None:
    config = BenchTrainConfig(
        samples=900, batch_sizes=(64,), embedding_dims=(16,), round_samples=64, rounds=1, device="late:3"
    )
    result = bench_train(config)
    parts = {part["part"]: part for part in result["parts"]}
    wanted = {*part_floors(16, 65_536), "copy of the batch"}
    assert parts.keys() == wanted
    assert all(part["us"] > 0 for part in parts.values())
    assert all(part["floor_us"] > 0 for part in parts.values())
    (step,) = result["steps"]
    assert step["us"] > 0 and result["rates"]["link_bytes"] > 0 and result["contestants"] == []
    console = Console(file=StringIO(), width=100)
    show_train(result, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "dim 16, on late:3" in shown and "sum and step of rows" in shown and "times it" in shown


def test_a_device_has_the_parts_of_dlrm_alone() -> None:
    with pytest.raises(ConfigError, match="on cuda are those of dlrm, not of dcnv2") as error:
        BenchTrainConfig(device="cuda", model="dcnv2")
    assert error.value.hint == "leave --model out, or use --device cpu"


def test_too_few_samples_are_refused_with_a_number_that_would_do() -> None:
    config = BenchTrainConfig(samples=200, batch_sizes=(64,), embedding_dims=(8,), threads=(1,))
    with pytest.raises(ConfigError, match="full batches of 64 samples are too few") as error:
        bench_train(config)
    assert error.value.hint == "give --samples 896"


@pytest.mark.parametrize("fields", [{"threads": ()}, {"batch_sizes": (0,)}, {"rounds": 0}])
def test_nonsense_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        BenchTrainConfig(**fields)  # type: ignore[arg-type]


@pytest.mark.slow
def test_dcnv2_is_measured_against_plain_torch() -> None:
    config = BenchTrainConfig(
        samples=600,
        batch_sizes=(32,),
        embedding_dims=(4,),
        threads=(1,),
        round_samples=64,
        rounds=1,
        model="dcnv2",
        cross_rank=2,
    )
    result = bench_train(config)
    assert {"torch fp32", "hotset fp32"} <= {record["name"] for record in result["contestants"]}
    assert result["parts"] == [] and result["settings"]["model"] == "dcnv2"
