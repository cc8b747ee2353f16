"""A block of a product of matrices in panels, rows by thirty-two columns, whose sums are registers.

The loop over the terms of the sums holds two registers of sixteen numbers for each row, and two numbers of
each right row serve all left ones. AVX-512 has thirty-two such registers; with AVX2 the sums would not fit.
It is one operation of the compiler (`numba.extending.intrinsic`), because Numba keeps no sixteen sums of a
loop in registers.

A sum adds its products one by one, in the order of the terms, which are not rounded before (`llvm.fma`): all
CPUs compute the same bits, and a sum does not depend on the block that it lies in. Uncompiled, the last bits
may differ.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import create_struct_proxy, get_or_insert_function
from numba.extending import intrinsic, overload
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ..simd import WIDTH

PANEL: Final = 64
"""Columns of a panel, the distance of its rows in memory."""
ROWS: Final = 8
"""Rows of a block."""
COLUMNS: Final = 2 * WIDTH
"""Columns of a block."""
_FLOAT_BYTES = 4
_VALUES = COLUMNS // WIDTH
_INT = ir.IntType(32)
_POSITION = ir.IntType(64)
_VALUE = ir.VectorType(ir.FloatType(), WIDTH)


def multiply_rows(
    left: NDArray[np.float32],
    left_at: int | np.uint64,
    right: NDArray[np.float32],
    right_at: int | np.uint64,
    num_terms: int | np.uint64,
    out: NDArray[np.float32],
    out_at: int | np.uint64,
    is_added: bool,
    ahead: int | np.uint64,
) -> None:
    """Write the product of eight rows of a panel and columns of another to a third.

    Args:
        left: flat panels, whose rows are the left rows.
        left_at: where the first of these rows begins.
        right: flat panels, a row for each term.
        right_at: where the first of these rows begins.
        num_terms: terms of a sum, at most `PANEL`.
        out: flat panels, written.
        out_at: where the block begins.
        is_added: whether the sums are added to what is there.
        ahead: address of as many numbers as the left rows have, which are read soon: they are asked for.
    """
    _multiply(
        _view(left, int(left_at), ROWS, int(num_terms)), right, int(right_at), out, int(out_at), is_added
    )


def multiply_columns(
    left: NDArray[np.float32],
    left_at: int | np.uint64,
    right: NDArray[np.float32],
    right_at: int | np.uint64,
    num_terms: int | np.uint64,
    out: NDArray[np.float32],
    out_at: int | np.uint64,
    is_added: bool,
    ahead: int | np.uint64,
) -> None:
    """Write the product of eight columns of a panel, as left rows, and columns of another to a third.

    Args:
        left: flat panels, a row for each term.
        left_at: where the first of these rows begins, in the first of the columns.
        right: as in `multiply_rows`.
        right_at: likewise.
        num_terms: terms of a sum.
        out: likewise.
        out_at: likewise.
        is_added: likewise.
        ahead: likewise.
    """
    left_MR = _view(left, int(left_at), int(num_terms), ROWS)
    _multiply(left_MR.T, right, int(right_at), out, int(out_at), is_added)


def _view(panels: NDArray[np.float32], at: int, num_rows: int, num_columns: int) -> NDArray[np.float32]:
    strides = (_FLOAT_BYTES * PANEL, _FLOAT_BYTES)
    return as_strided(panels[at:], (num_rows, num_columns), strides)


def _multiply(
    left_RM: NDArray[np.float32],
    right: NDArray[np.float32],
    right_at: int,
    out: NDArray[np.float32],
    out_at: int,
    is_added: bool,
) -> None:
    found_RC = left_RM @ _view(right, right_at, left_RM.shape[1], COLUMNS)
    out_RC = _view(out, out_at, left_RM.shape[0], COLUMNS)
    out_RC[:] = out_RC + found_RC if is_added else found_RC


def _number(value: int) -> Any:
    return ir.Constant(_POSITION, value)


def _generate(
    between_rows: int,
    between_terms: int,
    context: Any,
    builder: Any,
    signature: Any,
    arguments: Any,
) -> Any:
    left, left_at, right, right_at, num_terms, out, out_at, is_added, ahead = arguments

    def data_of(argument: int, array: Any, position: Any) -> Any:
        data = create_struct_proxy(signature.args[argument])(context, builder, value=array).data
        return builder.gep(data, [position])

    def value_at(pointer: Any, position: int) -> Any:
        return builder.bitcast(builder.gep(pointer, [_number(position)]), _VALUE.as_pointer())

    left, right, out = data_of(0, left, left_at), data_of(2, right, right_at), data_of(5, out, out_at)
    ahead = builder.inttoptr(ahead, ir.FloatType().as_pointer())
    byte_pointer = ir.IntType(8).as_pointer()
    prefetch_kind = ir.FunctionType(ir.VoidType(), [byte_pointer, _INT, _INT, _INT])
    prefetch = get_or_insert_function(builder.module, prefetch_kind, "llvm.prefetch.p0")
    kind = ir.FunctionType(_VALUE, [_VALUE] * 3)
    multiply_add = get_or_insert_function(builder.module, kind, f"llvm.fma.v{WIDTH}f32")
    zero = ir.Constant(_VALUE, [0.0] * WIDTH)

    # One loop over the terms; its sums are values of the loop itself, so that no memory holds them.
    entry = builder.block
    loop = builder.append_basic_block("terms")
    done = builder.append_basic_block("sums")
    builder.cbranch(builder.icmp_unsigned("==", num_terms, _number(0)), done, loop)
    builder.position_at_end(loop)
    term = builder.phi(_POSITION)
    sums = [builder.phi(_VALUE) for _ in range(ROWS * _VALUES)]
    right_row = builder.gep(right, [builder.mul(term, _number(PANEL))])
    factors = []
    for part in range(_VALUES):
        factors.append(builder.load(value_at(right_row, part * WIDTH)))
        factors[-1].align = _FLOAT_BYTES
    left_column = builder.gep(left, [builder.mul(term, _number(between_terms))])
    # One address for each term: together they cover what the left rows of the next block take.
    soon = builder.bitcast(builder.gep(ahead, [builder.mul(term, _number(ROWS))]), byte_pointer)
    builder.call(prefetch, [soon, _INT(0), _INT(3), _INT(1)])
    added = []
    for row in range(ROWS):
        one = builder.load(builder.gep(left_column, [_number(row * between_rows)]))
        one.align = _FLOAT_BYTES
        nothing = ir.Constant(_VALUE, ir.Undefined)
        first = builder.insert_element(nothing, one, _INT(0))
        repeated = builder.shuffle_vector(
            first, nothing, ir.Constant(ir.VectorType(_INT, WIDTH), [0] * WIDTH)
        )
        for part in range(_VALUES):
            added.append(builder.call(multiply_add, [repeated, factors[part], sums[row * _VALUES + part]]))
    following = builder.add(term, _number(1))
    for value, first, next_one in zip(
        [term, *sums], [_number(0), *[zero] * len(sums)], [following, *added], strict=True
    ):
        value.add_incoming(first, entry)
        value.add_incoming(next_one, loop)
    builder.cbranch(builder.icmp_unsigned("<", following, num_terms), loop, done)

    # The sums are written or added: one branch for all, because one for each register would be slower.
    builder.position_at_end(done)
    found = []
    for value in added:
        found.append(builder.phi(_VALUE))
        found[-1].add_incoming(zero, entry)
        found[-1].add_incoming(value, loop)
    places = [value_at(out, row * PANEL + part * WIDTH) for row in range(ROWS) for part in range(_VALUES)]
    with builder.if_else(is_added) as (then, otherwise):
        with then:
            for value, place in zip(found, places, strict=True):
                before = builder.load(place)
                before.align = _FLOAT_BYTES
                builder.store(builder.fadd(before, value), place).align = _FLOAT_BYTES
        with otherwise:
            for value, place in zip(found, places, strict=True):
                builder.store(value, place).align = _FLOAT_BYTES
    return context.get_dummy_value()


def _intrinsic_of(between_rows: int, between_terms: int) -> Any:
    @intrinsic
    def multiply(
        _: Any,
        left: Any,
        left_at: Any,
        right: Any,
        right_at: Any,
        num_terms: Any,
        out: Any,
        out_at: Any,
        is_added: Any,
        ahead: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return _generate(between_rows, between_terms, context, builder, signature, arguments)

        position = types.uint64
        return types.void(
            left, position, right, position, position, out, position, types.boolean, position
        ), generate

    return multiply


_rows = _intrinsic_of(PANEL, 1)
_columns = _intrinsic_of(1, PANEL)


@overload(multiply_rows, inline="always", strict=False)
def _overload_rows(
    left: Any,
    left_at: Any,
    right: Any,
    right_at: Any,
    num_terms: Any,
    out: Any,
    out_at: Any,
    is_added: Any,
    ahead: Any,
) -> Any:
    return lambda left, left_at, right, right_at, num_terms, out, out_at, is_added, ahead: _rows(
        left, left_at, right, right_at, num_terms, out, out_at, is_added, ahead
    )


@overload(multiply_columns, inline="always", strict=False)
def _overload_columns(
    left: Any,
    left_at: Any,
    right: Any,
    right_at: Any,
    num_terms: Any,
    out: Any,
    out_at: Any,
    is_added: Any,
    ahead: Any,
) -> Any:
    return lambda left, left_at, right, right_at, num_terms, out, out_at, is_added, ahead: _columns(
        left, left_at, right, right_at, num_terms, out, out_at, is_added, ahead
    )
