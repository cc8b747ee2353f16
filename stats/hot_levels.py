"""How much is hot under each of many budgets, in one pass over the look-ups.

The hot sets of rising budgets are nested, so a row has a level: the first budget that makes it hot. A
sample's level is the highest of its rows'. One byte a row serves any order, prefixes of ids or not.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

MAX_BUDGETS = 255


def levels_of_prefixes(num_hot_L: NDArray[np.int64], num_rows: int) -> NDArray[np.uint8]:
    """The level of each row of a table whose hot rows are its first ids.

    Args:
        num_hot_L: (num_budgets,), not falling; at most MAX_BUDGETS.
        num_rows: of the table.

    Returns:
        (num_rows,); num_budgets where no budget makes the row hot.
    """
    if num_hot_L.shape[0] > MAX_BUDGETS:
        raise ValueError(f"{num_hot_L.shape[0]} budgets: want {MAX_BUDGETS} at most")
    ends = np.minimum(np.append(num_hot_L, num_rows), num_rows)
    lengths = np.diff(ends, prepend=0)
    return np.repeat(np.arange(ends.shape[0], dtype=np.uint8), lengths)


@numba.njit(cache=True, nogil=True)
def raise_levels(
    ids_N: NDArray[np.int32],
    offsets: NDArray[np.int32],
    level_T: NDArray[np.uint8],
    level_B: NDArray[np.uint8],
    lookups_L: NDArray[np.int64],
) -> None:
    """Count the look-ups of one table by level, and raise each sample's level to that of its rows. Exact.

    Args:
        ids_N: (num_lookups,); the look-ups of sample i are ``ids_N[offsets[i]:offsets[i + 1]]``.
        offsets: (num_samples + 1,), or empty where each sample has one look-up.
        level_T: (num_embeddings,), of the rows.
        level_B: (num_samples,), of the samples, raised.
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
