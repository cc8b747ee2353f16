"""Convert times to hours and weekdays, exact, in UTC or a time zone.

A time is text such as ``2026-01-31 23:59:59`` or of a format of the schema, a number since 1970-01-01 in a
unit, or a timestamp or date of Arrow. Text without an offset is in UTC; fractions of a second do not matter.
"""

from __future__ import annotations

import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.kernel import kernel
from ..schema.schema import zone_named
from .text_fields import BAD, GOOD, MISSING, Spans

TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Ticks of each unit in a second."""
_DAY_SECONDS = 86_400
_WEEKDAY_OF_1970 = 3
"""The first day of 1970 was a Thursday; Monday is 0 here."""

_SPACE: Final = 32
_PLUS: Final = 43
_MINUS: Final = 45
_ZERO: Final = 48
_COLON: Final = 58
_SLASH: Final = 47
_OPEN: Final = 91
_CLOSE: Final = 93
_SMALL_T: Final = 116
_CASE: Final = 32
"""Bit in which a small letter differs from its large one."""
_NO_TIME: Final = -(2**62)
_DAYS_BEFORE_MONTH: Final = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365)


_WORDS: Final = np.array(
    [
        list(word.encode().ljust(10, b"\0"))
        for word in " january february march april may june july august september october november december"
        " monday tuesday wednesday thursday friday saturday sunday am pm utc gmt z".split(" ")
    ],
    np.uint8,
)
"""Words in small letters, each in a row that ends in zeros: of months from row 1 on, days, halves, zones."""
_PM: Final = 21
_LIMITS = {
    "Y": (4, 4, 0, 9999), "y": (2, 2, 0, 99), "m": (1, 2, 1, 12), "d": (1, 2, 1, 31), "H": (1, 2, 0, 23),
    "I": (1, 2, 1, 12), "M": (1, 2, 0, 59), "S": (1, 2, 0, 59), "f": (1, 9, 0, 10**9), "b": (0, 0, 1, 12),
    "B": (0, 0, 1, 12), "a": (0, 0, 13, 19), "A": (0, 0, 13, 19), "p": (0, 0, 20, 21), "Z": (0, 0, 22, 24),
}  # fmt: skip
"""Of each code the fewest and most digits of a number and its range; of words 0, 0, and the range of rows."""
_CODES: Final = np.array([_LIMITS.get(chr(code), (0, 0, 0, 0)) for code in range(128)])
_YEAR, _MONTH, _DAY, _HOUR, _MINUTE, _SECOND, _OFFSET, _ZONE = map(ord, "YmdHMSzZ")
_SHORT_YEAR, _SHORT_MONTH, _LONG_MONTH, _HOUR_OF_HALF, _HALF = map(ord, "ybBIp")
_CODE: Final = 256
"""Number that the letter of a code is raised by among the steps of a format."""


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


@kernel
def _read_number(text: NDArray[np.uint8], first: int, stop: int, most: int) -> tuple[int, int]:
    """Return the number in at most ``most`` digits, -1 where there is none, and the position after it."""
    value = 0
    position = first
    while position < min(stop, first + most) and _ZERO <= text[position] <= _ZERO + 9:
        value = value * 10 + int(text[position] - _ZERO)
        position += 1
    return (value if position > first else -1), position


@kernel
def _read_word(text: NDArray[np.uint8], first: int, stop: int, code: int) -> tuple[int, int]:
    """Return the row of the word, or its first three letters, that is there, and the position after it."""
    for word in range(_CODES[code, 2], _CODES[code, 3] + 1):
        length = 0
        while first + length < stop and _WORDS[word, length] == text[first + length] | _CASE:
            length += 1
        if _WORDS[word, length] == 0:
            return word, first + length
        if length >= 3:
            return word, first + 3
    return _NO_TIME, first


@kernel
def _days_of(year: int, month: int, day: int) -> int:
    """Return the days from 1970 to a Gregorian date; _NO_TIME where there is no such date."""
    if year < 1 or month < 1 or month > 12 or day < 1:
        return _NO_TIME
    # Gregorian leap years, also for years before that calendar, as libraries of dates do.
    is_leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    length = _DAYS_BEFORE_MONTH[month] - _DAYS_BEFORE_MONTH[month - 1]
    if month == 2 and is_leap:
        length += 1
    if day > length:
        return _NO_TIME
    # Days of the years before, by their leap years, and of the months before.
    past = year - 1
    days = past * 365 + past // 4 - past // 100 + past // 400 + _DAYS_BEFORE_MONTH[month - 1] + day - 1
    if month > 2 and is_leap:
        days += 1
    return days - 719_162


@kernel
def _read_offset(text: NDArray[np.uint8], first: int, stop: int) -> tuple[int, int]:
    """Return the seconds east of UTC, _NO_TIME where there are none, and the position after them.

    They are written as ``Z``, ``UTC``, ``GMT``, ``+HH:MM``, ``+HHMM`` or ``+HH``.
    """
    word, position = _read_word(text, first, stop, _ZONE)
    if word != _NO_TIME:
        return 0, position
    # Two digits of hours after a sign; minutes may be left out, or follow a colon.
    hours, position = _read_number(text, first + 1, stop, 2)
    if position != first + 3 or hours > 23 or (text[first] != _PLUS and text[first] != _MINUS):
        return _NO_TIME, first
    has_colon = position < stop and text[position] == _COLON
    minutes, end = _read_number(text, position + has_colon, stop, 2)
    if has_colon or minutes >= 0:
        if end != position + has_colon + 2 or minutes > 59:
            return _NO_TIME, first
        position = end
    east = hours * 3600 + max(minutes, 0) * 60
    return (-east if text[first] == _MINUS else east), position


@kernel
def _read_part(text: NDArray[np.uint8], first: int, stop: int, code: int) -> tuple[int, int]:
    """Return the value of one code of a format, _NO_TIME where it is none, and the position after it."""
    if code == _OFFSET or code == _ZONE:
        value, position = _read_offset(text, first, stop)
        return (value if code == _OFFSET or value == 0 else _NO_TIME), position
    fewest, most = _CODES[code, 0], _CODES[code, 1]
    if most == 0:
        return _read_word(text, first, stop, code)
    value, position = _read_number(text, first, stop, most)
    is_good = position - first >= fewest and _CODES[code, 2] <= value <= _CODES[code, 3]
    return (value if is_good else _NO_TIME), position


@kernel
def _read_clock(text: NDArray[np.uint8], first: int, stop: int) -> tuple[int, int]:
    """Return the seconds in ``HH:MM[:SS[.fraction]]``, _NO_TIME for anything else, and the position after."""
    hour, position = _read_number(text, first, stop, 2)
    if hour < 0 or hour > 23 or position >= stop or text[position] != _COLON:
        return _NO_TIME, first
    minute, position = _read_number(text, position + 1, stop, 2)
    if minute < 0 or minute > 59:
        return _NO_TIME, first
    second = 0
    if position < stop and text[position] == _COLON:
        second, position = _read_number(text, position + 1, stop, 2)
        if second < 0 or second > 59:
            return _NO_TIME, first
        # A fraction follows a point, or the comma of ISO 8601.
        if position < stop and (text[position] == 46 or text[position] == 44):
            digit, end = _read_number(text, position + 1, stop, 1)
            if digit < 0:
                return _NO_TIME, first
            position = end
            while position < stop and _ZERO <= text[position] <= _ZERO + 9:
                position += 1
    return hour * 3600 + minute * 60 + second, position


@kernel
def _read_time(text: NDArray[np.uint8], first: int, stop: int) -> int:
    """Return the seconds since 1970 of one time; _NO_TIME for anything else, see `parse_times`."""
    # The date: its parts are all between dashes, or all between slashes.
    year, position = _read_number(text, first, stop, 4)
    if position != first + 4 or position >= stop or (text[position] != _MINUS and text[position] != _SLASH):
        return _NO_TIME
    mark = text[position]
    month, position = _read_number(text, position + 1, stop, 2)
    if position >= stop or text[position] != mark:
        return _NO_TIME
    day, position = _read_number(text, position + 1, stop, 2)
    days = _days_of(year, month, day)
    if days == _NO_TIME:
        return _NO_TIME
    if position == stop:
        return days * 86_400
    # A date alone is midnight; otherwise a clock time follows a blank or a T.
    if text[position] != _SPACE and text[position] | _CASE != _SMALL_T:
        return _NO_TIME
    seconds, position = _read_clock(text, position + 1, stop)
    if seconds == _NO_TIME:
        return _NO_TIME
    seconds += days * 86_400
    if position < stop and text[position] == _SPACE and position + 1 < stop:
        position += 1
    # Clocks east of UTC are ahead of it, so subtract their offset. Java names a zone in brackets after it.
    has_offset = False
    if position < stop and text[position] != _OPEN:
        east, position = _read_offset(text, position, stop)
        if east == _NO_TIME:
            return _NO_TIME
        seconds -= east
        has_offset = True
    if position < stop and text[position] == _OPEN and text[stop - 1] == _CLOSE:
        word, end = _read_word(text, position + 1, stop, _ZONE)
        if has_offset or (word != _NO_TIME and end == stop - 1):
            position = stop
    return seconds if position == stop else _NO_TIME


def steps_of(format: str) -> NDArray[np.int64]:
    """Return the steps in which `parse_times` reads a format: bytes, and codes of TIME_CODES."""
    text = format.encode()
    steps = []
    position = 0
    while position < len(text):
        is_code = text[position] == ord("%") and position + 1 < len(text)
        letter = text[position + is_code]
        steps.append(letter + _CODE if is_code and letter != ord("%") else letter)
        position += 1 + is_code
    return np.array(steps, np.int64)


@kernel
def _read_formatted(
    text: NDArray[np.uint8], first: int, stop: int, steps: NDArray[np.int64], parts: NDArray[np.int64]
) -> int:
    """Return the seconds since 1970 of a time; _NO_TIME where it does not have the format."""
    # The values of codes by their letters: those of 1970-01-01 where a format has none.
    parts[:] = 0
    parts[_YEAR], parts[_MONTH], parts[_DAY] = 1970, 1, 1
    position = first
    for i in range(steps.shape[0]):
        step = steps[i]
        if step == _SPACE:
            # A blank stands for any number of them, as it does in Python.
            begin = position
            while position < stop and text[position] == _SPACE:
                position += 1
            if position == begin:
                return _NO_TIME
        elif step < _CODE:
            if position >= stop or text[position] != step:
                return _NO_TIME
            position += 1
        else:
            code = step - _CODE
            value, position = _read_part(text, position, stop, code)
            if value == _NO_TIME:
                return _NO_TIME
            # The year and the month each have two ways to be written.
            if code == _SHORT_YEAR:
                code = _YEAR
                value += 1900 if value > 68 else 2000
            elif code == _SHORT_MONTH or code == _LONG_MONTH:
                code = _MONTH
            parts[code] = value
    days = _days_of(parts[_YEAR], parts[_MONTH], parts[_DAY])
    if position != stop or days == _NO_TIME:
        return _NO_TIME
    # Twelve is the first hour of a half of the day.
    hour = parts[_HOUR]
    if parts[_HOUR_OF_HALF] > 0:
        hour = parts[_HOUR_OF_HALF] % 12 + (12 if parts[_HALF] == _PM else 0)
    return int(days * 86_400 + hour * 3600 + parts[_MINUTE] * 60 + parts[_SECOND] - parts[_OFFSET])


@kernel
def parse_times(spans: Spans, steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Read times of a format, or ``YYYY-M-D[[ T]H:M[:S[.fraction]][offset]]``. Exact.

    Each code of a format takes as many digits as it may have, without a second try: ``%m`` reads two where
    two follow.

    Args:
        spans: the fields.
        steps: those of `steps_of`, none where times have no format.

    Returns:
        Seconds since 1970-01-01 00:00 UTC, rounded down, 0 where there are none; and states: GOOD, MISSING or
        BAD.
    """
    text, starts, stops = spans
    seconds = np.zeros(starts.shape[0], np.int64)
    states = np.full(starts.shape[0], BAD, np.uint8)
    parts = np.zeros(128, np.int64)
    for i in range(starts.shape[0]):
        if starts[i] == stops[i]:
            states[i] = MISSING
            continue
        if steps.shape[0]:
            found = _read_formatted(text, starts[i], stops[i], steps, parts)
        else:
            found = _read_time(text, starts[i], stops[i])
        if found != _NO_TIME:
            seconds[i] = found
            states[i] = GOOD
    return seconds, states
