"""Messages keep to their bytes, and the bits of their tables are the best that as many bytes allow."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.codecs.budget_codec import LEAST_BITS, MOST_BITS, BudgetCodec, choose_bits
from hotset.stats.codecs.row_codec import MessageShape, RowMessage, shape_of

RANGE_BYTES = 8


def message_bytes(num_rows: NDArray[np.int64], bits: NDArray[np.int64], dim: int) -> int:
    return int(
        sum(rows * -(-each * dim // 8) + RANGE_BYTES for rows, each in zip(num_rows, bits, strict=True))
    )


def weighted_error(
    num_rows: NDArray[np.int64], weights: NDArray[np.float64], bits: NDArray[np.int64]
) -> float:
    return float(sum(w * 4.0**-b for n, w, b in zip(num_rows, weights, bits, strict=True) if n))


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.sampled_from([1, 3, 4, 8, 12, 16]),
    st.integers(0, 800),
    st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_no_bits_of_as_many_bytes_have_a_smaller_error(
    rows: list[int], dim: int, budget: int, seed: int
) -> None:
    num_rows = np.array(rows)
    weights = 10.0 ** np.random.default_rng(seed).uniform(-2, 2, num_rows.size)
    found = choose_bits(num_rows, weights, dim, budget)
    assert ((LEAST_BITS <= found) & (found <= MOST_BITS)).all()
    least = message_bytes(num_rows, np.full(num_rows.size, LEAST_BITS), dim)
    assert message_bytes(num_rows, found, dim) <= max(budget, least)
    # Whatever is chosen otherwise, by trying all, is worse or takes more than the budget less one choice.
    error = weighted_error(num_rows, weights, found)
    largest_choice = int(num_rows.max()) * -(-8 * dim // 8)
    for bits in itertools.product(range(LEAST_BITS, MOST_BITS + 1, 3), repeat=num_rows.size):
        other = np.array(bits)
        if message_bytes(num_rows, other, dim) <= budget - largest_choice:
            assert error <= weighted_error(num_rows, weights, other) * (1 + 1e-12)


def test_few_rows_and_heavy_tables_get_more_bits() -> None:
    alike = np.ones(3)
    found = choose_bits(np.array([10, 1_000, 100]), alike, 16, 16_000)
    assert found[0] > found[2] > found[1]
    heavy = choose_bits(np.array([100, 100]), np.array([1.0, 4.0**3]), 16, 2 * 8 + 200 * 11)
    # A factor of 4 in the error is one bit.
    assert heavy.tolist() == [4, 7]
    # Without a budget to speak of, and with one for everything.
    assert choose_bits(np.array([5, 0]), np.ones(2), 16, 0).tolist() == [LEAST_BITS] * 2
    assert choose_bits(np.array([5, 7]), np.ones(2), 16, 2**62).tolist() == [MOST_BITS] * 2


@pytest.mark.parametrize("share", [0.1, 0.25, 0.4])
def test_a_share_is_of_the_bytes_of_float32(share: float, rng: np.random.Generator) -> None:
    codec = BudgetCodec(share)
    for _ in range(20):
        counts = rng.integers(0, 400, 26)
        shape = MessageShape(np.cumsum([0, *counts]), 16)
        used = codec.num_bytes(shape)
        budget = share * 4 * 16 * counts.sum()
        # Next to nothing is left over where every table has room for another bit.
        assert 0.97 * budget < used <= budget


def test_both_sides_choose_the_same_bits_from_the_shape(rng: np.random.Generator) -> None:
    rows = rng.normal(size=(300, 8)).astype(np.float32)
    message = RowMessage.of(rows, starts=np.array([0, 3, 3, 100, 300]))
    sender, receiver = (BudgetCodec(0.2, np.array([1.0, 2.0, 3.0, 0.5])) for _ in range(2))
    data = np.empty(sender.num_bytes(shape_of(message)), np.uint8)
    assert sender.encode(message, data) == 0
    found = np.empty_like(rows)
    receiver.decode(data, shape_of(message), found)
    levels = sender.levels_for(shape_of(message))
    for table, (first, last) in enumerate([(0, 3), (3, 3), (3, 100), (100, 300)]):
        part, back = rows[first:last], found[first:last]
        if part.size:
            spread = float(part.max()) - float(part.min())
            assert np.abs(back - part).max() <= levels.of_tables[table] * spread * 1.0001
