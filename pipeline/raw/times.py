"""Convert times to hours and weekdays, exact, in UTC.

A time is text such as ``2026-01-31 23:59:59``, an integer since 1970-01-01 in a unit of the schema, or
a timestamp or date of Arrow. Text without an offset from UTC is UTC; fractions of a second do not matter.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.kernel import kernel
from .text_fields import BAD, GOOD, MISSING

TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Ticks of each unit in a second."""
_DAY_SECONDS = 86_400
_WEEKDAY_OF_1970 = 3
"""The first day of 1970 was a Thursday; Monday is 0 here."""

_SPACE: Final = 32
_PLUS: Final = 43
_MINUS: Final = 45
_POINT: Final = 46
_ZERO: Final = 48
_COLON: Final = 58
_LARGE_T: Final = 84
_LARGE_Z: Final = 90
_DAYS_BEFORE_MONTH: Final = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365)


def features_of(kind: str, seconds: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the hour (0 to 23) or the weekday (1 for Monday to 7) of times.

    Args:
        kind: ``hour`` or ``weekday``.
        seconds: (num_values,); since 1970-01-01 00:00 UTC, rounded down.
    """
    days, seconds_of_day = np.divmod(seconds, _DAY_SECONDS)
    found = seconds_of_day // 3600 if kind == "hour" else (days + _WEEKDAY_OF_1970) % 7 + 1
    return found.astype(np.uint64)


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
def _read_digits(text: NDArray[np.uint8], first: int, stop: int, num_digits: int) -> int:
    """Return the number in the decimal digits from ``first`` on, -1 if there are other bytes."""
    if first + num_digits > stop:
        return -1
    value = 0
    for position in range(first, first + num_digits):
        digit = np.int64(text[position]) - _ZERO
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + int(digit)
    return value


@kernel
def _read_date(text: NDArray[np.uint8], first: int, stop: int) -> int:
    """Return the days from 1970 to a Gregorian date, ``YYYY-MM-DD``; -2**62 for anything else."""
    # The digits at their places first, then the separators between them.
    year = _read_digits(text, first, stop, 4)
    month = _read_digits(text, first + 5, stop, 2)
    day = _read_digits(text, first + 8, stop, 2)
    if year < 1 or month < 1 or month > 12 or day < 1:
        return -(2**62)
    if text[first + 4] != _MINUS or text[first + 7] != _MINUS:
        return -(2**62)
    # Gregorian leap years, also for years before that calendar, as libraries of dates do.
    is_leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    length = _DAYS_BEFORE_MONTH[month] - _DAYS_BEFORE_MONTH[month - 1]
    if month == 2 and is_leap:
        length += 1
    if day > length:
        return -(2**62)
    # Days of the years before, by their leap years, and of the months before.
    past = year - 1
    days = past * 365 + past // 4 - past // 100 + past // 400 + _DAYS_BEFORE_MONTH[month - 1] + day - 1
    if month > 2 and is_leap:
        days += 1
    return days - 719_162


@kernel
def _read_offset(text: NDArray[np.uint8], first: int, stop: int) -> int:
    """Return the seconds east of UTC of nothing, ``Z``, ``+HH:MM``, ``+HHMM`` or ``+HH``; 2**62 otherwise."""
    if first == stop or (stop - first == 1 and text[first] == _LARGE_Z):
        return 0
    # Hours are required after a sign; minutes may be left out or follow a colon.
    hours = _read_digits(text, first + 1, stop, 2)
    if hours < 0 or hours > 23 or (text[first] != _PLUS and text[first] != _MINUS):
        return 2**62
    minutes = 0
    if stop - first > 3:
        has_colon = text[first + 3] == _COLON
        place = first + 4 if has_colon else first + 3
        minutes = _read_digits(text, place, stop, 2)
        if minutes < 0 or minutes > 59 or place + 2 != stop:
            return 2**62
    east = hours * 3600 + minutes * 60
    return -east if text[first] == _MINUS else east


@kernel
def _read_time(text: NDArray[np.uint8], first: int, stop: int) -> int:
    """Return the seconds since 1970 of one time; -2**62 for anything else, see `parse_times`."""
    days = _read_date(text, first, stop)
    if days == -(2**62):
        return days
    seconds = days * 86_400
    position = first + 10
    if position == stop:
        return seconds
    # A date alone is midnight; otherwise hours and minutes follow a space or a T.
    hour = _read_digits(text, position + 1, stop, 2)
    minute = _read_digits(text, position + 4, stop, 2)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or text[position + 3] != _COLON:
        return -(2**62)
    if text[position] != _SPACE and text[position] != _LARGE_T:
        return -(2**62)
    seconds += hour * 3600 + minute * 60
    position += 6

    # Seconds and their fraction may be left out.
    if position < stop and text[position] == _COLON:
        second = _read_digits(text, position + 1, stop, 2)
        if second < 0 or second > 59:
            return -(2**62)
        seconds += second
        position += 3
        if position < stop and text[position] == _POINT:
            position += 1
            if _read_digits(text, position, stop, 1) < 0:
                return -(2**62)
            while position < stop and _ZERO <= text[position] <= _ZERO + 9:
                position += 1
    # Clocks east of UTC are ahead of it, so subtract their offset.
    east = _read_offset(text, position, stop)
    return -(2**62) if east == 2**62 else seconds - east


@kernel
def parse_times(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    seconds: NDArray[np.int64],
    states: NDArray[np.uint8],
) -> None:
    """Read times, ``YYYY-MM-DD``, perhaps with ``[ T]HH:MM[:SS[.fraction]]`` and an offset from UTC. Exact.

    Args:
        text: bytes of the fields.
        starts: (num_fields,).
        stops: (num_fields,).
        seconds: (num_fields,) out; since 1970-01-01 00:00 UTC, rounded down, 0 where there is none.
        states: (num_fields,) out; GOOD, MISSING or BAD.
    """
    for i in range(starts.shape[0]):
        seconds[i] = 0
        states[i] = MISSING
        if starts[i] == stops[i]:
            continue
        # Bad until read: the state distinguishes a time of 0 from a missing one.
        found = _read_time(text, starts[i], stops[i])
        states[i] = BAD
        if found != -(2**62):
            seconds[i] = found
            states[i] = GOOD
