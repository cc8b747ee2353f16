"""Exact next uses of rows in a stream of batches, from its end to its start in chunks."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from .step_plan_stream import NEVER


@numba.njit(cache=True, nogil=True)
def next_uses_backward(
    offsets: NDArray[np.int64],
    rows: NDArray[np.int64],
    first_step: int,
    next_step_of_row: NDArray[np.int32],
    next_uses: NDArray[np.int64],
) -> None:
    """Write each entry's next use; call it with the chunks of a stream from the last to the first. Exact.

    Args:
        offsets: (num_steps + 1,), where the rows of each step of the chunk begin.
        rows: (num_entries,), keys, in each step distinct.
        first_step: number of the chunk's first step.
        next_step_of_row: (num_rows,), updated; filled with NEVER before the last chunk.
        next_uses: (num_entries,), written.
    """
    for local in range(offsets.size - 2, -1, -1):
        for i in range(offsets[local], offsets[local + 1]):
            next_uses[i] = next_step_of_row[rows[i]]
            next_step_of_row[rows[i]] = first_step + local


def next_uses(offsets: NDArray[np.int64], rows: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
    """(num_entries,) next uses in a stream that fits in memory, NEVER after a row's last use."""
    found = np.empty(rows.size, np.int64)
    next_uses_backward(offsets, rows, 0, np.full(num_rows, NEVER, np.int32), found)
    return found
