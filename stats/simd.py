"""Sixteen float32 numbers as one register value in kernels.

They are for loops that the compiler cannot keep in registers. Numba's compiler turns a loop over numbers into
vector instructions, but it keeps no sum over such a loop in a register unless the loop's length is a
constant. A kernel that holds its sums in these values does: 3 times as fast on the interaction of a DLRM. A
CPU with shorter registers uses several of them for a value. Products are added without rounding in between
(`llvm.fma`) and sums have a fixed order, so all CPUs compute the same bits. Without compilation a value is an
array of sixteen numbers, and the last bit of a multiply-add may differ.

`prefetch` loads what a kernel will read soon into the cache, so that a lookup into a large table does not
wait. `count_bits` and `lowest_bit` are one instruction each. `written_for` makes functions like these.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import create_struct_proxy, get_or_insert_function
from numba.core.typing import signature
from numba.extending import lower_builtin, models, register_model, type_callable
from numpy.typing import NDArray

WIDTH: Final = 16
"""Numbers of a value."""
_FLOAT_BYTES = 4
_QUARTER = WIDTH // 4
_SPLIT = [0, 8, 2, 10, 4, 12, 6, 14, 1, 9, 3, 11, 5, 13, 7, 15]
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


def split_neighbors(value: Float16x) -> Float16x:
    """Return the even numbers of a value, then the odd ones, in the order that `add_halves` begins with.

    That order is 0 8 2 10 4 12 6 14 and one more each.
    """
    return value[_SPLIT]


def count_bits(word: np.uint64) -> np.uint64:
    """Count the bits that are set."""
    return np.uint64(int(word).bit_count())


def lowest_bit(word: np.uint64) -> np.uint64:
    """Return the number of the lowest bit that is set, 64 where none is."""
    return np.uint64((int(word) & -int(word)).bit_length() - 1 if word else 64)


AHEAD: Final = np.uint64(128)
"""Lookups between asking and reading. On tables of 16 MiB: 18 ns per lookup without, 10 at 16 ahead, 6 at
64 and more."""
LINE_BYTES: Final = 64


def prefetch(array: NDArray[Any], position: np.uint64) -> None:
    """Prefetch the cache line of the ``position``-th number of a contiguous array.

    A hint, that computes nothing and may name any position; nothing at all when not compiled.
    """


class _ValueType(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        # The name distinguishes this type in the signatures of compiled kernels.
        super().__init__("float32 x 16")


_value = _ValueType()
register_model(_ValueType)(lambda manager, kind: models.PrimitiveModel(manager, kind, _VALUE))


def written_for(function: Callable[..., Any], result: Any, *kinds: Any) -> Any:
    """Let kernels call a plain function: what is decorated writes the instructions.

    Args:
        function: the one that runs where nothing is compiled.
        result: Numba's type of what it returns.
        kinds: the types that its arguments are converted to; None keeps the type.
    """

    def typed(*given: Any) -> Any:
        return signature(result, *(kind or each for kind, each in zip(kinds, given, strict=True)))

    typed.pysig = inspect.signature(function)  # type: ignore[attr-defined]
    type_callable(function)(lambda _: typed)
    return lower_builtin(function, *[types.Any] * len(kinds))


def address_of(context: Any, builder: Any, array_type: Any, array: Any, position: Any) -> Any:
    """Return the address of a number of an array, for `written_for`."""
    # Of the array's parts only the address of its data is used: positions are not checked.
    return builder.gep(create_struct_proxy(array_type)(context, builder, value=array).data, [position])


def _lanes(numbers: Sequence[int]) -> Any:
    return ir.Constant(ir.VectorType(_INT, len(numbers)), list(numbers))


def _repeated(builder: Any, number: Any) -> Any:
    """Return a value of sixteen times a number."""
    nothing = ir.Constant(_VALUE, ir.Undefined)
    first = builder.insert_element(nothing, number, _INT(0))
    return builder.shuffle_vector(first, nothing, _lanes([0] * WIDTH))


@written_for(load, _value, None, types.uint64)
def _load(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
    address = address_of(context, builder, given.args[0], *arguments)
    found = builder.load(builder.bitcast(address, _VALUE.as_pointer()))
    # A value may begin at any number, so only the alignment of a float32 is promised.
    found.align = _FLOAT_BYTES
    return found


@written_for(store, types.void, None, types.uint64, _value)
def _store(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
    _store_part(context, builder, given.args[0], arguments[0], arguments[1], arguments[2])
    return context.get_dummy_value()


@written_for(store_quarters, types.void, None, *[types.uint64] * 4, _value)
def _store_quarters(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
    array, *positions, value = arguments
    for quarter, position in enumerate(positions):
        lanes = _lanes(range(_QUARTER * quarter, _QUARTER * (quarter + 1)))
        part = builder.shuffle_vector(value, value, lanes)
        _store_part(context, builder, given.args[0], array, position, part)
    return context.get_dummy_value()


def _store_part(context: Any, builder: Any, array_type: Any, array: Any, position: Any, numbers: Any) -> None:
    address = address_of(context, builder, array_type, array, position)
    builder.store(numbers, builder.bitcast(address, numbers.type.as_pointer())).align = _FLOAT_BYTES


@written_for(zeros, _value)
def _zeros(*_: Any) -> Any:
    return ir.Constant(_VALUE, [0.0] * WIDTH)


@written_for(multiply_add, _value, None, _value, _value)
def _multiply_add(_: Any, builder: Any, given: Any, arguments: Any) -> Any:
    # One number is repeated sixteen times; a value is unchanged.
    factor = arguments[0]
    if given.args[0] is types.float32:
        factor = _repeated(builder, factor)
    # A fused multiply-add by name: the compiler would not fuse a product and a sum by itself.
    kind = ir.FunctionType(_VALUE, [_VALUE] * 3)
    function = get_or_insert_function(builder.module, kind, f"llvm.fma.v{WIDTH}f32")
    return builder.call(function, [factor, *arguments[1:]])


@written_for(subtract_product, _value, _value, types.float32, _value)
def _subtract_product(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
    # Two instructions, which the compiler leaves apart without fast math.
    product = builder.fmul(_repeated(builder, arguments[1]), arguments[2])
    return builder.fsub(arguments[0], product)


@written_for(add, _value, _value, _value)
def _add(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
    return builder.fadd(*arguments)


@written_for(split_neighbors, _value, _value)
def _split_neighbors(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
    return builder.shuffle_vector(arguments[0], arguments[0], _lanes(_SPLIT))


def _fold(first: Sequence[int], distance: int) -> Callable[[Float16x, Float16x], Float16x]:
    """Return a function that adds the numbers at some positions of two values to those at a distance."""

    def folded(left: Float16x, right: Float16x) -> Float16x:
        joined = np.concatenate([left, right])
        return joined[np.array(first)] + joined[np.array(first) + distance]

    @written_for(folded, _value, _value, _value)
    def _write(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        found = builder.shuffle_vector(*arguments, _lanes(first))
        others = builder.shuffle_vector(*arguments, _lanes([each + distance for each in first]))
        return builder.fadd(found, others)

    return folded


add_halves = _fold([*range(8), *range(16, 24)], 8)
"""Return the sums of numbers eight apart: eight of the left value, then eight of the right one.

It is the first of four levels (halves, in turns, quarters, pairs) that turn sixteen values in the order
of `split_neighbors` into the sum of each: numbers are added to their neighbors, these sums to theirs,
and so on. On registers of eight the first level moves nothing, and no level adds neighbors in a register,
which takes AMD's processors twice as long as two moves and an addition.
"""
add_in_turns = _fold([start + each for start in (0, 4, 8, 12) for each in (0, 16, 1, 17)], 2)
"""Return the sums of numbers two apart, by quarters: one of the left value, one of the right, ..."""
add_quarters = _fold([start + each for start in (0, 8, 16, 24) for each in range(4)], 4)
"""Return the first quarter plus the second and the third plus the fourth, of the left, then the right."""
add_pairs = _fold([start + each for start in (0, 4, 8, 12) for each in (0, 1, 16, 17)], 2)
"""Return the sums of numbers two apart, by quarters: two of the left value, two of the right."""


@written_for(count_bits, types.uint64, types.uint64)
def _count_bits(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
    return builder.ctpop(arguments[0])


@written_for(lowest_bit, types.uint64, types.uint64)
def _lowest_bit(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
    return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))


@written_for(prefetch, types.void, None, types.uint64)
def _prefetch(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
    byte_pointer = ir.IntType(8).as_pointer()
    pointer = builder.bitcast(address_of(context, builder, given.args[0], *arguments), byte_pointer)
    kind = ir.FunctionType(ir.VoidType(), [byte_pointer, _INT, _INT, _INT])
    function = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], kind)
    to_read, keep, is_data = _INT(0), _INT(3), _INT(1)
    builder.call(function, [pointer, to_read, keep, is_data])
    return context.get_dummy_value()
