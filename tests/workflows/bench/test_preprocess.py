"""The seven "days" of facebookresearch/dlrm hold all samples, and its dense values come back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.folders.manifest import Manifest
from hotset.tests.support.naive.naive_export import naive_rows
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.workflows.bench.preprocess import (
    DAY_COUNT,
    FEATURE_COUNT,
    PROCESSED,
    _days,
    export_dlrm,
)


@pytest.mark.parametrize("num_train", [0, 1, 5, 6, 7, 36, 37, 1000])
@pytest.mark.parametrize("num_evaluation", [0, 3])
def test_six_days_are_the_training_part_and_one_the_rest(num_train: int, num_evaluation: int) -> None:
    days = _days(num_train, num_train + num_evaluation).tolist()
    assert len(days) == 7 and sum(days[:6]) == num_train and days[6] == num_evaluation
    # All but the last are of one size, and none is negative.
    largest = -(-num_train // 6)
    assert all(0 <= day <= largest for day in days[:6])
    assert days[0] == largest and days[:6] == sorted(days[:6], reverse=True)


def test_logs_without_dense_features_have_an_empty_matrix(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec(num_dense=0)))
    export_dlrm(shards, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {PROCESSED, DAY_COUNT, FEATURE_COUNT}
    with np.load(tmp_path / "out" / PROCESSED) as data:
        assert data["X_int"].shape == (310, 0) and data["X_cat"].shape == (310, 3)
        assert (data["X_cat"] < data["counts"]).all() and data["X_cat"].min() >= 0


def test_logs_without_labels_are_refused(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec(has_label=False)))
    with pytest.raises(ConfigError, match=r"^dlrm-npz is for training, and the log has no labels\n"):
        export_dlrm(shards, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_program_takes_the_logarithm_and_finds_seven_days(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards"))
    export_dlrm(shards, tmp_path / "out")
    rows = [row for split in naive_rows(shards).values() for row in split]
    with np.load(tmp_path / "out" / PROCESSED) as data:
        assert data["y"].tolist() == [row[0] for row in rows] and data["y"].dtype == np.int32
        assert data["X_cat"].tolist() == [list(row[2]) for row in rows] and data["X_cat"].dtype == np.int32
        dense = np.log(data["X_int"].astype(np.float32) + 1)
        np.testing.assert_allclose(dense, [row[1] for row in rows], rtol=3e-7, atol=1e-6)
        assert data["counts"].tolist() == [table["num_rows"] for table in shards.totals["tables"]]
    with np.load(tmp_path / "out" / DAY_COUNT) as data:
        days = data["total_per_file"]
    evaluation = shards.totals["samples"]["evaluation"]
    assert len(days) == 7 and days.sum() == len(rows) and days[-1] == evaluation and days.min() > 0
    with np.load(tmp_path / "out" / FEATURE_COUNT) as data:
        assert len(data["counts"]) == len(shards.totals["tables"])
