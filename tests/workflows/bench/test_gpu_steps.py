"""Lower bounds of a GPU's step: the parts of the reference; and steps by TorchRec."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.tests.support.real_torchrec import torchrec_or_skip
from hotset.tests.support.shard_factory import write_shards
from hotset.train.config import TrainConfig
from hotset.train.data.shards import ShardSet
from hotset.workflows.bench.gpu_steps import GpuRates, TorchRecRun, part_floors

H200 = GpuRates(memory_bytes=4.3e12, flops=790e12, link_bytes=55e9)


def test_parts_are_bytes_over_bandwidth() -> None:
    parts = part_floors(16, 65_536, H200, distinct_rows=2.89)
    # 26 rows of 64 bytes with their slots, and 367 + 16 numbers of 2 bytes.
    assert parts["rows and dots"] == pytest.approx((26 * 68 + 2 * 383) / 4.3e12)
    twice = part_floors(16, 65_536, GpuRates(8.6e12, 1580e12, 55e9), distinct_rows=2.89)
    assert sum(twice.values()) == pytest.approx(sum(parts.values()) / 2)


def test_large_layers_are_bound_by_their_products() -> None:
    # 14.5 million operations of a sample, forward and backward.
    found = part_floors(128, 65_536, H200, distinct_rows=2.89)
    assert found["products"] == pytest.approx(14.2e6 / 790e12, rel=0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # TorchRec's own
def test_torchrec_runs_the_steps_of_an_order(tmp_path: Path) -> None:
    torchrec_or_skip()
    shards = ShardSet.open(write_shards(tmp_path / "shards"))
    numbers = np.array([2, 0, 1, 3, 1, 0], np.int32)
    run = TorchRecRun(shards, TrainConfig(placement="all-fast"), numbers, 0.4)
    before = [each.detach().clone() for each in run._pipeline._model.parameters()]
    for _ in numbers:
        run.take()
    assert run.step == 6 and run.num_samples == sum(
        shards.training_batch(number).num_samples for number in numbers
    )
    with pytest.raises(StopIteration):
        run.take()
    assert all((old != new).any() for old, new in zip(before, run._pipeline._model.parameters(), strict=True))
    run.synchronize()
    # It is closed when its rows are written, and when its group ends.
    run.close()
    run.close()
