"""The tables made from a profile: exact marginals for any dependence and scale, click rate, sigmoid.

Profiles: coverage, refusals, and what is in the files.
"""

from __future__ import annotations

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.generate.kernel import NUM_SIGMOID, World, draw_samples
from hotset.pipeline.generate.world import (
    PROFILES,
    Coverage,
    load_profile,
    piece_ranks,
    profile_names,
    scaled_num_rows,
    sigmoid_table,
    world_of,
)

ONE = float(1 << 32)
PROFILE = load_profile("criteo-kaggle")


def shares(ends: np.ndarray) -> np.ndarray:
    return np.diff(ends.astype(np.float64), axis=-1, prepend=0.0) / ONE


def missing_by_class(world: World, column: int) -> np.ndarray:
    found = np.zeros(world.class_ends.shape[0])
    for group in range(world.missing_masks.shape[0]):
        names_it = (world.missing_masks[group] >> np.uint64(column)) & np.uint64(1)
        found += shares(world.missing_ends[group]) @ names_it.astype(np.float64)
    return found


def test_missing_shares_are_the_profiles() -> None:
    world = world_of("criteo-kaggle")
    weights = shares(world.class_ends)
    for place, column in enumerate(PROFILE.columns):
        assert weights @ missing_by_class(world, place) == pytest.approx(column.missing_share, abs=1e-6)


def test_buckets_of_all_classes_together_have_the_profiles_shares() -> None:
    world = world_of("criteo-kaggle")
    weights = shares(world.class_ends)
    for place, column in enumerate(PROFILE.columns):
        present = weights * (1 - missing_by_class(world, place))
        drawn = present @ shares(world.bucket_ends[:, place, 1:]) / present.sum()
        starts = np.append(world.bucket_starts[place].astype(np.float64), ONE)
        np.testing.assert_allclose(drawn, np.diff(starts) / ONE, atol=2e-4, err_msg=column.name)


def test_the_sigmoid_is_the_sigmoid() -> None:
    logits = (np.arange(NUM_SIGMOID) - NUM_SIGMOID // 2) / 256
    np.testing.assert_allclose(sigmoid_table() / ONE, 1 / (1 + np.exp(-logits)), atol=1e-9)


@pytest.mark.parametrize(
    ("num_rows", "scale", "wanted"),
    [(3, 10, 3), (100, 1000, 100), (583, 10, 100), (10_131_227, 1000, 10_131)],
)
def test_a_scale_divides_large_tables_and_leaves_small_ones(num_rows: int, scale: float, wanted: int) -> None:
    assert scaled_num_rows(num_rows, scale) == wanted


def test_pieces_cover_each_column_once() -> None:
    for column in PROFILE.columns:
        ranks = piece_ranks(column, 1)
        assert ranks[0] == 0 and ranks[-1] == column.present.num_values
        assert np.all(np.diff(ranks) > 0)
        assert set(column.present.ranks.astype(int)) <= set(ranks.tolist())


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("scale", [1, 17.5, 1000, 1e9])
def test_every_scale_gives_valid_samples_that_click_at_the_rate(scale: float) -> None:
    num_samples = 60_000
    world = world_of("criteo-kaggle", scale)
    ranks = np.empty((num_samples, 39), np.int64)
    logits = np.empty(num_samples, np.int64)
    labels = np.empty(num_samples, np.uint8)
    draw_samples(world, np.uint64(11), 0, ranks, logits, labels)
    assert labels.mean() == pytest.approx(0.256, abs=0.006)
    for place, column in enumerate(PROFILE.columns):
        assert ranks[:, place].max() < piece_ranks(column, scale)[-1]
        first_share = np.mean(ranks[ranks[:, place] >= 0, place] == 0)
        assert first_share == pytest.approx(
            float(column.present.at(column.present.num_values, np.array([1]))[0]), abs=0.012
        )


def test_a_profile_that_does_not_exist_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match="'criteo'") as caught:
        load_profile("criteo")
    assert caught.value.hint is not None and "criteo-kaggle" in caught.value.hint


def test_profiles_are_small() -> None:
    assert profile_names() == ["criteo-kaggle", "taobao"]
    assert all(path.stat().st_size < 60_000 for path in PROFILES.iterdir())


def test_the_kaggle_profile_has_the_published_rows() -> None:
    columns = load_profile("criteo-kaggle").columns
    assert [column.name for column in columns[:13]] == [f"I{number}" for number in range(1, 14)]
    assert [column.name for column in columns[13:]] == [f"C{number}" for number in range(1, 27)]
    assert sum(column.num_rows for column in columns[13:]) == 33_762_577
    for column in columns[13:]:
        assert column.present.num_values == column.num_rows - (column.missing_share > 0)


def test_coverage_is_linear_in_the_logarithm_of_the_rank() -> None:
    coverage = Coverage(np.array([1.0, 4.0, 64.0]), np.array([0.2, 0.6, 1.0]))
    shares = coverage.at(64, np.array([0, 1, 2, 4, 16, 64]))
    np.testing.assert_allclose(shares, [0, 0.2, 0.4, 0.6, 0.8, 1.0])


def test_a_shrunk_column_keeps_its_head_and_its_shape() -> None:
    coverage = Coverage(np.array([1.0, 4.0, 64.0]), np.array([0.2, 0.6, 1.0]))
    shares = coverage.at(8, np.array([0, 1, 2, 8]))  # 8 = 64 ** (1 / 2): rank 2 now stands where 4 stood
    np.testing.assert_allclose(shares, [0, 0.2, 0.6, 1.0])


def test_a_column_of_one_value_is_covered_by_it() -> None:
    coverage = Coverage(np.array([1.0, 3.0]), np.array([0.5, 1.0]))
    np.testing.assert_allclose(coverage.at(1, np.array([0, 1])), [0, 1])
