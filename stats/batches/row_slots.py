"""The slots of the rows that a batch looks up on one tier, and the check of its ids.

Ids are ranks, so the slot of a row is a comparison and an addition. Both kernels are exact and run over the
ids of one batch (tens of thousands of lookups, 1-3 ns each).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import inlined_kernel, kernel


@inlined_kernel
def slot_of(row: int, first: int, last: int, base: int) -> int:
    """Return the slot of a row on a tier that has rows ``first`` to ``last`` from slot ``base`` on, or -1."""
    return base + row - first if first <= row < last else -1


@kernel
def locate_rows(
    ids_BF: NDArray[np.int32],
    first_F: NDArray[np.int64],
    last_F: NDArray[np.int64],
    base_F: NDArray[np.int64],
    slots_N: NDArray[np.int64],
) -> int:
    """Write the slot of every lookup on a tier that holds ids ``first`` to ``last`` of each table.

    Args:
        ids_BF: (num_samples, num_features); one lookup each.
        first_F: (num_features,); first id of each table the tier holds.
        last_F: (num_features,); one past its last.
        base_F: (num_features,); slot of the row ``first``.
        slots_N: (num_samples * num_features,), written; -1 where the row is not on this tier.

    Returns:
        How many lookups are not on this tier, ids outside any table among them. Exact.
    """
    num_features = ids_BF.shape[1]
    num_absent = 0
    for sample in range(ids_BF.shape[0]):
        for feature in range(num_features):
            row = np.int64(ids_BF[sample, feature])
            slot = slot_of(row, first_F[feature], last_F[feature], base_F[feature])
            num_absent += slot < 0
            slots_N[sample * num_features + feature] = slot
    return num_absent


@kernel
def locate_distinct_rows(
    rows_U: NDArray[np.int32],
    offsets_F1: NDArray[np.int64],
    first_F: NDArray[np.int64],
    last_F: NDArray[np.int64],
    base_F: NDArray[np.int64],
    slots_U: NDArray[np.int64],
) -> int:
    """Do as `locate_rows`, for rows given table after table.

    Args:
        rows_U: (num_distinct,), ids.
        offsets_F1: (num_features + 1,); where the rows of each table begin in ``rows``.
        first_F: (num_features,); first id of each table the tier holds.
        last_F: (num_features,); one past its last.
        base_F: (num_features,); slot of the row ``first``.
        slots_U: (num_distinct,), written; -1 where the row is not on this tier.

    Returns:
        How many rows are not on this tier. Exact.
    """
    num_absent = 0
    for feature in range(first_F.size):
        for i in range(offsets_F1[feature], offsets_F1[feature + 1]):
            row = np.int64(rows_U[i])
            slot = slot_of(row, first_F[feature], last_F[feature], base_F[feature])
            num_absent += slot < 0
            slots_U[i] = slot
    return num_absent


@kernel
def first_stray_lookup(ids_BF: NDArray[np.int32], limit_F: NDArray[np.int64]) -> int:
    """Return the position of the first lookup whose id is not in [0, limit) of its table, or -1.

    Args:
        ids_BF: (num_samples, num_features).
        limit_F: (num_features,); one past the last id allowed.

    Returns:
        ``sample * num_features + feature``. Exact.
    """
    num_features = ids_BF.shape[1]
    for sample in range(ids_BF.shape[0]):
        for feature in range(num_features):
            row = ids_BF[sample, feature]
            if row < 0 or row >= limit_F[feature]:
                return int(sample * num_features + feature)
    return -1


@kernel
def name_rows(
    rows_N: NDArray[np.int64],
    base_F: NDArray[np.int64],
    tables_N: NDArray[np.int32],
    ids_N: NDArray[np.int32],
) -> None:
    """Write table and id of rows that are numbered through all tables, exactly.

    Args:
        rows_N: (num_rows,), ascending.
        base_F: (num_tables,); number of the first row of each table.
        tables_N: (num_rows,), written.
        ids_N: (num_rows,), written.
    """
    table = 0
    for i in range(rows_N.size):
        # Of several tables with one base all but the last are empty.
        while table + 1 < base_F.size and rows_N[i] >= base_F[table + 1]:
            table += 1
        tables_N[i] = table
        ids_N[i] = rows_N[i] - base_F[table]


@kernel
def locate_named_rows(
    tables_N: NDArray[np.int32],
    ids_N: NDArray[np.int32],
    first_F: NDArray[np.int64],
    last_F: NDArray[np.int64],
    base_F: NDArray[np.int64],
    slots_N: NDArray[np.int64],
) -> int:
    """Do as `locate_rows`, for rows named by table and id.

    Args:
        tables_N: (num_rows,).
        ids_N: (num_rows,).
        first_F: (num_tables,); first id of each table the tier holds.
        last_F: (num_tables,); one past its last.
        base_F: (num_tables,); slot of the row ``first``.
        slots_N: (num_rows,), written; -1 where the row is not on this tier.

    Returns:
        How many rows are not on this tier. Exact.
    """
    num_absent = 0
    for i in range(tables_N.size):
        table = tables_N[i]
        slot = slot_of(np.int64(ids_N[i]), first_F[table], last_F[table], base_F[table])
        num_absent += slot < 0
        slots_N[i] = slot
    return num_absent
