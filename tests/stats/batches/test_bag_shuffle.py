"""Dealing and gathering of bags against lists of lists."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.batches.bag_shuffle import add_lengths, gather_bags, place_bags, scatter_bags, tag_cold_bags

Bags = list[list[int]]
Sample = tuple[tuple[list[int], list[int]], int]
"""Its bags in two tables, and its file."""
_BAG = st.lists(st.integers(0, 9), max_size=5)
_SAMPLES = st.lists(st.tuples(st.tuples(_BAG, _BAG), st.integers(0, 3)), max_size=30)


def flat(bags: Bags) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    offsets = np.concatenate([[0], np.cumsum([len(bag) for bag in bags])]).astype(np.int32)
    return offsets, np.array([id for bag in bags for id in bag], np.int32)


def naive_tags(bags: Bags, num_hot: int, before: list[int]) -> list[int]:
    return [int(tag and all(id < num_hot for id in bag)) for tag, bag in zip(before, bags, strict=True)]


@given(st.lists(_BAG, max_size=20), st.integers(0, 10), st.integers(0, 1))
@settings(deadline=None, max_examples=40)
def test_a_cold_look_up_makes_a_sample_cold(bags: Bags, num_hot: int, before: int) -> None:
    is_hot = np.full(len(bags), before, np.uint8)
    tag_cold_bags(*flat(bags), num_hot, is_hot)
    assert is_hot.tolist() == naive_tags(bags, num_hot, [before] * len(bags))


@given(_SAMPLES, st.sets(st.integers(0, 3)), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_scattered_bags_are_gathered_again(samples: list[Sample], here: set[int], luck: Random) -> None:
    """Samples of four files, some of which are in the buffer, in any order within a file."""
    files = np.array([file for _, file in samples], np.int64)
    tables = [flat([sample[0][t] for sample in samples]) for t in range(2)]
    lengths = np.array([np.diff(offsets) for offsets, _ in tables], np.int32).reshape(2, -1)
    counts = np.bincount(files, minlength=4)
    lookups = np.zeros(4, np.int64)
    for offsets, _ in tables:
        add_lengths(offsets, files, lookups)
    assert lookups.tolist() == [
        sum(len(a) + len(b) for (a, b), f in samples if f == file) for file in range(4)
    ]
    is_here = np.array([file in here for file in range(4)])
    next_row = np.where(is_here, np.cumsum(counts * is_here) - counts, -1)
    next_lookup = np.where(is_here, np.cumsum(lookups * is_here) - lookups, -1)
    places = np.empty(len(samples), np.int64)
    row_places = np.full(int(counts[is_here].sum()), -1, np.int64)
    place_bags(lengths, files, next_row, next_lookup, places, row_places)
    scattered = np.full(int(lookups[is_here].sum()), -1, np.int32)
    for offsets, ids in tables:
        scatter_bags(offsets, ids, places, scattered)
    rows = [n for file in range(4) if file in here for n in np.flatnonzero(files == file)]
    order = list(range(len(rows)))
    luck.shuffle(order)
    wanted = [samples[rows[row]] for row in order]
    found_places = row_places[np.array(order, np.int64)]
    for table in range(2):
        offsets, ids = flat([sample[0][table] for sample in wanted])
        found = np.empty(ids.shape, np.int32)
        gather_bags(scattered, found_places, offsets, found)
        assert found.tolist() == ids.tolist()
