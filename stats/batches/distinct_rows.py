"""The distinct rows of a batch's lookups, in order of first appearance.

One pass with a hash table instead of a sort: 1-3 ns per lookup at tens of thousands of lookups. It serves the
trainer, the planners and the simulations alike.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..hashing import mix64
from ..kernel import kernel


@kernel
def distinct_rows(
    rows_N: NDArray[np.int64],
    workspace: NDArray[np.int32],
    distinct_N: NDArray[np.int64],
    inverse_N: NDArray[np.int32],
) -> int:
    """List the distinct rows of a batch's lookups in order of first appearance, exactly.

    Open addressing with linear probing: one pass, no sort, 512 KiB of workspace at 53 k lookups.

    Args:
        rows_N: (num_lookups,), each at least 0, any order.
        workspace: (a power of two, at least 2 * num_lookups); overwritten.
        distinct_N: (num_lookups,), the first ``num_distinct`` are written.
        inverse_N: (num_lookups,), written; ``distinct_N[inverse_N]`` is ``rows_N``.

    Returns:
        num_distinct.
    """
    mask = np.uint64(workspace.size - 1)
    workspace[:] = -1
    num_distinct = 0
    for lookup in range(rows_N.size):
        # The low bits of a hash choose a cell, since neighboring rows must not fill neighboring cells.
        row = rows_N[lookup]
        cell = mix64(np.uint64(row)) & mask
        # Probe until the row or a free cell is found; a cell holds a position in ``distinct_N``.
        found = workspace[cell]
        while found >= 0 and distinct_N[found] != row:
            cell = (cell + np.uint64(1)) & mask
            found = workspace[cell]
        if found < 0:
            found = np.int32(num_distinct)
            workspace[cell] = found
            distinct_N[num_distinct] = row
            num_distinct += 1
        inverse_N[lookup] = found
    return num_distinct


def find_distinct(rows_N: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the distinct rows in order of first appearance, and each lookup's position among them.

    Args:
        rows_N: (num_lookups,), each at least 0.

    Returns:
        (num_distinct,) rows and (num_lookups,) positions: ``distinct[inverse]`` is ``rows_N``.
    """
    # Between two and four cells per lookup, so that probes stay short.
    num_cells = 1 << max(1, int(2 * rows_N.size - 1).bit_length())
    workspace = np.empty(num_cells, np.int32)
    distinct = np.empty(rows_N.size, np.int64)
    inverse = np.empty(rows_N.size, np.int32)
    num_distinct = distinct_rows(rows_N, workspace, distinct, inverse)
    return distinct[:num_distinct], inverse
