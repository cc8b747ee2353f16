"""The compiled instructions do what the plain functions say."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.pipeline.raw.byte_words import (
    CHUNK_BYTES,
    HEX_VALUES,
    count_bits,
    find_separators,
    load8,
    lowest_bit,
)


@numba.njit
def compiled(text: NDArray[np.uint8], position: np.uint64) -> tuple[np.uint64, ...]:
    word = load8(text, position)
    separators, newlines = find_separators(text, position)
    return word, separators, newlines, lowest_bit(word), count_bits(word), lowest_bit(newlines)


@pytest.mark.parametrize("position", [0, 1, 7, 64])
def test_compiled_words_are_those_of_plain_python(position: int, rng: np.random.Generator) -> None:
    for most in (2, 12, 256):
        text = rng.integers(0, most, position + CHUNK_BYTES).astype(np.uint8)
        at = np.uint64(position)
        word = load8(text, at)
        separators, newlines = find_separators(text, at)
        plain = (word, separators, newlines, lowest_bit(word), count_bits(word), lowest_bit(newlines))
        assert compiled(text, at) == plain
        assert int(word) == int.from_bytes(text[position : position + 8].tobytes(), "little")


def test_no_bit_is_the_lowest_of_a_word_without_one() -> None:
    assert lowest_bit(np.uint64(0)) == 64 and count_bits(np.uint64(0)) == 0


def test_hex_digits_have_the_values_of_python() -> None:
    for byte in range(256):
        is_digit = chr(byte) in "0123456789abcdefABCDEF"
        assert HEX_VALUES[byte] == (int(chr(byte), 16) if is_digit else 16)
