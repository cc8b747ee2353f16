"""The drift kernels against dictionaries and sorted lists, summaries of values against sorting them."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.drift import (
    MAX_PARTS,
    NUM_BINS,
    ValueSummary,
    bin_edge,
    count_bits,
    count_common,
    count_rows,
    cut_evenly,
    judge_lookups,
    mark_part,
    marks_dtype,
    mean_by_age,
)
from hotset.stats.id_tables import mix64_pair
from hotset.stats.kernel import read_only

Row = tuple[int, int]
"""Table and id."""


def naive_hot(counts: Counter[Row], first_row: list[int], row_bytes: list[int], budget: int) -> set[Row]:
    """The longest prefix, by lookups per byte and then hash, that fits."""

    def worth(row: Row) -> tuple[Fraction, int]:
        return -Fraction(counts[row], row_bytes[row[0]]), int(
            mix64_pair(np.uint64(0), np.uint64(first_row[row[0]] + row[1]))
        )

    hot: set[Row] = set()
    for row in sorted(counts, key=worth):
        budget -= row_bytes[row[0]]
        if budget < 0:
            break
        hot.add(row)
    return hot


Samples = list[list[list[int]]]
"""Per sample and table the ids it looks up."""


def draw_part(num_rows: list[int], is_list: list[bool], rng: np.random.Generator) -> Samples:
    lengths = [rng.integers(0, 4, 25) if some else np.ones(25, np.int64) for some in is_list]
    return [
        [
            [min(int(rng.zipf(1.4)) - 1, rows - 1) for _ in range(length[sample])]
            for rows, length in zip(num_rows, lengths, strict=True)
        ]
        for sample in range(int(rng.integers(0, 25)))
    ]


def as_lookups(part: Samples, table: int, is_list: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    bags = [sample[table] for sample in part]
    ids = np.array([row for bag in bags for row in bag], np.int32)
    offsets = np.cumsum([0, *map(len, bags)], dtype=np.int32)
    return ids, offsets if is_list else np.zeros(0, np.int32)


def rows_of(sample: list[list[int]]) -> list[Row]:
    return [(table, row) for table, rows in enumerate(sample) for row in rows]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_parts=st.integers(1, 5),
    tables=st.lists(st.tuples(st.sampled_from([4, 6, 64]), st.booleans()), min_size=1, max_size=4),
    budget=st.integers(0, 1500),
)
def test_every_part_agrees_with_sorted_rows(
    seed: int, num_parts: int, tables: list[tuple[int, bool]], budget: int
) -> None:
    rng = np.random.default_rng(seed)
    row_bytes = [width for width, _ in tables]
    is_list = [some for _, some in tables]
    num_rows = rng.integers(1, 30, len(tables)).tolist()
    first_row_T = np.cumsum([0, *num_rows], dtype=np.int64)
    parts = [draw_part(num_rows, is_list, rng) for _ in range(num_parts)]
    counts = [Counter(row for sample in part for row in rows_of(sample)) for part in parts]
    hot = [naive_hot(count, first_row_T.tolist(), row_bytes, budget) for count in counts]

    marks_R = np.zeros(first_row_T[-1], marks_dtype(num_parts))
    for number, part in enumerate(parts):
        counts_R = np.zeros(first_row_T[-1], np.int32)
        for table, some in enumerate(is_list):
            count_rows(as_lookups(part, table, some)[0], counts_R[first_row_T[table] :])
        widths = np.array(row_bytes, np.int64)
        found = mark_part(counts_R, first_row_T, widths, budget, number, num_parts, marks_R)
        assert found == len(hot[number])
    common_PP = np.zeros((num_parts, num_parts), np.int64)
    count_common(marks_R, num_parts, common_PP)
    assert common_PP.tolist() == [[len(p & q) for q in hot] for p in hot]

    for part in parts:
        everywhere_B = np.full(len(part), ~np.uint64(0))
        lookups_M = np.zeros(2 * num_parts, np.int64)
        samples_P = np.zeros(num_parts, np.int64)
        for table, some in enumerate(is_list):
            ids, offsets = as_lookups(part, table, some)
            judge_lookups(read_only(ids), offsets, marks_R[first_row_T[table] :], everywhere_B, lookups_M)
        count_bits(everywhere_B, samples_P)
        lookups = [row for sample in part for row in rows_of(sample)]
        assert lookups_M.tolist() == [sum(row in rows for row in lookups) for rows in [*hot, *counts]]
        assert samples_P.tolist() == [
            sum(all(row in rows for row in rows_of(sample)) for sample in part) for rows in hot
        ]


def test_shares_by_age_are_means_over_the_pairs_of_that_age() -> None:
    served_PP = np.array([[4, 1, 0], [9, 2, 3], [9, 9, 5]], np.int64)
    total_P = np.array([5, 2, 10], np.int64)
    assert mean_by_age(served_PP, total_P).tolist() == [11 / 17, 4 / 12, 0.0]
    assert mean_by_age(served_PP[:2], total_P).tolist() == [6 / 7, 4 / 12, 0.0]
    assert np.isnan(mean_by_age(np.zeros((1, 1), np.int64), np.zeros(1, np.int64))).all()


def test_parts_are_equal_and_bounded() -> None:
    assert cut_evenly(10, 4) == [0, 2, 5, 7, 10]
    assert marks_dtype(MAX_PARTS) == np.uint64 and marks_dtype(7) == np.uint16
    with pytest.raises(ValueError, match="33 parts"):
        marks_dtype(MAX_PARTS + 1)


SHARES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)


def summarize(values: NDArray[Any], is_valid: NDArray[np.bool_] | None = None) -> ValueSummary:
    bitmap = np.zeros(0, np.uint8) if is_valid is None else np.packbits(is_valid, bitorder="little")
    return ValueSummary.of(values, bitmap, np.empty(NUM_BINS, np.int64))


def naive_quantiles(values: list[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered[max(1, math.ceil(share * len(ordered))) - 1] for share in SHARES]


@pytest.mark.parametrize("dtype", [np.int32, np.float64])
@pytest.mark.parametrize("num_values", [0, 1, 7, 1000])
def test_a_summary_agrees_with_sorting(num_values: int, dtype: type, rng: np.random.Generator) -> None:
    values: NDArray[Any] = (rng.standard_normal(num_values) * np.exp(rng.uniform(0, 15, num_values))).astype(
        dtype
    )
    is_valid = rng.random(num_values) < 0.7
    kept = [float(value) for value in values[is_valid]]
    # In two parts, as a log is read.
    middle = num_values // 3
    found = summarize(values[:middle], is_valid[:middle]) + summarize(values[middle:], is_valid[middle:])
    assert found.counts.tolist() == [len(kept), kept.count(0.0), sum(value < 0 for value in kept)]
    assert found.numbers[0] == pytest.approx(math.fsum(kept))
    assert found.numbers[1:].tolist() == [min(kept, default=math.inf), max(kept, default=-math.inf)]
    quantiles = found.quantiles(SHARES)
    for ours, exact in zip(quantiles, naive_quantiles(kept) if kept else [], strict=True):
        assert abs(ours - exact) <= abs(exact) * 2**-7
    assert sum(count for _, _, count in found.by_power_of_two()) == len(kept)


def test_small_integers_are_exact(rng: np.random.Generator) -> None:
    values = rng.integers(-256, 257, 5000).astype(np.int32)
    assert summarize(values).quantiles(SHARES) == naive_quantiles(values.tolist())


def test_bins_are_powers_of_two_and_zero() -> None:
    found = summarize(np.array([-3, -1, 0, 0, 1, 2, 3, 4, 1000], np.int32)).by_power_of_two()
    assert found == [(-4, -2, 1), (-2, -1, 1), (0, 0, 2), (1, 2, 1), (2, 4, 2), (4, 8, 1), (512, 1024, 1)]


def test_the_ends_of_both_kinds_have_bins() -> None:
    for value in (-(2**31), 2**31 - 1):
        assert summarize(np.array([value], np.int32)).quantiles([0.5]) == [value]
    huge = summarize(np.array([1e300, -1e300, -0.0, 1e-300]))
    assert huge.counts.tolist() == [4, 1, 1] and huge.numbers[1:].tolist() == [-1e300, 1e300]
    assert huge.quantiles([0.25, 0.5])[1] == 0
    edges = [bin_edge(number) for number in range(0x100, 0xFF00)]
    assert edges == sorted(edges)
