"""Profiles: coverage, the missing value taken out of it, refusals, and what is in the file."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.generate.profile import PROFILES, Coverage, load_profile, profile_names, without_missing


def test_a_profile_that_does_not_exist_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match="'criteo'") as caught:
        load_profile("criteo")
    assert caught.value.hint is not None and "criteo-kaggle" in caught.value.hint


def test_profiles_are_small() -> None:
    assert profile_names() == ["criteo-kaggle", "taobao"]
    assert all(path.stat().st_size < 60_000 for path in PROFILES.glob("*.json"))


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


@pytest.mark.parametrize(
    ("missing_rank", "ranks", "shares"),
    [(0, [1, 3], [0.3, 0.6]), (2, [1, 2, 3], [0.4, 0.6, 0.9])],
)
def test_missing_is_taken_out_at_its_rank(missing_rank: int, ranks: list[int], shares: list[float]) -> None:
    found = without_missing([1, 2, 4], [0.4, 0.7, 1.0], missing_rank, 0.1 if missing_rank else 0.4)
    if missing_rank == 0:
        np.testing.assert_allclose(found.ranks, [1, 3])
        np.testing.assert_allclose(found.shares, [0.5, 1.0])
    else:
        np.testing.assert_allclose(found.ranks, [1, 2, 3])
        np.testing.assert_allclose(found.shares, [0.4 / 0.9, 0.7 / 0.9, 1.0])
