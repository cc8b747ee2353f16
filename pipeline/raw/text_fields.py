"""Columns of text: the numbers in them, and lists cut into elements.

A column of text is an Arrow array of large_binary without nulls, whose empty texts are missing values. Where
texts recur it may be a dictionary array of them.

Lists are plain ones between separators, or those of JSON, Python, Postgres or NumPy in brackets, such as
``["a", "b"]``, ``{a,b}`` or ``[1 2]``. A kernel finds the elements as spans of the text; what is around each
distinct one in brackets is left out in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...stats.kernel import kernel, read_only

GOOD: Final = 0
MISSING: Final = 1
BAD: Final = 2
"""States of a field: it holds a value, is empty, or holds something it should not."""

_ROWS_TOGETHER: Final = 256
"""Rows of which all columns are copied while their text is in the cache."""


def arrays_of(text: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[Any]:
    """Return columns of fields ``text[starts[column, row]:stops[column, row]]`` as Arrow arrays."""
    num_columns, num_rows = starts.shape
    bounds = np.concatenate([[0], np.cumsum((stops - starts).sum(axis=1))])
    joined = np.empty(bounds[-1], np.uint8)
    ends = np.zeros((num_columns, num_rows + 1), np.int64)
    join_columns(read_only(text), starts, stops, bounds, joined, ends)
    pairs = zip(bounds.tolist(), bounds[1:].tolist(), strict=False)
    bytes_of_columns = [pa.py_buffer(joined[first:stop]) for first, stop in pairs]
    return [
        pa.Array.from_buffers(pa.large_binary(), num_rows, [None, pa.py_buffer(own_ends), own_bytes])
        for own_ends, own_bytes in zip(ends, bytes_of_columns, strict=True)
    ]


@kernel
def join_columns(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    bounds: NDArray[np.int64],
    joined: NDArray[np.uint8],
    ends: NDArray[np.int64],
) -> None:
    """Copy fields column after column. Exact.

    Args:
        starts: (num_columns, num_rows).
        stops: (num_columns, num_rows).
        bounds: (num_columns + 1,), where the bytes of each column begin.
        joined: (bounds[-1],) out.
        ends: (num_columns, num_rows + 1) out, the first of each column 0: where its fields end in its bytes.
    """
    for first in range(0, starts.shape[1], _ROWS_TOGETHER):
        for column in range(starts.shape[0]):
            place = bounds[column] + ends[column, first]
            for row in range(first, min(first + _ROWS_TOGETHER, starts.shape[1])):
                for position in range(starts[column, row], stops[column, row]):
                    joined[place] = text[position]
                    place += 1
                ends[column, row + 1] = place - bounds[column]


def bytes_of(texts: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of texts, and where each begins in them and the last one ends, (num_texts + 1,)."""
    _, offsets, text = texts.buffers()
    ends = np.zeros(1, np.int64)
    if len(texts):
        ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(text, np.uint8) if text is not None else np.zeros(0, np.uint8), ends


def lengths_of(texts: Any) -> NDArray[np.int64]:
    """Return the bytes of each text, (num_texts,)."""
    return np.diff(bytes_of(texts)[1])


def distinct(texts: Any) -> tuple[Any, NDArray[np.int32]]:
    """Return the distinct texts of a column, in their order of occurrence, and the number of each."""
    if not pa.types.is_dictionary(texts.type):
        encoded = texts.dictionary_encode()
        return encoded.dictionary, encoded.indices.to_numpy()
    # Numbered ones may be used by no row, or be equal to others.
    used = texts.indices.dictionary_encode()
    found, numbers = distinct(texts.dictionary.take(used.dictionary))
    return found, numbers[used.indices.to_numpy()]


_TOGETHER = 1024
"""Texts that are objects of Python at a time."""


def of_each(texts: Any, function: Callable[[bytes], Any], dtype: Any) -> NDArray[Any]:
    """Return what a function gives for each of an Arrow array of texts, (num_texts,)."""
    return np.fromiter((function(each) for piece in _pieces(texts) for each in piece), dtype, len(texts))


def _pieces(texts: Any) -> Iterator[list[bytes]]:
    for first in range(0, len(texts), _TOGETHER):
        yield texts.slice(first, _TOGETHER).to_pylist()


def _strings_of(texts: Any) -> Any:
    """Return texts as strings that are casted, empty ones null; nothing is copied, UTF-8 or not."""
    _, offsets, text = texts.buffers()
    is_there = pa.py_buffer(np.packbits(lengths_of(texts) > 0, bitorder="little"))
    begin = 8 * texts.offset if len(texts) else 0
    return pa.Array.from_buffers(pa.large_string(), len(texts), [is_there, offsets.slice(begin), text])


def _states_of(texts: Any, is_good: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.where(is_good, GOOD, np.where(lengths_of(texts) > 0, BAD, MISSING)).astype(np.uint8)


_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def parse_decimals(texts: Any) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Read finite numbers of the form of _DECIMAL to the nearest float64, ties to even. Exact.

    Returns:
        Values, 0 where there is none; and states: GOOD, MISSING or BAD.
    """
    strings = _strings_of(texts)
    try:
        read = strings.cast(pa.float64())
    except pa.ArrowInvalid:  # one is no number
        is_number = pc.match_substring_regex(strings, _DECIMAL)
        read = pc.if_else(is_number, strings, None).cast(pa.float64())
    # Arrow reads words such as nan, and numbers that are too large, as what is not finite.
    found = read.fill_null(np.nan).to_numpy()
    is_good = np.isfinite(found)
    return np.where(is_good, found, 0.0), _states_of(texts, is_good)


_MINUS: Final = 45
_POINT: Final = 46
_ZERO: Final = 48


def parse_integers(
    texts: Any, most_below: int, most_above: int, are_codes: bool, rounds_down: bool
) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Read decimal integers, ``-?[0-9]+(\\.0*)?``, in ``[-most_below, most_above]``. Exact.

    Args:
        texts: the fields.
        most_below: how far below 0 a value may be.
        most_above: the largest value.
        are_codes: digits after a leading 0 are bad, because 7 and 007 would be one value.
        rounds_down: a fraction may have any digits, and is left out: -0.5 is read as -1.

    Returns:
        Values, negative ones as two's complement, 0 where there is none; and states: GOOD, MISSING or BAD.
    """
    limits = np.uint64(most_below), np.uint64(most_above)
    return _parse_integers(*bytes_of(texts), *limits, are_codes, rounds_down)


@kernel
def _parse_integers(
    text: NDArray[np.uint8],
    ends: NDArray[np.int64],
    most_below: np.uint64,
    most_above: np.uint64,
    are_codes: bool,
    rounds_down: bool,
) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """See `parse_integers`; the fields are as `bytes_of` has them."""
    values = np.zeros(ends.shape[0] - 1, np.uint64)
    states = np.full(values.shape[0], BAD, np.uint8)
    # Limits as quotient and remainder by ten: ``value * 10 + digit`` exceeds one if (value, digit) does.
    below = (most_below // np.uint64(10), most_below % np.uint64(10))
    above = (most_above // np.uint64(10), most_above % np.uint64(10))
    for i in range(values.shape[0]):
        position = ends[i]
        stop = ends[i + 1]
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


def parse_hex8(texts: Any) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Read fields of eight hex digits, either case, as numbers; returns as `parse_integers`."""
    found = np.zeros(len(texts), np.uint64)
    is_number = np.asarray(lengths_of(texts) == 8)
    try:
        found[is_number] = _hex8_of(texts, is_number)
    except ValueError:  # one is no number
        is_number = pc.match_substring_regex(texts, "^[0-9a-fA-F]{8}$").to_numpy(zero_copy_only=False)
        found[is_number] = _hex8_of(texts, is_number)
    return found, _states_of(texts, is_number)


def _hex8_of(texts: Any, chosen: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Return the numbers of some texts; raises ValueError where one is no number."""
    text, ends = bytes_of(texts.filter(pa.array(chosen)))
    digits = text[: ends[-1]].tobytes().decode("latin-1")
    # Blanks are passed by, which leaves too few numbers.
    return np.frombuffer(bytes.fromhex(digits), ">u4").reshape(np.count_nonzero(chosen))


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
class TextLists:
    """A column of text with a list in each field."""

    fields: Any
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
    text: NDArray[np.uint8],
    ends: NDArray[np.int64],
    separator: NDArray[np.uint8],
    weight_separator: NDArray[np.uint8],
    has_brackets: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Find the elements of lists. Exact.

    Plain lists have one on both sides of each separator. In brackets an empty list has none, and no element
    follows a last separator; a blank as the separator may be there any number of times.

    Args:
        text: the bytes of all lists.
        ends: (num_lists + 1,), where each begins, and the last one ends.
        separator: its bytes.
        weight_separator: bytes between an element and its weight; none without weights.
        has_brackets: as `ListForm` has it.

    Returns:
        Where each element begins and ends, and which is the first of each list, (num_lists + 1,).
    """
    # At most one element more than the first byte of separators is there.
    most = ends.shape[0] - 1
    for position in range(ends[0], ends[-1]):
        most += text[position] == separator[0]
    element_starts, element_stops = np.empty(most, np.int64), np.empty(most, np.int64)
    offsets = np.zeros(ends.shape[0], np.int64)
    skips_empty = separator.shape[0] == 1 and separator[0] in _BLANKS
    element = 0
    for i in range(ends.shape[0] - 1):
        first, stop = ends[i], ends[i + 1]
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
    return element_starts[:element], element_stops[:element], offsets


def elements_of(lists: TextLists) -> tuple[Any, NDArray[np.int64], NDArray[np.bool_]]:
    """Split lists into elements.

    Returns:
        The elements, a column of text; where those of each field begin, (num_fields + 1,); and which of them
        are refused, (num_elements,): a list in a list, or one whose weight is no number.
    """
    form, fields = lists.form, lists.fields
    text, ends = bytes_of(fields.dictionary_decode() if pa.types.is_dictionary(fields.type) else fields)
    marks = (np.frombuffer(mark.encode(), np.uint8) for mark in (form.separator, form.weight_separator))
    starts, stops, offsets = split_lists(text, ends, *marks, form.has_brackets)
    (found,) = arrays_of(text, starts[None], stops[None])
    is_refused = np.zeros(len(found), np.bool_)
    if form.weight_separator:
        is_there = lengths_of(found) > 0
        found, weights = _without_weights(found, form.weight_separator)
        is_refused = is_there & (parse_decimals(weights)[1] != GOOD)
    if form.has_brackets or form.trims:
        found, is_list = _bare(found, form.has_brackets)
        is_refused |= is_list
    return found, offsets, is_refused


def _without_weights(elements: Any, separator: str) -> tuple[Any, Any]:
    """Return elements up to the last separator in each, and what follows it without blanks, if any."""
    pairs = pc.split_pattern(elements, separator, max_splits=1, reverse=True)
    ends = np.asarray(pairs.offsets)
    weights = pc.if_else(
        pc.equal(pc.list_value_length(pairs), 2), pairs.values.take(pa.array(ends[1:] - 1)), b""
    )
    return pairs.values.take(pa.array(ends[:-1])), pc.replace_substring_regex(
        weights, r"^[ \t\n\r]+|[ \t\n\r]+$", ""
    )


def _bare(elements: Any, has_quotes: bool) -> tuple[Any, NDArray[np.bool_]]:
    """Return elements without the blanks and quotes around them, and which of them are lists themselves."""
    texts, numbers = distinct(elements)
    pieces = ([_value_of(text, has_quotes) for text in piece] for piece in _pieces(texts))
    values = pa.chunked_array((pa.array(piece, pa.large_binary()) for piece in pieces), pa.large_binary())
    is_list = of_each(texts, lambda text: has_quotes and text.lstrip(_BLANK_BYTES)[:1] in _LISTS, np.bool_)
    return values.combine_chunks().take(pa.array(numbers)), is_list[numbers]


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
