"""Bags through the shuffle: the lookups that samples have in one multi-hot table, one bag behind the other.

``offsets``, (num_samples + 1,), are where each sample's bag begins in ``ids``, (offsets[-1],). All exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel


@kernel
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
    for i in range(is_hot.shape[0]):
        # Cold lookups are counted without a branch; only the tag needs one.
        num_cold = 0
        for lookup in range(offsets[i], offsets[i + 1]):
            num_cold += ids[lookup] >= num_hot
        if num_cold:
            is_hot[i] = 0


@kernel
def bag_lengths(
    offsets: NDArray[np.int32],
    chosen: NDArray[np.int32],
    files: NDArray[np.int64],
    lengths: NDArray[np.int32],
    lookups: NDArray[np.int64],
) -> None:
    """Write the length of the bag of each chosen sample, and add it to the lookups of its file.

    Args:
        offsets: (num_samples + 1,).
        chosen: (num_chosen,), positions of samples.
        files: (num_chosen,), the file of each chosen sample.
        lengths: (num_chosen,) out.
        lookups: (num_files,) out, added to.
    """
    for place in range(chosen.shape[0]):
        i = chosen[place]
        lengths[place] = offsets[i + 1] - offsets[i]
        lookups[files[place]] += lengths[place]


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


@kernel
def scatter_bags(
    offsets: NDArray[np.int32],
    ids: NDArray[np.int32],
    chosen: NDArray[np.int32],
    places: NDArray[np.int64],
    bags: NDArray[np.int32],
) -> None:
    """Copy the bag of each chosen sample to its place.

    Args:
        offsets: (num_samples + 1,).
        ids: (offsets[-1],).
        chosen: (num_chosen,), positions of samples.
        places: (num_chosen,), positions in ``bags``; advanced by what was copied, so that the next table's
            bag follows.
        bags: (capacity,) out.
    """
    for sample in range(chosen.shape[0]):
        i = chosen[sample]
        for lookup in range(offsets[i], offsets[i + 1]):
            bags[places[sample]] = ids[lookup]
            places[sample] += 1


@kernel
def gather_bags(
    bags: NDArray[np.int32],
    places: NDArray[np.int64],
    offsets: NDArray[np.int32],
    ids: NDArray[np.int32],
) -> None:
    """Copy bags from their places.

    Args:
        bags: as `scatter_bags` left it.
        places: (num_samples,), positions in ``bags``; advanced to the next table's bag.
        offsets: (num_samples + 1,).
        ids: (offsets[-1],) out.
    """
    for i in range(places.shape[0]):
        for lookup in range(offsets[i], offsets[i + 1]):
            ids[lookup] = bags[places[i]]
            places[i] += 1
