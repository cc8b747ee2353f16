"""Row updates and training on a GPU; this file needs torch and pytest, no other package of development."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotset.stats.ranking.row_bytes import OPTIMIZERS
from hotset.tests.support.drawn_tiers import draw_lookups, make_tier, step
from hotset.tests.support.shard_factory import write_shards
from hotset.tests.support.trained_models import FIELDS, STAGING, TIGHT, assert_equal_bits, trained
from hotset.train.data.shards import Shards
from hotset.train.rows.row_backends import NumbaRows, TorchRows
from hotset.train.rows.row_optimizers import RowOptimizer
from hotset.train.work_threads import WorkThreads

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dim", [10, 16, 24, 40])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_gpu_gives_the_bits_of_the_host(name: str, dim: int, rng: np.random.Generator) -> None:
    optimizer = RowOptimizer(name, 0.03)
    host, device = make_tier(optimizer, 3, 50, dim), make_tier(optimizer, 3, 50, dim, "cuda")
    for _ in range(3):
        lookups = draw_lookups(host, 500, rng)
        grad_PD = torch.from_numpy(rng.normal(size=(1500, dim)).astype(np.float32))
        step(NumbaRows(optimizer, WorkThreads(1)), host, lookups, grad_PD)
        step(TorchRows(optimizer, device.device), device, lookups, grad_PD.cuda())
    assert torch.equal(host.weights_SD, device.weights_SD.cpu())
    assert torch.equal(host.state_SW, device.state_SW.cpu())


@pytest.mark.parametrize("placement", STAGING, ids=str)
def test_staging_on_a_gpu_ends_with_the_bits_of_all_fast_there(
    placement: dict[str, Any], tmp_path: Path
) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", TIGHT))
    wanted = trained(shards, placement="all-fast", device="cuda", **FIELDS)
    assert_equal_bits(trained(shards, device="cuda", **placement, **FIELDS), wanted)
