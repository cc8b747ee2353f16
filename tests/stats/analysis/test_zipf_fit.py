"""The fit has the greatest likelihood of the grid, and says how far it is from the counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.analysis.zipf_fit import MOST_HITTERS, _grid_of_q, _norms, fit_zipf, sum_log_ranks


def zipf_counts(num_rows: int, q: float, s: float, scale: float = 1e7) -> NDArray[np.int64]:
    weights = (np.arange(num_rows) + q) ** -s
    counts: NDArray[np.int64] = np.rint(weights / weights.sum() * scale).astype(np.int64)
    return counts


def naive_likelihood(counts: NDArray[np.int64], num_hitters: int, q: float, s: float) -> float:
    """Row by row, and as FBGEMM has it: that of the rows behind the hitters, less a penalty of q."""
    total = counts.sum()
    norm = sum((rank + q) ** -s for rank in range(num_hitters, counts.size))
    logs = [
        counts[rank] / total * math.log((rank + q) ** -s / norm) for rank in range(num_hitters, counts.size)
    ]
    # FBGEMM takes no law whose first row is above the last hitter, or less than a fifth of it.
    first = counts[num_hitters:].sum() / norm * (num_hitters + q) ** -s
    if not first <= counts[num_hitters - 1] <= 5 * first:
        return -math.inf
    return float(sum(logs)) - 1e-4 * q


@pytest.mark.parametrize(("num_rows", "q", "s"), [(400, 1.0, 0.7), (90, 5.0, 1.5)])
def test_no_point_of_the_grid_around_the_fit_is_likelier(num_rows: int, q: float, s: float) -> None:
    counts = zipf_counts(num_rows, q, s)
    fit = fit_zipf(counts)
    num_hitters = len(fit.heavy_hitters)
    assert num_hitters <= MOST_HITTERS and fit.heavy_hitters[0] == counts[0] / counts.sum()
    best = naive_likelihood(counts, num_hitters, fit.q, fit.s)
    grid = _grid_of_q()
    place = grid.index(fit.q)
    for other in grid[max(place - 1, 0) : place + 2]:
        for exponent in (fit.s - 0.01, fit.s, fit.s + 0.01):
            assert naive_likelihood(counts, num_hitters, other, exponent) <= best + 1e-9
    assert fit.error < 0.02


def test_a_law_of_the_grid_is_found_again() -> None:
    fit = fit_zipf(zipf_counts(400, 1.0, 0.7))
    assert fit.q == 1.0 and fit.s == pytest.approx(0.7) and fit.error < 1e-4


def test_errors_are_those_of_all_rows() -> None:
    # Two levels that no power law has.
    counts = np.array([1000] * 30 + [10] * 500, np.int64)
    fit = fit_zipf(counts)
    hitters = len(fit.heavy_hitters)
    ranks = np.arange(hitters, counts.size)
    shares = counts[hitters:] / counts.sum()
    law = (ranks + fit.q) ** -fit.s
    differences = shares - law / law.sum() * shares.sum()
    assert fit.error == pytest.approx(np.abs(differences).sum() / 2) and fit.error > 0.1
    assert fit.worst_coverage_error == pytest.approx(np.abs(np.cumsum(differences)).max())


@pytest.mark.parametrize("counts", [[], [0, 0], [5], [5, 0], [3, 3], [7] * 20])
def test_small_tables_are_hitters_alone(counts: list[int]) -> None:
    fit = fit_zipf(np.array(counts, np.int64))
    used = [count for count in counts if count]
    assert fit.error == 0 and len(fit.heavy_hitters) <= len(used)
    assert all(share == count / sum(used) for share, count in zip(fit.heavy_hitters, used, strict=False))


def test_sums_agree_with_the_naive_ones(rng: np.random.Generator) -> None:
    shares_R = rng.random(5)
    bounds = np.array([3, 4, 9, 50, 51, 200])
    wanted = sum(
        shares_R[run] * math.log(rank + 2.5)
        for run in range(5)
        for rank in range(bounds[run], bounds[run + 1])
    )
    assert sum_log_ranks(bounds, shares_R, 2.5) == pytest.approx(wanted, rel=1e-12)
    exponents = np.array([0.01, 0.5, 1.0, 1.99])
    for first, count in ((1.0, 3), (21.0, 64), (1.0, 5000), (1000.0, 5000)):
        naive = [sum((first + k) ** -s for k in range(count)) for s in exponents]
        np.testing.assert_allclose(_norms(exponents, first, count), naive, rtol=1e-6)


def naive_num_hitters(counts: list[int]) -> int:
    """Rows are taken until they serve more than nine tenths of the lookups, at most twenty."""
    served = 0
    for number, count in enumerate(counts[:MOST_HITTERS], 1):
        served += count
        if served > 0.9 * sum(counts):
            return number
    return min(len(counts), MOST_HITTERS)


@pytest.mark.parametrize(
    "counts", [[90, 9, 1], [89, 2, 2, 2, 2, 2, 1], [1] * 30, [500, 1, 1], [64, 32, 16, 8, 4, 2, 1], [3]]
)
def test_hitters_are_those_that_serve_nine_tenths(counts: list[int]) -> None:
    fit = fit_zipf(np.array(counts, np.int64))
    assert len(fit.heavy_hitters) == naive_num_hitters(counts)
    assert list(fit.heavy_hitters) == [count / sum(counts) for count in counts[: len(fit.heavy_hitters)]]


def test_a_fit_is_of_shares_alone() -> None:
    """More lookups of every row, or rows without a lookup, change nothing of it."""
    counts = zipf_counts(300, 3.0, 1.1, scale=1e5)
    fit = fit_zipf(counts)
    for other in (8 * counts, np.concatenate([counts, np.zeros(50, np.int64)])):
        found = fit_zipf(other)
        assert (found.q, found.s, found.heavy_hitters) == (fit.q, fit.s, fit.heavy_hitters)
        assert found.error == pytest.approx(fit.error, rel=1e-9)


def test_errors_go_on_from_one_million_rows_to_the_next() -> None:
    """Rows are looked at in chunks of 2**20, and the largest error may lie behind the first one."""
    counts = np.repeat(np.array([9, 1], np.int64), [(1 << 20) + 700, 40_000])
    fit = fit_zipf(counts)
    hitters = len(fit.heavy_hitters)
    shares = counts[hitters:] / counts.sum()
    law = (np.arange(hitters, counts.size) + fit.q) ** -fit.s
    differences = shares - law / law.sum() * shares.sum()
    running = np.abs(np.cumsum(differences))
    assert running.argmax() > 1 << 20
    assert fit.error == pytest.approx(np.abs(differences).sum() / 2, rel=1e-5)
    assert fit.worst_coverage_error == pytest.approx(running.max(), rel=1e-4)
