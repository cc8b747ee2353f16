"""Read the numbers of fields of text, and look at many bytes together.

Exact, every bound checked. A field is a span of a byte array, so the same kernels read text columns of CSV
and of Parquet files, whose offsets are spans already. Elements of lists in fields are spans, too.

Bytes are compared as machine words, eight or sixty-four at a time, by instructions that Numba does not
expose. Each such function is plain Python, which defines it, and one or a few machine instructions when
compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from ...stats.kernel import kernel
from ...stats.simd import address_of, written_for

_TAB = 9
_NEWLINES_IN_WORD = 10
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
        separators |= int(byte == _TAB or byte == _NEWLINES_IN_WORD) << i
        newlines |= int(byte == _NEWLINES_IN_WORD) << i
    return np.uint64(separators), np.uint64(newlines)


def _load(context: Any, builder: Any, given: Any, arguments: Any, kind: Any) -> Any:
    """Emit an unaligned load, inline: a function that takes the array would count references to it."""
    address = address_of(context, builder, given.args[0], *arguments)
    loaded = builder.load(builder.bitcast(address, kind.as_pointer()))
    loaded.align = 1
    return loaded


@written_for(load8, types.uint64, None, types.uint64)
def _load8(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
    return _load(context, builder, given, arguments, _WORD)


@written_for(find_separators, types.UniTuple(types.uint64, 2), None, types.uint64)
def _find_separators(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
    # Compare 64 bytes together; the 64 one-bit results are then read as one word.
    kind = ir.VectorType(_BYTE, CHUNK_BYTES)
    chunk = _load(context, builder, given, arguments, kind)
    tabs, newlines = (
        builder.bitcast(builder.icmp_unsigned("==", chunk, ir.Constant(kind, [byte] * CHUNK_BYTES)), _WORD)
        for byte in (_TAB, _NEWLINES_IN_WORD)
    )
    return context.make_tuple(builder, given.return_type, [builder.or_(tabs, newlines), newlines])


class Spans(NamedTuple):
    """Fields of text: ``text[starts[i]:stops[i]]``."""

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def of(self, fields: Any) -> Spans:
        """Return some fields: their numbers, or a slice."""
        return Spans(self.text, self.starts[fields], self.stops[fields])

    def copy(self) -> Spans:
        """Return the same fields, whose places have their own memory."""
        return Spans(self.text, self.starts.copy(), self.stops.copy())


GOOD: Final = 0
MISSING: Final = 1
BAD: Final = 2
"""States of a field: it holds a value, is empty, or holds something it should not."""

_MINUS: Final = 45
_POINT: Final = 46
_ZERO: Final = 48


@kernel
def parse_integers(
    spans: Spans, most_below: np.uint64, most_above: np.uint64, are_codes: bool, rounds_down: bool
) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Read decimal integers, ``-?[0-9]+(\\.0*)?``, in ``[-most_below, most_above]``.

    Args:
        spans: the fields.
        most_below: how far below 0 a value may be.
        most_above: the largest value.
        are_codes: digits after a leading 0 are bad, because 7 and 007 would be one value.
        rounds_down: a fraction may have any digits, and is left out: -0.5 is read as -1.

    Returns:
        Values, negative ones as two's complement, 0 where there is none; and states: GOOD, MISSING or BAD.
    """
    text, starts, stops = spans
    values = np.zeros(starts.shape[0], np.uint64)
    states = np.full(starts.shape[0], BAD, np.uint8)
    # Limits as quotient and remainder by ten: ``value * 10 + digit`` exceeds one if (value, digit) does.
    below = (most_below // np.uint64(10), most_below % np.uint64(10))
    above = (most_above // np.uint64(10), most_above % np.uint64(10))
    for i in range(starts.shape[0]):
        position = starts[i]
        stop = stops[i]
        if position == stop:
            states[i] = MISSING
            continue
        is_negative = text[position] == _MINUS
        if is_negative:
            position += 1
        limit = below if is_negative else above
        is_code = are_codes and position + 1 < stop and text[position] == _ZERO
        if is_code and _ZERO <= text[position + 1] <= _ZERO + 9:
            continue

        # Digits, compared with the limit before each is added: a uint64 never overflows.
        value = np.uint64(0)
        first = position
        while position < stop and _ZERO <= text[position] <= _ZERO + 9:
            digit = np.uint64(text[position] - _ZERO)
            if value > limit[0] or (value == limit[0] and digit > limit[1]):
                break
            value = value * np.uint64(10) + digit
            position += 1
        is_number = position > first

        # "3." and "3.00" are the integer 3: some tools write integers as floats.
        if is_number and position < stop and text[position] == _POINT:
            position += 1
            is_more = False
            while position < stop and (
                text[position] == _ZERO or (rounds_down and _ZERO <= text[position] <= _ZERO + 9)
            ):
                is_more |= text[position] != _ZERO
                position += 1
            if is_more and is_negative:
                value += np.uint64(1)
        if is_number and position == stop:
            values[i] = ~value + np.uint64(1) if is_negative else value
            states[i] = GOOD
    return values, states


@kernel
def parse_hex8(spans: Spans) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Read fields of eight hex digits, either case, as numbers; returns as `parse_integers`."""
    text, starts, stops = spans
    values = np.zeros(starts.shape[0], np.uint64)
    states = np.full(starts.shape[0], BAD, np.uint8)
    for i in range(starts.shape[0]):
        if starts[i] == stops[i]:
            states[i] = MISSING
        elif stops[i] - starts[i] == 8:
            # ``seen`` collects the bits of all digits: 16 is set if one of them is no hex digit.
            value = np.uint32(0)
            seen = np.uint32(0)
            for digit in range(8):
                nibble = HEX_VALUES[text[starts[i] + digit]]
                value = np.uint32(value << np.uint32(4)) | nibble
                seen |= nibble
            if seen < 16:
                values[i] = value
                states[i] = GOOD
    return values, states


@kernel
def join_spans(spans: Spans) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Concatenate fields; returns where each begins, (num_fields + 1,), and their bytes."""
    text, starts, stops = spans
    offsets = np.zeros(starts.shape[0] + 1, np.int64)
    for i in range(starts.shape[0]):
        offsets[i + 1] = offsets[i] + stops[i] - starts[i]
    joined = np.empty(offsets[-1], np.uint8)
    for i in range(starts.shape[0]):
        for byte in range(offsets[i + 1] - offsets[i]):
            joined[offsets[i] + byte] = text[starts[i] + byte]
    return offsets, joined


def array_of(spans: Spans, kind: Any = None, is_valid: NDArray[np.bool_] | None = None) -> Any:
    """Return texts as an Arrow array of large_binary or ``kind``, one after another; some perhaps null."""
    bits = None if is_valid is None else np.packbits(is_valid, bitorder="little")
    buffers = [None if each is None else pa.py_buffer(each) for each in (bits, *join_spans(spans))]
    return pa.Array.from_buffers(kind or pa.large_binary(), spans.starts.shape[0], buffers)


def distinct_places(spans: Spans) -> tuple[Spans, NDArray[np.integer[Any]] | slice]:
    """Return fields of distinct places, for numbered texts share them, and the number of each field's."""
    text, starts, stops = spans
    if int((stops - starts).sum()) <= text.shape[0]:
        return spans, slice(None)
    width = text.shape[0] + 1
    places = pa.array(starts * width + stops).dictionary_encode()
    return Spans(text, *np.divmod(places.dictionary.to_numpy(), width)), places.indices.to_numpy()


def distinct_texts(spans: Spans) -> tuple[Any, NDArray[np.int32]]:
    """Return the distinct texts as an Arrow array, in their order of occurrence, and the number of each."""
    places, numbers = distinct_places(spans)
    encoded = array_of(places).dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy()[numbers]


_TOGETHER = 1024
"""Texts that are objects of Python at a time."""


def of_each(texts: Any, function: Callable[[bytes], Any], dtype: Any) -> NDArray[Any]:
    """Return what a function gives for each of an Arrow array of texts, (num_texts,)."""
    pieces = (texts.slice(first, _TOGETHER) for first in range(0, len(texts), _TOGETHER))
    return np.fromiter((function(each) for piece in pieces for each in piece.to_pylist()), dtype, len(texts))


_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def parse_decimals(spans: Spans) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Read finite numbers of the form of _DECIMAL to the nearest float64, ties to even. Exact.

    Returns:
        Values, 0 where there is none; and states: GOOD, MISSING or BAD.
    """
    spans, numbers = distinct_places(spans)
    is_there = spans.starts < spans.stops
    texts = array_of(spans, pa.large_string(), is_there)
    try:
        read = texts.cast(pa.float64())
    except pa.ArrowInvalid:  # one is no number
        import pyarrow.compute as pc  # takes a fifth of the start of a command

        is_number = pc.match_substring_regex(texts, _DECIMAL)
        read = pc.if_else(is_number, texts, None).cast(pa.float64())
    # Arrow reads words such as nan, and numbers that are too large, as what is not finite.
    found = read.fill_null(np.nan).to_numpy()
    is_good = np.isfinite(found)
    states = np.where(is_good, GOOD, np.where(is_there, BAD, MISSING)).astype(np.uint8)
    return np.where(is_good, found, 0.0)[numbers], states[numbers]
