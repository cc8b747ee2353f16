"""A block of a product of matrices, eight rows by thirty-two columns, whose sums are registers.

The loop over the terms of the sums holds sixteen registers of sixteen numbers, and two numbers of each right
row serve eight left ones: ten loads for sixteen multiply-adds. AVX-512 has thirty-two such registers; with
AVX2 the sums would not fit. It is one operation of the compiler (`numba.extending.intrinsic`), because Numba
keeps no sixteen sums of a loop in registers.

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
    stride: int | np.uint64,
    right: NDArray[np.float32],
    num_terms: int | np.uint64,
    out: NDArray[np.float32],
    out_stride: int | np.uint64,
    is_added: bool,
) -> None:
    """Write the product of eight rows and a panel.

    Args:
        left: the rows; those of a row lie behind each other.
        stride: numbers between the beginnings of two rows.
        right: (num_terms, COLUMNS), flat.
        num_terms: terms of a sum.
        out: the block, written.
        out_stride: numbers between the beginnings of two of its rows.
        is_added: whether the sums are added to what is there.
    """
    _multiply(_matrix(left, int(num_terms), int(stride), 1), right, out, int(out_stride), is_added)


def multiply_columns(
    left: NDArray[np.float32],
    stride: int | np.uint64,
    right: NDArray[np.float32],
    num_terms: int | np.uint64,
    out: NDArray[np.float32],
    out_stride: int | np.uint64,
    is_added: bool,
) -> None:
    """Write the product of eight rows and a panel, as `multiply_rows` does.

    Args:
        left: the rows, a term of all eight behind each other.
        stride: numbers between two terms.
        right: (num_terms, COLUMNS), flat.
        num_terms: terms of a sum.
        out: the block, written.
        out_stride: numbers between the beginnings of two of its rows.
        is_added: whether the sums are added to what is there.
    """
    _multiply(_matrix(left, int(num_terms), 1, int(stride)), right, out, int(out_stride), is_added)


def _matrix(left: NDArray[np.float32], num_terms: int, by_row: int, by_term: int) -> NDArray[np.float32]:
    strides = (_FLOAT_BYTES * by_row, _FLOAT_BYTES * by_term)
    return as_strided(left, (ROWS, num_terms), strides, writeable=False)


def _multiply(
    left_RM: NDArray[np.float32],
    right: NDArray[np.float32],
    out: NDArray[np.float32],
    out_stride: int,
    is_added: bool,
) -> None:
    right_MC = right[: left_RM.shape[1] * COLUMNS].reshape(-1, COLUMNS)
    found_RC = left_RM @ right_MC
    for row in range(ROWS):
        of_row = out[row * out_stride : row * out_stride + COLUMNS]
        of_row[:] = of_row + found_RC[row] if is_added else found_RC[row]


def _generate(by_row: bool, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    left, stride, right, num_terms, out, out_stride, is_added = arguments

    def data_of(argument: int, array: Any) -> Any:
        return create_struct_proxy(signature.args[argument])(context, builder, value=array).data

    def number(value: int) -> Any:
        return ir.Constant(_POSITION, value)

    left, right, out = data_of(0, left), data_of(2, right), data_of(4, out)
    # Where the eight rows begin, and how far a term is from the next.
    between_rows, between_terms = (stride, number(1)) if by_row else (number(1), stride)
    rows = [builder.gep(left, [builder.mul(between_rows, number(row))]) for row in range(ROWS)]
    kind = ir.FunctionType(_VALUE, [_VALUE] * 3)
    multiply_add = get_or_insert_function(builder.module, kind, f"llvm.fma.v{WIDTH}f32")
    zero = ir.Constant(_VALUE, [0.0] * WIDTH)

    # One loop over the terms; its sums are values of the loop itself, so that no memory holds them.
    entry = builder.block
    loop = builder.append_basic_block("terms")
    done = builder.append_basic_block("sums")
    builder.cbranch(builder.icmp_unsigned("==", num_terms, number(0)), done, loop)
    builder.position_at_end(loop)
    term = builder.phi(_POSITION)
    sums = [builder.phi(_VALUE) for _ in range(ROWS * _VALUES)]
    factors = []
    for part in range(_VALUES):
        position = builder.add(builder.mul(term, number(COLUMNS)), number(part * WIDTH))
        factors.append(builder.load(builder.bitcast(builder.gep(right, [position]), _VALUE.as_pointer())))
        factors[-1].align = _FLOAT_BYTES
    added = []
    for row in range(ROWS):
        one = builder.load(builder.gep(rows[row], [builder.mul(term, between_terms)]))
        one.align = _FLOAT_BYTES
        nothing = ir.Constant(_VALUE, ir.Undefined)
        first = builder.insert_element(nothing, one, _INT(0))
        repeated = builder.shuffle_vector(
            first, nothing, ir.Constant(ir.VectorType(_INT, WIDTH), [0] * WIDTH)
        )
        for part in range(_VALUES):
            added.append(builder.call(multiply_add, [repeated, factors[part], sums[row * _VALUES + part]]))
    following = builder.add(term, number(1))
    for value, first, next_one in zip(
        [term, *sums], [number(0), *[zero] * len(sums)], [following, *added], strict=True
    ):
        value.add_incoming(first, entry)
        value.add_incoming(next_one, loop)
    builder.cbranch(builder.icmp_unsigned("<", following, num_terms), loop, done)

    builder.position_at_end(done)
    found = []
    for value in added:
        found.append(builder.phi(_VALUE))
        found[-1].add_incoming(zero, entry)
        found[-1].add_incoming(value, loop)
    for row in range(ROWS):
        for part in range(_VALUES):
            position = builder.add(builder.mul(out_stride, number(row)), number(part * WIDTH))
            pointer = builder.bitcast(builder.gep(out, [position]), _VALUE.as_pointer())
            before = builder.load(pointer)
            before.align = _FLOAT_BYTES
            value = found[row * _VALUES + part]
            # A choice of two results, because a branch for each register would be slower.
            value = builder.select(is_added, builder.fadd(before, value), value)
            builder.store(value, pointer).align = _FLOAT_BYTES
    return context.get_dummy_value()


def _signature(left: Any, right: Any, out: Any) -> Any:
    return types.void(left, types.uint64, right, types.uint64, out, types.uint64, types.boolean)


@intrinsic
def _multiply_rows(
    _: Any, left: Any, stride: Any, right: Any, num_terms: Any, out: Any, out_stride: Any, is_added: Any
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _generate(True, context, builder, signature, arguments)

    return _signature(left, right, out), generate


@intrinsic
def _multiply_columns(
    _: Any, left: Any, stride: Any, right: Any, num_terms: Any, out: Any, out_stride: Any, is_added: Any
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _generate(False, context, builder, signature, arguments)

    return _signature(left, right, out), generate


@overload(multiply_rows, inline="always", strict=False)
def _overload_multiply_rows(
    left: Any, stride: Any, right: Any, num_terms: Any, out: Any, out_stride: Any, is_added: Any
) -> Any:
    return lambda left, stride, right, num_terms, out, out_stride, is_added: _multiply_rows(
        left, stride, right, num_terms, out, out_stride, is_added
    )


@overload(multiply_columns, inline="always", strict=False)
def _overload_multiply_columns(
    left: Any, stride: Any, right: Any, num_terms: Any, out: Any, out_stride: Any, is_added: Any
) -> Any:
    return lambda left, stride, right, num_terms, out, out_stride, is_added: _multiply_columns(
        left, stride, right, num_terms, out, out_stride, is_added
    )
