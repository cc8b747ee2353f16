"""Distinct cold rows of batches: what a planner of staging slots reads, from the ids of shards.

Ids are ranks, so a cold row's key is its id less the table's hot rows plus a base. One pass with a hash table
that only ever holds one batch's distinct rows.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from ..hashing import mix64


@numba.njit(cache=True, nogil=True)
def add_cold_rows(
    ids_BF: NDArray[np.int32],
    first_F: NDArray[np.int64],
    last_F: NDArray[np.int64],
    base_F: NDArray[np.int64],
    cells: NDArray[np.int32],
    rows: NDArray[np.int32],
    lookups: NDArray[np.int32],
) -> int:
    """List the distinct cold rows of some look-ups, in order of first appearance by sample, then feature.

    Args:
        ids_BF: (num_samples, num_features), perhaps with strides; look-ups of samples in tables.
        first_F: (num_features,); first cold id of each table.
        last_F: (num_features,); one past its last id.
        base_F: (num_features,); key of the row ``first``.
        cells: (a power of two above twice the look-ups,), all -1; left full, see `free_cells`.
        rows: (num_samples * num_features,); the first are written, keys.
        lookups: (num_samples * num_features,); likewise, look-ups of each.

    Returns:
        How many are listed; or -1 - the position of a look-up whose id is outside its table. Exact.
    """
    mask, num_features, num_rows = np.uint64(cells.size - 1), ids_BF.shape[1], 0
    for sample in range(ids_BF.shape[0]):
        for feature in range(num_features):
            row = np.int64(ids_BF[sample, feature])
            if 0 <= row < first_F[feature]:
                continue
            if row < 0 or row >= last_F[feature]:
                return -1 - (sample * num_features + feature)  # type: ignore[no-any-return]
            key = np.int32(row - first_F[feature] + base_F[feature])
            cell = mix64(np.uint64(key)) & mask
            while cells[cell] >= 0 and rows[cells[cell]] != key:
                cell = (cell + np.uint64(1)) & mask
            if cells[cell] < 0:
                cells[cell], rows[num_rows], lookups[num_rows] = num_rows, key, 0
                num_rows += 1
            lookups[cells[cell]] += 1
    return num_rows


@numba.njit(cache=True, nogil=True)
def free_cells(rows: NDArray[np.int32], num_rows: int, cells: NDArray[np.int32]) -> None:
    """Empty the hash table after a batch of ``num_rows`` listed rows, at their cost and not at its own."""
    mask = np.uint64(cells.size - 1)
    for i in range(num_rows):
        cell = mix64(np.uint64(rows[i])) & mask
        while cells[cell] != -1:
            cells[cell] = -1
            cell = (cell + np.uint64(1)) & mask
