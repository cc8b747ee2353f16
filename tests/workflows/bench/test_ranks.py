"""Sizes of vector-LZ and Huffman codes are those of codes that can be read back."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.workflows.bench.ranks import huffman_bytes, levels_of, vector_lz_bytes

Token = tuple[int, int] | bytes
"""Distance and length of a repetition, or a row."""


def naive_tokens(rows: list[bytes]) -> list[Token]:
    """Those of one block."""
    tokens: list[Token] = []
    here = 0
    while here < len(rows):
        matches = []
        for distance in range(1, min(32, here) + 1):
            length = 0
            while here + length < len(rows) and rows[here + length] == rows[here + length - distance]:
                length += 1
            matches.append((min(length, 255), distance))
        length, distance = max(matches, default=(0, 0))
        tokens.append((distance, length) if length else rows[here])
        here += max(length, 1)
    return tokens


def read_back(tokens: list[Token]) -> list[bytes]:
    rows: list[bytes] = []
    for token in tokens:
        if isinstance(token, bytes):
            rows.append(token)
        else:
            for _ in range(token[1]):
                rows.append(rows[-token[0]])
    return rows


@pytest.mark.parametrize(
    ("num_rows", "num_distinct"), [(0, 1), (1, 1), (7, 2), (300, 1), (2_500, 20), (90, 90)]
)
def test_repeated_rows_are_found(num_rows: int, num_distinct: int, rng: np.random.Generator) -> None:
    codes: NDArray[np.uint8] = rng.integers(0, num_distinct, (num_rows, 1)).astype(np.uint8) + np.zeros(
        5, np.uint8
    )
    num_bytes = 0
    for first in range(0, num_rows, 2048):
        rows = [row.tobytes() for row in codes[first : first + 2048]]
        tokens = naive_tokens(rows)
        assert read_back(tokens) == rows
        num_bytes += sum(5 if isinstance(token, bytes) else 2 for token in tokens) + -(-len(tokens) // 8) + 8
    assert vector_lz_bytes(codes) == num_bytes
    # Columns of a matrix with more of them need no copy by the caller.
    assert vector_lz_bytes(np.tile(codes, (1, 2))[:, :5]) == num_bytes


def test_a_huffman_code_is_the_shortest_prefix_code() -> None:
    assert huffman_bytes(np.zeros(0, np.uint8)) == 0
    assert huffman_bytes(np.full(80, 7, np.uint8)) == 10
    for counts in product((1, 2, 5, 9), repeat=3):
        codes = np.repeat(np.arange(3, dtype=np.uint8), counts)
        # Of three symbols one gets a bit and the others two.
        assert huffman_bytes(codes) == -(-(2 * sum(counts) - max(counts)) // 8)
    # Never below the entropy, nor a bit a number above it.
    codes = np.minimum(np.random.default_rng(3).zipf(1.5, 4_000), 50).astype(np.uint8)
    shares = np.unique(codes, return_counts=True)[1] / codes.size
    entropy = -(shares @ np.log2(shares)) * codes.size / 8
    assert entropy <= huffman_bytes(codes) < entropy + codes.size / 8
    # Counts of Fibonacci make the deepest tree: one code each of 1 to 6 bits, and two of 7.
    counts = (1, 1, 2, 3, 5, 8, 13, 21)
    bits = sum(count * depth for count, depth in zip(counts, (7, 7, 6, 5, 4, 3, 2, 1), strict=True))
    codes = np.repeat(np.array([9, 0, 255, 3, 4, 90, 6, 7], np.uint8), counts)
    assert huffman_bytes(codes.reshape(2, 27)) == -(-bits // 8)


@pytest.mark.parametrize("middle", [-40.0, 0.0, 2.0, 40.0])
def test_levels_are_of_the_range_wherever_it_lies(middle: float, rng: np.random.Generator) -> None:
    rows = (middle + rng.uniform(-1, 1, (300, 4))).astype(np.float32)
    rows[0, :2] = middle - 1, middle + 1
    for bound, least, most in ((0.05, 10, 11), (0.01, 50, 51), (1 / 508, 254, 255)):
        levels = levels_of(rows, bound)
        assert levels.min() == 0 and least <= levels.max() <= most
        # Levels and numbers differ by a constant, to within the bound of the range of 2.
        error = rows.astype(np.float64) - levels * (2 * bound * 2)
        assert np.ptp(error) <= 2 * bound * 2 * (1 + 1e-3)
    assert levels_of(np.zeros((0, 4), np.float32), 0.1).shape == (0, 4)
    assert not levels_of(np.full((2, 3), middle, np.float32), 0.1).any()
