"""Values of a column of a CSV block or Parquet batch.

Each value has a state: good, missing or bad. Numbers in text are parsed, typed arrays are used unchanged, and
no type is guessed. A list-valued column is read as all its elements and the offsets of the rows; a missing
list has one missing element.

Text categories become 64-bit numbers: xxh3 of the bytes, hashed once per distinct text of a block. Two of n
texts share a number, and so a row, with a probability of about n**2 / 2**65: 3e-6 for ten million.

Times become hours and weekdays, exact, in UTC or a time zone. A time is text such as ``2026-01-31 23:59:59``
or of a format of the schema, a number since 1970-01-01 in a unit, or a timestamp or date of Arrow. Text
without an offset is in UTC; fractions of a second do not matter.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from ..schema.schema import NUMBER, PLAIN, SAMPLE_TIME, TIME_KINDS, WEIGHT, Form, zone_named
from .text_fields import (
    BAD,
    GOOD,
    MISSING,
    TextLists,
    distinct,
    elements_of,
    lengths_of,
    of_each,
    parse_decimals,
    parse_hex8,
    parse_integers,
)

TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Ticks of each unit in a second."""
_DAY_SECONDS = 86_400
_DAYS_BEFORE_1970 = 719_163
_WEEKDAY_OF_1970 = 3
"""The first day of 1970 was a Thursday; Monday is 0 here."""
_NO_TIME = -(2**62)
_ZONE = "(?i:utc|gmt|z)"
_OFFSET = f"({_ZONE}|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?+)"
_DIGITS = "([0-9]{1,2}+)"
_PLAIN = re.compile(
    f"([0-9]{{4}})([-/]){_DIGITS}\\2{_DIGITS}"
    f"(?:[ Tt]{_DIGITS}:{_DIGITS}(?::{_DIGITS}(?:[.,][0-9]+)?)?"
    f"(?: ?(?:{_OFFSET}(?:\\[.*\\])?|\\[{_ZONE}\\]))?)?".encode(),
    re.DOTALL,
)
"""A time without a format, as `parse_times` has it. Java names a zone in brackets after an offset."""


def _names(words: str) -> str:
    """Return the pattern of names, of each also its first three letters."""
    return f"((?i:{'|'.join(f'{word[:3]}(?:{word[3:]})?+' for word in words.split())}))"


_MONTHS = "january february march april may june july august september october november december"
_MONTH, _DAY = _names(_MONTHS), _names("monday tuesday wednesday thursday friday saturday sunday")
_CODES = {
    **dict.fromkeys("mdHIMS", _DIGITS), "Y": "([0-9]{4})", "y": "([0-9]{2})", "f": "([0-9]{1,9}+)",
    "b": _MONTH, "B": _MONTH, "a": _DAY, "A": _DAY, "p": "((?i:am|pm))", "z": _OFFSET,
    "Z": f"({_ZONE}|[+-]00(?::?00)?+)", "%": "(%)",
}  # fmt: skip
"""Patterns of the codes of a format; each takes as many digits as it may have."""
_MOST = {"H": 23, "M": 59, "S": 59, "I": 12}
_FORMAT = re.compile("%([" + "".join(_CODES) + "])|(.)", re.DOTALL)


def features_of(kind: str, seconds: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the hour (0 to 23) or the weekday (1 for Monday to 7) of times.

    Args:
        kind: ``hour`` or ``weekday``.
        seconds: (num_values,); since 1970-01-01 00:00, rounded down.
    """
    days, seconds_of_day = np.divmod(seconds, _DAY_SECONDS)
    found = seconds_of_day // 3600 if kind == "hour" else (days + _WEEKDAY_OF_1970) % 7 + 1
    return found.astype(np.uint64)


_FIRST_SECOND, _LAST_SECOND = -62_100_000_000, 253_300_000_000
"""Seconds of the years 2 and 9996, outside of which the offset of a zone stays the same here."""


def local_seconds(seconds: NDArray[np.int64], zone: str) -> NDArray[np.int64]:
    """Return what clocks of a zone show at moments, both (num_values,) seconds since 1970. Exact.

    Raises:
        ConfigError: there is no such zone.
    """
    clock = zone_named(zone)

    def offsets(moments: NDArray[np.int64]) -> NDArray[np.int64]:
        shown = [datetime.datetime.fromtimestamp(moment, clock).utcoffset() for moment in moments.tolist()]
        return np.array(
            [offset // datetime.timedelta(seconds=1) for offset in shown if offset is not None], np.int64
        )

    # No zone changes its offset twice a day, so that one which ends a day as it began has one offset for it.
    moments = np.clip(seconds, _FIRST_SECOND, _LAST_SECOND)
    days, day_of = np.unique(moments // _DAY_SECONDS, return_inverse=True)
    first = offsets(days * _DAY_SECONDS)
    found: NDArray[np.int64] = first[day_of]
    changes = (first != offsets(days * _DAY_SECONDS + _DAY_SECONDS - 1))[day_of]
    found[changes] = offsets(moments[changes])
    return seconds + found


def seconds_of_temporal(array: Any) -> NDArray[np.int64]:
    """Return the seconds since 1970 of an Arrow array of timestamps or dates, rounded down; 0 where null."""
    kind = array.type
    if pa.types.is_date32(kind):
        days = array.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.asarray(days.astype(np.int64) * _DAY_SECONDS)
    ticks = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(ticks // TICKS["ms" if pa.types.is_date64(kind) else kind.unit])


def shown_time(seconds: int) -> str:
    """Return a time as messages show it, such as 2026-01-31 23:59:59."""
    try:
        return str(np.datetime64(seconds, "s")).replace("T", " ")
    except (OverflowError, ValueError):
        return f"{seconds} s since 1970"


def is_temporal(kind: Any) -> bool:
    """Return whether an Arrow type is one of points in time."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


@lru_cache(maxsize=64)
def _pattern_of(format: str) -> tuple[re.Pattern[bytes], str]:
    """Return the pattern of times in a format, "" for none, and the code of each of its groups."""
    if not format:
        return _PLAIN, "Y-mdHMSz"
    parts = _FORMAT.findall(format)
    # A blank stands for any number of them, as it does in Python.
    written = (_CODES[code] if code else " ++" if text == " " else re.escape(text) for code, text in parts)
    return re.compile("".join(written).encode()), "".join(code for code, _ in parts)


def _seconds_of(text: bytes, pattern: re.Pattern[bytes], codes: str) -> int:
    """Return the seconds since 1970 of one time, _NO_TIME where it is none."""
    found = pattern.fullmatch(text)
    if found is None:
        return _NO_TIME
    # A format without a date has that of 1970-01-01.
    parts = {"Y": 1970, "m": 1, "d": 1, "H": 0, "M": 0, "S": 0, "z": 0}
    for code, word in zip(codes, found.groups(), strict=True):
        if word is None:
            continue
        if code in "YmdHIMS":
            parts[code] = int(word)
            if parts[code] > _MOST.get(code, 9999):
                return _NO_TIME
        elif code == "y":
            parts["Y"] = int(word) + (1900 if int(word) > 68 else 2000)
        elif code in "bB":
            names = [name[:3] for name in _MONTHS.split()]
            parts["m"] = names.index(word[:3].decode().lower()) + 1
        elif code == "p":
            parts["p"] = word in (b"pm", b"PM", b"pM", b"Pm")
        elif code == "z" and word[0] in b"+-":
            # Clocks east of UTC are ahead of it, so that their offset is subtracted.
            digits = word[1:].replace(b":", b"").ljust(4, b"0")
            east = int(digits[:2]) * 3600 + int(digits[2:]) * 60
            parts["z"] = east if word[:1] == b"+" else -east
    hour = parts["H"]
    if "I" in parts:  # twelve is the first hour of a half of the day
        if not parts["I"]:
            return _NO_TIME
        hour = parts["I"] % 12 + 12 * parts.get("p", 0)
    try:
        days = datetime.date(parts["Y"], parts["m"], parts["d"]).toordinal() - _DAYS_BEFORE_1970
    except ValueError:
        return _NO_TIME
    return days * _DAY_SECONDS + hour * 3600 + parts["M"] * 60 + parts["S"] - parts["z"]


def parse_times(texts: Any, format: str = "") -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Read times of a format, or ``YYYY-M-D[[ T]H:M[:S[.fraction]][offset]]``. Exact.

    Each code of a format takes as many digits as it may have, without a second try: ``%m`` reads two where
    two follow.

    Args:
        texts: the fields, each distinct one once: the times of a block of a log are few.
        format: in TIME_CODES, "" for none.

    Returns:
        Seconds since 1970-01-01 00:00 UTC, rounded down, 0 where there are none; and states: GOOD, MISSING or
        BAD.
    """
    seconds = None if format else _usual_seconds(texts)
    if seconds is None:
        pattern, codes = _pattern_of(format)
        seconds = of_each(texts, lambda text: _seconds_of(text, pattern, codes), np.int64)
    states = np.where(seconds == _NO_TIME, BAD, GOOD)
    states[lengths_of(texts) == 0] = MISSING
    return np.where(states == GOOD, seconds, 0), states.astype(np.uint8)


def _usual_seconds(texts: Any) -> NDArray[np.int64] | None:
    """Return the seconds of times all of which Arrow reads, as YYYY-MM-DD HH:MM:SS[.fraction]; else None."""
    # Of other lengths Arrow reads forms that are none here.
    lengths = lengths_of(texts)
    if not np.isin(lengths, (0, 19, 23, 26)).all():
        return None
    try:
        found = pc.if_else(lengths > 0, texts, None).cast(pa.large_string()).cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return None
    seconds: NDArray[np.int64] = seconds_of_temporal(found)
    return seconds if (seconds >= _FIRST_SECOND).all() else None


@dataclass(frozen=True, slots=True)
class DistinctTexts:
    """The distinct texts of a column, in the order of their first occurrence."""

    hashes: NDArray[np.uint64]
    """(num_texts,)."""
    counts: NDArray[np.int64]
    """(num_texts,); occurrences of each."""
    texts: Any
    """(num_texts,), an Arrow array of large_binary."""


def hash_text(texts: Any) -> tuple[NDArray[np.uint64], DistinctTexts]:
    """Return the xxh3-64 (seed 0) of each text of a column; exact.

    Returns:
        (num_texts,), the hash of no bytes for an empty one; and the distinct texts.

    Source:
        Collet, XXH3 (xxHash 0.8, which froze its output).
    """
    # Arrow finds the distinct ones; each of these is hashed once. Texts may be long: few copies are there.
    found, numbers = distinct(texts)
    hashes = of_each(found, xxhash.xxh3_64_intdigest, np.uint64)
    counts = np.bincount(numbers, minlength=len(found)).astype(np.int64)
    return hashes[numbers], DistinctTexts(hashes, counts, found)


LIMITS = {
    "dense": (2**31, 2**31 - 1),
    "integer": (2**63, 2**63 - 1),
    "unsigned": (0, 2**64 - 1),
}
"""Range of each kind of value: how far below and above 0."""
FLOATS = ("float", "float32", WEIGHT, NUMBER)
"""Kinds of columns with float64 values; those of the others than the first must fit in a float32."""
_OTHER_KINDS = {
    "integer": ("unsigned", "float", "text"),
    "unsigned": ("integer", "float", "text"),
    "hex8": ("text",),
    "hour": ("text",),
    "weekday": ("text",),
    "dense": ("float", "text"),
    "float": ("text",),
    "float32": ("float", "text"),
}
"""Kinds to try in place of each kind, the plainest first."""


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a column, and the state of each."""

    values: NDArray[Any]
    """(num_values,) uint64, negative ones as two's complement, or float64; 0 where the state is not GOOD."""
    states: NDArray[np.uint8]
    """(num_values,); GOOD, MISSING or BAD."""
    offsets: NDArray[np.int64] | None = None
    """(num_rows + 1,); where the elements of each row begin, None where a row has one value."""
    texts: DistinctTexts | None = None
    """The distinct texts, where the values are hashes of texts."""

    def is_row(self, state: int) -> NDArray[np.bool_]:
        """Return (num_rows,): whether the value of a row, or one of its elements, is in ``state``."""
        is_in: NDArray[np.bool_] = self.states == state
        if self.offsets is None:
            return is_in
        # Elements in that state before each element: a row has one if the number grows across it.
        before = np.concatenate([[0], np.cumsum(is_in)])
        found: NDArray[np.bool_] = before[self.offsets[1:]] > before[self.offsets[:-1]]
        return found

    def rows(self, keep: NDArray[np.bool_]) -> Values:
        """Return the values of the rows to keep, (num_rows,)."""
        if self.offsets is None:
            return Values(self.values[keep], self.states[keep])
        lengths = np.diff(self.offsets)
        is_kept = np.repeat(keep, lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths[keep])]).astype(np.int64)
        return Values(self.values[is_kept], self.states[is_kept], offsets)

    def first_bad(self, row: int) -> int:
        """Return the index of a row's first BAD value."""
        first = row if self.offsets is None else int(self.offsets[row])
        return first + int(np.argmax(self.states[first:] == BAD))


def read_column(values: Any, kind: str, form: Form = PLAIN) -> Values:
    """Read TextLists, an array of texts or of another type, or a list of either, as `plain` gives them."""
    if isinstance(values, TextLists):
        lists = replace(values, fields=without(values.fields, form.missing))
        elements, offsets, is_refused = elements_of(lists)
        found = replace(read_column(elements, kind, form), offsets=offsets)
        found.states[is_refused] = BAD
        found.values[is_refused] = 0
        return found
    if is_list(values.type):
        return _read_lists(values, kind, form)
    values = without(values, form.missing)
    if kind == "text" and holds_text(values):
        return _read_texts(values)
    is_time = kind in (*TIME_KINDS, SAMPLE_TIME)
    if is_time and pa.types.is_integer(values.type) and form.unit is None:
        values = plain(values.cast(pa.string()))  # numbers are read by their digits, as 20240131
    # Of numbered texts, and of those that take long to read, each distinct one is read once.
    if pa.types.is_dictionary(values.type) or (holds_text(values) and (is_time or form.positive)):
        texts, numbers = distinct(values)
        found = _read_each(texts, kind, form)
        return Values(found.values[numbers], found.states[numbers])
    return _read_each(values, kind, form)


def _read_each(values: Any, kind: str, form: Form) -> Values:
    if kind in (*TIME_KINDS, SAMPLE_TIME):
        return _read_times(values, kind, form)
    if kind == "label":
        return _read_labels(values, form)
    return Values(*read_values(values, kind))


def without(values: Any, words: tuple[str, ...]) -> Any:
    """Return a column without the values that words stand for; of numbers, the words that are such."""
    if not words:
        return values
    if pa.types.is_dictionary(values.type):
        return pa.DictionaryArray.from_arrays(values.indices, without(values.dictionary, words))
    kind = values.type
    nothing: Any = None
    if is_text(kind):
        nothing, missing = b"", [word.encode() for word in words]
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        missing = []
        for word in words:
            with suppress(pa.ArrowInvalid):
                missing.append(pa.scalar(word).cast(kind).as_py())
    else:
        return values
    is_missing = pc.is_in(values, value_set=pa.array(missing, kind))
    return pc.if_else(is_missing, pa.scalar(nothing, kind), values) if pc.any(is_missing).as_py() else values


def _read_labels(values: Any, form: Form) -> Values:
    if form.positive:
        return _read_positive(values, form.positive)
    numbers, states = read_values(values, "float")
    if form.above is None:
        states[(states == GOOD) & (numbers != 0) & (numbers != 1)] = BAD
    is_one = (numbers > (form.above or 0)) & (states == GOOD)
    return Values(is_one.astype(np.uint64), states)


def _read_positive(values: Any, positive: tuple[str | int | float, ...]) -> Values:
    """Return 1 for the values that are named, 0 for others."""
    words = {each.encode() for each in positive if isinstance(each, str)}
    numbers = {each for each in positive if not isinstance(each, str)}
    found = values.to_pylist()
    if is_text(values.type):
        is_missing = lengths_of(values) == 0
        read, states = parse_decimals(values)
        pairs = zip(found, np.where(states == GOOD, read, np.nan).tolist(), strict=True)
    else:
        is_missing = values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        pairs = zip([str(value).encode() for value in found], found, strict=True)
        if pa.types.is_boolean(values.type):
            words = {word.capitalize() for word in words}
    is_one = np.array([name in words or value in numbers for name, value in pairs], np.bool_) & ~is_missing
    return Values(is_one.astype(np.uint64), np.where(is_missing, MISSING, GOOD).astype(np.uint8))


def _read_times(values: Any, kind: str, form: Form) -> Values:
    if is_temporal(values.type) or pa.types.is_null(values.type):
        states = np.where(values.is_valid().to_numpy(zero_copy_only=False), GOOD, MISSING).astype(np.uint8)
        seconds = seconds_of_temporal(values) if is_temporal(values.type) else np.zeros(len(values), np.int64)
    elif form.unit is not None:
        seconds, states = _read_ticks(values, TICKS[form.unit])
    else:
        seconds, states = parse_times(values, form.format or "")
    if kind == SAMPLE_TIME:
        # No click was logged before 1970, and manifests hold no numbers below zero.
        states = np.where((states == GOOD) & (seconds < 0), BAD, states).astype(np.uint8)
        found = seconds.view(np.uint64)
    else:
        found = features_of(kind, local_seconds(seconds, form.zone) if form.zone else seconds)
    return Values(np.where(states == GOOD, found, np.uint64(0)), states)


def _read_ticks(values: Any, ticks: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the seconds of times that are numbers in a unit, rounded down."""
    values = _decimals_as_text(values)
    if is_text(values.type):
        found, states = parse_integers(values, *LIMITS["integer"], False, True)
        # What is left may have an exponent.
        odd = np.flatnonzero(states == BAD)
        numbers, are_numbers = parse_decimals(values.take(pa.array(odd)))
    elif pa.types.is_floating(values.type):
        numbers, are_numbers = _read_floats(values)
        odd = np.arange(len(values))
        found, states = np.zeros(len(values), np.uint64), np.full(len(values), BAD, np.uint8)
    else:
        found, states = _read_numbers(values, "integer")
        return found.view(np.int64) // ticks, states
    is_good = (are_numbers == GOOD) & (np.abs(numbers) < 2.0**63)
    found[odd[is_good]] = np.floor(numbers[is_good]).astype(np.int64).view(np.uint64)
    states[odd[is_good]] = GOOD
    states[odd[are_numbers == MISSING]] = MISSING
    return found.view(np.int64) // ticks, states


def _read_texts(texts: Any) -> Values:
    hashes, found = hash_text(texts)
    is_missing = _are_empty(texts)
    states = np.where(is_missing, MISSING, GOOD).astype(np.uint8)
    return Values(np.where(is_missing, np.uint64(0), hashes), states, texts=found)


def _are_empty(texts: Any) -> NDArray[np.bool_]:
    if not pa.types.is_dictionary(texts.type):
        return np.asarray(lengths_of(texts) == 0)
    return np.asarray(_are_empty(texts.dictionary)[texts.indices.to_numpy()])


def elements_of_row(lists: Any, row: int) -> Any:
    """Return the elements of one row of TextLists or of an Arrow list."""
    if isinstance(lists, TextLists):
        return elements_of(replace(lists, fields=lists.fields[row : row + 1]))[0]
    return plain(lists[row : row + 1].cast(pa.large_list(lists.type.value_type)).flatten())


def _read_lists(array: Any, kind: str, form: Form) -> Values:
    array = array.cast(pa.large_list(array.type.value_type))
    # A missing list, whatever its length is in the file, counts as one element.
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    lengths = np.diff(np.asarray(array.offsets)) * ~is_null
    offsets = np.concatenate([[0], np.cumsum(np.where(is_null, 1, lengths))]).astype(np.int64)
    found = read_column(plain(array.flatten()), kind, form)
    if not is_null.any():
        return replace(found, offsets=offsets)

    # Put the elements that were read around those of missing lists, which are missing values.
    is_there = np.ones(offsets[-1], np.bool_)
    is_there[offsets[:-1][is_null]] = False
    all_values = np.zeros(offsets[-1], found.values.dtype)
    all_states = np.full(offsets[-1], MISSING, np.uint8)
    all_values[is_there] = found.values
    all_states[is_there] = found.states
    return Values(all_values, all_states, offsets, found.texts)


def read_values(values: Any, kind: str) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Return the values of one column, as in `Values`, and the state of each."""
    if kind in FLOATS:
        values = _decimals_as_text(values)
        found, states = parse_decimals(values) if is_text(values.type) else _read_floats(values)
        _read_truths(values, found, states)
        return _refuse_infinite(found, states, kind)
    if not is_text(values.type):
        if not pa.types.is_decimal(values.type):
            return _read_numbers(values, kind)
        with suppress(pa.ArrowInvalid):  # one is no integer, or too large
            return _read_numbers(values.cast(pa.int64()), kind)
        values = _decimals_as_text(values)
    if kind == "hex8":
        return parse_hex8(values)
    integers, states = parse_integers(values, *LIMITS[kind], kind in ("integer", "unsigned"), False)
    _read_truths(values, integers, states)
    return integers, states


def _decimals_as_text(values: Any) -> Any:
    """Return decimals as their texts, which are read exactly; other values as they are."""
    if not pa.types.is_decimal(values.type):
        return values
    if values.type.scale < 0:
        values = values.cast(pa.decimal256(76, 0))
    # A zero of many digits is written with an exponent.
    return plain(pc.replace_substring_regex(values.cast(pa.string()), "^0E.*", "0"))


def _read_truths(values: Any, found: NDArray[Any], states: NDArray[np.uint8]) -> None:
    """Read true and false among the values that are no numbers, in any letters, as 1 and 0, as in Parquet."""
    odd = np.flatnonzero(states == BAD)
    if not is_text(values.type) or not odd.size:
        return
    words = pc.ascii_lower(values.take(pa.array(odd)).view(pa.large_string()))
    for word, value in (("false", 0), ("true", 1)):
        rows = odd[pc.equal(words, word).to_numpy(zero_copy_only=False)]
        found[rows], states[rows] = value, GOOD


def _numbers_of(array: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the numbers of an array in their own type, and which of them are there."""
    is_there = ~array.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    return array.fill_null(0).to_numpy(zero_copy_only=False), is_there


def _read_floats(array: Any) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    found, is_there = _numbers_of(array)
    states = np.where(is_there, GOOD, MISSING).astype(np.uint8)
    return np.where(is_there, found.astype(np.float64), 0), states


def _refuse_infinite(
    values: NDArray[np.float64], states: NDArray[np.uint8], kind: str
) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    with np.errstate(over="ignore"):
        rounded = values if kind == "float" else values.astype(np.float32)
    is_bad = (states == GOOD) & ~(np.isfinite(rounded) & ((rounded >= 0) | (kind != WEIGHT)))
    states[is_bad] = BAD
    values[is_bad] = 0
    return values, states


def _read_numbers(array: Any, kind: str) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    below, above = LIMITS.get(kind, (0, 0))  # text and hex8 get here from columns of nulls only
    numbers, is_valid = _numbers_of(array)
    if numbers.dtype == np.float16:  # whose largest number is below the bound of exact ones
        numbers = numbers.astype(np.float32)

    # Floats count as integers if they are whole and small enough to be exact.
    if numbers.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            fits = (numbers == np.floor(numbers)) & (np.abs(numbers) <= 2.0**53)
        numbers = np.where(fits, numbers, 0).astype(np.int64)
    else:
        fits = np.ones(numbers.shape[0], np.bool_)

    # Within the limits of the kind, compared in the type that the numbers have.
    if numbers.dtype.kind == "u":
        fits &= numbers <= np.uint64(above)
    else:
        fits &= (numbers >= -below) & (numbers <= min(above, 2**63 - 1))
    states = np.where(is_valid, np.where(fits, GOOD, BAD), MISSING).astype(np.uint8)
    wide = numbers.astype(np.int64).view(np.uint64) if numbers.dtype.kind == "i" else numbers
    return np.where(states == GOOD, wide, 0).astype(np.uint64), states


def other_kind(value: Any, kind: str, *, is_element: bool) -> str | None:
    """Return the simplest other kind of a column, for a value its kind refuses.

    Args:
        value: an array of one.
        kind: of the column; values before this one were of that kind.
        is_element: the value is an element of a list.
    """
    is_word = is_text(value.type)
    for other in _OTHER_KINDS.get(kind, ()):
        # Numbers of Parquet are never read as text, nor elements of lists as floats.
        if (other == "text" and not is_word) or (other == "float" and is_element):
            continue
        # Text that was unsigned so far may have held what is above any integer.
        if other == "integer" and is_word:
            continue
        found = read_column(value, other)
        # An integer that fits no integer type is a name, and would lose digits as a float.
        is_name = is_word and kind in ("integer", "unsigned") and other == "float"
        if found.states[0] == GOOD and not (is_name and found.values[0] == np.floor(found.values[0])):
            return other
    return None


_TEXTS = {pa.string().id, pa.large_string().id, pa.string_view().id}
_TEXTS |= {pa.binary().id, pa.large_binary().id, pa.binary(1).id}
_LISTS = {pa.list_(pa.int8()).id, pa.large_list(pa.int8()).id, pa.list_(pa.int8(), 1).id}


def checked(batches: Sequence[Any]) -> Sequence[Any]:
    """Return record batches whose buffers hold what they should; text that is not UTF-8 is bytes in all.

    Raises:
        pa.ArrowInvalid: one is damaged: offsets or indices point nowhere.
    """
    try:
        for batch in batches:
            batch.validate(full=True)
        return batches
    except pa.ArrowInvalid:
        names = batches[0].schema.names
        batches = [pa.record_batch([_as_bytes(array) for array in each.columns], names) for each in batches]
    for batch in batches:
        batch.validate(full=True)
    return batches


_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


def _as_bytes(array: Any) -> Any:
    """Return text as bytes, also in lists and dictionaries, without a look at what may be damaged."""
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(array.indices, _as_bytes(array.dictionary))
    if is_list(array.type) and array.type.value_type in _BYTES:
        return array.cast(pa.list_(_BYTES[array.type.value_type]))
    return array.cast(_BYTES[array.type]) if array.type in _BYTES else array


def is_list(kind: Any) -> bool:
    """Return whether a Parquet column of this Arrow type holds lists."""
    return kind.id in _LISTS


def is_text(kind: Any) -> bool:
    """Return whether `plain` gives texts of a column of this Arrow type, which are not numbered."""
    if isinstance(kind, pa.BaseExtensionType):
        return is_text(kind.storage_type)
    return kind.id in _TEXTS


def is_fixed_text(kind: Any) -> bool:
    """Return whether texts of a type have one length, or another type below: they are not numbered."""
    return isinstance(kind, pa.BaseExtensionType) or bool(pa.types.is_fixed_size_binary(kind))


def holds_text(values: Any) -> bool:
    """Return whether an array, as `plain` gives it, is of texts, perhaps numbered ones."""
    return is_text(values.type) or bool(pa.types.is_dictionary(values.type))


def plain(array: Any) -> Any:
    """Return an Arrow array as a column: of text without nulls, see `text_fields`, or without a dictionary.

    A list stays what it is. A UUID is the text that its usual form is.
    """
    if isinstance(array.type, pa.UuidType):
        return _texts_of_uuids(array.storage)
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        texts = plain(array.dictionary)
        if not is_text(texts.type):
            return plain(array.dictionary_decode())
        numbers = array.indices.cast(pa.int32())
        if numbers.null_count:
            numbers = numbers.fill_null(len(texts))
            texts = pa.concat_arrays([texts, pa.array([b""], texts.type)])
        return pa.DictionaryArray.from_arrays(numbers, texts)
    if pa.types.is_null(array.type):
        return array.cast(pa.int64())
    if not is_text(array.type):
        return array
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    array = array.cast(pa.large_binary())
    return array.fill_null(b"") if array.null_count else array


def _texts_of_uuids(array: Any) -> Any:
    """Return UUIDs as the texts that they are written as: 8-4-4-4-12 hex digits."""
    num_rows = len(array)
    found = np.frombuffer(array.buffers()[1], np.uint8, 16 * num_rows, 16 * array.offset)
    text = np.full((num_rows, 36), ord("-"), np.uint8)
    places = [place for place in range(36) if place not in (8, 13, 18, 23)]
    text[:, places] = np.frombuffer(found.tobytes().hex().encode(), np.uint8).reshape(num_rows, 32)
    texts = pa.Array.from_buffers(pa.binary(36), num_rows, [None, pa.py_buffer(text)])
    return pc.if_else(array.is_valid(), texts.cast(pa.large_binary()), pa.scalar(b"", pa.large_binary()))
