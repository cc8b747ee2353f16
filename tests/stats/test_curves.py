"""Coverage of lookups by rows, against sums and searches in plain Python.

Slopes between logarithms have intervals that cover the true one, and verdicts follow from them. Numbers read
off curves, on curves whose answers are known. The fit has the greatest likelihood of the grid, and says how
far it is from the counts. Expected unique rows: golden values, draws counted, bounds that hold. Rows loaded
in an epoch: probabilities against whole numbers, loads against caches that run.
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
    AccessRates,
    EpochUses,
    Interval,
    _grid_of_q,
    _norms,
    absence,
    buffer_rows,
    coverage_points,
    falling,
    first_to_reach,
    fit_zipf,
    gain_of,
    largest,
    log_slope,
    mean_unique_rows,
    presence,
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


def zipf(num_rows: int, exponent: float) -> NDArray[np.float64]:
    weights = np.arange(1, num_rows + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize(
    "num_rows, exponent, expected",
    [
        (1_000, 0.0, {1: 1, 64: 62.025036, 1024: 641.028522, 8192: 999.724273}),
        (1_000, 1.0, {1: 1, 64: 43.935082, 1024: 338.732453, 8192: 870.525079}),
        (100_000, 1.0, {1: 1, 64: 53.902806, 1024: 634.520133, 8192: 3672.396654}),
        (1_000_000, 1.05, {1: 1, 64: 52.652224, 1024: 623.964208, 8192: 3790.779074}),
    ],
)
def test_expectations_are_the_golden_ones(num_rows: int, exponent: float, expected: dict[int, float]) -> None:
    probabilities = zipf(num_rows, exponent)
    found = {n: presence(probabilities, n).sum() for n in expected}
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
def test_draws_have_about_as_many_different_rows(exponent: float, rng: np.random.Generator) -> None:
    probabilities = zipf(2_000, exponent)
    num_draws = 1_500
    rounds = [np.unique(rng.choice(2_000, num_draws, p=probabilities)).size for _ in range(60)]
    spread = 4 * float(np.std(rounds)) / np.sqrt(len(rounds))
    assert np.mean(rounds) == pytest.approx(presence(probabilities, num_draws).sum(), abs=spread)


def test_a_buffer_overflows_no_more_often_than_promised(rng: np.random.Generator) -> None:
    probabilities = zipf(500, 1.0)
    limit = buffer_rows(float(presence(probabilities, 300).sum()), 0.05)
    rounds = [np.unique(rng.choice(500, 300, p=probabilities)).size for _ in range(400)]
    assert np.mean(np.array(rounds) > limit) <= 0.05
    assert buffer_rows(0.0, 1.0) == 0


@pytest.mark.parametrize("expected", [0.0, 0.1, 3.0, 1000.0])
@pytest.mark.parametrize("probability", [0.5, 1e-3, 1e-12])
def test_a_buffer_is_no_smaller_than_the_bound(expected: float, probability: float) -> None:
    more = buffer_rows(expected, probability) - expected
    assert math.exp(-(more**2) / (2 * (expected + more / 3))) <= probability


rates_of_rows = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@given(rates_of_rows, st.integers(1, 500))
def test_more_draws_bring_fewer_new_rows_each(rates: list[float], num_draws: int) -> None:
    probabilities = np.array(rates)
    fewer, same, more = (presence(probabilities, n).sum() for n in (num_draws - 1, num_draws, num_draws + 1))
    assert fewer <= same + 1e-9 and same <= more + 1e-9
    assert more - same <= same - fewer + 1e-9


@given(rates_of_rows, st.integers(0, 200))
def test_presence_is_the_plain_formula(rates: list[float], num_draws: int) -> None:
    probabilities = np.array(rates)
    np.testing.assert_allclose(
        presence(probabilities, num_draws), 1 - (1 - probabilities) ** num_draws, atol=1e-12
    )


def test_rows_of_equal_counts_count_together(rng: np.random.Generator) -> None:
    counts = [rng.integers(0, 5, 40), rng.integers(0, 9, 25), np.zeros(3, np.int64)]
    rates = AccessRates.of_counts(counts, 60)
    every = np.sort(np.concatenate(counts))[::-1] / 60
    assert np.all(np.diff(rates.rates) < 0)
    assert rates.lookups_per_sample == pytest.approx(every.sum())
    assert presence(rates.rates, 17) @ rates.num_rows == pytest.approx(presence(every, 17).sum())
    top, rest = rates.split(9)
    assert top.num_rows.sum() == 9
    assert top.lookups_per_sample == pytest.approx(every[:9].sum())
    assert rest.lookups_per_sample == pytest.approx(every[9:].sum())
    assert AccessRates.of_counts([], 1).lookups_per_sample == 0


def test_unique_rows_of_a_stream_are_counted_batch_by_batch(rng: np.random.Generator) -> None:
    rows = rng.integers(0, 20, 47)
    batches = [np.unique(rows[first : first + 9]).size for first in range(0, 45, 9)]
    assert mean_unique_rows(rows, 9) == np.mean(batches)
    with pytest.raises(ValueError, match="less than one batch"):
        mean_unique_rows(rows, 48)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="num_draws"):
        presence(np.array([0.5]), -1)
    with pytest.raises(ValueError, match="overflow_probability"):
        buffer_rows(3.0, 0.0)


NEVER = 1 << 30


def test_absence_is_nearly_hypergeometric() -> None:
    for num_samples in (1, 2, 3, 5, 10, 40, 1000):
        numbers = range(0, num_samples + 1, max(1, num_samples // 20))
        for num_drawn in numbers:
            lookups = np.array(numbers, np.float64)
            wanted = [
                math.comb(num_samples - count, num_drawn) / math.comb(num_samples, num_drawn)
                for count in numbers
            ]
            np.testing.assert_allclose(absence(lookups, num_drawn, num_samples), wanted, atol=0.012)
    # The two that matter most are exact: a row looked up once, and a window that must meet the row.
    assert absence(np.array([1.0]), 300.0, 1000.0)[0] == pytest.approx(0.7)
    assert absence(np.array([701.0]), 300.0, 1000.0)[0] == 0


def test_a_row_is_used_once_or_by_every_batch() -> None:
    rates = AccessRates(np.array([1.0, 1 / 4_000]), np.array([1, 3]))
    uses = EpochUses.of_rates(rates, 4_000, 100)
    assert uses.num_uses.tolist() == pytest.approx([40, 1]) and uses.num_batches == 40
    assert uses.num_first_uses == 4 and uses.rows_per_batch == pytest.approx(1 + 3 / 40)
    # An epoch of less than a batch is one batch.
    assert EpochUses.of_rates(rates, 50, 100).num_batches == 1


def drawn_log(rng: np.random.Generator, exponent: float) -> NDArray[np.int64]:
    """(num_batches, batch_size), lookups of one feature in the order of training."""
    weights = np.arange(1, 3_001) ** -exponent
    return rng.choice(3_000, (60, 200), p=weights / weights.sum())


def counted_uses(log: NDArray[np.int64]) -> EpochUses:
    _, counts = np.unique(log, return_counts=True)
    return EpochUses.of_rates(AccessRates.of_counts([counts], log.size), log.size, log.shape[1])


def _next_use(uses: list[int], now: int) -> int:
    return next((use for use in uses if use > now), NEVER)


def naive_loads(log: NDArray[np.int64], num_slots: int, *, by_next_use: bool) -> int:
    """Loads of a cache that evicts the farthest next use, or the row with the fewest lookups in the log."""
    batches = [set(batch.tolist()) for batch in log]
    lookups = np.bincount(log.ravel()).tolist()
    uses: dict[int, list[int]] = {}
    for number, batch in enumerate(batches):
        for row in batch:
            uses.setdefault(row, []).append(number)
    held: set[int] = set()
    num_loads = 0
    for number, batch in enumerate(batches):
        num_loads += len(batch - held)
        others = sorted(
            held - batch, key=lambda row: _next_use(uses[row], number) if by_next_use else -lookups[row]
        )
        held = batch | set(others[: num_slots - len(batch)])
    return num_loads


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("exponent", [0.6, 1.1])
@pytest.mark.parametrize("num_slots", [200, 300, 600, 1_500, 3_000])
def test_loads_are_those_of_a_cache_that_runs(
    exponent: float, num_slots: int, rng: np.random.Generator
) -> None:
    log = drawn_log(rng, exponent)
    uses = counted_uses(log)
    found = uses.lookahead_loads(num_slots, prefetch=0)
    assert found == pytest.approx(naive_loads(log, num_slots, by_next_use=True), rel=0.03)
    found = uses.cache_loads(num_slots)
    assert found == pytest.approx(naive_loads(log, num_slots, by_next_use=False), rel=0.1)


def test_with_slots_for_all_each_row_is_loaded_once_and_with_too_few_twice_a_batch(
    rng: np.random.Generator,
) -> None:
    uses = counted_uses(drawn_log(rng, 0.8))
    for loads in (uses.cache_loads(3_000), uses.lookahead_loads(10_000, 0)):
        assert loads == pytest.approx(uses.num_first_uses)
    for loads in (uses.cache_loads(10), uses.lookahead_loads(10, 0)):
        assert loads == pytest.approx(2 * 60 * uses.rows_per_batch)
    assert uses.num_passes(10) == 2 and uses.num_passes(200) == 1
    # Further ahead, rows that leave keep their slots longer, and more must leave.
    ahead = [uses.lookahead_loads(600, prefetch) for prefetch in (0, 1, 2, 4)]
    assert ahead == sorted(ahead) and ahead[0] < ahead[-1]
    slots = [uses.lookahead_loads(num_slots, 0) for num_slots in (200, 400, 800, 1_600)]
    assert slots == sorted(slots, reverse=True)


def test_the_largest_that_fits() -> None:
    assert largest(lambda value: value <= 70, 1_000.0) == pytest.approx(70, rel=2e-3)
    assert largest(lambda _: True, 9.5) == 9.5 and largest(lambda _: False, 9.5) == pytest.approx(1, rel=0.01)
    assert largest(lambda _: True, 0.5) == 1
