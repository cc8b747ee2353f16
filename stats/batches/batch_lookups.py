"""The lookups of a batch as kernels take them: ids in sample order, and where those of each table are.

Shapes: F tables, N lookups.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel

_NOTHING = np.empty(0, np.int32)


class BatchLookups(NamedTuple):
    """The lookups of a batch in sample order, and where those of each table are."""

    ids_N: NDArray[np.int32]
    """Id of each lookup."""
    positions_N: NDArray[np.int32]
    """Positions in ``ids_N`` of the lookups of one table after the other, ascending in each; empty where
    each sample has one lookup in each table, so that lookup i of table f is at ``i * F + f``."""
    offsets_F1: NDArray[np.int64]
    """Lookups of the tables before each one, from 0."""
    num_rows_F: NDArray[np.int64]
    """Rows of each table, at most 2**31."""


@kernel
def _positions_by_table(bags_N: NDArray[np.int64], offsets_F1: NDArray[np.int64], found: Any) -> None:
    """Write the positions of the lookups of each table, ascending; ``offsets_F1`` counts them. Exact."""
    num_tables = offsets_F1.shape[0] - 1
    ends = offsets_F1.copy()
    for position in range(bags_N.shape[0]):
        table = bags_N[position] % num_tables
        found[ends[table]] = np.int32(position)
        ends[table] += 1


def of_matrix(ids_N: NDArray[np.int32], num_rows_F: NDArray[np.int64]) -> BatchLookups:
    """Return lookups of which each sample has one in each table, by sample, then table."""
    num_tables = num_rows_F.shape[0]
    offsets = np.arange(num_tables + 1) * (ids_N.shape[0] // max(num_tables, 1))
    return BatchLookups(ids_N, _NOTHING, offsets, num_rows_F)


def of_bags(
    ids_N: NDArray[np.int32],
    bags_N: NDArray[np.int64],
    num_rows_F: NDArray[np.int64],
) -> BatchLookups:
    """Return lookups that name their bag, ``sample * F + table``, ascending."""
    num_tables = num_rows_F.shape[0]
    counts = np.bincount(bags_N % max(num_tables, 1), minlength=num_tables)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    positions = np.empty(ids_N.shape[0], np.int32)
    _positions_by_table(bags_N, offsets, positions)
    return BatchLookups(ids_N, positions, offsets, num_rows_F)


def of_tables(ids: list[NDArray[np.int32]], num_rows_F: NDArray[np.int64]) -> BatchLookups:
    """Return lookups given as one array for each table."""
    flat = np.concatenate([_NOTHING, *ids])
    offsets = np.concatenate([[0], np.cumsum([part.shape[0] for part in ids])]).astype(np.int64)
    return BatchLookups(flat, np.arange(flat.shape[0], dtype=np.int32), offsets, num_rows_F)
