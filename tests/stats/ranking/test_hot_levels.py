"""Hot rows under many budgets at once, against a pass for each."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hotset.stats.ranking.hot_levels import MAX_BUDGETS, levels_by_count, levels_of_prefixes, raise_levels

ONE_EACH = np.zeros(0, np.int32)


@pytest.mark.parametrize(("num_samples", "num_budgets"), [(0, 2), (1, 1), (7, 3), (300, 6)])
def test_budgets_in_one_pass_agree_with_a_pass_each(
    num_samples: int, num_budgets: int, rng: np.random.Generator
) -> None:
    ids = np.minimum(rng.zipf(1.5, (num_samples, 5)) - 1, 79).astype(np.int32)
    num_hot = np.sort(rng.integers(0, 80, (num_budgets, 5)), axis=0)
    level_B = np.zeros(num_samples, np.uint8)
    lookups_L = np.full(num_budgets + 1, 100, np.int64)
    for table in range(5):
        raise_levels(ids[:, table], ONE_EACH, levels_of_prefixes(num_hot[:, table], 80), level_B, lookups_L)
    is_hot = ids[None] < num_hot[:, None]
    np.testing.assert_array_equal(np.cumsum(lookups_L - 100)[:-1], is_hot.sum(axis=(1, 2)))
    hot_samples = np.cumsum(np.bincount(level_B, minlength=num_budgets + 1))[:-1]
    np.testing.assert_array_equal(hot_samples, is_hot.all(axis=2).sum(axis=1))
    assert lookups_L.sum() == ids.size + 100 * (num_budgets + 1)


def test_lists_and_rows_that_are_no_prefix(rng: np.random.Generator) -> None:
    lengths = rng.integers(0, 4, 50)
    offsets = np.cumsum([0, *lengths], dtype=np.int32)
    ids = rng.integers(0, 20, offsets[-1]).astype(np.int32)
    level_T = rng.integers(0, 4, 20).astype(np.uint8)
    level_B = np.zeros(50, np.uint8)
    lookups_L = np.zeros(4, np.int64)
    raise_levels(ids, offsets, level_T, level_B, lookups_L)
    bags = [ids[first:stop] for first, stop in pairwise(offsets)]
    assert level_B.tolist() == [max((int(level_T[row]) for row in bag), default=0) for bag in bags]
    assert lookups_L.tolist() == np.bincount(level_T[ids], minlength=4).tolist()


def test_levels_of_a_table_shorter_than_its_hot_rows() -> None:
    assert levels_of_prefixes(np.array([1, 1, 3, 9]), 5).tolist() == [0, 2, 2, 3, 3]
    assert levels_of_prefixes(np.array([0, 2]), 4).tolist() == [1, 1, 2, 2]
    assert levels_of_prefixes(np.array([0]), 0).tolist() == []
    with pytest.raises(ValueError, match="256 budgets"):
        levels_of_prefixes(np.zeros(MAX_BUDGETS + 1, np.int64), 4)


@pytest.mark.parametrize("num_rows", [0, 1, 200])
def test_levels_by_count_agree_with_filling_each_budget(num_rows: int, rng: np.random.Generator) -> None:
    counts = rng.integers(0, 4, num_rows).astype(np.int32)
    ends = np.array([0, num_rows // 3, num_rows])
    of_table = np.array([4, 64])
    widths = np.repeat(of_table, np.diff(ends))
    budgets = np.array([0, 4, 100, 1000, 10**6])
    levels = levels_by_count(counts, ends, of_table, budgets, seed=1)
    assert levels.max(initial=0) <= 4
    for level, budget in enumerate(budgets[:4]):
        hot = (levels <= level) & (counts > 0)
        if not hot[counts > 0].all():
            assert not (levels <= level)[counts == 0].any()
        assert widths[hot].sum() <= budget
        if hot.any() and (cold := ~hot & (counts > 0)).any():
            assert counts[cold].max() <= counts[hot].min()
            assert widths[hot].sum() + 64 > budget


def test_rows_without_a_count_fill_what_is_left() -> None:
    counts = np.zeros(10_000, np.int32)
    counts[:100] = 1
    budgets = np.array([6400, 64 * 5000, 640_000])
    levels = levels_by_count(counts, np.array([0, 10_000]), np.array([64]), budgets, seed=1)
    assert (levels[:100] == 0).all() and not (levels[100:] == 0).any()
    assert abs(int((levels <= 1).sum()) - 5000) < 200
    assert (levels <= 2).all()
