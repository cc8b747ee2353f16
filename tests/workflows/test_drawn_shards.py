"""Drawn logs follow Zipf's law, and are shards as any others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.train.data.shards import Shards
from hotset.workflows.drawn_shards import DrawnShards, zipf_ids


@pytest.mark.parametrize("skew", [0.0, 0.7, 1.0, 1.0 + 1e-10, 1.05, 1.3])
def test_ids_are_drawn_by_the_areas_under_the_density(skew: float) -> None:
    num_rows, steps = 40, 2000
    # The middle of many thin slices between k + 1 and k + 2, for each id k.
    x = 1 + (np.arange(num_rows * steps) + 0.5) / steps
    areas = (x**-skew).reshape(num_rows, steps).sum(axis=1)
    ids = zipf_ids((np.arange(1_000_000) + 0.5) / 1_000_000, num_rows, skew)
    shares = np.bincount(ids, minlength=num_rows) / ids.size
    assert shares == pytest.approx(areas / areas.sum(), rel=1e-3, abs=3e-6)


def test_hot_batches_look_up_hot_rows_alone(tmp_path: Path) -> None:
    drawn = DrawnShards(
        num_tables=3,
        rows_of_table=500,
        hot_rows_of_table=20,
        num_hot_batches=2,
        skew=0.5,
        num_dense=4,
        pooling=2,
        batch_size=16,
        num_batches=5,
        num_evaluation=7,
    )
    drawn.write(tmp_path / "shards")
    shards = Shards.open(tmp_path / "shards")
    assert shards.num_training_batches == 5
    for number in range(5):
        batch = shards.training_batch(number)
        assert batch.num_samples == 16 and batch.is_hot_only == shards.is_hot_only[number] == (number < 2)
