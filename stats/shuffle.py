"""Shuffle samples, bags and batches by seed and number alone.

Every sample has a 64-bit key, a hash of (seed, sample number), and the shuffled order is the order of keys. A
sample's output file follows from its key and the keys at which files begin, so any thread can scatter parts
to files in any order. Keys of one seed are distinct: the hash is a bijection of the sample number.

The bags of a multi-hot table are ``ids``, (offsets[-1],), and ``offsets``, (num_samples + 1,), where each
sample's bag begins. All exact.

The order of an epoch's training batches depends only on the seed, the epoch and the kinds of the batches, so
trainer, schedule and simulation compute the same order independently.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .id_tables import mix64_pair
from .kernel import kernel, read_only
from .simd import LINE_BYTES, prefetch

BIN_BITS = 16
NUM_BINS = 1 << BIN_BITS
_SHIFT = np.uint64(64 - BIN_BITS)
_ROWS_AHEAD = 32
"""Prefetch distance, rows: 16 ns per row of 164 bytes, 26 with 8 or 16."""
_IDS_AHEAD = 8
"""Prefetch distance of ids, samples, where only some samples are chosen."""
_SCATTERED_AHEAD = 4
"""Prefetch distance in a file's part of the buffer, rows."""
_LINE_WORDS = LINE_BYTES // 4
_MOST_OF_BIN = 64
"""Keys of a bin that are put in order one by one; even keys have some ten in their fullest bin."""

HOT_ONLY, MIXED, EVALUATION = 0, 1, 2
"""Kinds of samples; every kind has separate files."""


@kernel
def keys_and_kinds(
    seed: int,
    first_sample: int,
    num_train: int,
    is_hot: NDArray[np.uint8],
    is_grouped: bool,
    keys: NDArray[np.uint64],
    kinds: NDArray[np.uint8],
) -> None:
    """Write key and kind of consecutive samples; the key of an evaluation sample is its number in that part.

    Args:
        seed: seed of the shuffle.
        first_sample: number in the log of the first of them.
        num_train: samples of the training part, the first ones of the log.
        is_hot: (num_samples,), 1 where all lookups hit hot rows.
        is_grouped: hot-only and mixed apart; else all training samples are MIXED.
        keys: (num_samples,) out.
        kinds: (num_samples,) out.
    """
    for i in range(keys.shape[0]):
        sample = np.uint64(first_sample + i)
        if first_sample + i >= num_train:
            keys[i] = sample - np.uint64(num_train)
            kinds[i] = EVALUATION
        else:
            keys[i] = mix64_pair(np.uint64(seed), sample)
            kinds[i] = HOT_ONLY if is_grouped and is_hot[i] else MIXED


def bins_of(keys: NDArray[np.uint64], kinds: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the position of each key's bin in a flat array of (3, NUM_BINS): by kind, then by top bits."""
    return kinds * np.int64(NUM_BINS) + (keys >> _SHIFT).astype(np.int64)


@kernel
def files_of_keys(
    keys: NDArray[np.uint64],
    kinds: NDArray[np.uint8],
    first_file_of_bin: NDArray[np.int64],
    last_keys: NDArray[np.uint64],
    samples_per_file: int,
    files: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Find the output file of each sample, and count the samples of each file.

    Args:
        keys: (num_samples,).
        kinds: (num_samples,).
        first_file_of_bin: (3, NUM_BINS), the first file that keys of a bin may belong to.
        last_keys: (num_files,), the largest key that belongs to each file; 2**64 - 1 for the last of a kind.
        samples_per_file: samples in a file of the evaluation part, whose keys are consecutive.
        files: (num_samples,) out.
        counts: (num_files,) out, added to.
    """
    for i in range(keys.shape[0]):
        kind = kinds[i]
        if kind == EVALUATION:
            file = first_file_of_bin[EVALUATION, 0] + np.int64(keys[i]) // samples_per_file
        else:
            file = first_file_of_bin[kind, np.int64(keys[i] >> _SHIFT)]
            # A bin may reach into the files after its first.
            while keys[i] > last_keys[file]:
                file += 1
        files[i] = file
        counts[file] += 1


@kernel
def choose_keys(
    keys: NDArray[np.uint64],
    kinds: NDArray[np.uint8],
    first_keys: NDArray[np.uint64],
    last_keys: NDArray[np.uint64],
    chosen: NDArray[np.int32],
) -> int:
    """Find the samples whose keys are in the range of their kind, and close the gaps between them in place.

    Args:
        keys: (num_samples,) in and out, in the end those of the samples found, at the front.
        kinds: (num_samples,) in and out, likewise.
        first_keys: (3,), the smallest key wanted of each kind.
        last_keys: (3,), the largest; below the smallest where none is wanted.
        chosen: (num_samples,) out, positions of the samples found, ascending.

    Returns:
        How many there are. Exact.
    """
    found = 0
    # Each sample is written to the next free place, which only a wanted one keeps: no branch to mispredict.
    for i in range(keys.shape[0]):
        key = keys[i]
        kind = kinds[i]
        chosen[found] = i
        keys[found] = key
        kinds[found] = kind
        found += first_keys[kind] <= key <= last_keys[kind]
    return found


def order_of_keys(keys_N: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the positions of distinct keys in ascending order, (N,). Exact.

    Keys of a shuffle lie evenly in their range, so nearly all find their place by their leading bits. Any
    others are sorted, which takes eight times as long.
    """
    order_N = np.empty(keys_N.size, np.int64)
    next_of_bin = np.zeros(1 << keys_N.size.bit_length(), np.int32)
    if keys_N.size and not _order_keys(keys_N, next_of_bin, order_N):
        return np.argsort(keys_N)
    return order_N


@kernel
def _order_keys(keys: NDArray[np.uint64], next_of_bin: NDArray[np.int32], order: NDArray[np.int64]) -> bool:
    """Fill ``order`` with the positions of keys, ascending, unless too many of them are in one bin.

    Args:
        keys: (num_keys,), one at least.
        next_of_bin: more numbers than keys, zeros; written.
        order: (num_keys,) out.

    Returns:
        Whether it is filled. Exact.
    """
    num_keys = keys.shape[0]
    num_bins = np.uint64(next_of_bin.shape[0])
    low = keys.min()
    span = keys.max() - low
    shift = np.uint64(0)
    while span >> shift >= num_bins:
        shift += np.uint64(1)
    for i in range(num_keys):
        next_of_bin[(keys[i] - low) >> shift] += 1
    first = np.int32(0)
    for i in range(next_of_bin.shape[0]):
        count = next_of_bin[i]
        if count > _MOST_OF_BIN:
            return False
        next_of_bin[i] = first
        first += count
    for i in range(num_keys):
        here = (keys[i] - low) >> shift
        order[next_of_bin[here]] = i
        next_of_bin[here] += 1
    # Bins are in order now, and a key has only those of its own bin to pass.
    for i in range(1, num_keys):
        position = order[i]
        place = i
        while place > 0 and keys[order[place - 1]] > keys[position]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = position
    return True


@kernel
def scatter_rows(
    columns: NDArray[np.int32],
    ids: NDArray[np.int32],
    chosen: NDArray[np.int32],
    keys: NDArray[np.uint64],
    files: NDArray[np.int64],
    next_row: NDArray[np.int64],
    scattered_rows: NDArray[np.int32],
    scattered_keys: NDArray[np.uint64],
    largest: NDArray[np.uint32],
) -> None:
    """Copy each chosen sample's row (columns, then ids) and key into its file's part.

    Args:
        columns: (num_columns, num_chosen), of the chosen samples alone; floats by their bits.
        ids: (num_samples, num_features).
        chosen: (num_chosen,), samples whose files are in the buffer, as `choose_keys` finds them.
        keys: (num_chosen,).
        files: (num_chosen,), the file of each chosen sample.
        next_row: (num_files,), where this part's next row of each file goes; advanced.
        scattered_rows: (capacity, num_columns + num_features) out.
        scattered_keys: (capacity,) out.
        largest: (num_features,) in and out, raised to the largest id copied of each feature, as an unsigned
            number: a negative id is larger than any table.
    """
    num_columns = np.uint64(columns.shape[0])
    num_features = np.uint64(ids.shape[1])
    ids_ahead = np.uint64(_IDS_AHEAD)
    num_chosen = np.uint64(chosen.shape[0])
    for place in range(num_chosen):  # unsigned: a signed index is not vectorised
        # Prefetch the ids of a later sample, which may be far away, up to the line of its last one.
        if place + ids_ahead < num_chosen:
            later = np.int64(chosen[place + ids_ahead]) * ids.shape[1]
            for word in range(0, ids.shape[1], _LINE_WORDS):
                prefetch(ids, later + word)
            prefetch(ids, later + ids.shape[1] - 1)
        i = np.uint64(chosen[place])
        row = next_row[files[place]]
        next_row[files[place]] = row + 1
        # A file's next rows follow this one: have them in the cache before they are written.
        for word in range(0, scattered_rows.shape[1], _LINE_WORDS):
            prefetch(scattered_rows, (row + _SCATTERED_AHEAD) * scattered_rows.shape[1] + word)
        scattered_keys[row] = keys[place]
        target = np.uint64(row)
        for column in range(num_columns):
            scattered_rows[target, column] = columns[column, place]
        for feature in range(num_features):
            scattered_rows[target, num_columns + feature] = ids[i, feature]
        # A separate loop, which the compiler turns into vector instructions; the ids are in the cache.
        for feature in range(num_features):
            largest[feature] = max(largest[feature], np.uint32(ids[i, feature]))


@kernel
def gather_rows(
    rows: NDArray[np.int32],
    order: NDArray[np.int64],
    label: NDArray[np.int32],
    dense: NDArray[np.int32],
    ids: NDArray[np.int32],
    is_hot: NDArray[np.int32],
) -> None:
    """Split rows ``(is_hot, label, dense, ids)``, in a given order, into four arrays.

    Args:
        rows: (num_rows, 2 + num_dense + num_features), floats by their bits.
        order: (num_samples,), positions in ``rows``.
        label: (num_samples,) out, bits of float32.
        dense: (num_samples, num_dense) out, bits of float32.
        ids: (num_samples, num_features) out.
        is_hot: (num_samples,) out.
    """
    # A row is the tag, the label, the dense values and the ids, one word of 4 bytes each.
    num_dense = np.uint64(dense.shape[1])
    num_features = np.uint64(ids.shape[1])
    first_dense = np.uint64(2)
    first_id = np.uint64(2) + num_dense
    num_samples = order.shape[0]
    for i in range(num_samples):
        if i + _ROWS_AHEAD < num_samples:
            # Reads are random, but the order is known: prefetch a later row, and the line of its last word,
            # because rows and cache lines are not aligned.
            later = order[i + _ROWS_AHEAD] * rows.shape[1]
            for word in range(0, rows.shape[1], _LINE_WORDS):
                prefetch(rows, later + word)
            prefetch(rows, later + rows.shape[1] - 1)
        row = np.uint64(order[i])
        sample = np.uint64(i)
        is_hot[i] = rows[row, 0]
        label[i] = rows[row, 1]
        for k in range(num_dense):
            dense[sample, k] = rows[row, first_dense + k]
        for f in range(num_features):
            ids[sample, f] = rows[row, first_id + f]


def tag_cold_bags(
    offsets: NDArray[np.int32], ids: NDArray[np.int32], num_hot: int, is_hot: NDArray[np.uint8]
) -> None:
    """Write 0 for each sample with a lookup of a cold row; others keep their tag.

    Args:
        offsets: (num_samples + 1,).
        ids: (offsets[-1],).
        num_hot: a row is hot when its id is smaller.
        is_hot: (num_samples,) in and out.
    """
    num_cold = np.concatenate([[0], np.cumsum(ids >= num_hot)])
    is_hot[np.diff(num_cold[offsets]) > 0] = 0


@kernel
def place_bags(
    lengths: NDArray[np.int32],
    files: NDArray[np.int64],
    next_row: NDArray[np.int64],
    next_lookup: NDArray[np.int64],
    places: NDArray[np.int64],
    row_places: NDArray[np.int64],
) -> None:
    """Assign the lookups of each sample their place in a buffer in which every file has its part.

    Args:
        lengths: (num_tables, num_samples), of each sample's bag in each multi-hot table.
        files: (num_samples,), the file of each sample.
        next_row: (num_files,), where the next row of each file goes; advanced.
        next_lookup: (num_files,), where the next lookup of each file goes; advanced.
        places: (num_samples,) out.
        row_places: (capacity,) out, the place of each row.
    """
    for i in range(files.shape[0]):
        # The row's place is that of its first lookup; the bags of all its tables follow one another.
        file = files[i]
        places[i] = next_lookup[file]
        row_places[next_row[file]] = next_lookup[file]
        next_row[file] += 1
        for table in range(lengths.shape[0]):
            next_lookup[file] += lengths[table, i]


def copy_bags(
    source: NDArray[np.int32],
    firsts: NDArray[np.integer[Any]],
    lengths: NDArray[np.int32],
    target: NDArray[np.int32],
    places: NDArray[np.integer[Any]],
) -> None:
    """Copy bags from where they begin in ``source`` to their places in ``target``.

    Args:
        source: (capacity,).
        firsts: (num_bags,), positions in ``source``.
        lengths: (num_bags,).
        target: (capacity,) out.
        places: (num_bags,), positions in ``target``.
    """
    _copy_bags(read_only(source), firsts.astype(np.int64), lengths, target, places.astype(np.int64))


@kernel
def _copy_bags(
    source: NDArray[np.int32],
    firsts: NDArray[np.int64],
    lengths: NDArray[np.int32],
    target: NDArray[np.int32],
    places: NDArray[np.int64],
) -> None:
    """See `copy_bags`."""
    for bag in range(lengths.shape[0]):
        for i in range(lengths[bag]):
            target[places[bag] + i] = source[firsts[bag] + i]


@kernel
def _shuffle_keys(seed: np.uint64, keys_N: NDArray[np.uint64]) -> None:
    """Write a 64-bit key for each position of the stream ``seed``; sorting them shuffles."""
    for position in range(keys_N.size):
        keys_N[position] = mix64_pair(seed, np.uint64(position))


def shuffled(num_batches: int, seed: int, epoch: int) -> NDArray[np.int32]:
    """Return a permutation of ``num_batches`` that depends on (seed, epoch) alone."""
    keys_N = np.empty(num_batches, np.uint64)
    _shuffle_keys(np.uint64(mix64_pair(np.uint64(seed), np.uint64(epoch))), keys_N)
    return np.argsort(keys_N, kind="stable").astype(np.int32)


def spread_evenly(hot_only: NDArray[np.int32], mixed: NDArray[np.int32]) -> NDArray[np.int32]:
    """Merge two sequences so that each keeps its order and is spread evenly over the whole.

    Args:
        hot_only: (num_hot_only,); batch numbers, any.
        mixed: (num_mixed,); likewise.

    Returns:
        (num_hot_only + num_mixed,); every run of consecutive batches has the overall share of hot-only ones,
        to within one batch.
    """
    # Cut the epoch into as many equal intervals as a kind has batches, and merge by the middles of the
    # intervals; both are multiplied by the product of the two numbers, which keeps them exact.
    middle_of_hot_only = (np.arange(hot_only.size) + 0.5) * mixed.size
    middle_of_mixed = (np.arange(mixed.size) + 0.5) * hot_only.size
    order = np.argsort(np.concatenate([middle_of_hot_only, middle_of_mixed]), kind="stable")
    return np.concatenate([hot_only, mixed])[order].astype(np.int32)


def epoch_order(is_hot_only: NDArray[np.bool_], seed: int, epoch: int, *, spread: bool) -> NDArray[np.int32]:
    """Return the order in which epoch ``epoch`` visits the training batches.

    Args:
        is_hot_only: (num_batches,); kind of each batch.
        seed: seed of the run.
        epoch: number of the epoch, from 0.
        spread: spread the hot-only batches evenly between the mixed ones (shards of order ``grouped``)
            rather than shuffle all together (``original``).

    Returns:
        (num_batches,); a permutation, a function of the arguments alone.
    """
    order = shuffled(is_hot_only.size, seed, epoch)
    if not spread:
        return order
    return spread_evenly(order[is_hot_only[order]], order[~is_hot_only[order]])
