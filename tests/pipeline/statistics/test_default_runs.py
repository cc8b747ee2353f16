"""The bytes that `hotset stats` simulates are those that `hotset train` counts without any option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import ByteSize, ManifestError
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.statistics import default_runs
from hotset.pipeline.statistics.frequencies import frequency_statistics
from hotset.stats.lookahead import planner as staging_planner
from hotset.tests.support.logs.criteo_text import draw_samples
from hotset.tests.support.logs.list_logs import KINDS, recipe
from hotset.tests.support.logs.other_logs import draw_log, write_parquet
from hotset.tests.support.naive.naive_stages import run_to
from hotset.tests.support.resealed import write_manifest
from hotset.tests.support.trained_models import trained
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.placements import choose_placement


def series(folder: Path, workers: int = 1) -> Any:
    found = frequency_statistics(folder, Resources(workers=workers), series=["default_runs"])
    return found


@pytest.fixture(scope="module", params=["grouped", "original", "lists of two widths"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(4)
    if request.param == "lists of two widths":
        log = draw_log(180, KINDS, rng, empty_lists=True)
        config = recipe(log, "parquet")
        split = SplitConfig(
            hot_bytes=ByteSize(128 * 12), feature_dims=FeatureSettings([("user", 8), ("tags", 8)])
        )
        config = PreprocessConfig(ingest=config.ingest, count=config.count, split=split, pack=config.pack)
        preprocess([write_parquet(folder / "log.parquet", log)], config, folder, Resources(workers=1))
    else:
        split = SplitConfig(hot_bytes=ByteSize(128 * 40))
        pack = PackConfig(batch_size=3, order=request.param)
        run_to("pack", folder, draw_samples(180, rng), PreprocessConfig(split=split, pack=pack))
    return folder


@pytest.fixture(scope="module")
def simulated(folder: Path) -> Any:
    """Return the series of all placements at once."""
    return series(folder)["default_runs"]


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("placement", ["all-fast", "hybrid", "hybrid-dedup", "fae", "lookahead", "cache"])
def test_a_run_moves_what_the_series_says(folder: Path, simulated: Any, placement: Any) -> None:
    found = simulated
    shards = Shards.open(folder)
    trainer = trained(shards, placement=placement, fae_variant="code")
    (row,) = (row for row in found["placements"] if row["placement"] == placement)
    assert (row["bytes_to_fast"], row["bytes_to_slow"]) == trainer.meter.training_bytes()
    settings = found["settings"]
    assert (
        settings["num_samples"] == shards.num_training_samples and settings["batch_size"] == shards.batch_size
    )
    assert settings["num_batches"] == settings["num_epoch_batches"] == shards.num_training_batches
    assert row["bytes_to_fast_per_sample"] == row["bytes_to_fast"] / shards.num_training_samples
    if placement in ("lookahead", "cache"):
        source = trainer.step_source
        assert (row["shortened"], row["split"]) == (source.num_shortened, source.num_split)
        assert row["rows_initialized"] > 0
        # With few slots rows come back, so that the depth and the slots make a difference.
        assert row["bytes_to_fast"] > 0 or shards.tables[0].is_multi_hot
        config = choose_placement.with_staging(TrainConfig(placement=placement), shards)
        slots = choose_placement.staging_slots(config, shards)
        assert (settings["prefetch"], settings["num_slots"]) == (config.prefetch, sum(slots.values()))


def test_the_settings_are_the_defaults_of_training() -> None:
    config = TrainConfig()
    assert (config.seed, config.cache_policy) == (default_runs.SEED, default_runs.CACHE_POLICY)
    assert config.cache_warmup == staging_planner.DEFAULT_WARMUP_RATIO and config.cache_batches == 1


def test_a_long_epoch_is_cut_off_and_said(
    folder: Path, simulated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = simulated["settings"]
    monkeypatch.setattr(default_runs, "MAX_LOOKUPS", 4 * 3 * 26)
    cut_off = series(folder)
    found = cut_off["default_runs"]
    assert found == series(folder, workers=2)["default_runs"]
    assert (
        1 <= found["settings"]["num_batches"] < whole["num_batches"] == found["settings"]["num_epoch_batches"]
    )
    # The copies of fae's hot rows are those of a whole epoch.
    assert "fae" not in [row["placement"] for row in found["placements"]]
    assert any("placement fae" in line for line in cut_off["left_out"])
    hybrid = next(row for row in found["placements"] if row["placement"] == "hybrid")
    vectors = found["settings"]["num_samples"] * sum(
        4 * table.embedding_dim for table in Shards.open(folder).tables
    )
    assert hybrid["bytes_to_fast"] == vectors


def test_without_shards_nothing_is_simulated(tmp_path: Path) -> None:
    run_to("split", tmp_path, draw_samples(60, np.random.default_rng(4)), PreprocessConfig())
    found = series(tmp_path)
    assert found["default_runs"] == {"settings": {}, "placements": []}
    assert found["left_out"] == ["what the placements move: there are no shards yet (hotset pack)"]


def test_shards_with_more_rows_than_the_vocabulary_are_refused(tmp_path: Path) -> None:
    """A planner indexes its arrays by the rows of the shards: a crafted manifest must not lead it outside."""
    pack = PackConfig(batch_size=16)
    run_to("pack", tmp_path, draw_samples(60, np.random.default_rng(4)), PreprocessConfig(pack=pack))
    parts = json.loads((tmp_path / "shards" / "manifest.json").read_text())
    parts["totals"]["tables"][0]["num_rows"] += 10**6
    parts["totals"]["num_rows"] += 10**6
    write_manifest(tmp_path / "shards", parts)
    with pytest.raises(ManifestError, match=r"shards has tables of other rows than .*vocabulary"):
        series(tmp_path)
