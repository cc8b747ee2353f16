"""Dealing and gathering of bags against lists of lists."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.batches.bag_shuffle import bag_lengths, gather_bags, place_bags, scatter_bags, tag_cold_bags

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
    file_of = np.array([file for _, file in samples], np.int64)
    chosen = np.array([n for n, (_, file) in enumerate(samples) if file in here], np.int32)
    files = file_of[chosen]
    tables = [flat([sample[0][t] for sample in samples]) for t in range(2)]
    lengths = np.empty((2, len(chosen)), np.int32)
    lookups = np.zeros(4, np.int64)
    for of_table, (offsets, _) in zip(lengths, tables, strict=True):
        bag_lengths(offsets, chosen, files, of_table, lookups)
    assert lengths.tolist() == [[len(samples[n][0][t]) for n in chosen] for t in range(2)]
    assert lookups.tolist() == [
        sum(len(a) + len(b) for (a, b), f in samples if f == file and file in here) for file in range(4)
    ]
    counts = np.bincount(files, minlength=4)
    next_row = np.cumsum(counts) - counts
    next_lookup = np.cumsum(lookups) - lookups
    places = np.empty(len(chosen), np.int64)
    row_places = np.full(int(counts.sum()), -1, np.int64)
    place_bags(lengths, files, next_row, next_lookup, places, row_places)
    scattered = np.full(int(lookups.sum()), -1, np.int32)
    for offsets, ids in tables:
        scatter_bags(offsets, ids, chosen, places, scattered)
    rows = [n for file in range(4) if file in here for n in np.flatnonzero(file_of == file)]
    order = list(range(len(rows)))
    luck.shuffle(order)
    wanted = [samples[rows[row]] for row in order]
    found_places = row_places[np.array(order, np.int64)]
    for table in range(2):
        offsets, ids = flat([sample[0][table] for sample in wanted])
        found = np.empty(ids.shape, np.int32)
        gather_bags(scattered, found_places, offsets, found)
        assert found.tolist() == ids.tolist()
