"""Pairs of words in order, against Python's own sort."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.pair_sort import sort_pairs


def sorted_pairs(pairs_N2: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return np.array(sorted(map(tuple, pairs_N2.tolist())), np.uint64).reshape(-1, 2)


WORDS = st.integers(0, 3) | st.integers(0, 2**64 - 1) | st.sampled_from([2**63, 2**63 - 1])


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS), max_size=80))
def test_pairs_are_sorted_as_tuples_are(pairs: list[tuple[int, int]]) -> None:
    pairs_N2 = np.array(pairs, np.uint64).reshape(-1, 2)
    wanted = sorted_pairs(pairs_N2)
    sort_pairs(pairs_N2)
    np.testing.assert_array_equal(pairs_N2, wanted)


@pytest.mark.parametrize("shape", ["random", "ascending", "descending", "equal", "few", "organ pipes", "low"])
def test_long_arrays_of_any_shape_are_sorted(shape: str, rng: np.random.Generator) -> None:
    number_N = np.arange(5000, dtype=np.uint64)
    high_N = {
        "random": rng.integers(0, 2**64, 5000, np.uint64),
        "ascending": number_N,
        "descending": number_N[::-1],
        "equal": number_N * np.uint64(0),
        "few": number_N % np.uint64(3),
        "organ pipes": np.minimum(number_N, number_N[::-1]),
        "low": number_N // np.uint64(2500),
    }[shape]
    low_N = rng.integers(0, 2**64, 5000, np.uint64) if shape in ("random", "low") else high_N
    pairs_N2 = np.stack([high_N, low_N], axis=1)
    wanted = sorted_pairs(pairs_N2)
    sort_pairs(pairs_N2)
    np.testing.assert_array_equal(pairs_N2, wanted)


def test_a_mapped_file_is_sorted_in_place(rng: np.random.Generator, tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "words", np.uint64, "w+", shape=(400,))
    mapped[:] = rng.integers(0, 9, 400, np.uint64)
    pairs_N2 = np.asarray(mapped).reshape(-1, 2)
    wanted = sorted_pairs(pairs_N2)
    sort_pairs(pairs_N2)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "words", np.uint64).reshape(-1, 2), wanted)
