"""FuxiCTR and hotset are scored on the same test part; `fuxictr_training` is FuxiCTR's side of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError, HotsetError, MissingExtraError
from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.workflows.bench.quality import bench_fuxictr as bench
from hotset.workflows.bench.quality.bench_fuxictr import BenchFuxictrConfig, bench_fuxictr, show_fuxictr


@pytest.fixture
def log(tmp_path: Path) -> Path:
    generate(GenerateConfig(samples=400, scale=1000), tmp_path / "log.tsv", workers=1)
    return tmp_path / "log.tsv"


def test_both_programs_get_the_same_samples(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def fuxictr_auc(export: Path, seed: int) -> float:
        seeds.append(seed)
        files = {path.name for path in export.iterdir()}
        assert files == {"feature_map.json", "test.parquet", "train.parquet", "valid.parquet"}
        return 0.75

    monkeypatch.setattr(bench, "has_fuxictr", lambda: True)
    monkeypatch.setattr(bench, "_fuxictr_auc", fuxictr_auc)
    monkeypatch.setattr(bench, "train", lambda data, config, out: SimpleNamespace(auc=config.seed / 10))
    result = bench_fuxictr(BenchFuxictrConfig(data=log, seeds=(4, 5)))
    assert seeds == [4, 5] and result["auc"]["FuxiCTR"] == [0.75, 0.75]
    assert result["auc"]["hotset"] == [0.4, 0.5] and result["mean_auc"] == {"FuxiCTR": 0.75, "hotset": 0.45}
    console = Console(record=True, width=60)
    show_fuxictr(result, console)
    assert "0.7500" in console.export_text()


def test_a_failure_is_one_line(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "has_fuxictr", lambda: False)
    with pytest.raises(MissingExtraError, match="needs FuxiCTR"):
        bench_fuxictr(BenchFuxictrConfig(data=log))
    with pytest.raises(ConfigError, match="at least one seed"):
        BenchFuxictrConfig(data=log, seeds=())
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nValueError: no column\n")

    def run(*_: object, env: dict[str, str], **__: object) -> subprocess.CompletedProcess[str]:
        assert env["RAY_ADDRESS"] == "local", "it would join a cluster that others end"
        return failed

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(HotsetError, match="FuxiCTR failed: ValueError: no column"):
        bench._fuxictr_auc(log, 0)


@pytest.mark.slow
def test_fuxictr_trains_on_the_export(tmp_path: Path) -> None:
    pytest.importorskip("fuxictr", reason="the extra interop is not installed")
    generate(GenerateConfig(samples=20_000, scale=100), tmp_path / "log.tsv", workers=1)
    result = bench_fuxictr(BenchFuxictrConfig(data=tmp_path / "log.tsv", seeds=(1,)))
    # The generated labels depend on the features, so a model that reads them rightly ranks far above chance.
    assert all(0.6 < mean < 1 for mean in result["mean_auc"].values())
