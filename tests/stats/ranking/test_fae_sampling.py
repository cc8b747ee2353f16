"""FAE's statistics: the quantile against an integral, intervals against their promise, draws, thresholds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.ranking.fae_sampling import (
    _QUANTILE,
    CHUNK_ROWS,
    NUM_CHUNKS,
    ProfiledTable,
    add_drawn,
    draw_chunks,
    draw_samples,
    estimate_bytes,
    estimate_rows,
    find_threshold,
    is_permutation,
    number_by_appearance,
)


def test_the_quantile_agrees_with_numerical_integration() -> None:
    degrees = NUM_CHUNKS - 1
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    x = np.linspace(-_QUANTILE, _QUANTILE, 20_001)
    y = scale / math.sqrt(degrees * math.pi) * (1 + x * x / degrees) ** (-(degrees + 1) / 2)
    assert float((y[1:] + y[:-1]).sum() / 2 * (x[1] - x[0])) == pytest.approx(0.999, abs=1e-9)


def test_an_interval_is_that_of_the_formula(rng: np.random.Generator) -> None:
    counts = rng.integers(0, 1024, 35)
    num_chunks = 500.5
    found = estimate_rows(counts, num_chunks)
    half = _QUANTILE * math.sqrt((num_chunks - 35) / num_chunks * float(counts.var(ddof=1)) / 35)
    assert found.middle == pytest.approx(counts.mean() * num_chunks)
    assert found.high == pytest.approx((counts.mean() + half) * num_chunks)
    assert found.low == pytest.approx(max(0.0, counts.mean() - half) * num_chunks)


def test_of_all_chunks_nothing_is_uncertain() -> None:
    found = estimate_rows(np.array([3, 900, 7]), 3.0)
    assert found.low == found.middle == found.high == 910
    assert estimate_rows(np.zeros(35, np.int64), 1000.0).high == 0


def test_the_interval_covers_as_often_as_it_says(rng: np.random.Generator) -> None:
    """Rows in random order: the picture of the paper."""
    rows = rng.random(400 * 64) < 0.2
    chunks = rows.reshape(400, 64).sum(axis=1)
    covered = 0
    for _ in range(400):
        chosen = chunks[rng.choice(400, NUM_CHUNKS, replace=False)]
        found = estimate_rows(chosen, 400.0)
        covered += found.low <= rows.sum() <= found.high
    assert abs(covered / 400 - 0.999) < 4 * math.sqrt(0.001 / 400)


def test_chunks_are_different_and_of_the_seed() -> None:
    chunks = draw_chunks(100, 35, 1)
    assert len(set(chunks.tolist())) == 35 and (np.diff(chunks) > 0).all() and chunks.max() < 100
    assert chunks.tolist() == draw_chunks(100, 35, 1).tolist() != draw_chunks(100, 35, 2).tolist()
    assert draw_chunks(3, 35, 1).tolist() == [0, 1, 2]


def zipf_tables(rng: np.random.Generator) -> list[ProfiledTable]:
    counters = [rng.zipf(1.3, rows).clip(1, 10_000) - 1 for rows in (60_000, 200_000, 20_000)]
    return [
        ProfiledTable.of(counts, width, 5e4, 0) for counts, width in zip(counters, (64, 64, 16), strict=True)
    ]


def test_small_numbers_of_chunks_are_counted_in_full(rng: np.random.Generator) -> None:
    tables = zipf_tables(rng)
    assert [table.chunks.shape for table in tables] == [(35, 1024), (35, 1024), (1, 20_000)]
    found = tables[2].estimate(3 / 5e4)
    assert found.low == found.high == (tables[2].chunks >= 3).sum()


def test_the_threshold_is_the_least_whose_upper_end_fits(rng: np.random.Generator) -> None:
    tables = zipf_tables(rng)
    for budget in (0, 10_000, 500_000, 3_000_000):
        threshold = find_threshold(tables, budget)
        assert estimate_bytes(tables, threshold).high <= budget
        cut_off = tables[0].cut_off(threshold)
        if cut_off > 1:
            assert estimate_bytes(tables, (cut_off - 1) / 5e4).high > budget
    everything = sum(table.num_rows * table.row_bytes for table in tables)
    assert find_threshold(tables, everything) == 0.0 == find_threshold([], 0)
    assert tables[0].cut_off(find_threshold(tables, everything - 1)) >= 1


@settings(max_examples=50, deadline=None)
@given(num_samples=st.integers(0, 400), rate=st.floats(0.01, 1), seed=st.integers(0, 9))
def test_draws_are_as_many_as_asked_for(num_samples: int, rate: float, seed: int) -> None:
    times = np.zeros(num_samples, np.uint8)
    drawn = draw_samples(num_samples, rate, seed, True, times)
    assert drawn == times.sum() == int(rate * num_samples)
    once = np.zeros(num_samples, np.uint8)
    drawn = draw_samples(num_samples, rate, seed, False, once)
    assert drawn == once.sum() and (num_samples == 0 or once.max() <= 1)
    assert rate < 1 or drawn == num_samples


def test_draws_are_uniform() -> None:
    for with_replacement in (False, True):
        times = np.zeros(40_000, np.uint8)
        drawn = draw_samples(40_000, 0.25, 3, with_replacement, times)
        assert abs(drawn - 10_000) < 5 * math.sqrt(7_500)
        quarters = times.reshape(4, -1).sum(axis=1)
        assert (abs(quarters - drawn / 4) < 5 * math.sqrt(drawn / 4)).all()
        assert (times.max() > 1) == with_replacement


def test_only_drawn_samples_are_counted(rng: np.random.Generator) -> None:
    lengths = rng.integers(0, 4, 50)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = rng.integers(0, 9, offsets[-1]).astype(np.int32)
    times = rng.integers(0, 3, 50).astype(np.uint8)
    counts = np.zeros(9, np.int64)
    add_drawn(ids, offsets, times, counts)
    wanted = np.zeros(9, np.int64)
    for sample in range(50):
        for row in ids[offsets[sample] : offsets[sample + 1]]:
            wanted[row] += int(times[sample])
    np.testing.assert_array_equal(counts, wanted)
    assert CHUNK_ROWS == 1024


@pytest.mark.parametrize("num_ids", [0, 1, 7, 4096])
def test_rows_are_numbered_as_they_appear(num_ids: int, rng: np.random.Generator) -> None:
    ids = (rng.zipf(1.2, num_ids) % 100).astype(np.int32)
    numbers = np.full(100, -1, np.int32)
    middle = num_ids // 3
    num_seen = number_by_appearance(ids[:middle], 0, numbers)
    num_seen = number_by_appearance(ids[middle:], num_seen, numbers)
    wanted = {row: number for number, row in enumerate(dict.fromkeys(ids.tolist()))}
    assert numbers.tolist() == [wanted.get(row, -1) for row in range(100)] and num_seen == len(wanted)


def test_a_permutation_has_every_position_once() -> None:
    for positions, is_one in (([], True), ([0], True), ([2, 0, 1], True), ([0, 0], False), ([0, 2], False)):
        assert is_permutation(np.array(positions, np.int64)) == is_one
    assert not is_permutation(np.array([-1, 0], np.int64))


def test_intervals_cover_less_often_where_rows_stand_in_the_order_of_first_appearance() -> None:
    """FAE's own picture is of rows in any order; numbered as they appear, often used rows stand together."""
    rng = np.random.default_rng(1)
    weights = np.arange(1, 200_001) ** -1.05
    lookups = rng.choice(200_000, 400_000, p=weights / weights.sum())
    _, firsts, counts = np.unique(lookups, return_index=True, return_counts=True)
    by_appearance = rng.binomial(counts[np.argsort(firsts)], 0.05)
    shares = []
    for counters in (by_appearance, rng.permutation(by_appearance)):
        is_covered = []
        for seed in range(60):
            table = ProfiledTable.of(counters, 64, 20_000.0, seed)
            found = table.estimate(12 / 20_000)
            is_covered.append(found.low <= (counters >= 12).sum() <= found.high)
        shares.append(float(np.mean(is_covered)))
    assert shares[0] < 0.8 and shares[1] > 0.95, shares
