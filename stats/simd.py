"""Sixteen float32 numbers as one register value in kernels.

They are for loops that the compiler cannot keep in registers. Numba's compiler turns a loop over numbers into
vector instructions, but it keeps no sum over such a loop in a register unless the loop's length is a
constant. A kernel that holds its sums in these values does: 3 times as fast on the interaction of a DLRM. A
CPU with shorter registers uses several of them for a value. Products are added without rounding in between
(`llvm.fma`) and sums have a fixed order, so all CPUs compute the same bits. Without compilation a value is an
array of sixteen numbers, and the last bit of a multiply-add may differ.

`prefetch` loads what a kernel will read soon into the cache, so that a lookup into a large table does not
wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import create_struct_proxy, get_or_insert_function
from numba.extending import intrinsic, models, overload, register_model
from numpy.typing import NDArray

WIDTH: Final = 16
"""Numbers of a value."""
_FLOAT_BYTES = 4
_QUARTER = WIDTH // 4
_SPLIT = [0, 8, 2, 10, 4, 12, 6, 14, 1, 9, 3, 11, 5, 13, 7, 15]
_HALVES = ([*range(8), *range(16, 24)], 8)
"""Positions in two concatenated values, and the distance to the numbers that are added to them."""
_IN_TURNS = ([start + each for start in (0, 4, 8, 12) for each in (0, 16, 1, 17)], 2)
_QUARTERS = ([start + each for start in (0, 8, 16, 24) for each in range(4)], 4)
_PAIRS = ([start + each for start in (0, 4, 8, 12) for each in (0, 1, 16, 17)], 2)
_INT = ir.IntType(32)
_VALUE = ir.VectorType(ir.FloatType(), WIDTH)

Float16x = Any
"""Type of a value: sixteen float32."""


def aligned_zeros(*shape: int) -> NDArray[np.float32]:
    """Return an array of zeros that begins with a cache line, for the workspace of a kernel.

    NumPy's arrays begin at any 16 bytes, and a value that crosses a cache line takes two reads: the
    interaction of a DLRM is 1.2 times as fast with an aligned workspace.
    """
    size = int(np.prod(shape))
    memory_N = np.zeros(size + WIDTH, np.float32)
    first = -memory_N.ctypes.data % (_FLOAT_BYTES * WIDTH) // _FLOAT_BYTES
    return memory_N[first : first + size].reshape(shape)


def load(array: NDArray[np.float32], position: int | np.uint64) -> Float16x:
    """Return the numbers of a contiguous array from ``position`` on."""
    return array[int(position) : int(position) + WIDTH].copy()


def store(array: NDArray[np.float32], position: int | np.uint64, value: Float16x) -> None:
    """Write a value to a contiguous array from ``position`` on."""
    array[int(position) : int(position) + WIDTH] = value


def store_quarters(
    array: NDArray[np.float32],
    first: int | np.uint64,
    second: int | np.uint64,
    third: int | np.uint64,
    fourth: int | np.uint64,
    value: Float16x,
) -> None:
    """Write the four quarters of a value to an array, each at its position, in order."""
    for quarter, position in enumerate((first, second, third, fourth)):
        numbers = value[_QUARTER * quarter : _QUARTER * (quarter + 1)]
        array[int(position) : int(position) + _QUARTER] = numbers


def zeros() -> Float16x:
    """Return sixteen zeros."""
    return np.zeros(WIDTH, np.float32)


def multiply_add(left: Float16x, right: Float16x, start: Float16x) -> Float16x:
    """Return ``left * right + start``, rounded once.

    Args:
        left: a value, or one number for all sixteen.
        right: a value.
        start: a value.
    """
    # A product of two float32 is exact in float64; the sum is rounded there and once more to float32.
    exact = np.asarray(left, np.float64) * right + start
    return exact.astype(np.float32)


def subtract_product(start: Float16x, factor: np.float32, value: Float16x) -> Float16x:
    """Return ``start - factor * value``, rounded twice: the product, then the difference."""
    return start - factor * value


def add(left: Float16x, right: Float16x) -> Float16x:
    """Return ``left + right``."""
    return left + right


def keep_where_positive(value: Float16x, other: Float16x) -> Float16x:
    """Return ``value``, with zeros where ``other`` is zero or less; a NaN of either is kept as it is."""
    return np.where(other <= 0, np.float32(0), value)


def split_neighbors(value: Float16x) -> Float16x:
    """Return the even numbers of a value, then the odd ones, in the order that `add_halves` begins with.

    That order is 0 8 2 10 4 12 6 14 and one more each.
    """
    return value[_SPLIT]


def add_halves(left: Float16x, right: Float16x) -> Float16x:
    """Return the sums of numbers eight apart: eight of ``left``, then eight of ``right``.

    It is the first of four levels (halves, in turns, quarters, pairs) that turn sixteen values in the order
    of `split_neighbors` into the sum of each: numbers are added to their neighbors, these sums to theirs,
    and so on. On registers of eight the first level moves nothing, and no level adds neighbors in a register,
    which takes AMD's processors twice as long as two moves and an addition.
    """
    return _folded(left, right, *_HALVES)


def add_in_turns(left: Float16x, right: Float16x) -> Float16x:
    """Return the sums of numbers two apart, by quarters: one of ``left``, one of ``right``, ..."""
    return _folded(left, right, *_IN_TURNS)


def add_quarters(left: Float16x, right: Float16x) -> Float16x:
    """Return the first quarter plus the second and the third plus the fourth, of ``left``, then ``right``."""
    return _folded(left, right, *_QUARTERS)


def add_pairs(left: Float16x, right: Float16x) -> Float16x:
    """Return the sums of numbers two apart, by quarters: two of ``left``, two of ``right``."""
    return _folded(left, right, *_PAIRS)


def _folded(left: Float16x, right: Float16x, first: Sequence[int], distance: int) -> Float16x:
    joined = np.concatenate([left, right])
    numbers = np.array(first)
    return joined[numbers] + joined[numbers + distance]


class _ValueType(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        # The name distinguishes this type in the signatures of compiled kernels.
        super().__init__("float32 x 16")


_value_type = _ValueType()


@register_model(_ValueType)
class _ValueModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VALUE)


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    # Of the array's parts only the address of its data is used: positions are not checked.
    data = create_struct_proxy(signature.args[0])(context, builder, value=arguments[0]).data
    return builder.bitcast(builder.gep(data, [arguments[1]]), _VALUE.as_pointer())


def _lanes(numbers: Sequence[int]) -> Any:
    return ir.Constant(ir.VectorType(_INT, len(numbers)), list(numbers))


def _repeated(builder: Any, number: Any) -> Any:
    """Return a value of sixteen times a number."""
    nothing = ir.Constant(_VALUE, ir.Undefined)
    first = builder.insert_element(nothing, number, _INT(0))
    return builder.shuffle_vector(first, nothing, _lanes([0] * WIDTH))


@intrinsic
def _load(_: Any, array: Any, position: Any) -> Any:
    # A value may begin at any number, so only the alignment of a float32 is promised.
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = builder.load(_pointer(context, builder, signature, arguments))
        found.align = _FLOAT_BYTES
        return found

    return _value_type(array, types.uint64), generate


@intrinsic
def _store(_: Any, array: Any, position: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        written = builder.store(arguments[2], _pointer(context, builder, signature, arguments))
        written.align = _FLOAT_BYTES
        return context.get_dummy_value()

    return types.void(array, types.uint64, value), generate


@intrinsic
def _store_quarters(_: Any, array: Any, first: Any, second: Any, third: Any, fourth: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = create_struct_proxy(signature.args[0])(context, builder, value=arguments[0]).data
        for quarter, position in enumerate(arguments[1:5]):
            numbers = range(_QUARTER * quarter, _QUARTER * (quarter + 1))
            part = builder.shuffle_vector(arguments[5], arguments[5], _lanes(numbers))
            pointer = builder.bitcast(builder.gep(data, [position]), part.type.as_pointer())
            builder.store(part, pointer).align = _FLOAT_BYTES
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.uint64, types.uint64, types.uint64, value), generate


@intrinsic
def _zeros(_: Any) -> Any:
    def generate(*_: Any) -> Any:
        return ir.Constant(_VALUE, [0.0] * WIDTH)

    return _value_type(), generate


@intrinsic
def _multiply_add(_: Any, left: Any, right: Any, start: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # One number is repeated sixteen times; a value is unchanged.
        factor = arguments[0]
        if signature.args[0] is types.float32:
            factor = _repeated(builder, factor)
        # A fused multiply-add by name: the compiler would not fuse a product and a sum by itself.
        kind = ir.FunctionType(_VALUE, [_VALUE] * 3)
        function = get_or_insert_function(builder.module, kind, f"llvm.fma.v{WIDTH}f32")
        return builder.call(function, [factor, *arguments[1:]])

    return _value_type(left, right, start), generate


@intrinsic
def _subtract_product(_: Any, start: Any, factor: Any, value: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        # Two instructions, which the compiler leaves apart without fast math.
        product = builder.fmul(_repeated(builder, arguments[1]), arguments[2])
        return builder.fsub(arguments[0], product)

    return _value_type(start, types.float32, value), generate


@intrinsic
def _add(_: Any, left: Any, right: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.fadd(*arguments)

    return _value_type(left, right), generate


@intrinsic
def _keep_where_positive(_: Any, value: Any, other: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        zero = ir.Constant(_VALUE, [0.0] * WIDTH)
        # An ordered comparison: it does not hold for NaN.
        return builder.select(builder.fcmp_ordered("<=", arguments[1], zero), zero, arguments[0])

    return _value_type(value, other), generate


def _generate_folded(builder: Any, arguments: Any, first: Sequence[int], distance: int) -> Any:
    found = builder.shuffle_vector(*arguments, _lanes(first))
    others = builder.shuffle_vector(*arguments, _lanes([each + distance for each in first]))
    return builder.fadd(found, others)


@intrinsic
def _split_neighbors(_: Any, value: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.shuffle_vector(arguments[0], arguments[0], _lanes(_SPLIT))

    return _value_type(value), generate


@intrinsic
def _add_halves(_: Any, left: Any, right: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return _generate_folded(builder, arguments, *_HALVES)

    return _value_type(left, right), generate


@intrinsic
def _add_in_turns(_: Any, left: Any, right: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return _generate_folded(builder, arguments, *_IN_TURNS)

    return _value_type(left, right), generate


@intrinsic
def _add_quarters(_: Any, left: Any, right: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return _generate_folded(builder, arguments, *_QUARTERS)

    return _value_type(left, right), generate


@intrinsic
def _add_pairs(_: Any, left: Any, right: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return _generate_folded(builder, arguments, *_PAIRS)

    return _value_type(left, right), generate


@overload(load, inline="always", strict=False)
def _overload_load(array: Any, position: Any) -> Any:
    return lambda array, position: _load(array, position)


@overload(store, inline="always", strict=False)
def _overload_store(array: Any, position: Any, value: Any) -> Any:
    return lambda array, position, value: _store(array, position, value)


@overload(store_quarters, inline="always", strict=False)
def _overload_store_quarters(array: Any, first: Any, second: Any, third: Any, fourth: Any, value: Any) -> Any:
    return lambda array, first, second, third, fourth, value: _store_quarters(
        array, first, second, third, fourth, value
    )


@overload(zeros, inline="always", strict=False)
def _overload_zeros() -> Any:
    return lambda: _zeros()


@overload(multiply_add, inline="always", strict=False)
def _overload_multiply_add(left: Any, right: Any, start: Any) -> Any:
    return lambda left, right, start: _multiply_add(left, right, start)


@overload(subtract_product, inline="always", strict=False)
def _overload_subtract_product(start: Any, factor: Any, value: Any) -> Any:
    return lambda start, factor, value: _subtract_product(start, factor, value)


@overload(add, inline="always", strict=False)
def _overload_add(left: Any, right: Any) -> Any:
    return lambda left, right: _add(left, right)


@overload(keep_where_positive, inline="always", strict=False)
def _overload_keep_where_positive(value: Any, other: Any) -> Any:
    return lambda value, other: _keep_where_positive(value, other)


@overload(split_neighbors, inline="always", strict=False)
def _overload_split_neighbors(value: Any) -> Any:
    return lambda value: _split_neighbors(value)


@overload(add_halves, inline="always", strict=False)
def _overload_add_halves(left: Any, right: Any) -> Any:
    return lambda left, right: _add_halves(left, right)


@overload(add_in_turns, inline="always", strict=False)
def _overload_add_in_turns(left: Any, right: Any) -> Any:
    return lambda left, right: _add_in_turns(left, right)


@overload(add_quarters, inline="always", strict=False)
def _overload_add_quarters(left: Any, right: Any) -> Any:
    return lambda left, right: _add_quarters(left, right)


@overload(add_pairs, inline="always", strict=False)
def _overload_add_pairs(left: Any, right: Any) -> Any:
    return lambda left, right: _add_pairs(left, right)


AHEAD: Final = np.uint64(128)
"""Lookups between asking and reading. On tables of 16 MiB: 18 ns per lookup without, 10 at 16 ahead, 6 at
64 and more."""
LINE_BYTES: Final = 64


def prefetch(array: NDArray[Any], position: np.uint64) -> None:
    """Prefetch the cache line of the ``position``-th number of a contiguous array.

    A hint, that computes nothing and may name any position; nothing at all when not compiled.
    """


@intrinsic
def _prefetch_compiled(_: Any, array: Any, position: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = create_struct_proxy(signature.args[0])(context, builder, value=arguments[0]).data
        byte_pointer = ir.IntType(8).as_pointer()
        flag = ir.IntType(32)
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), byte_pointer)
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], kind)
        to_read = flag(0)
        keep = flag(3)
        is_data = flag(1)
        builder.call(function, [pointer, to_read, keep, is_data])
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


@overload(prefetch, inline="always")
def _prefetch_overload(array: Any, position: Any) -> Any:
    def ask(array: Any, position: Any) -> Any:
        return _prefetch_compiled(array, position)

    return ask
