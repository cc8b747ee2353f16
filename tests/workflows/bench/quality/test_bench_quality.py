"""The recipe for small real samples reaches the AUC it promises, and FAE that of all-fast.

Tests `both_labels`, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.tests.support.logs.one_label import write_one_label
from hotset.workflows.bench.quality import bench_quality as bench
from hotset.workflows.bench.quality.bench_quality import BenchQualityConfig, bench_quality, show_quality


def test_every_placement_is_trained_with_every_seed(tmp_path: Path) -> None:
    generate(GenerateConfig(samples=400, scale=100), tmp_path / "log.tsv", workers=1)
    config = BenchQualityConfig(data=tmp_path / "log.tsv", seeds=(3, 4), placements=("hybrid", "all-fast"))
    result = bench_quality(config)
    assert result["auc"]["hybrid"] == result["auc"]["all-fast"]
    assert len(set(result["auc"]["hybrid"])) == 2
    assert result["mean_auc"]["hybrid"] == pytest.approx(sum(result["auc"]["hybrid"]) / 2)
    console = Console(record=True, width=80)
    show_quality(result, console)
    assert "mean" in console.export_text()


def test_models_stand_side_by_side(tmp_path: Path) -> None:
    generate(GenerateConfig(samples=400, scale=100), tmp_path / "log.tsv", workers=1)
    models = ("small", "dcnv2")
    config = BenchQualityConfig(
        data=tmp_path / "log.tsv", seeds=(3,), placements=("lookahead", "all-fast"), models=models
    )
    result = bench_quality(config)
    for model in models:
        assert result["auc"][f"{model}, lookahead"] == result["auc"][f"{model}, all-fast"]
    assert result["auc"]["small, all-fast"] != result["auc"]["dcnv2, all-fast"]
    assert result["train"]["dcnv2"]["cross_rank"] == 32 and result["train"]["small"]["cross_rank"] is None


def test_a_log_of_one_label_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "train", lambda *_: pytest.fail("a model was trained"))
    generate(GenerateConfig(samples=400, scale=100), tmp_path / "log.tsv", workers=1)
    write_one_label(tmp_path / "log.tsv", "1")
    with pytest.raises(
        ConfigError, match="the 80 samples of the test part have the label 1, so there is no AUC"
    ):
        bench_quality(BenchQualityConfig(data=tmp_path / "log.tsv"))


@pytest.mark.parametrize("fields", [{"models": ()}, {"models": ("dcn",)}])
def test_models_are_checked(fields: dict[str, tuple[str, ...]], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model"):
        BenchQualityConfig(data=tmp_path, **fields)  # type: ignore[arg-type]


def test_nothing_to_train_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one seed"):
        BenchQualityConfig(data=tmp_path, seeds=())


@pytest.mark.real_data
@pytest.mark.slow
def test_the_recipe_reaches_its_auc_on_the_real_sample(real_data: Path) -> None:
    log = real_data / "criteo_kaggle_uniform_110k.tsv.gz"
    result = bench_quality(BenchQualityConfig(data=log, seeds=(0, 1)))
    assert result["samples"]["hot_only"] > 0 and result["samples"]["mixed"] > 0
    assert result["mean_auc"]["all-fast"] >= 0.758
    assert abs(result["mean_auc"]["fae"] - result["mean_auc"]["all-fast"]) <= 0.003


@pytest.mark.real_data
@pytest.mark.slow
def test_the_better_of_two_models_reaches_its_auc_on_the_real_sample(real_data: Path) -> None:
    log = real_data / "criteo_kaggle_uniform_110k.tsv.gz"
    config = BenchQualityConfig(data=log, seeds=(0, 1, 2), placements=("all-fast",), models=("dlrm", "dcnv2"))
    assert max(bench_quality(config)["mean_auc"].values()) >= 0.766
