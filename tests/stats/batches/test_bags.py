"""Bags of lookups against slow, obvious twins."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.batches.bags import interleave_bags, locate_bags


@pytest.mark.parametrize("num_samples", [0, 1, 5, 60])
def test_bags_go_to_their_places_in_sample_order(num_samples: int, rng: np.random.Generator) -> None:
    bags = [[rng.integers(0, 99, rng.integers(0, 4)).tolist() for _ in range(3)] for _ in range(num_samples)]
    expected = [row for sample in bags for bag in sample for row in bag]
    lengths_P = np.array([len(bag) for sample in bags for bag in sample], np.int64)
    starts_P = np.cumsum(lengths_P) - lengths_P
    ids_N = np.full(len(expected), -1, np.int32)
    for feature in range(3):
        of_feature = [sample[feature] for sample in bags]
        offsets = np.cumsum([0, *(len(bag) for bag in of_feature)]).astype(np.int32)
        values = np.array([row for bag in of_feature for row in bag], np.int32)
        interleave_bags(offsets, values, starts_P, feature, 3, ids_N)
    assert ids_N.tolist() == expected


def test_rows_are_located_by_the_feature_of_their_bag(rng: np.random.Generator) -> None:
    first = np.array([0, 2])
    last = np.array([3, 6])
    base = np.array([0, 3])
    ids_N = rng.integers(-1, 8, 50).astype(np.int32)
    bags_N = np.sort(rng.integers(0, 12, 50))
    slots_N = np.empty(50, np.int64)
    num_absent = locate_bags(ids_N, bags_N, first, last, base, slots_N)
    for row, bag, slot in zip(ids_N.tolist(), bags_N.tolist(), slots_N.tolist(), strict=True):
        feature = bag % 2
        is_here = first[feature] <= row < last[feature]
        assert slot == (base[feature] + row - first[feature] if is_here else -1)
    assert num_absent == np.count_nonzero(slots_N < 0)
