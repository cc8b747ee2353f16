"""Convert times to hours and weekdays, exact, in UTC or a time zone.

A time is text such as ``2026-01-31 23:59:59`` or of a format of the schema, a number since 1970-01-01 in a
unit, or a timestamp or date of Arrow. Text without an offset is in UTC; fractions of a second do not matter.
"""

from __future__ import annotations

import datetime
import re
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schema.schema import zone_named
from .text_fields import BAD, GOOD, MISSING, Spans, array_of, distinct_texts, of_each

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


def parse_times(spans: Spans, format: str = "") -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Read times of a format, or ``YYYY-M-D[[ T]H:M[:S[.fraction]][offset]]``. Exact.

    Each code of a format takes as many digits as it may have, without a second try: ``%m`` reads two where
    two follow. Each distinct text is read once: the times of a block of a log are few.

    Args:
        spans: the fields.
        format: in TIME_CODES, "" for none.

    Returns:
        Seconds since 1970-01-01 00:00 UTC, rounded down, 0 where there are none; and states: GOOD, MISSING or
        BAD.
    """
    seconds = None if format else _usual_seconds(spans)
    if seconds is None:
        pattern, codes = _pattern_of(format)
        texts, numbers = distinct_texts(spans)
        seconds = of_each(texts, lambda text: _seconds_of(text, pattern, codes), np.int64)[numbers]
    states = np.where(seconds == _NO_TIME, BAD, GOOD)
    states[spans.starts == spans.stops] = MISSING
    return np.where(states == GOOD, seconds, 0), states.astype(np.uint8)


def _usual_seconds(spans: Spans) -> NDArray[np.int64] | None:
    """Return the seconds of times all of which Arrow reads, as YYYY-MM-DD HH:MM:SS[.fraction]; else None."""
    # Of other lengths Arrow reads forms that are none here.
    lengths = spans.stops - spans.starts
    if not np.isin(lengths, (0, 19, 23, 26)).all():
        return None
    try:
        found = array_of(spans, pa.large_string(), lengths > 0).cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return None
    seconds: NDArray[np.int64] = seconds_of_temporal(found)
    return seconds if (seconds >= _FIRST_SECOND).all() else None
