"""The seven "days" of facebookresearch/dlrm hold all samples, and its dense values come back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.export.dlrm_files import PROCESSED, _counts_of, _days
from hotset.pipeline.export.export_shards import export_shards
from hotset.pipeline.folders.manifest import Manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards


@pytest.mark.parametrize("num_train", [0, 1, 5, 6, 7, 36, 37, 1000])
@pytest.mark.parametrize("num_evaluation", [0, 3])
def test_six_days_are_the_training_part_and_one_the_rest(num_train: int, num_evaluation: int) -> None:
    days = _days(num_train, num_train + num_evaluation).tolist()
    assert len(days) == 7 and sum(days[:6]) == num_train and days[6] == num_evaluation
    # All but the last are of one size, and none is negative.
    largest = -(-num_train // 6)
    assert all(0 <= day <= largest for day in days[:6])
    assert days[0] == largest and days[:6] == sorted(days[:6], reverse=True)


def test_counts_come_back_from_their_logarithms() -> None:
    counts = np.array([[0, 1, 2, 3], [10, 999, 65_535, 1_000_000]], np.float32)
    found = _counts_of(np.log1p(counts))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, counts, rtol=2e-6)
    assert _counts_of(np.zeros((1, 2), np.float32)).tolist() == [[0, 0]]


def test_logs_without_dense_features_have_an_empty_matrix(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec(num_dense=0)))
    found = export_shards(shards, "dlrm-npz", tmp_path / "out")
    assert found.num_samples == {"train": 220, "test": 90}
    assert {file.name: file.num_bytes for file in found.files} == {
        path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()
    }
    with np.load(tmp_path / "out" / PROCESSED) as data:
        assert data["X_int"].shape == (310, 0) and data["X_cat"].shape == (310, 3)
        assert (data["X_cat"] < data["counts"]).all() and data["X_cat"].min() >= 0


@pytest.mark.parametrize("to", ["dlrm-npz", "fuxictr"])
def test_logs_without_labels_are_refused(tmp_path: Path, to: str) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec(has_label=False)))
    with pytest.raises(ConfigError, match=f"^{to} is for training, and the log has no labels$"):
        export_shards(shards, to, tmp_path / "out")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
