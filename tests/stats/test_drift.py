"""The drift kernels against dictionaries and sorted lists."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.drift import (
    MAX_PARTS,
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
            judge_lookups(ids, offsets, marks_R[first_row_T[table] :], everywhere_B, lookups_M)
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
