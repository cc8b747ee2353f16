"""Counting is compared in tables of every kind; the bound reaches each category's entry."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.counting.hash_probing import MULTIPLIER
from hotset.workflows.bench.measuring.counting_comparisons import counting_comparisons, reach_entries


def test_tables_of_both_widths_count_what_their_reference_counts(rng: np.random.Generator) -> None:
    comparisons = counting_comparisons(rng.zipf(1.3, 3000).astype(np.int64) % 700, rng)
    assert [one.name for one in comparisons] == ["counting", "counting, 64 bits", "counting, small table"]
    for one in comparisons:
        one.kernel()  # which asserts that all were counted
        assert min(one.seconds()) > 0


@pytest.mark.parametrize("words_of_entry", [1, 2])
def test_the_bound_adds_one_where_each_hash_leads(words_of_entry: int, rng: np.random.Generator) -> None:
    categories = rng.integers(0, 2**32, 400, dtype=np.uint64)
    words = np.zeros(16 * words_of_entry, np.uint64)
    reach_entries(categories, words, np.uint64(60), words_of_entry)
    wanted = np.zeros_like(words)
    for category in categories.tolist():
        wanted[((category * int(MULTIPLIER)) % 2**64 >> 60) * words_of_entry] += np.uint64(1)
    np.testing.assert_array_equal(words, wanted)
