"""Read the numbers of fields of text, cut lists into elements, and look at many bytes together.

Exact, every bound checked. A field is a span of a byte array, so the same kernels read text columns of CSV
and of Parquet files, whose offsets are spans already. Bytes are compared as machine words, eight or
sixty-four at a time, by instructions that Numba does not expose. Each such function is plain Python, which
defines it, and one or a few machine instructions when compiled.

Lists are plain ones between separators, or those of JSON, Python, Postgres or NumPy in brackets, such as
``["a", "b"]``, ``{a,b}`` or ``[1 2]``. Kernels find the elements as spans of the text; what is around each
distinct one in brackets is left out in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
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


_OPENING: Final = (91, 123, 40)
_CLOSING: Final = (93, 125, 41)
_BLANKS: Final = (32, 9, 10, 13)
_QUOTES: Final = (34, 39)
_BACKSLASH: Final = 92
_BLANK_BYTES: Final = bytes(_BLANKS)
_LISTS: Final = {bytes([byte]) for byte in _OPENING}
_NULLS: Final = {b"null", b"NULL", b"None", b"nan", b"NaN"}
"""Words for a missing element in brackets, where they have no quotes."""


@dataclass(frozen=True, slots=True)
class ListForm:
    """How lists are written in text."""

    separator: str
    """What is between two elements; empty for lists that are no text."""
    has_brackets: bool = False
    """Lists may have brackets around them, and elements quotes; blanks around elements do not count."""
    weight_separator: str = ""
    """What is between an element and its weight, which is checked and left out; empty without weights."""
    trims: bool = False
    """Blanks around elements do not count."""


@dataclass(frozen=True, slots=True)
class ListSpans:
    """Text of one column of lists, one field each."""

    fields: Spans
    form: ListForm


@kernel
def _is_at(text: NDArray[np.uint8], position: int, stop: int, mark: NDArray[np.uint8]) -> bool:
    """Return whether bytes of a mark, at least one, begin at a position."""
    if mark.shape[0] == 0 or position + mark.shape[0] > stop:
        return False
    for i in range(mark.shape[0]):
        if text[position + i] != mark[i]:
            return False
    return True


@kernel
def _trimmed(text: NDArray[np.uint8], first: int, stop: int) -> tuple[int, int]:
    """Return a span without the blanks around it."""
    while first < stop and text[first] in _BLANKS:
        first += 1
    while first < stop and text[stop - 1] in _BLANKS:
        stop -= 1
    return first, stop


@kernel
def _after_quotes(
    text: NDArray[np.uint8],
    first: int,
    stop: int,
    separator: NDArray[np.uint8],
    weight_separator: NDArray[np.uint8],
) -> int:
    """Return the position after an element's quotes, or its beginning where it has none."""
    position = first
    while position < stop and text[position] in _BLANKS and not _is_at(text, position, stop, separator):
        position += 1
    # Quotes count where they open an element, and close it or what comes before its weight.
    if position < stop and text[position] in _QUOTES:
        quote = text[position]
        end = position + 1
        while end < stop and text[end] != quote:
            end += 2 if text[end] == _BACKSLASH else 1
        end += 1
        while end < stop and text[end] in _BLANKS and not _is_at(text, end, stop, separator):
            end += 1
        is_closed = end == stop or (end < stop and _is_at(text, end, stop, weight_separator))
        if is_closed or (end < stop and _is_at(text, end, stop, separator)):
            return end
    return first


@kernel
def _inside(text: NDArray[np.uint8], first: int, stop: int) -> tuple[int, int, bool]:
    """Return a list without the brackets around it, and whether there were some that fit."""
    for i in range(len(_OPENING)):
        if stop - first >= 2 and text[first] == _OPENING[i] and text[stop - 1] == _CLOSING[i]:
            first, stop = _trimmed(text, first + 1, stop - 1)
            return first, stop, True
    return first, stop, False


@kernel
def split_lists(
    spans: Spans, separator: NDArray[np.uint8], weight_separator: NDArray[np.uint8], has_brackets: bool
) -> tuple[Spans, NDArray[np.int64]]:
    """Find the elements of lists. Exact.

    Plain lists have one on both sides of each separator. In brackets an empty list has none, and no element
    follows a last separator; a blank as the separator may be there any number of times.

    Args:
        spans: the lists.
        separator: its bytes.
        weight_separator: bytes between an element and its weight; none without weights.
        has_brackets: as `ListForm` has it.

    Returns:
        The elements, and where those of each list begin, (num_lists + 1,).
    """
    text, starts, stops = spans
    # At most one element more than the first byte of separators is there.
    most = starts.shape[0]
    for i in range(starts.shape[0]):
        for position in range(starts[i], stops[i]):
            most += text[position] == separator[0]
    element_starts, element_stops = np.empty(most, np.int64), np.empty(most, np.int64)
    offsets = np.zeros(starts.shape[0] + 1, np.int64)
    skips_empty = separator.shape[0] == 1 and separator[0] in _BLANKS
    element = 0
    for i in range(starts.shape[0]):
        first, stop = starts[i], stops[i]
        is_list = False
        if has_brackets:
            first, stop = _trimmed(text, first, stop)
            first, stop, is_list = _inside(text, first, stop)
        position = begin = first
        while not (is_list and first == stop):
            if has_brackets:
                position = _after_quotes(text, begin, stop, separator, weight_separator)
            while position < stop and not (
                text[position] == separator[0]
                and (separator.shape[0] == 1 or _is_at(text, position, stop, separator))
            ):
                position += 1
            is_last = position >= stop
            left, right = begin, position
            if has_brackets:
                left, right = _trimmed(text, begin, position)
            # What follows the last separator of a list in brackets is an element only if it is something.
            is_void = has_brackets and left == right and first < stop
            if not (is_void and (skips_empty or is_last)):
                element_starts[element], element_stops[element] = left, right
                element += 1
            if is_last:
                break
            position += separator.shape[0]
            begin = position
        offsets[i + 1] = element
    return Spans(text, element_starts[:element], element_stops[:element]), offsets


@kernel
def cut_weights(spans: Spans, weight_separator: NDArray[np.uint8]) -> Spans:
    """End elements before the last weight separator in each, in place.

    Args:
        spans: the elements.
        weight_separator: its bytes.

    Returns:
        The weights without blanks around them, empty where an element has none.
    """
    text, starts, stops = spans
    weight_starts, weight_stops = stops.copy(), stops.copy()
    for i in range(starts.shape[0]):
        position = stops[i] - weight_separator.shape[0]
        while position >= starts[i] and not _is_at(text, position, stops[i], weight_separator):
            position -= 1
        if position >= starts[i]:
            first = position + weight_separator.shape[0]
            weight_starts[i], weight_stops[i] = _trimmed(text, first, stops[i])
            stops[i] = position
    return Spans(text, weight_starts, weight_stops)


def elements_of(lists: ListSpans) -> tuple[Spans, NDArray[np.int64], NDArray[np.bool_]]:
    """Split lists into elements.

    Returns:
        The elements; where those of each field begin, (num_fields + 1,); and which of them are refused,
        (num_elements,): a list in a list, or one whose weight is no number.
    """
    form = lists.form
    separator, weight_separator = (
        np.frombuffer(mark.encode(), np.uint8) for mark in (form.separator, form.weight_separator)
    )
    found, offsets = split_lists(lists.fields, separator, weight_separator, form.has_brackets)
    is_refused = np.zeros(found.starts.shape[0], np.bool_)
    if weight_separator.size:
        is_there = found.starts < found.stops
        weights = cut_weights(found, weight_separator)
        is_refused = is_there & (parse_decimals(weights)[1] != GOOD)
    if form.has_brackets or form.trims:
        found, is_list = _bare(found, form.has_brackets)
        is_refused |= is_list
    return found, offsets, is_refused


def _bare(spans: Spans, has_quotes: bool) -> tuple[Spans, NDArray[np.bool_]]:
    """Return elements without the blanks and quotes around them, and which of them are lists themselves."""
    texts, numbers = distinct_texts(spans)
    joined = bytearray()

    def put(text: bytes) -> int:
        joined.extend(_value_of(text, has_quotes))
        return len(joined)

    stops = of_each(texts, put, np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), stops])[:-1]
    is_list = of_each(texts, lambda text: has_quotes and text.lstrip(_BLANK_BYTES)[:1] in _LISTS, np.bool_)
    return Spans(np.frombuffer(joined, np.uint8), starts[numbers], stops[numbers]), is_list[numbers]


def _value_of(text: bytes, has_quotes: bool) -> bytes:
    text = text.strip(_BLANK_BYTES)
    if has_quotes and len(text) > 1 and text[0] in _QUOTES and text[-1] == text[0]:
        return _ESCAPE.sub(_meaning, text[1:-1]) if _BACKSLASH in text else text[1:-1]
    return b"" if has_quotes and text in _NULLS else text


_ESCAPE = re.compile(rb"((?:\\u[0-9a-fA-F]{4})+)|\\(U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_CONTROLS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f"}


def _meaning(found: re.Match[bytes]) -> bytes:
    # JSON writes a character above 0xFFFF as a pair of surrogates, which UTF-16 joins.
    if found[1]:
        units = bytes.fromhex(found[1].decode().replace("\\u", ""))
        return units.decode("utf-16-be", "replace").encode()
    code = found[2]
    return (
        chr(int(code[1:], 16) % 0x110000).encode("utf-8", "replace")
        if len(code) > 1
        else _CONTROLS.get(code, code)
    )
