"""Bytes of text as machine words, eight or sixty-four at a time: instructions that Numba has no name for.

Each function is plain Python, which defines it, and one or a few machine instructions when compiled.
This file must not change what its functions return: the compile caches of their callers do not watch it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import create_struct_proxy
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

_TAB = 9
_NEWLINE = 10
CHUNK_BYTES = 64
_WORD = ir.IntType(64)
_BYTE = ir.IntType(8)


def _hex_values() -> NDArray[np.uint32]:
    table = np.full(256, 16, np.uint32)
    for digit, character in enumerate("0123456789abcdef"):
        table[ord(character)] = digit
        table[ord(character.upper())] = digit
    return table


HEX_VALUES: Final = _hex_values()
"""(256,); the value of each byte as a hex digit, 16 where it is none."""


def load8(text: NDArray[np.uint8], position: np.uint64) -> np.uint64:
    """Return eight bytes from ``position`` on as one word, the first lowest."""
    return np.uint64(sum(int(text[int(position) + i]) << (8 * i) for i in range(8)))


def find_separators(text: NDArray[np.uint8], position: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return a bit for each of CHUNK_BYTES bytes from ``position`` on: tab or newline, and newline alone."""
    separators = 0
    newlines = 0
    for i in range(CHUNK_BYTES):
        byte = text[int(position) + i]
        separators |= int(byte == _TAB or byte == _NEWLINE) << i
        newlines |= int(byte == _NEWLINE) << i
    return np.uint64(separators), np.uint64(newlines)


def lowest_bit(word: np.uint64) -> np.uint64:
    """Return the number of the lowest bit that is set, 64 where none is."""
    return np.uint64((int(word) & -int(word)).bit_length() - 1 if word else 64)


def count_bits(word: np.uint64) -> np.uint64:
    """Count the bits that are set."""
    return np.uint64(int(word).bit_count())


def _load(context: Any, builder: Any, signature: Any, arguments: Any, kind: Any) -> Any:
    """Emit an unaligned load, inline: a function that takes the array would count references to it."""
    array = create_struct_proxy(signature.args[0])(context, builder, value=arguments[0])
    pointer = builder.bitcast(builder.gep(array.data, [arguments[1]]), kind.as_pointer())
    loaded = builder.load(pointer)
    loaded.align = 1
    return loaded


@intrinsic
def _load8_compiled(_: Any, text: Any, position: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(context, builder, signature, arguments, _WORD)

    return types.uint64(text, types.uint64), generate


@intrinsic
def _find_separators_compiled(_: Any, text: Any, position: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # Compare 64 bytes at once; the 64 answers of one bit each are then read as one word.
        kind = ir.VectorType(_BYTE, CHUNK_BYTES)
        chunk = _load(context, builder, signature, arguments, kind)
        tabs, newlines = (
            builder.bitcast(
                builder.icmp_unsigned("==", chunk, ir.Constant(kind, [byte] * CHUNK_BYTES)), _WORD
            )
            for byte in (_TAB, _NEWLINE)
        )
        masks = [builder.or_(tabs, newlines), newlines]
        return context.make_tuple(builder, signature.return_type, masks)

    return types.UniTuple(types.uint64, 2)(text, types.uint64), generate


@intrinsic
def _lowest_bit_compiled(_: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic
def _count_bits_compiled(_: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


# Compiled code that calls one of the functions above gets the instruction instead.


@overload(load8, inline="always")
def _load8_overload(text: Any, position: Any) -> Any:
    def load(text: Any, position: Any) -> Any:
        return _load8_compiled(text, position)

    return load


@overload(find_separators, inline="always")
def _find_separators_overload(text: Any, position: Any) -> Any:
    def find(text: Any, position: Any) -> Any:
        return _find_separators_compiled(text, position)

    return find


@overload(lowest_bit, inline="always")
def _lowest_bit_overload(word: Any) -> Any:
    def lowest(word: Any) -> Any:
        return _lowest_bit_compiled(word)

    return lowest


@overload(count_bits, inline="always")
def _count_bits_overload(word: Any) -> Any:
    def count(word: Any) -> Any:
        return _count_bits_compiled(word)

    return count
