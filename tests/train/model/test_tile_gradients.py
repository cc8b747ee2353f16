"""Tiles cover a batch, and their sums are added by one binary tree."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.batch_work import MOST_TILE_SAMPLES
from hotset.train.model.tile_gradients import SUM_COLUMNS, add_losses, add_tiles, tile_bounds


def naive_tree(tiles: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Adjacent pairs, the odd one carried."""
    while len(tiles) > 1:
        sums = [a + b for a, b in zip(tiles[::2], tiles[1::2], strict=False)]
        tiles = sums + tiles[2 * len(sums) :]
    return tiles[0]


def summed(tiles_LN: NDArray[np.float32], first: int = 0, stop: int | None = None) -> NDArray[np.float32]:
    sums = np.full(tiles_LN.shape[1], np.float32(9))
    workspace = np.empty(((tiles_LN.shape[0] + 1) // 2, SUM_COLUMNS), np.float32)
    add_tiles(tiles_LN, first, tiles_LN.shape[1] if stop is None else stop, workspace, sums)
    return sums


@pytest.mark.parametrize("num_samples", [0, 1, 511, 513, 1000, 1024, 2047, 2048, 16384, 65_537])
def test_tiles_are_a_power_of_two_and_cover_each_sample_once(num_samples: int) -> None:
    bounds = tile_bounds(num_samples)
    sizes = [stop - first for first, stop in bounds]
    assert len(bounds) & (len(bounds) - 1) == 0
    assert bounds[0][0] == 0 and bounds[-1][1] == num_samples
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    assert max(sizes) <= MOST_TILE_SAMPLES and max(sizes) - min(sizes) <= 1


def test_small_batches_are_cut_for_a_few_threads() -> None:
    sizes = (128, 511, 512, 1023, 1024, 2048, 4096, 16384)
    assert [len(tile_bounds(size)) for size in sizes] == [1, 1, 2, 2, 4, 4, 8, 32]


@pytest.mark.parametrize("num_samples", [1000, 2048, 5555])
def test_the_half_of_a_batch_is_a_half_of_the_tiles(num_samples: int) -> None:
    """Sample i belongs to half ``2 * i // num_samples``: what several processes would share."""
    bounds = tile_bounds(num_samples)
    middle = bounds[len(bounds) // 2][0]
    assert 2 * (middle - 1) // num_samples == 0 and 2 * middle // num_samples == 1


@pytest.mark.parametrize("num_tiles", [1, 2, 3, 4, 5, 7, 8, 32])
def test_tiles_are_added_by_the_tree(num_tiles: int, rng: np.random.Generator) -> None:
    tiles = rng.standard_normal((num_tiles, 2 * SUM_COLUMNS + 3)).astype(np.float32)
    np.testing.assert_array_equal(summed(tiles), naive_tree(list(tiles)))
    if num_tiles > 3:
        serial = np.add.accumulate(tiles)[-1]
        assert not np.array_equal(summed(tiles), serial)


def test_a_piece_of_the_columns_leaves_the_others(rng: np.random.Generator) -> None:
    tiles = rng.standard_normal((3, 50)).astype(np.float32)
    found = summed(tiles, 7, 20)
    np.testing.assert_array_equal(found[7:20], naive_tree(list(tiles))[7:20])
    assert (found[:7] == 9).all() and (found[20:] == 9).all()


def test_the_sum_of_halves_is_the_sum_of_all(rng: np.random.Generator) -> None:
    tiles = rng.standard_normal((8, 100)).astype(np.float32)
    np.testing.assert_array_equal(summed(tiles[:4]) + summed(tiles[4:]), summed(tiles))


def test_losses_are_added_by_the_same_tree() -> None:
    losses = [0.1, 0.2, 0.3, 1e9, 7.0]
    assert add_losses(losses) == ((0.1 + 0.2) + (0.3 + 1e9)) + 7.0
    assert add_losses([0.5]) == 0.5
