"""Distinct cold rows of batches, the input of a planner of staging slots, from the ids of shards.

Ids are ranks, so a cold row's key is its id less the table's hot rows plus a base. One pass with a hash table
that only ever holds one batch's distinct rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..hashing import mix64
from ..kernel import kernel


@kernel
def add_cold_rows(
    ids_BF: NDArray[np.int32],
    first_F: NDArray[np.int64],
    last_F: NDArray[np.int64],
    base_F: NDArray[np.int64],
    cells: NDArray[np.int32],
    rows: NDArray[np.int32],
    lookups: NDArray[np.int32],
) -> int:
    """List the distinct cold rows of some lookups, in order of first appearance by sample, then feature.

    Args:
        ids_BF: (num_samples, num_features), perhaps with strides; lookups of samples in tables.
        first_F: (num_features,); first cold id of each table.
        last_F: (num_features,); one past its last id.
        base_F: (num_features,); key of the row ``first``.
        cells: (a power of two above twice the lookups,), all -1; left full, see `free_cells`.
        rows: (num_samples * num_features,); the first are written, keys.
        lookups: (num_samples * num_features,); likewise, lookups of each.

    Returns:
        How many are listed; or -1 - the position of a lookup whose id is outside its table. Exact.
    """
    mask = np.uint64(cells.size - 1)
    num_features = ids_BF.shape[1]
    num_rows = 0
    for sample in range(ids_BF.shape[0]):
        for feature in range(num_features):
            row = np.int64(ids_BF[sample, feature])
            # Hot rows come first in their table and need no slot.
            if 0 <= row < first_F[feature]:
                continue
            if row < 0 or row >= last_F[feature]:
                return -1 - int(sample * num_features + feature)
            # Tables lie one after another in the numbers of cold rows.
            key = np.int32(row - first_F[feature] + base_F[feature])
            # A cell holds the position in ``rows`` of the row it stands for.
            cell = mix64(np.uint64(key)) & mask
            while cells[cell] >= 0 and rows[cells[cell]] != key:
                cell = (cell + np.uint64(1)) & mask
            if cells[cell] < 0:
                cells[cell] = num_rows
                rows[num_rows] = key
                lookups[num_rows] = 0
                num_rows += 1
            lookups[cells[cell]] += 1
    return num_rows


@kernel
def free_cells(rows: NDArray[np.int32], num_rows: int, cells: NDArray[np.int32]) -> None:
    """Empty the hash table after a batch of ``num_rows`` listed rows, in time that follows the rows."""
    mask = np.uint64(cells.size - 1)
    for i in range(num_rows):
        # From a row's first cell on, all cells in use are of this batch: empty the whole run.
        cell = mix64(np.uint64(rows[i])) & mask
        while cells[cell] != -1:
            cells[cell] = -1
            cell = (cell + np.uint64(1)) & mask


def in_order(
    rows: NDArray[np.integer[Any]], lookups: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return distinct rows in ascending order, and the lookups of each.

    Args:
        rows: (num_rows,), keys in [0, 2**31).
        lookups: (num_rows,), in [0, 2**32).
    """
    # Sorted as one number each: several times faster than to sort positions and gather twice.
    pairs = (rows.astype(np.int64) << 32) | lookups.astype(np.int64)
    pairs.sort()
    return pairs >> 32, pairs & 0xFFFFFFFF
