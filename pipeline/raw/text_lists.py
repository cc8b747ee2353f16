"""Lists in text: fields cut into elements, plain ones between separators or those in brackets.

A list in brackets is one of JSON, Python, Postgres or NumPy, such as ``["a", "b"]``, ``{a,b}`` or ``[1 2]``.
Kernels find the elements as spans of the text; what is around each distinct one in brackets is left out in
Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import kernel
from .text_fields import GOOD, Spans, distinct_texts, of_each, parse_decimals

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
