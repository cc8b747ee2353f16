"""Infer whether a column holds times, and in which unit or format.

Of a time only the hour and the weekday are features, because a moment never recurs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .errors import ConfigError
from .raw.column_values import read_column
from .raw.text_fields import BAD, GOOD, Spans
from .raw.times import TICKS, is_temporal
from .schema.schema import PLAIN, SAMPLE_TIME, TIME_KINDS, Form, check_name

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
    """How a column writes times, and the features that it may become."""

    form: Form = PLAIN
    is_certain: bool = True
    """Whether the column is surely one of times; numbers may as well be something else."""
    kinds: tuple[str, ...] = TIME_KINDS
    """Those of TIME_KINDS that can be told from them."""
    doubt: str = ""
    """Why there are fewer."""
    features: tuple[tuple[str, str], ...] = ()
    """Name and kind of each feature: the hour, the weekday, or both; none where neither changes."""
    is_ascending: bool = False
    """Whether no time is before the one above it."""
    is_moment: bool = False
    """Whether each is a time of a certain day from 1970 on, as the time of a sample has to be."""
    note: str = ""

    def read(self, values: Any, kind: str) -> tuple[NDArray[Any], bool]:
        """Return the hours, weekdays or seconds of the times that are there, and whether all others lack."""
        found = read_column(values, kind, self.form)
        return found.values[found.states == GOOD], not (found.states == BAD).any()

    def fits(self, values: Any) -> bool:
        """Return whether every value is such a time, and there is one."""
        there, is_right = self.read(values, self.kinds[0])
        return is_right and there.shape[0] > 0

    def ascends(self, values: Any) -> bool:
        """Return whether times never go back, as in a log; numbers of users do."""
        seconds, is_right = self.read(values, SAMPLE_TIME)
        return self.kinds == TIME_KINDS and is_right and bool((np.diff(seconds.view(np.int64)) >= 0).all())


def infer_times(name: str, values: Any, names: Sequence[str]) -> InferredTimes | None:
    """Return what a column of times may become; None where it holds none.

    Args:
        name: of the column.
        values: of the sampled rows, as `plain` gives them.
        names: of all columns, with which the features' names must not collide.
    """
    is_called = bool(_TELLING.search(name.lower()))
    fitting = (each for each in _tries(values, is_called) if each.fits(values))
    found = next(fitting, None)
    if found is None:
        return None
    if found.form.format is not None:
        found = _surest([found, *fitting], values)
    # A feature that never changes is left out, such as the hour of dates.
    changing = []
    for kind in found.kinds:
        there = found.read(values, kind)[0]
        if np.unique(there).shape[0] > 1 or (there.shape[0] < _MIN_TIMES and there.any()):
            changing.append(kind)
    # Each feature is named after the column and its kind, unless that name is taken.
    features = tuple((_free_name(f"{name}_{kind}", names), kind) for kind in changing)
    try:
        for feature, _ in features:
            check_name(feature)
    except ConfigError:  # the column's name is too long for a suffix
        features = ()
    is_ascending = found.ascends(values)
    # Numbers are times for sure where they never go back or their name says so.
    is_certain = found.is_certain or is_called or (found.form.unit is not None and is_ascending)
    what = " and ".join(changing) + " of times, in UTC"
    return replace(
        found,
        features=features,
        is_certain=is_certain or not features,
        is_ascending=is_ascending,
        is_moment=found.kinds == TIME_KINDS and found.read(values, SAMPLE_TIME)[1],
        note=(what if features else "times with the same hour and weekday in every row") + found.doubt,
    )


_TEXT_OR_TYPE = InferredTimes()


def are_times(values: Any) -> bool:
    """Return whether every value is written as a time, or has a type of times."""
    return (isinstance(values, Spans) or is_temporal(values.type)) and _TEXT_OR_TYPE.fits(values)


def _tries(values: Any, is_called: bool) -> Iterator[InferredTimes]:
    """Yield how times may be written: as text or types say, as recent numbers in a unit, in a format."""
    is_text = isinstance(values, Spans)
    if is_text or is_temporal(values.type):
        yield _TEXT_OR_TYPE
    is_whole = is_text or pa.types.is_integer(values.type)
    if is_whole or pa.types.is_floating(values.type):
        # Few distinct numbers could be anything; many within our years are hardly chance.
        found = read_column(values, "float")
        numbers = found.values[found.states == GOOD]
        earliest = _EARLIEST_CALLED if is_called else _EARLIEST
        if not (found.states == BAD).any() and np.unique(numbers).shape[0] >= (
            _MIN_CALLED_TIMES if is_called else _MIN_TIMES
        ):
            for unit, ticks in TICKS.items():
                if earliest * ticks <= numbers.min() and numbers.max() < _LATEST * ticks:
                    yield InferredTimes(Form(unit), is_certain=False)
    texts = list(islice(dict.fromkeys(filter(None, texts_of(values) if is_whole else ())), _TRIED_TEXTS))
    if not texts or len(texts[0]) > _MOST_CHARACTERS or (texts[0].isdigit() and len(texts) == 1):
        return
    for format in formats_of(texts[0]):
        # A clock alone has no day, and may be a duration.
        times = InferredTimes(
            Form(format=format), "%d" in format, TIME_KINDS if "%d" in format else ("hour",)
        )
        if not texts[0].isdigit():
            yield times
        elif times.fits(values):
            # Many numbers all of which are dates are no chance; the hour behind a short year is less plain.
            is_sure = len(texts[0]) >= 14 or (format == "%Y%m%d" and len(texts) >= _MIN_CALLED_TIMES)
            yield replace(times, is_certain=is_sure)
            return


def _surest(fitting: list[InferredTimes], values: Any) -> InferredTimes:
    """Return the only format, or the only one that never goes back; of several what they agree on."""
    left = [each for each in fitting if each.ascends(values)] or fitting
    if len(left) == 1:
        return left[0]
    # The hour is the same whichever number is the month.
    formats = " or ".join(repr(each.form.format) for each in left)
    kinds = ("hour",) if "%M" in str(left[0].form.format) else ()
    return replace(left[0], kinds=kinds, doubt=f"; no weekday, for its format may be {formats}")


_PIECES = re.compile(
    r"(?P<clock>\d?\d:\d\d(?P<second>:\d\d(?P<fraction>[.,]\d+)?)?)|(?P<sign>[+-])\d\d:?\d\d(?=$| \d{4}$)"
    r"|(?P<day>(mon|tue|wed|thu|fri|sat|sun)[a-z]*)"
    r"|(?P<month>(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)"
    r"|(?P<half>[ap]m\b)|(?P<zone>utc|gmt|z)|(?P<digits>\d+)|(?P<letters>[^\W\d]+)",
    re.IGNORECASE,
)
_DIGITS = {
    1: ("%m", "%d", "%y"),
    2: ("%m", "%d", "%y"),
    4: ("%Y",),
    6: ("%y%m%d", "%H%M%S"),
    8: ("%Y%m%d", "%y%m%d%H", "%d%m%Y"),
    10: ("%Y%m%d%H", "%y%m%d%H%M"),
    12: ("%Y%m%d%H%M", "%y%m%d%H%M%S"),
    14: ("%Y%m%d%H%M%S",),
    17: ("%Y%m%d%H%M%S%f",),
}
"""What digits alone may be, by their number."""
_ORDERS = ("", "dmy", "mdy", "ymd")
"""Orders of day, month and year."""


def _codes_of(piece: re.Match[str]) -> tuple[str, ...]:
    """Return what a piece of a text may be in a format; nothing where it is in none."""
    text = piece[0]
    if piece["clock"]:
        fraction = f"{piece['fraction'][0]}%f" if piece["fraction"] else ""
        return (f"%H:%M:%S{fraction}" if piece["second"] else "%H:%M",)
    if piece["sign"]:
        return "%z", f"{text[0]}%Y"
    if piece["digits"]:
        return _DIGITS.get(len(text), ())
    is_short = len(text) == 3
    codes = {
        "day": "%a" if is_short else "%A",
        "month": "%b" if is_short else "%B",
        "half": "%p",
        "zone": "%Z" if is_short else "%z",
        "letters": text if text in "Tt" else "",  # between a date and a time
    }
    return tuple(filter(None, [codes[str(piece.lastgroup)]]))


def formats_of(text: str) -> list[str]:
    """Return the formats in which a text may be a time, such as ``%d/%b/%Y:%H:%M:%S %z``."""
    pieces = list(_PIECES.finditer(text))
    ends = [0, *(piece.end() for piece in pieces)]
    starts = [*(piece.start() for piece in pieces), len(text)]
    between = [text[end:start].replace("%", "%%") for end, start in zip(ends, starts, strict=True)]
    choices = [_codes_of(piece) for piece in pieces]
    if sum(len(each) > 2 for each in choices) > len(_ORDERS[1]):
        return []
    formats = []
    for codes in product(*choices):
        used = re.findall("%([A-Za-z])", "".join(codes))
        date = "".join(code for code in used if code in "dmbByY").translate(_SAME)
        is_whole = (
            date in _ORDERS and bool({"d", "H"} & set(used)) and ("H" in used or not {"z", "Z"} & set(used))
        )
        if is_whole and len(set(used)) == len(used):
            joined = between[0] + "".join(map("".join, zip(codes, between[1:], strict=True)))
            formats.append(joined.replace("%H", "%I") if "p" in used else joined)
    return formats


_SAME = str.maketrans("bBY", "mmy")


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
    lengths = np.array([len(text) for text in encoded], np.int64)
    stops = np.cumsum(lengths)
    return Spans(np.frombuffer(b"".join(encoded), np.uint8), stops - lengths, stops)


def _free_name(name: str, names: Sequence[str]) -> str:
    while name in names:
        name += "_"
    return name
