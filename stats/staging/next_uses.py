"""Exact next uses of rows in a stream of batches, found from its end to its start."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .step_plans import NEVER


@kernel
def next_uses_backward(
    order: NDArray[np.int64],
    offsets: NDArray[np.int64],
    rows: NDArray[np.int32],
    next_step_of_row: NDArray[np.int32],
    next_uses: NDArray[np.int32],
) -> None:
    """Write each entry's next use. Arrays of entries are read and written a batch at a time. Exact.

    Args:
        order: (num_steps,), the batch of each step.
        offsets: (num_batches + 1,), where the rows of each batch begin.
        rows: (num_entries,), keys, in each batch distinct.
        next_step_of_row: (num_rows,), filled with NEVER; changed.
        next_uses: (num_entries,), written.
    """
    for step in range(order.size - 1, -1, -1):
        for i in range(offsets[order[step]], offsets[order[step] + 1]):
            next_uses[i] = next_step_of_row[rows[i]]
            next_step_of_row[rows[i]] = step


def next_uses(offsets: NDArray[np.int64], rows: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
    """Return the next uses, (num_entries,), in a stream that fits in memory, NEVER after a row's last use."""
    found = np.empty(rows.size, np.int64)
    order = np.arange(offsets.size - 1)
    next_uses_backward(order, offsets, rows, np.full(num_rows, NEVER, np.int32), found)
    return found
