"""Panels: matrices cut into pieces of sixty-four columns, each of them one piece of memory.

Row by row a panel holds all rows of its columns. Products of panels read and write memory in order, whichever
side a matrix is on: a panel of a left matrix has sixty-four terms of its sums, one of a right matrix as many
columns of the product, and one of a transposed left matrix as many of its rows. So what a product writes is
read by the next ones as it is. Weights are stored row by row; a part of sixty-four rows and columns, or its
transpose, is copied to the nearest cache when all rows of a left matrix are about to be multiplied by it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import create_struct_proxy
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from ..kernel import inlined_kernel, kernel
from ..simd import WIDTH, load, prefetch, store, zeros
from .block_product import PANEL, ROWS

PART_FLOATS: Final = PANEL * PANEL
"""Floats of a part of a matrix that is as wide as a panel, and as high."""
SQUARES: Final = PART_FLOATS // WIDTH**2
"""Squares of sixteen rows and columns of a part, which are transposed one by one."""
_SECOND, _THIRD, _FOURTH = np.uint64(WIDTH), np.uint64(2 * WIDTH), np.uint64(3 * WIDTH)
"""The values of a row of a panel behind its first."""
_FLOAT_BYTES = 4


def num_stored_rows(num_rows: int) -> int:
    """Return the rows of panels for a left matrix: whole blocks."""
    return -(-num_rows // ROWS) * ROWS


def num_panel_floats(num_rows: int, num_columns: int) -> int:
    """Return the floats of panels of so many rows."""
    return -(-num_columns // PANEL) * PANEL * num_rows


@kernel
def pack(matrix_MN: NDArray[np.float32], num_stored: int, panels: NDArray[np.float32]) -> None:
    """Copy a matrix to panels, with zeros behind its last column.

    Args:
        matrix_MN: (num_rows, num_columns), contiguous.
        num_stored: rows of the panels; those behind the matrix are left as they are.
        panels: `num_panel_floats`, written.
    """
    num_rows, num_columns = matrix_MN.shape
    flat_N = matrix_MN.reshape(-1)
    for row in range(num_rows):
        for first in range(0, num_columns, PANEL):
            _copy_row(
                flat_N,
                row * num_columns + first,
                min(num_columns - first, PANEL),
                panels,
                first * num_stored + row * PANEL,
            )


@kernel
def unpack(panels: NDArray[np.float32], num_stored: int, matrix_MN: NDArray[np.float32]) -> None:
    """Copy a matrix back from panels.

    Args:
        panels: those of `pack`.
        num_stored: their rows.
        matrix_MN: (num_rows, num_columns), contiguous, written.
    """
    num_rows, num_columns = matrix_MN.shape
    flat_N = matrix_MN.reshape(-1)
    for row in range(num_rows):
        for first in range(0, num_columns, WIDTH):
            target = row * num_columns + first
            part = first % PANEL
            source = (first - part) * num_stored + row * PANEL + part
            if first + WIDTH <= num_columns:
                store(flat_N, np.uint64(target), load(panels, np.uint64(source)))
            else:
                for column in range(num_columns - first):
                    flat_N[target + column] = panels[source + column]


@kernel
def _copy_row(
    source: NDArray[np.float32], first: int, width: int, panel: NDArray[np.float32], target: int
) -> None:
    """Write a row of a panel: ``width`` numbers from ``first`` on, then zeros."""
    if width == PANEL:
        for column in range(0, PANEL, WIDTH):
            store(panel, np.uint64(target + column), load(source, np.uint64(first + column)))
        return
    for column in range(0, PANEL, WIDTH):
        if column + WIDTH <= width:
            store(panel, np.uint64(target + column), load(source, np.uint64(first + column)))
        else:
            store(panel, np.uint64(target + column), zeros())
            for rest in range(column, width):
                panel[target + rest] = source[first + rest]


@kernel
def pack_rows(
    matrix: NDArray[np.float32],
    num_columns: int,
    source: int,
    height: int,
    width: int,
    parts: NDArray[np.float32],
    target: int,
) -> None:
    """Copy a part of a matrix, with zeros behind its last column.

    Args:
        matrix: flat.
        num_columns: of the matrix.
        source: where the part begins.
        height: its rows, at most `PANEL`.
        width: its columns, at most `PANEL`.
        parts: parts of `PART_FLOATS`; one is written.
        target: where it begins.
    """
    for row in range(height):
        _copy_row(matrix, source + row * num_columns, width, parts, target + row * PANEL)


@inlined_kernel
def pack_whole_row(
    matrix: NDArray[np.float32], source: int, ahead: int, parts: NDArray[np.float32], target: int
) -> None:
    """Copy as many columns of a row as a panel has.

    Args:
        matrix: flat.
        source: where they begin.
        ahead: where those of another row begin, which is copied soon.
        parts: flat, written.
        target: where they go.
    """
    first = np.uint64(source)
    place = np.uint64(target)
    store(parts, place, load(matrix, first))
    store(parts, place + _SECOND, load(matrix, first + _SECOND))
    store(parts, place + _THIRD, load(matrix, first + _THIRD))
    store(parts, place + _FOURTH, load(matrix, first + _FOURTH))
    soon = np.uint64(ahead)
    prefetch(matrix, soon)
    prefetch(matrix, soon + _SECOND)
    prefetch(matrix, soon + _THIRD)
    prefetch(matrix, soon + _FOURTH)


@inlined_kernel
def pack_squares(
    matrix: NDArray[np.float32],
    num_columns: int,
    source: int,
    height: int,
    width: int,
    begin: int,
    stop: int,
    parts: NDArray[np.float32],
    target: int,
) -> None:
    """Copy squares of the transpose of a part of a matrix, with zeros for rows behind its last one.

    Args:
        matrix: flat.
        num_columns: of the matrix.
        source: where the part begins.
        height: its rows, at most `PANEL`.
        width: its columns, at most `PANEL`; squares behind them are left out.
        begin: first of the sixteen squares of sixteen rows and columns that is copied.
        stop: square after the last one that is copied.
        parts: parts of `PART_FLOATS`; one is written.
        target: where it begins.
    """
    for square in range(begin, stop):
        row = square * WIDTH % PANEL
        column = square * WIDTH // PANEL * WIDTH
        first = source + row * num_columns + column
        place = target + column * PANEL + row
        if row + WIDTH <= height and column + WIDTH <= width:
            transpose(matrix, np.uint64(first), np.uint64(num_columns), parts, np.uint64(place))
            # The next square is asked for: that below, or the first of the next columns.
            is_lowest = row + WIDTH == PANEL
            soon = source + column + WIDTH if is_lowest else first + WIDTH * num_columns
            for each in range(WIDTH):
                prefetch(matrix, np.uint64(soon + each * num_columns))
        else:
            for each in range(min(WIDTH, width - column)):
                for other in range(WIDTH):
                    number = np.float32(0)
                    if row + other < height:
                        number = matrix[first + other * num_columns + each]
                    parts[place + each * PANEL + other] = number


def transpose(
    matrix: NDArray[np.float32],
    first: int | np.uint64,
    stride: int | np.uint64,
    panel: NDArray[np.float32],
    target: int | np.uint64,
) -> None:
    """Copy sixteen rows of sixteen numbers to as many columns of a panel.

    Args:
        matrix: flat.
        first: where the first row begins.
        stride: numbers between the beginnings of two rows.
        panel: flat, written.
        target: where the first of its rows begins, in the first column.
    """
    for row in range(WIDTH):
        for column in range(WIDTH):
            number = matrix[int(first) + row * int(stride) + column]
            panel[int(target) + column * PANEL + row] = number


_INT = ir.IntType(32)
_POSITION = ir.IntType(64)
_VALUE = ir.VectorType(ir.FloatType(), WIDTH)


@intrinsic
def _transpose(_: Any, matrix: Any, first: Any, stride: Any, panel: Any, target: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def place(argument: int, start: Any, row: int, distance: Any) -> Any:
            array = create_struct_proxy(signature.args[argument])(context, builder, arguments[argument])
            position = builder.add(start, builder.mul(distance, ir.Constant(_POSITION, row)))
            return builder.bitcast(builder.gep(array.data, [position]), _VALUE.as_pointer())

        rows = []
        for row in range(WIDTH):
            rows.append(builder.load(place(0, arguments[1], row, arguments[2])))
            rows[-1].align = _FLOAT_BYTES
        # What lies across the diagonal changes places: halves, then quarters, pairs and single numbers.
        kind = ir.VectorType(_INT, WIDTH)
        for distance in (8, 4, 2, 1):
            upper = [each + WIDTH - distance if each & distance else each for each in range(WIDTH)]
            lower = [each + WIDTH if each & distance else each + distance for each in range(WIDTH)]
            for row in range(WIDTH):
                if not row & distance:
                    pair = rows[row], rows[row + distance]
                    rows[row] = builder.shuffle_vector(*pair, ir.Constant(kind, upper))
                    rows[row + distance] = builder.shuffle_vector(*pair, ir.Constant(kind, lower))
        between = ir.Constant(_POSITION, PANEL)
        for row, value in enumerate(rows):
            builder.store(value, place(3, arguments[4], row, between)).align = _FLOAT_BYTES
        return context.get_dummy_value()

    return types.void(matrix, types.uint64, types.uint64, panel, types.uint64), generate


@overload(transpose, inline="always", strict=False)
def _overload_transpose(matrix: Any, first: Any, stride: Any, panel: Any, target: Any) -> Any:
    return lambda matrix, first, stride, panel, target: _transpose(matrix, first, stride, panel, target)
