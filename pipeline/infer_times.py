"""Infer whether a column holds times, and in which unit or format.

Of a time only the hour and the weekday are features, because a moment never recurs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .errors import ConfigError
from .raw.column_values import PLAIN, Form, read_column
from .raw.text_fields import BAD, GOOD, Spans
from .raw.times import TICKS, is_temporal
from .schema.schema import SAMPLE_TIME, TIME_KINDS, check_name

_MIN_TIMES = 100
"""Distinct numbers from which on they may be times, and rows from which on a constant is no accident."""
_MIN_CALLED_TIMES = 20
"""The same for a column that is called like times."""
_EARLIEST, _LATEST = 1_000_000_000, 2_000_000_000
"""Seconds of the years 2001 and 2033, between which numbers may be times."""
_EARLIEST_CALLED = 300_000_000
"""The same of a column that is called like times, of 1979: MovieLens begins in 1995."""
_TELLING = re.compile(
    r"(^|[^a-z])(ts|time|date|datetime|timestamp|epoch|when|hour|day)([^a-z]|$)|time$|stamp$"
)
_TRIED_TEXTS = 300
_MOST_CHARACTERS = 40
"""Of a text that is a time."""


@dataclass(frozen=True, slots=True)
class InferredTimes:
    """The kinds that a column of times may become."""

    features: tuple[tuple[str, str], ...]
    """Name and kind of each feature: the hour, the weekday, or both; none where neither changes."""
    form: Form
    """How they are written."""
    is_certain: bool
    """Whether the column is surely one of times; numbers may as well be something else."""
    is_ascending: bool
    """Whether no time is before the one above it."""
    is_moment: bool
    """Whether each is a time of a certain day."""
    note: str


def infer_times(name: str, values: Any, names: Sequence[str]) -> InferredTimes | None:
    """Return what a column of times may become; None where it holds none.

    Args:
        name: of the column.
        values: of the sampled rows, as `plain` gives them.
        names: of all columns, with which the features' names must not collide.
    """
    is_called = bool(_TELLING.search(name.lower()))
    found = _find(values, is_called)
    if found is None:
        return None

    # A feature that never changes is left out, such as the hour of dates.
    hours = {kind: _values_of(values, kind, found) for kind in TIME_KINDS if kind in found.kinds}
    changing = [
        kind
        for kind, each in hours.items()
        if np.unique(each).shape[0] > 1 or (each.shape[0] < _MIN_TIMES and each.any())
    ]
    # Each feature is named after the column and its kind, unless that name is taken.
    features = tuple((_free_name(f"{name}_{kind}", names), kind) for kind in changing)
    try:
        for feature, _ in features:
            check_name(feature)
    except ConfigError:  # the column's name is too long for a suffix
        features = ()
    is_ascending = _is_ascending(values, found)
    # Numbers are times for sure where they never go back or their name says so.
    is_certain = found.is_certain or is_called or (found.form.unit is not None and is_ascending)
    note = f"{' and '.join(changing)} of times, in UTC" + found.doubt
    if not features:
        note = "times with the same hour and weekday in every row" + found.doubt
    return InferredTimes(
        features,
        found.form,
        is_certain or not features,
        is_ascending,
        found.kinds == TIME_KINDS,
        note,
    )


@dataclass(frozen=True, slots=True)
class _Times:
    """How times are written."""

    form: Form = PLAIN
    is_certain: bool = True
    kinds: tuple[str, ...] = TIME_KINDS
    doubt: str = ""


def are_times(values: Any) -> bool:
    """Return whether every value is written as a time, or has a type of times."""
    if not isinstance(values, Spans) and not is_temporal(values.type):
        return False
    return _fits(values, _Times())


def _fits(values: Any, times: _Times) -> bool:
    states = read_column(values, times.kinds[0], times.form).states
    return bool((states == GOOD).any() and not (states == BAD).any())


def _values_of(values: Any, kind: str, times: _Times) -> NDArray[Any]:
    """Return the hours, weekdays or seconds of the times that are not missing."""
    found = read_column(values, kind, times.form)
    there: NDArray[Any] = found.values[found.states == GOOD]
    return there


def _is_ascending(values: Any, times: _Times) -> bool:
    """Return whether times never go back, as in a log; numbers of users do."""
    if len(times.kinds) < len(TIME_KINDS):
        return False
    found = read_column(values, SAMPLE_TIME, times.form)
    seconds = found.values[found.states == GOOD].view(np.int64)
    return bool((found.states != BAD).all() and (np.diff(seconds) >= 0).all())


def _find(values: Any, is_called: bool) -> _Times | None:
    """Return how times are written; None where values are none."""
    # Text and Arrow's types of time are explicit; numbers are recognized by their size.
    if are_times(values):
        return _Times()
    unit = _unit_of(values, is_called)
    if unit is not None:
        return _Times(Form(unit), is_certain=False)
    is_text = isinstance(values, Spans) or pa.types.is_integer(values.type)
    return _format_of(values, is_called) if is_text else None


def _unit_of(values: Any, is_called: bool) -> str | None:
    """Return the unit in which numbers are recent times; None if none fits."""
    is_number = (
        isinstance(values, Spans) or pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    )
    if not is_number:
        return None
    # Few distinct numbers could be anything; many within our years are hardly chance.
    found = read_column(values, "float")
    numbers = found.values[found.states == GOOD]
    least = _MIN_CALLED_TIMES if is_called else _MIN_TIMES
    if (found.states == BAD).any() or np.unique(numbers).shape[0] < least:
        return None
    earliest = _EARLIEST_CALLED if is_called else _EARLIEST
    units = (unit for unit, ticks in TICKS.items() if numbers.min() >= earliest * ticks)
    return next(
        (
            unit
            for unit in units
            if numbers.max() < _LATEST * TICKS[unit] and _fits(values, _Times(Form(unit)))
        ),
        None,
    )


_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_DAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
_PIECES = re.compile(
    rf"(?P<time>\d?\d:\d\d(?P<second>:\d\d(?P<fraction>[.,]\d+)?)?)|(?P<zone>[+-]\d\d:?\d\d(?=$| \d{{4}}$))"
    rf"|(?P<half>[AP]M\b)|(?P<utc>UTC|GMT|Z)|(?P<day>(?:{_DAYS})(?P<full_day>[a-z]*))"
    rf"|(?P<month>(?:{_MONTHS})(?P<full_month>[a-z]*))|(?P<digits>\d+)|(?P<letters>[^\W\d]+)",
    re.IGNORECASE,
)
_DIGITS = {
    6: ("%y%m%d", "%H%M%S"),
    8: ("%Y%m%d", "%y%m%d%H", "%d%m%Y"),
    10: ("%Y%m%d%H", "%y%m%d%H%M"),
    12: ("%Y%m%d%H%M", "%y%m%d%H%M%S"),
    14: ("%Y%m%d%H%M%S",),
    17: ("%Y%m%d%H%M%S%f",),
}
"""Formats of a date and time in digits alone, by their number."""


_PLACES: dict[tuple[bool, bool, int], tuple[tuple[str, ...], ...]] = {
    (True, True, 1): (("%d",),),
    (True, False, 2): (("%d", "%y"), ("%y", "%d")),
    (False, True, 2): (("%m", "%d"), ("%d", "%m")),
    (False, False, 3): (("%d", "%m", "%y"), ("%m", "%d", "%y"), ("%y", "%m", "%d")),
    (False, True, 0): ((),),
    (False, False, 0): ((),),
}
"""Codes of short numbers, by whether month and year are there already and by how many numbers these are."""


def formats_of(text: str) -> list[str]:
    """Return the formats in which a text may be a time, such as ``%d/%b/%Y:%H:%M:%S %z``."""
    pieces = [""]
    num_places = position = 0
    has_time = has_month = has_year = False
    for found in _PIECES.finditer(text):
        codes: tuple[str, ...] = (found[0],)  # the letter between a date and a time
        if found["time"]:
            fraction = f"{found['fraction'][0]}%f" if found["fraction"] else ""
            codes = (f"%H:%M:%S{fraction}" if found["second"] else "%H:%M",)
            has_time = True
        elif found["zone"] and not has_time:
            codes, has_year = (f"{found[0][0]}%Y",), True
        elif found["zone"] or (found["utc"] and has_time):
            codes = ("%Z" if found["utc"] and len(found[0]) > 1 else "%z",)
        elif found["half"]:
            codes = ("%p",)
        elif found["day"]:
            codes = ("%A" if found["full_day"] else "%a",)
        elif found["month"]:
            codes, has_month = ("%B" if found["full_month"] else "%b",), True
        elif found["digits"] and len(found[0]) <= 2:
            codes = ("\0",)
            num_places += 1
        elif found["digits"]:
            codes = ("%Y",) if len(found[0]) == 4 else _DIGITS.get(len(found[0]), ())
            has_year = True
            has_time = len(found[0]) > 4
        elif found[0] not in "Tt":
            codes = ()
        literal = text[position : found.start()].replace("%", "%%")
        pieces = [piece + literal + code for piece in pieces for code in codes]
        position = found.end()
    end = text[position:].replace("%", "%%")
    formats = []
    for piece in pieces:
        for codes in _PLACES.get((has_month, has_year, num_places), ()):
            parts = piece.split("\0")
            joined = "".join(part + code for part, code in zip(parts, (*codes, end), strict=True))
            used = re.findall("%[A-Za-z]", joined)
            is_time = bool(set(used) & {"%d", "%H"}) and len(set(used)) == len(used)
            if is_time and not (used[:1] == ["%Y"] and codes[:1] == ("%d",)):
                formats.append(joined.replace("%H", "%I") if "%p" in joined else joined)
    return formats


def _format_of(values: Any, is_called: bool) -> _Times | None:
    """Return the format that all texts or integers have; None where there is none."""
    texts = list(islice(dict.fromkeys(filter(None, texts_of(values))), _TRIED_TEXTS))
    if len(texts) < 1 or len(texts[0]) > _MOST_CHARACTERS:
        return None
    # A clock alone has no day, and may be a duration.
    tried = [
        _Times(Form(format=format)) if "%d" in format else _Times(Form(format=format), False, ("hour",))
        for format in formats_of(texts[0])
    ]
    fitting = [times for times in tried if _fits(values, times)]
    if not fitting:
        return None
    first = fitting[0]
    format = str(first.form.format)
    if texts[0].isdigit():
        # Many numbers all of which are dates are no chance; the hour behind a short year is less plain.
        is_certain = len(texts[0]) >= 14 or (format == "%Y%m%d" and len(texts) >= _MIN_CALLED_TIMES)
        return replace(first, is_certain=is_certain) if len(texts) > 1 else None
    fitting = [times for times in fitting if _is_ascending(values, times)] or fitting
    if len(fitting) == 1:
        return fitting[0]
    # The hour is the same whichever number is the month.
    formats = " or ".join(repr(times.form.format) for times in fitting)
    doubt = f"; no weekday, for its format may be {formats}"
    return replace(first, kinds=("hour",) if "%M" in format else (), doubt=doubt)


def texts_of(cells: Any) -> list[str]:
    """Return the values of a column as text, nothing for missing ones."""
    if isinstance(cells, Spans):
        text = cells.text.tobytes()
        ends = zip(cells.starts.tolist(), cells.stops.tolist(), strict=True)
        return [text[start:stop].decode("utf-8", "surrogateescape") for start, stop in ends]
    return ["" if value is None else str(value) for value in cells.to_pylist()]


def spans_of(texts: Sequence[str]) -> Spans:
    """Return texts as the fields of a column."""
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    stops = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    starts = np.concatenate([[0], stops[:-1]]).astype(np.int64)
    return Spans(np.frombuffer(b"".join(encoded), np.uint8), starts, stops)


def _free_name(name: str, names: Sequence[str]) -> str:
    while name in names:
        name += "_"
    return name
