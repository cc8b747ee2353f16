"""Hot rows and fully hot samples under each of many budgets, in one pass over the lookups.

The hot sets of rising budgets are nested, so a row has a level: the first budget that makes it hot. A
sample's level is the highest of its rows'. One byte per row serves any order, prefixes of ids or not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..hashing import mix64_pair
from ..kernel import kernel

MAX_BUDGETS = 255
_CHUNK_ROWS = 1 << 20


def levels_of_prefixes(num_hot_L: NDArray[np.int64], num_rows: int) -> NDArray[np.uint8]:
    """Return the level of each row of a table whose hot rows are its first ids.

    Args:
        num_hot_L: (num_budgets,), not falling; at most MAX_BUDGETS.
        num_rows: rows of the table.

    Returns:
        (num_rows,); num_budgets where no budget makes the row hot.
    """
    if num_hot_L.shape[0] > MAX_BUDGETS:
        raise ValueError(f"{num_hot_L.shape[0]} budgets: want {MAX_BUDGETS} at most")
    ends = np.minimum(np.append(num_hot_L, num_rows), num_rows)
    lengths = np.diff(ends, prepend=0)
    return np.repeat(np.arange(ends.shape[0], dtype=np.uint8), lengths)


@kernel
def raise_levels(
    ids_N: NDArray[np.int32],
    offsets: NDArray[np.int32],
    level_T: NDArray[np.uint8],
    level_B: NDArray[np.uint8],
    lookups_L: NDArray[np.int64],
) -> None:
    """Count the lookups of one table by level, and raise each sample's level to that of its rows. Exact.

    Args:
        ids_N: (num_lookups,); the lookups of sample i are ``ids_N[offsets[i]:offsets[i + 1]]``.
        offsets: (num_samples + 1,), or empty where each sample has one lookup.
        level_T: (num_embeddings,), level of each row.
        level_B: (num_samples,), level of each sample, raised.
        lookups_L: (num_budgets + 1,) out, added to.
    """
    is_one_hot = offsets.shape[0] == 0
    for sample in range(level_B.shape[0]):
        first = sample if is_one_hot else offsets[sample]
        stop = sample + 1 if is_one_hot else offsets[sample + 1]
        for i in range(first, stop):
            level = level_T[ids_N[i]]
            lookups_L[level] += 1
            level_B[sample] = max(level_B[sample], level)


def levels_by_count(
    counts_R: NDArray[np.int32],
    first_row_T: NDArray[np.int64],
    row_bytes_F: NDArray[np.int64],
    budgets_L: NDArray[np.int64],
    seed: int,
) -> NDArray[np.uint8]:
    """Return the level of each row where rows are hot by falling count, as many as fit.

    Args:
        counts_R: (num_rows,), of rows of all tables; those of 0 come last.
        first_row_T: (num_tables + 1,), first row of each table, then num_rows.
        row_bytes_F: (num_tables,), bytes of a row.
        budgets_L: (num_budgets,), bytes, rising.
        seed: seed of the hash that decides between equal counts.

    Returns:
        (num_rows,); num_budgets where no budget makes the row hot.

    Error:
        Exact for rows with a count. Those without are not sorted: where a hash lies among all hashes stands
        for its place, so about sqrt(num_rows) of them too many or too few are hot.

    Source:
        FAE as released: the rows with the highest counts in a sample of the log, all tables together.
    """
    # Rows with a count: sorted, and the bytes up to each compared with the budgets.
    # Rows that were seen come first, by falling count; equal counts by hash.
    rows = np.flatnonzero(counts_R)
    hashes = np.empty(rows.shape[0], np.uint64)
    hash_rows(rows, seed, hashes)
    order = rows[np.lexsort((hashes, -counts_R[rows].astype(np.int64)))]
    table_of_row = np.searchsorted(first_row_T, order, side="right") - 1
    # A row is hot under every budget that its bytes and those of all rows before it fit in.
    used = np.cumsum(row_bytes_F[table_of_row])
    levels = np.empty(counts_R.shape[0], np.uint8)
    levels[order] = np.searchsorted(budgets_L, used)
    # Rows without one follow, spread by their hashes over the bytes that are left.
    num_rows_F = np.diff(first_row_T)
    seen_F = np.bincount(table_of_row, minlength=row_bytes_F.shape[0])
    left_bytes = float(((num_rows_F - seen_F) * row_bytes_F).sum())
    before = float(used[-1]) if used.size else 0.0
    for table, row_bytes in enumerate(row_bytes_F.tolist()):
        for first in range(int(first_row_T[table]), int(first_row_T[table + 1]), _CHUNK_ROWS):
            chunk = counts_R[first : min(first + _CHUNK_ROWS, int(first_row_T[table + 1]))]
            rest = first + np.flatnonzero(chunk == 0)
            hashes = np.empty(rest.shape[0], np.uint64)
            hash_rows(rest, seed, hashes)
            # In expectation a row ends at its hash's share of the bytes that are left.
            ends = before + hashes * (2.0**-64 * (left_bytes - row_bytes)) + row_bytes
            levels[rest] = np.searchsorted(budgets_L, ends)
    return levels


@kernel
def hash_rows(rows: NDArray[np.int64], seed: int, hashes: NDArray[np.uint64]) -> None:
    """Write a hash of each row's number and the seed: an order that is independent of counts."""
    for i in range(rows.shape[0]):
        hashes[i] = mix64_pair(np.uint64(seed), np.uint64(rows[i]))
