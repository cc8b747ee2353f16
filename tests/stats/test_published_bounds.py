"""Bounds by name are those of the published lists, and sizes reproduce most of them."""

from __future__ import annotations

from collections import Counter

import pytest

from hotset.stats.published_bounds import PUBLISHED_LISTS, bound_by_size, published_bounds


@pytest.mark.parametrize(("log", "tight", "loose"), [("kaggle", 8, 6), ("terabyte", 7, 9)])
def test_every_table_of_a_log_has_a_bound(log: str, tight: int, loose: int) -> None:
    bounds = published_bounds(log)
    assert list(bounds) == [f"C{n}" for n in range(1, 27)]
    assert Counter(bounds.values()) == {0.01: tight, 0.05: loose, 0.03: 26 - tight - loose}
    assert set(PUBLISHED_LISTS) == {"kaggle", "terabyte"}


def test_sizes_stand_for_the_lists() -> None:
    assert [bound_by_size(rows) for rows in (1, 999, 1_000, 400_000, 400_001)] == [
        0.05,
        0.05,
        0.03,
        0.03,
        0.01,
    ]
    # Terabyte's table of 313,829 rows is base; Kaggle's of 3 rows is the ninth, counted from 1.
    assert published_bounds("terabyte")["C12"] == bound_by_size(313_829) == 0.03
    assert published_bounds("kaggle")["C9"] == bound_by_size(3) == 0.05
