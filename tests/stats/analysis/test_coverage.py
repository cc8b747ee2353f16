"""Coverage of lookups by rows, against sums and searches in plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.analysis.coverage import coverage_points, falling, rows_for_shares, top_shares


@pytest.mark.parametrize("num_rows", [0, 1, 7, 300])
def test_shares_and_rows_agree_with_plain_sums(num_rows: int, rng: np.random.Generator) -> None:
    counts = falling(rng.zipf(1.3, num_rows).astype(np.int64))
    plain = sorted(counts.tolist(), reverse=True)
    assert counts.tolist() == plain
    total = sum(plain)
    tops = [0, 1, num_rows // 2, num_rows, num_rows + 5]
    assert top_shares(counts, tops) == [sum(plain[:top]) / total if total else 0.0 for top in tops]
    for share in (0.0, 0.5, 0.9, 1.0):
        fewest = next(rows for rows in range(num_rows + 1) if sum(plain[:rows]) >= np.ceil(share * total))
        assert rows_for_shares(counts, [share]) == [fewest]


def test_counts_that_fall_already_are_not_copied() -> None:
    counts = np.array([5, 3, 3, 0])
    assert falling(counts) is counts


def test_points_are_even_in_their_logarithm_with_one_and_all() -> None:
    assert coverage_points(1000, 1) == [1, 10, 100, 1000]
    assert coverage_points(7, 2)[0] == 1 and coverage_points(7, 2)[-1] == 7
    assert coverage_points(0, 5) == []
