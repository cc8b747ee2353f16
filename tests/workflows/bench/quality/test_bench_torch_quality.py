"""Plain torch and hotset begin with the same values and end near each other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.workflows.bench.quality import bench_torch_quality as bench
from hotset.workflows.bench.quality.bench_torch_quality import (
    BenchTorchQualityConfig,
    bench_torch_quality,
    show_torch_quality,
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    generate(GenerateConfig(samples=800, scale=100), tmp_path / "log.tsv", workers=1)
    return tmp_path / "log.tsv"


def test_what_both_train_differs_by_roundings_alone(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "cpu_features", frozenset)
    # The last batch of the 640 samples is full, as plain torch divides by the samples of each batch.
    result = bench_torch_quality(BenchTorchQualityConfig(data=log, seeds=(1, 2), batch_size=128))
    for score in ("auc", "log_loss"):
        torch, hotset = (result[score][name] for name in ("torch fp32", "hotset fp32"))
        assert hotset == pytest.approx(torch, abs=2e-4) and abs(torch[0] - torch[1]) > 1e-3
        assert result[f"{score}_difference"] == {
            "hotset fp32": [one - other for one, other in zip(hotset, torch, strict=True)],
            "hotset bf16": None,
        }
    # A CPU without such instructions takes some eleven times as long.
    assert result["auc"]["hotset bf16"] is result["mean_auc"]["hotset bf16"] is None


def test_deviations_and_differences_are_those_of_the_seeds(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(data: Path, config: Any, out: Path) -> SimpleNamespace:
        is_rounded = config.dense_dtype == "bf16"
        return SimpleNamespace(auc=0.7 + 0.01 * config.seed - 0.02 * is_rounded, log_loss=0.5)

    monkeypatch.setattr(bench, "has_bf16", lambda _: True)
    monkeypatch.setattr(bench, "train", run)
    monkeypatch.setattr(bench, "train_reference", lambda *_: {"auc": 0.7, "log_loss": 0.4})
    result = bench_torch_quality(BenchTorchQualityConfig(data=log, seeds=(0, 2)))
    assert result["auc_difference"]["hotset fp32"] == pytest.approx([0, 0.02])
    assert result["mean_auc_difference"]["hotset bf16"] == pytest.approx(-0.01)
    assert result["deviation_auc"]["hotset fp32"] == pytest.approx(0.02 / 2**0.5)
    assert result["deviation_auc"]["torch fp32"] == 0
    assert result["mean_log_loss_difference"]["hotset fp32"] == pytest.approx(0.1)
    console = Console(record=True, width=80)
    show_torch_quality(result, console)
    shown = console.export_text()
    assert "hotset fp32 - torch fp32: +0.01000 with a deviation of 0.01414" in shown
    assert "hotset bf16 - torch fp32: -0.01000" in shown and "0.72000" in shown


def test_a_part_without_clicks_has_no_auc(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "train", lambda *_: SimpleNamespace(auc=None, log_loss=0.4))
    monkeypatch.setattr(bench, "train_reference", lambda *_: {"auc": None, "log_loss": 0.4})
    with pytest.raises(HotsetError, match="labels of one kind"):
        bench_torch_quality(BenchTorchQualityConfig(data=log, seeds=(0,)))


@pytest.mark.parametrize("fields", [{"seeds": ()}, {"batch_size": 0}])
def test_nothing_to_train_is_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"seed|batch_size"):
        BenchTorchQualityConfig(data=tmp_path, **fields)
