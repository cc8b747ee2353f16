"""The hash everything random is made of: pinned values, and a bijection."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.stats.hashing import mix64, mix64_pair

_MASK = 2**64 - 1
_LONGS = st.integers(0, _MASK)


def naive_mix64(bits: int) -> int:
    bits = (bits + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def naive_unmix64(bits: int) -> int:
    bits ^= (bits >> 31) ^ (bits >> 62)
    bits = (bits * pow(0x94D049BB133111EB, -1, 2**64)) & _MASK
    bits ^= (bits >> 27) ^ (bits >> 54)
    bits = (bits * pow(0xBF58476D1CE4E5B9, -1, 2**64)) & _MASK
    bits ^= (bits >> 30) ^ (bits >> 60)
    return (bits - 0x9E3779B97F4A7C15) & _MASK


@pytest.mark.parametrize(
    ("bits", "pinned"),
    [
        (0, 0xE220A8397B1DCDAF),
        (1, 0x910A2DEC89025CC1),
        (12345, 0x22118258A9D111A0),
        (2**63, 0x481EC0A212A9F3DB),
        (2**64 - 1, 0xE4D971771B652C20),
    ],
)
def test_mix64_never_changes(bits: int, pinned: int) -> None:
    assert int(mix64(np.uint64(bits))) == pinned == naive_mix64(bits)


@pytest.mark.parametrize(
    ("seed", "position", "pinned"),
    [
        (0, 0, 0xA706DD2F4D197E6F),
        (0, 1, 0x8B4FDA8C892B50E),
        (1, 0, 0x5E41AB087439611E),
        (7, 45_840_616, 0xA8091133894C49C6),
        (2**64 - 1, 2**64 - 1, 0x6309143E67A47936),
    ],
)
def test_mix64_pair_never_changes(seed: int, position: int, pinned: int) -> None:
    assert int(mix64_pair(np.uint64(seed), np.uint64(position))) == pinned


@given(bits=_LONGS)
def test_mix64_is_the_formula_and_can_be_undone(bits: int) -> None:
    mixed = int(mix64(np.uint64(bits)))
    assert mixed == naive_mix64(bits)
    assert naive_unmix64(mixed) == bits


@given(seed=_LONGS, position=_LONGS)
def test_mix64_pair_is_two_rounds(seed: int, position: int) -> None:
    wanted = naive_mix64(naive_mix64(seed) ^ position)
    assert int(mix64_pair(np.uint64(seed), np.uint64(position))) == wanted


def test_each_input_bit_moves_about_half_of_the_output_bits(rng: np.random.Generator) -> None:
    num_words = 500
    words = rng.integers(0, 2**63, num_words, dtype=np.uint64)
    for bit in range(0, 64, 7):
        pairs = ((int(mix64(w)), int(mix64(w ^ np.uint64(1 << bit)))) for w in words)
        moved = sum((a ^ b).bit_count() for a, b in pairs) / (64 * num_words)
        assert abs(moved - 0.5) < 5 * 0.5 / np.sqrt(64 * num_words)
