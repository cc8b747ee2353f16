"""Lists in text: fields cut into elements, plain ones between separators or those in brackets.

A list in brackets is one of JSON, Python, Postgres or NumPy, such as ``["a", "b"]``, ``{a,b}`` or ``[1 2]``.
Kernels find the elements as spans of the text. Only elements with a backslash inside quotes, which few have,
are rewritten, in Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import kernel
from .text_fields import BAD, MISSING, parse_decimals

_OPENING: Final = (91, 123, 40)
_CLOSING: Final = (93, 125, 41)
_BLANKS: Final = (32, 9, 10, 13)
_QUOTES: Final = (34, 39)
_BACKSLASH: Final = 92
_NULLS: Final = np.array(
    [list(word.ljust(4)) for word in (b"null", b"NULL", b"None", b"nan", b"NaN")], np.uint8
)
"""Words for a missing element in brackets, where they have no quotes; blanks after a shorter one."""
_PLAIN: Final = 0
_REFUSED: Final = 1
_ESCAPED: Final = 2


@dataclass(frozen=True, slots=True)
class Spans:
    """Text of one column: ``text[starts[i]:stops[i]]``."""

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


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
def count_elements(
    text: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64], mark: int
) -> int:
    """Return how many elements fields have at most: one more than the first byte of separators is there.

    Args:
        text: bytes of the fields.
        starts: (num_fields,).
        stops: (num_fields,).
        mark: that byte.
    """
    num_elements = int(starts.shape[0])
    for i in range(starts.shape[0]):
        for position in range(starts[i], stops[i]):
            num_elements += text[position] == mark
    return num_elements


@kernel
def _end_of_element(
    text: NDArray[np.uint8],
    first: int,
    stop: int,
    separator: NDArray[np.uint8],
    weight_separator: NDArray[np.uint8],
) -> int:
    """Return where an element ends: before a separator that is not inside of quotes."""
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
            position = end
    while position < stop and (text[position] != separator[0] or not _is_at(text, position, stop, separator)):
        position += 1
    return position


@kernel
def _inside(text: NDArray[np.uint8], first: int, stop: int) -> tuple[int, int, bool]:
    """Return a list without the brackets around it, and whether there were some that fit."""
    for i in range(len(_OPENING)):
        if stop - first >= 2 and text[first] == _OPENING[i] and text[stop - 1] == _CLOSING[i]:
            first, stop = _trimmed(text, first + 1, stop - 1)
            return first, stop, True
    return first, stop, False


@kernel
def split_plain(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    separator: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    element_starts: NDArray[np.int64],
    element_stops: NDArray[np.int64],
) -> None:
    """Find what is between separators, one element on both sides of each; see `split_elements`."""
    width = separator.shape[0]
    element = 0
    offsets[0] = 0
    for i in range(starts.shape[0]):
        position = starts[i]
        element_starts[element] = position
        while position < stops[i]:
            if text[position] == separator[0] and (width == 1 or _is_at(text, position, stops[i], separator)):
                element_stops[element] = position
                element += 1
                element_starts[element] = position + width
                position += width - 1
            position += 1
        element_stops[element] = stops[i]
        element += 1
        offsets[i + 1] = element


@kernel
def split_elements(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    separator: NDArray[np.uint8],
    weight_separator: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    element_starts: NDArray[np.int64],
    element_stops: NDArray[np.int64],
) -> None:
    """Find the elements of lists that may have brackets around them. Exact.

    An empty list has none, and no element follows a last separator; a blank as the separator may be there any
    number of times.

    Args:
        text: bytes of the fields.
        starts: (num_fields,).
        stops: (num_fields,).
        separator: its bytes.
        weight_separator: bytes between an element and its weight; none without weights.
        offsets: (num_fields + 1,) out; where the elements of each field begin.
        element_starts: (at least `count_elements`,) out.
        element_stops: as ``element_starts``.
    """
    skips_empty = separator.shape[0] == 1 and separator[0] in _BLANKS
    element = 0
    offsets[0] = 0
    for i in range(starts.shape[0]):
        first, stop = _trimmed(text, starts[i], stops[i])
        first, stop, is_list = _inside(text, first, stop)
        position = first
        while not (is_list and first == stop):
            end = _end_of_element(text, position, stop, separator, weight_separator)
            begin, last = _trimmed(text, position, end)
            # What follows the last separator of a list is an element only if it is something.
            is_last = end >= stop
            if begin < last or first == stop or not (skips_empty or (is_last and position > first)):
                element_starts[element], element_stops[element] = begin, last
                element += 1
            if is_last:
                break
            position = end + separator.shape[0]
        offsets[i + 1] = element


@kernel
def cut_weights(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    weight_separator: NDArray[np.uint8],
    weight_starts: NDArray[np.int64],
) -> None:
    """End elements before the last weight separator in each; arguments as in `split_elements`.

    Args:
        text: bytes of the elements.
        starts: (num_elements,).
        stops: (num_elements,) in and out.
        weight_separator: its bytes.
        weight_starts: (num_elements,) out; where the weight begins, the end of the element where it has none.
    """
    for i in range(starts.shape[0]):
        position = stops[i] - weight_separator.shape[0]
        while position >= starts[i] and not _is_at(text, position, stops[i], weight_separator):
            position -= 1
        weight_starts[i] = stops[i]
        if position >= starts[i]:
            weight_starts[i] = position + weight_separator.shape[0]
            stops[i] = position


@kernel
def _is_null(text: NDArray[np.uint8], first: int, stop: int) -> bool:
    """Return whether an element is one of _NULLS."""
    if stop - first > 4:
        return False
    for word in range(_NULLS.shape[0]):
        is_same = True
        for i in range(4):
            byte = text[first + i] if first + i < stop else np.uint8(32)
            is_same &= byte == _NULLS[word, i]
        if is_same:
            return True
    return False


@kernel
def trim_elements(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    has_quotes: bool,
    marks: NDArray[np.uint8],
) -> None:
    """Leave out the blanks around elements, and the quotes.

    Args:
        text: bytes of the elements.
        starts: (num_elements,) in and out.
        stops: (num_elements,) in and out.
        has_quotes: elements may be in quotes, and may not be lists.
        marks: (num_elements,) out; _PLAIN, _REFUSED for a list in a list, or _ESCAPED where a backslash in
            quotes has to be undone.
    """
    for i in range(starts.shape[0]):
        first, stop = _trimmed(text, starts[i], stops[i])
        marks[i] = _PLAIN
        if has_quotes and first < stop:
            if text[first] in _OPENING:
                marks[i] = _REFUSED
            elif stop - first >= 2 and text[first] in _QUOTES and text[stop - 1] == text[first]:
                first += 1
                stop -= 1
                for position in range(first, stop):
                    if text[position] == _BACKSLASH:
                        marks[i] = _ESCAPED
            elif _is_null(text, first, stop):
                stop = first
        starts[i], stops[i] = first, stop


def elements_of(lists: ListSpans) -> tuple[Spans, NDArray[np.int64], NDArray[np.bool_]]:
    """Split lists into elements.

    Returns:
        The elements; where those of each field begin, (num_fields + 1,); and which of them are refused,
        (num_elements,): a list in a list, or one whose weight is no number.
    """
    form, fields = lists.form, lists.fields
    separator, weight_separator = (
        np.frombuffer(mark.encode(), np.uint8) for mark in (form.separator, form.weight_separator)
    )
    spans = (fields.text, fields.starts, fields.stops)
    most = count_elements(*spans, int(separator[0]))
    starts, stops = np.empty(most, np.int64), np.empty(most, np.int64)
    offsets = np.empty(fields.starts.shape[0] + 1, np.int64)
    if form.has_brackets:
        split_elements(*spans, separator, weight_separator, offsets, starts, stops)
    else:
        split_plain(*spans, separator, offsets, starts, stops)
    starts, stops = starts[: offsets[-1]], stops[: offsets[-1]]

    is_refused = np.zeros(starts.shape[0], np.bool_)
    if weight_separator.size:
        is_refused = _cut_weights(fields.text, starts, stops, weight_separator)
    text = fields.text
    if form.has_brackets or form.trims:
        marks = np.empty(starts.shape[0], np.uint8)
        trim_elements(text, starts, stops, form.has_brackets, marks)
        is_refused |= marks == _REFUSED
        text = _without_escapes(text, starts, stops, np.flatnonzero(marks == _ESCAPED))
    return Spans(text, starts, stops), offsets, is_refused


def _cut_weights(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    weight_separator: NDArray[np.uint8],
) -> NDArray[np.bool_]:
    """End elements before their weights; return which have none, or one that is no number."""
    is_there = starts < stops
    ends = stops.copy()
    weights = np.empty_like(starts)
    cut_weights(text, starts, stops, weight_separator, weights)
    states = np.empty(starts.shape[0], np.uint8)
    trim_elements(text, weights, ends, False, states)
    parse_decimals(text, weights, ends, np.empty(starts.shape[0]), states)
    is_refused: NDArray[np.bool_] = is_there & ((states == BAD) | (states == MISSING))
    return is_refused


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


def _without_escapes(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    places: NDArray[np.intp],
) -> NDArray[np.uint8]:
    """Undo the backslashes in some elements, in a copy of the text; none of them gets longer."""
    if not places.size:
        return text
    text = text.copy()

    for i in places.tolist():
        plain = np.frombuffer(_ESCAPE.sub(_meaning, bytes(text[starts[i] : stops[i]])), np.uint8)
        text[starts[i] : starts[i] + plain.size] = plain
        stops[i] = starts[i] + plain.size
    return text
