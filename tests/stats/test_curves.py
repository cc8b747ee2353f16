"""Coverage of lookups by rows, against sums and searches in plain Python.

Slopes between logarithms have intervals that cover the true one, and verdicts follow from them.

Numbers read off curves, on curves whose answers are known.

The fit has the greatest likelihood of the grid, and says how far it is from the counts.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.curves import (
    CONTRADICTED,
    MOST_HITTERS,
    SUPPORTED,
    UNDECIDED,
    Interval,
    _grid_of_q,
    _norms,
    coverage_points,
    falling,
    first_to_reach,
    fit_zipf,
    gain_of,
    log_slope,
    rows_for_shares,
    share_at,
    sum_log_ranks,
    top_shares,
    verdict,
)


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


@pytest.mark.parametrize("slope", [-1.0, 0.0, 0.5])
def test_a_power_law_has_its_exponent_and_no_error(slope: float) -> None:
    found = log_slope([(x, 3 * x**slope) for x in (1.0, 4.0, 16.0, 100.0)])
    assert found.value == pytest.approx(slope) and found.error == pytest.approx(0, abs=1e-12)


def test_two_points_have_no_error_to_tell() -> None:
    found = log_slope([(1.0, 1.0), (2.0, 4.0)])
    assert found.value == pytest.approx(2) and found.error == math.inf
    assert found.lies_in(-10, 10) is None and found.lies_in(-math.inf, math.inf) is True


@pytest.mark.parametrize("num_points", [3, 4, 8])
def test_intervals_cover_the_true_slope_as_often_as_they_say(
    num_points: int, rng: np.random.Generator
) -> None:
    x = 2.0 ** np.arange(num_points)
    covered = 0
    for _ in range(1000):
        y = x**-0.4 * np.exp(rng.normal(0, 0.2, num_points))
        found = log_slope(list(zip(x.tolist(), y.tolist(), strict=True)))
        covered += found.low <= -0.4 <= found.high
    assert 0.92 <= covered / 1000 <= 0.98


def test_an_interval_lies_inside_outside_or_across() -> None:
    one = Interval(0.05, 0.04)
    assert one.lies_in(-0.1, 0.1) is True
    assert one.lies_in(0.2, 0.3) is False and one.lies_in(-1, 0) is False
    assert one.lies_in(0.05, 1) is None


@given(st.integers(-9, 9), st.integers(0, 9), st.integers(-9, 9), st.integers(0, 9))
def test_a_claim_is_decided_by_every_point_of_an_interval(
    value: int, error: int, low: int, width: int
) -> None:
    """Ends are integers here, so the half numbers of an interval are points enough."""
    inside = [low <= half / 2 <= low + width for half in range(2 * (value - error), 2 * (value + error) + 1)]
    wanted = SUPPORTED if all(inside) else UNDECIDED if any(inside) else CONTRADICTED
    assert verdict([Interval(value, error).lies_in(low, low + width)]) == wanted


def test_one_claim_that_fails_contradicts_and_one_left_open_decides_nothing() -> None:
    assert verdict([True, True]) == SUPPORTED
    assert verdict([True, None, False]) == CONTRADICTED
    assert verdict([True, None]) == verdict([]) == UNDECIDED


SIZES = [1, 2, 4, 8, 16, 32, 64]
SHARES = [0.0, 0.0, 0.3, 0.6, 0.7, 0.72, 1.0]


def test_the_first_size_that_reaches_a_share() -> None:
    assert first_to_reach(SIZES, SHARES, 0.6) == 8
    assert first_to_reach(SIZES, SHARES, 0.61) == 16
    assert first_to_reach(SIZES, [share / 2 for share in SHARES], 0.6) is None


def test_gains_between_points_and_beyond_the_end() -> None:
    assert gain_of(SIZES, SHARES, 4, 4) == pytest.approx(0.3)
    assert gain_of(SIZES, SHARES, 2 * 2**0.5, 2 * 2**0.5) == pytest.approx(0.3)
    assert gain_of(SIZES, SHARES, 64, 64) == 0
    assert share_at(SIZES, SHARES, 4) == 0.3 and share_at(SIZES, SHARES, 0) == 0
    assert gain_of(SIZES, SHARES, 4, 4) == pytest.approx(0.3)


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


@pytest.mark.parametrize(
    ("runs", "error", "of_coverage"),
    # Two levels that no power law has. Rows are looked at in chunks of 2**20, and the largest error may be
    # behind the first one.
    [({1000: 30, 10: 500}, 1e-9, 1e-9), ({9: (1 << 20) + 700, 1: 40_000}, 1e-5, 1e-4)],
)
def test_errors_are_those_of_all_rows(runs: dict[int, int], error: float, of_coverage: float) -> None:
    counts = np.repeat(np.array([*runs], np.int64), [*runs.values()])
    fit = fit_zipf(counts)
    hitters = len(fit.heavy_hitters)
    shares = counts[hitters:] / counts.sum()
    law = (np.arange(hitters, counts.size) + fit.q) ** -fit.s
    differences = shares - law / law.sum() * shares.sum()
    running = np.abs(np.cumsum(differences))
    assert counts.size < 1 << 20 or running.argmax() > 1 << 20
    assert fit.error == pytest.approx(np.abs(differences).sum() / 2, rel=error)
    assert fit.worst_coverage_error == pytest.approx(running.max(), rel=of_coverage)
