"""The lookups of a batch by row as a device gets them: numbers within each table, which mostly fit 16 bits.

Shapes as in `lookups_by_row`; L rows with a long list.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .lookups_by_row import LookupsByRow

LONG_LOOKUPS = 256
"""Lookups of a row in a batch above which its list is long: a GPU sums it in several programs. The host does
not: its threads divide the rows of a batch, and a row has the lookups of one table at most."""

_POSITION_BITS = np.uint64(31)
"""Bits of a position among the lookups of a batch."""


class PackedLookups(NamedTuple):
    """Places for the lists of a batch, each at least as long as needed."""

    order_N: NDArray[Any]
    """uint16 or int32; sample of each lookup."""
    starts_U: NDArray[Any]
    """uint16 or int32; where the lookups of each row begin among those of its table."""
    long_rows_L: NDArray[np.int32]
    """Positions among the rows of a table of those with more than `LONG_LOOKUPS` lookups."""
    long_offsets_F1: NDArray[np.int32]
    staged_offsets_F1: NDArray[np.int32]
    """Rows before each table that do not live on the fast tier."""


@kernel
def count_long_rows(starts_U1: NDArray[np.int32]) -> int:
    """Count the rows with more than `LONG_LOOKUPS` lookups.

    Args:
        starts_U1: (num_rows + 1,); where the lookups of each row begin, and the end of the last. Exact.
    """
    num_long = 0
    for row in range(starts_U1.shape[0] - 1):
        num_long += starts_U1[row + 1] - starts_U1[row] > LONG_LOOKUPS
    return num_long


@kernel
def pack_lookups(
    lookups: LookupsByRow,
    num_samples: int,
    first_F: NDArray[np.int64],
    last_F: NDArray[np.int64],
    packed: PackedLookups,
) -> None:
    """Write lookups as numbers within their tables, one lookup of each table in a sample.

    Args:
        lookups: of a batch, by position ``sample * num_tables + table``.
        num_samples: of the batch.
        first_F: (num_tables,); first id of each table that lives on the fast tier.
        last_F: (num_tables,); one past its last.
        packed: written.

    Error:
        Exact: a position is below 2**31, and ``scale`` is off 2**shift / num_tables by less than 1, so that
        the error of the quotient is below 2**31 / 2**shift <= 1 / num_tables.
    """
    num_tables = lookups.first_F1.shape[0] - 1
    # Division by a multiplication and a shift: seven times as fast.
    shift = _POSITION_BITS
    while (np.uint64(1) << (shift - _POSITION_BITS)) < np.uint64(num_tables):
        shift += np.uint64(1)
    scale = (np.uint64(1) << shift) // np.uint64(max(num_tables, 1)) + np.uint64(1)
    for i in range(lookups.order_N.shape[0]):
        packed.order_N[i] = (np.uint64(lookups.order_N[i]) * scale) >> shift
    num_long = 0
    num_staged = 0
    for table in range(num_tables):
        packed.long_offsets_F1[table] = num_long
        packed.staged_offsets_F1[table] = num_staged
        first_row = lookups.first_F1[table]
        lookups_before = table * num_samples
        for row in range(first_row, lookups.first_F1[table + 1]):
            start = lookups.starts_U1[row]
            packed.starts_U[row] = start - lookups_before
            # Rows with long lists, and rows without a place on the fast tier.
            if lookups.starts_U1[row + 1] - start > LONG_LOOKUPS:
                packed.long_rows_L[num_long] = row - first_row
                num_long += 1
            num = lookups.rows_U[row]
            num_staged += num < first_F[table] or num >= last_F[table]
    packed.long_offsets_F1[num_tables] = num_long
    packed.staged_offsets_F1[num_tables] = num_staged
