"""Products of matrices by blocks (`block_product`), with the right matrix packed into panels.

A panel is all rows of the right matrix, thirty-two columns of them behind each other: the blocks of a product
read it in order, from the caches of the core. The panels of weights are packed once a step and serve all
tiles of the batch. Of a transposed left matrix, sixteen columns are packed behind each other, so that eight
of them are read from one cache line. Long sums are added in parts, which keeps their errors small.

On an AMD EPYC with AVX-512, which torch's library takes for one with AVX2, most products of the layers of a
DLRM run at 102 to 114 GF/s a core, packing included, those of torch at 90 to 103 (docs/training-step.md).

M rows and N columns of a product, K terms of its sums; panels are flat.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from ..simd import WIDTH, load, store
from .block_product import COLUMNS, ROWS, multiply_columns, multiply_rows

_LEFT_COLUMNS = 16
"""Columns of the left matrix in a panel of it."""
_PART_TERMS = 64
"""Terms of a sum that are added one by one, before the sums of such parts are."""


def num_panel_floats(num_terms: int, num_columns: int) -> int:
    """Return the floats of the panels of a right matrix."""
    return -(-num_columns // COLUMNS) * COLUMNS * num_terms


def num_left_floats(num_terms: int, num_rows: int) -> int:
    """Return the floats of the panels of a transposed left matrix."""
    return -(-num_rows // _LEFT_COLUMNS) * _LEFT_COLUMNS * num_terms


def num_edge_floats(num_terms: int) -> int:
    """Return the floats of the workspace of a product: a block, and eight rows of the left matrix."""
    return ROWS * (COLUMNS + num_terms)


@kernel
def pack_right(matrix_KN: NDArray[np.float32], panels: NDArray[np.float32]) -> None:
    """Copy a right matrix to panels, with zeros beyond its last column.

    Args:
        matrix_KN: (num_terms, num_columns).
        panels: `num_panel_floats`, written.
    """
    num_terms = matrix_KN.shape[0]
    num_columns = matrix_KN.shape[1]
    flat_N = matrix_KN.reshape(-1)
    for first in range(0, num_columns, COLUMNS):
        for term in range(num_terms):
            source = np.uint64(term * num_columns + first)
            target = np.uint64(first * num_terms + term * COLUMNS)
            if first + COLUMNS <= num_columns:
                store(panels, target, load(flat_N, source))
                store(panels, target + np.uint64(WIDTH), load(flat_N, source + np.uint64(WIDTH)))
            else:
                for column in range(COLUMNS):
                    is_inside = first + column < num_columns
                    panels[target + column] = flat_N[source + column] if is_inside else np.float32(0)


@kernel
def pack_transposed(matrix_NK: NDArray[np.float32], panels: NDArray[np.float32]) -> None:
    """Copy the transpose of a matrix to panels, as `pack_right` copies a matrix.

    Args:
        matrix_NK: (num_columns, num_terms).
        panels: `num_panel_floats`, written.
    """
    num_columns = matrix_NK.shape[0]
    num_terms = matrix_NK.shape[1]
    for first in range(0, num_columns, COLUMNS):
        # A few terms at a time, whose targets stay in the nearest cache.
        for begin in range(0, num_terms, WIDTH):
            end = min(begin + WIDTH, num_terms)
            for column in range(COLUMNS):
                target = first * num_terms + column
                if first + column < num_columns:
                    row_K = matrix_NK[first + column]
                    for term in range(begin, end):
                        panels[target + term * COLUMNS] = row_K[term]
                else:
                    for term in range(begin, end):
                        panels[target + term * COLUMNS] = 0


@kernel
def pack_left(matrix_KM: NDArray[np.float32], panels: NDArray[np.float32]) -> None:
    """Copy a matrix that is the transpose of a left one to panels, with zeros beyond its last column.

    Args:
        matrix_KM: (num_terms, num_rows).
        panels: `num_left_floats`, written.
    """
    num_terms = matrix_KM.shape[0]
    num_rows = matrix_KM.shape[1]
    flat_N = matrix_KM.reshape(-1)
    for first in range(0, num_rows, _LEFT_COLUMNS):
        for term in range(num_terms):
            source = np.uint64(term * num_rows + first)
            target = np.uint64(first * num_terms + term * _LEFT_COLUMNS)
            if first + _LEFT_COLUMNS <= num_rows:
                store(panels, target, load(flat_N, source))
            else:
                for row in range(_LEFT_COLUMNS):
                    is_inside = first + row < num_rows
                    panels[target + row] = flat_N[source + row] if is_inside else np.float32(0)


@kernel
def _copy_block(
    block: NDArray[np.float32], out_MN: NDArray[np.float32], first_row: int, first_column: int
) -> None:
    """Copy the part of a block that lies in the product."""
    for row in range(first_row, min(first_row + ROWS, out_MN.shape[0])):
        for column in range(first_column, min(first_column + COLUMNS, out_MN.shape[1])):
            out_MN[row, column] = block[(row - first_row) * COLUMNS + column - first_column]


@kernel
def multiply(
    left_MK: NDArray[np.float32],
    panels: NDArray[np.float32],
    out_MN: NDArray[np.float32],
    edge: NDArray[np.float32],
) -> None:
    """Write the product of a matrix and one in panels.

    Args:
        left_MK: (num_rows, num_terms), contiguous.
        panels: the (num_terms, num_columns) of `pack_right` or `pack_transposed`.
        out_MN: (num_rows, num_columns), contiguous, written.
        edge: `num_edge_floats`, workspace.

    Error:
        Products are not rounded; K of them are added in parts of 64, then these: at most ``(64 + K / 64) *
        2**-24`` of the sum of magnitudes. The order does not depend on M or N.
    """
    num_rows = left_MK.shape[0]
    num_terms = left_MK.shape[1]
    num_columns = out_MN.shape[1]
    left_N = left_MK.reshape(-1)
    out_N = out_MN.reshape(-1)
    block = edge[: ROWS * COLUMNS]
    last = edge[ROWS * COLUMNS :]
    stride = np.uint64(num_terms)
    for column in range(0, num_columns, COLUMNS):
        panel = panels[column * num_terms :]
        for row in range(0, num_rows, ROWS):
            rows = left_N[row * num_terms :]
            if row + ROWS > num_rows:
                # Behind the last row there may be no memory.
                for position in range(rows.size):
                    last[position] = rows[position]
                for position in range(rows.size, ROWS * num_terms):
                    last[position] = 0
                rows = last
            is_whole = row + ROWS <= num_rows and column + COLUMNS <= num_columns
            out = out_N[row * num_columns + column :] if is_whole else block
            out_stride = np.uint64(num_columns if is_whole else COLUMNS)
            for term in range(0, max(num_terms, 1), _PART_TERMS):
                count = np.uint64(min(num_terms - term, _PART_TERMS))
                of_part = panel[term * COLUMNS :]
                multiply_rows(rows[term:], stride, of_part, count, out, out_stride, term > 0)
            if not is_whole:
                _copy_block(block, out_MN, row, column)


@kernel
def multiply_transposed(
    left_panels: NDArray[np.float32],
    num_terms: int,
    panels: NDArray[np.float32],
    out_MN: NDArray[np.float32],
    edge: NDArray[np.float32],
) -> None:
    """Write the product of a transposed matrix and another, both in panels.

    Args:
        left_panels: the (num_terms, num_rows) of `pack_left`.
        num_terms: terms of a sum.
        panels: the (num_terms, num_columns) of `pack_right`.
        out_MN: (num_rows, num_columns), contiguous, written.
        edge: `num_edge_floats`, workspace.

    Error:
        That of `multiply`.
    """
    num_rows = out_MN.shape[0]
    num_columns = out_MN.shape[1]
    out_N = out_MN.reshape(-1)
    block = edge[: ROWS * COLUMNS]
    stride = np.uint64(_LEFT_COLUMNS)
    for column in range(0, num_columns, COLUMNS):
        panel = panels[column * num_terms :]
        for row in range(0, num_rows, ROWS):
            part = row % _LEFT_COLUMNS
            left = left_panels[(row - part) * num_terms + part :]
            is_whole = row + ROWS <= num_rows and column + COLUMNS <= num_columns
            out = out_N[row * num_columns + column :] if is_whole else block
            out_stride = np.uint64(num_columns if is_whole else COLUMNS)
            for term in range(0, max(num_terms, 1), _PART_TERMS):
                count = np.uint64(min(num_terms - term, _PART_TERMS))
                of_part = panel[term * COLUMNS :]
                multiply_columns(
                    left[term * _LEFT_COLUMNS :], stride, of_part, count, out, out_stride, term > 0
                )
            if not is_whole:
                _copy_block(block, out_MN, row, column)
