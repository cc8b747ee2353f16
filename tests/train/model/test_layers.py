"""Dropout by hashes: what is dropped depends on the place of a number alone.

Tests `dense_step`, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hotset.stats.id_tables import mix64_pair
from hotset.tests.support.compiled import compiled_only
from hotset.tests.support.shard_factory import write_shards
from hotset.tests.support.trained_models import assert_equal_bits, trained
from hotset.train.data.shards import Shards
from hotset.train.model.layers import HashDropout, draw_mask, drawing


def test_the_mask_is_what_the_hash_says() -> None:
    mask_TU = np.full((3, 5), np.nan, np.float32)
    draw_mask(np.uint64(7), 2, 1 << 22, np.float32(4 / 3), mask_TU)
    for sample in range(3):
        of_sample = np.uint64(mix64_pair(np.uint64(7), np.uint64(2 + sample)))
        for unit in range(5):
            is_kept = int(mix64_pair(of_sample, np.uint64(unit))) >> 40 >= 1 << 22
            assert mask_TU[sample, unit] == (np.float32(4 / 3) if is_kept else 0)


def passed(share: float, step: int = 3, seed: int = 1, layer: int = 0, first: int = 0) -> torch.Tensor:
    layers = HashDropout(share, layer)
    with drawing(seed, step, first):
        found: torch.Tensor = layers(torch.ones(64, 100))
    return found


def test_a_share_is_dropped_and_the_mean_is_kept() -> None:
    found = passed(0.2)
    assert abs(float((found == 0).float().mean()) - 0.2) < 0.02
    assert abs(float(found.mean()) - 1) < 0.03
    assert set(found.flatten().tolist()) == {0.0, 1.25}


def test_seeds_steps_layers_and_samples_draw_apart() -> None:
    whole = passed(0.5)
    for other in (passed(0.5, step=4), passed(0.5, seed=2), passed(0.5, layer=1), passed(0.5, first=64)):
        assert 0.4 < float((whole != other).float().mean()) < 0.6
    # A part of a batch draws what the whole batch does.
    torch.testing.assert_close(passed(0.5, first=10)[:54], whole[10:], rtol=0, atol=0)


def test_nothing_is_dropped_in_evaluation() -> None:
    layer = HashDropout(0.5, 0).eval()
    assert torch.equal(layer(torch.ones(2, 3)), torch.ones(2, 3))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("data")
    # Batches of several tiles.
    return Shards.open(
        write_shards(folder / "shards", batch_size=600, num_hot_only=700, num_mixed=1300, skew=1.2)
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "dlrm", "dropout": 0.2},
        {"model": "dcnv2", "dropout": 0.2},
        {"model": "dlrm", "dropout": 0.2, "batch_norm": True},
        {"model": "dcnv2", "batch_norm": True},
    ],
)
@compiled_only
def test_placements_and_threads_end_with_the_same_bits(shards: Shards, fields: dict[str, Any]) -> None:
    fields = fields | {"embedding_optimizer": "adagrad", "bottom_mlp": (8,), "top_mlp": (8, 4)}
    reference = trained(shards, placement="all-fast", threads=1, **fields)
    assert_equal_bits(trained(shards, placement="lookahead", threads=2, **fields), reference)
    plain = trained(
        shards, placement="all-fast", threads=1, **fields | {"dropout": None, "batch_norm": False}
    )
    name = next(name for name in plain.weights() if name.endswith("weight"))
    assert not torch.equal(plain.weights()[name], reference.weights()[name])


def test_dropout_and_shares_are_for_one_batch(shards: Shards) -> None:
    fields: dict[str, Any] = {"model": "dlrm", "dropout": 0.2, "top_mlp": (8,)}
    whole = trained(shards, placement="all-fast", threads=1, **fields).weights()
    cut = trained(shards, placement="all-fast", threads=1, micro_batches=2, **fields).weights()
    # Shares add in another order, and drop the same.
    for name in whole:
        torch.testing.assert_close(whole[name], cut[name], rtol=1e-3, atol=1e-4)
