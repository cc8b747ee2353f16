"""Dealing and gathering of bags against lists of lists.

The order of batches: what every permutation must keep, and pinned values.

The shuffle's kernels against sorts and loops in plain Python.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.id_tables import mix64_pair
from hotset.stats.kernel import read_only
from hotset.stats.shuffle import (
    BIN_BITS,
    EVALUATION,
    HOT_ONLY,
    MIXED,
    NUM_BINS,
    bins_of,
    choose_keys,
    copy_bags,
    epoch_order,
    files_of_keys,
    gather_rows,
    keys_and_kinds,
    order_of_keys,
    place_bags,
    scatter_rows,
    shuffled,
    spread_evenly,
    tag_cold_bags,
)

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
    lengths = np.array([[len(samples[n][0][t]) for n in chosen] for t in range(2)], np.int32)
    lookups = np.bincount(files, lengths.sum(axis=0), 4).astype(np.int64)
    counts = np.bincount(files, minlength=4)
    next_row = np.cumsum(counts) - counts
    next_lookup = np.cumsum(lookups) - lookups
    places = np.empty(len(chosen), np.int64)
    row_places = np.full(int(counts.sum()), -1, np.int64)
    place_bags(lengths, files, next_row, next_lookup, places, row_places)
    scattered = np.full(int(lookups.sum()), -1, np.int32)
    for (offsets, ids), of_table in zip(tables, lengths, strict=True):
        copy_bags(ids, offsets[chosen], of_table, scattered, places)
        places += of_table
    rows = [n for file in range(4) if file in here for n in np.flatnonzero(file_of == file)]
    order = list(range(len(rows)))
    luck.shuffle(order)
    wanted = [samples[rows[row]] for row in order]
    found_places = row_places[np.array(order, np.int64)]
    for table in range(2):
        offsets, ids = flat([sample[0][table] for sample in wanted])
        found = np.empty(ids.shape, np.int32)
        of_table = np.diff(offsets)
        copy_bags(scattered, found_places, of_table, found, offsets[:-1])
        found_places += of_table
        assert found.tolist() == ids.tolist()


@pytest.mark.parametrize(("num_hot_only", "num_mixed"), [(0, 0), (0, 5), (5, 0), (3, 7), (40, 3), (8, 8)])
def test_hot_only_batches_are_spread_evenly(num_hot_only: int, num_mixed: int) -> None:
    total = num_hot_only + num_mixed
    merged = spread_evenly(
        np.arange(num_hot_only, dtype=np.int32), np.arange(num_hot_only, total, dtype=np.int32)
    )
    assert sorted(merged.tolist()) == list(range(total))
    hot_so_far = np.cumsum(merged < num_hot_only)
    expected = np.arange(1, total + 1) * num_hot_only / max(total, 1)
    assert np.all(np.abs(hot_so_far - expected) <= 1)


def kinds(num_hot_only: int, num_mixed: int) -> NDArray[np.bool_]:
    return np.arange(num_hot_only + num_mixed) < num_hot_only


@pytest.mark.parametrize("spread", [True, False])
def test_an_epoch_visits_every_batch_once(spread: bool) -> None:
    order = epoch_order(kinds(13, 29), seed=3, epoch=1, spread=spread)
    assert sorted(order.tolist()) == list(range(42))


def test_an_order_is_a_function_of_seed_and_epoch() -> None:
    orders = [shuffled(50, seed, epoch).tolist() for seed, epoch in [(0, 0), (0, 0), (0, 1), (1, 0)]]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2] and orders[0] != orders[3] and orders[2] != orders[3]


def test_a_shuffle_never_changes() -> None:
    assert shuffled(8, seed=0, epoch=0).tolist() == [0, 1, 4, 2, 3, 6, 7, 5]


def drawn_keys(num_samples: int, rng: np.random.Generator) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Keys crowded in few bins, and kinds."""
    keys = rng.integers(0, 2**64, num_samples, dtype=np.uint64)
    keys[::2] >>= np.uint64(40)
    return keys, rng.integers(0, 3, num_samples).astype(np.uint8)


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize(("first_sample", "num_samples"), [(0, 0), (0, 7), (5, 20), (100, 9)])
def test_keys_and_kinds_agree_with_the_rule(
    first_sample: int, num_samples: int, is_grouped: bool, rng: np.random.Generator
) -> None:
    seed = 11
    num_train = 17
    is_hot = read_only(rng.integers(0, 2, num_samples).astype(np.uint8))
    keys = np.empty(num_samples, np.uint64)
    kinds = np.empty(num_samples, np.uint8)
    keys_and_kinds(seed, first_sample, num_train, is_hot, is_grouped, keys, kinds)
    for i in range(num_samples):
        sample = first_sample + i
        if sample >= num_train:
            assert (int(keys[i]), int(kinds[i])) == (sample - num_train, EVALUATION)
        else:
            assert keys[i] == mix64_pair(np.uint64(seed), np.uint64(sample))
            assert kinds[i] == (HOT_ONLY if is_grouped and is_hot[i] else MIXED)


def test_seeds_give_orders_that_have_nothing_in_common() -> None:
    num_samples = 2000
    orders = []
    for seed in (0, 1):
        keys = np.empty(num_samples, np.uint64)
        kinds = np.empty(num_samples, np.uint8)
        keys_and_kinds(seed, 0, num_samples, read_only(np.zeros(num_samples, np.uint8)), True, keys, kinds)
        assert np.unique(keys).shape[0] == num_samples
        orders.append(np.argsort(keys))
    # The correlation of two random orders is normal with deviation 1 / sqrt(n - 1).
    for order in (orders[0], orders[1][np.argsort(orders[0])]):
        assert abs(np.corrcoef(order, np.arange(num_samples))[0, 1]) < 5 / np.sqrt(num_samples - 1)


def test_bins_go_by_kind_then_by_the_top_bits() -> None:
    keys = np.array([0, 1 << (64 - BIN_BITS), 2**64 - 1], np.uint64)
    kinds = np.array([0, 1, 2], np.uint8)
    assert bins_of(keys, kinds).tolist() == [0, NUM_BINS + 1, 3 * NUM_BINS - 1]


@given(
    num_keys=st.integers(0, 300),
    low=st.integers(0, 2**64 - 1),
    bits=st.integers(0, 64),
    step=st.sampled_from([0, 1, 7]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_keys_are_in_order_however_they_lie(num_keys: int, low: int, bits: int, step: int, seed: int) -> None:
    """Even in a range of any width, consecutive, or most of them near one end."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 2**bits, num_keys, np.uint64, endpoint=bits == 0)
    if step:
        keys = np.arange(num_keys, dtype=np.uint64) * np.uint64(step)
        keys[: num_keys // 50] += np.uint64(2**63)
    keys = np.unique(keys + np.uint64(low))
    rng.shuffle(keys)
    np.testing.assert_array_equal(order_of_keys(keys), np.argsort(keys))


@pytest.mark.parametrize("num_samples", [0, 1, 7, 1000])
def test_files_of_keys_agree_with_a_sort(num_samples: int, rng: np.random.Generator) -> None:
    samples_per_file = 30
    keys, kinds = drawn_keys(num_samples, rng)
    keys[kinds == EVALUATION] = np.arange((kinds == EVALUATION).sum(), dtype=np.uint64)
    wanted = np.empty(num_samples, np.int64)
    last_keys: list[int] = []
    first_file_of_bin = np.zeros((3, NUM_BINS), np.int64)
    for kind in (HOT_ONLY, MIXED, EVALUATION):
        mine = np.flatnonzero(kinds == kind)
        mine = mine[np.argsort(keys[mine])]
        first_file_of_bin[kind] = len(last_keys)
        wanted[mine] = len(last_keys) + np.arange(mine.shape[0]) // samples_per_file
        cuts = keys[mine][samples_per_file::samples_per_file] - np.uint64(1)
        last_keys += [*cuts.tolist(), 2**64 - 1] if mine.shape[0] else []
    files = np.empty(num_samples, np.int64)
    counts = np.full(len(last_keys), 5, np.int64)
    files_of_keys(
        keys, kinds, first_file_of_bin, np.array(last_keys, np.uint64), samples_per_file, files, counts
    )
    np.testing.assert_array_equal(files, wanted)
    np.testing.assert_array_equal(counts - 5, np.bincount(wanted, minlength=len(last_keys)))


@pytest.mark.parametrize("num_samples", [0, 1, 7, 200])
def test_samples_are_chosen_by_the_range_of_their_kind(num_samples: int, rng: np.random.Generator) -> None:
    keys = rng.integers(0, 10, num_samples, dtype=np.uint64)
    kinds = rng.integers(0, 3, num_samples).astype(np.uint8)
    # All keys of one kind, those in the middle of another, and none of the third.
    first_keys = np.array([0, 3, 1], np.uint64)
    last_keys = np.array([2**64 - 1, 6, 0], np.uint64)
    wanted = [
        i
        for i in range(num_samples)
        if kinds[i] == HOT_ONLY or (kinds[i] == MIXED and keys[i] in (3, 4, 5, 6))
    ]
    found_keys = keys.copy()
    found_kinds = kinds.copy()
    chosen = np.empty(num_samples, np.int32)
    chosen = chosen[: choose_keys(found_keys, found_kinds, first_keys, last_keys, chosen)]
    assert chosen.tolist() == wanted
    np.testing.assert_array_equal(found_keys[: len(wanted)], keys[wanted])
    np.testing.assert_array_equal(found_kinds[: len(wanted)], kinds[wanted])


@pytest.mark.parametrize("num_samples", [0, 1, 7, 200])
def test_rows_are_scattered_in_order_to_the_files_in_the_buffer(
    num_samples: int, rng: np.random.Generator
) -> None:
    rows = rng.integers(-(2**31), 2**31, (num_samples, 4)).astype(np.int32)
    keys = rng.integers(0, 2**64, num_samples, dtype=np.uint64)
    files = rng.integers(0, 3, num_samples)
    counts = np.bincount(files, minlength=3)
    next_row = np.array([counts[2], -1, 0])
    scattered_rows = np.full((counts[0] + counts[2], 4), 7, np.int32)
    scattered_keys = np.zeros(counts[0] + counts[2], np.uint64)
    columns = np.ascontiguousarray(rows[:, :3].T)
    ids = read_only(np.ascontiguousarray(rows[:, 3:]))
    chosen = np.flatnonzero(files != 1).astype(np.int32)
    columns = np.ascontiguousarray(columns[:, chosen])
    largest = np.array([17], np.uint32)
    scatter_rows(
        columns, ids, chosen, keys[chosen], files[chosen], next_row, scattered_rows, scattered_keys, largest
    )
    assert largest.tolist() == [max([17, *ids[chosen].view(np.uint32).ravel().tolist()])]
    order = np.concatenate([np.flatnonzero(files == 2), np.flatnonzero(files == 0)])
    np.testing.assert_array_equal(scattered_rows, rows[order])
    np.testing.assert_array_equal(scattered_keys, keys[order])
    assert next_row.tolist() == [counts[0] + counts[2], -1, counts[2]]


@pytest.mark.parametrize("num_samples", [0, 1, 7, 200])
def test_rows_are_taken_apart_in_the_given_order(num_samples: int, rng: np.random.Generator) -> None:
    rows = rng.integers(-(2**31), 2**31, (num_samples, 2 + 3 + 4)).astype(np.int32)
    order = rng.permutation(num_samples)[: num_samples // 2 + 1]
    count = order.shape[0]
    label = np.empty(count, np.int32)
    is_hot = np.empty(count, np.int32)
    dense = np.empty((count, 3), np.int32)
    ids = np.empty((count, 4), np.int32)
    gather_rows(rows, order, label, dense, ids, is_hot)
    found = np.column_stack([is_hot, label, dense, ids])
    np.testing.assert_array_equal(found, rows[order])
