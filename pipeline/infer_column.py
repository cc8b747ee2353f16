"""Infer from sampled rows what a column of a log is: its kind, and whether it holds times or lists.

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
from .raw.column_values import TICKS, Values, is_list, is_temporal, is_text, plain, read_column
from .raw.text_fields import BAD, GOOD, MISSING, ListForm, TextLists
from .schema.schema import PLAIN, SAMPLE_TIME, TIME_KINDS, Form, check_name, key_of, toml_of
from .schema.schema_file import BRACKETS, entry_of

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
    return (is_text(values.type) or is_temporal(values.type)) and _TEXT_OR_TYPE.fits(values)


def _tries(values: Any, is_called: bool) -> Iterator[InferredTimes]:
    """Yield how times may be written: as text or types say, as recent numbers in a unit, in a format."""
    are_texts = is_text(values.type)
    if are_texts or is_temporal(values.type):
        yield _TEXT_OR_TYPE
    is_whole = are_texts or pa.types.is_integer(values.type)
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
    if is_text(cells.type):
        return [text.decode("utf-8", "surrogateescape") for text in cells.to_pylist()]
    return ["" if value is None else str(value) for value in cells.to_pylist()]


def column_of(texts: Sequence[str]) -> Any:
    """Return texts as a column."""
    return pa.array([text.encode("utf-8", "surrogateescape") for text in texts], pa.large_binary())


def undivided(array: Any) -> Any:
    """Return a typed column as `plain` does, and numbered texts as an array of texts."""
    found = plain(array)
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def _free_name(name: str, names: Sequence[str]) -> str:
    while name in names:
        name += "_"
    return name


MIN_ROWS_TO_JUDGE = 100
"""Rows from which on a constant is no accident."""
_MIN_DIFFERENT = 500
"""Rows from which on values that never recur are no accident."""
_LIST_SEPARATORS = "|^\x01\x02\x03\x04\x05;, "
_SURE_SEPARATORS = "|^\x01\x02\x03\x04\x05"
"""Those that no prose has."""
_LIST_SHARE = 1 / 3
"""Share of the fields with something in them that have a separator, from which on they look like lists."""
_FEW_ODD = 0.05
"""Share of values that are no numbers up to which a column of text was meant to be one of numbers."""
_DECIMAL = re.compile(r"[+-]?\d*\.(\d+)")
_LEADING_ZERO = re.compile(rb"0[0-9]")
_IN_BRACKETS = re.compile(r"\s*[\[({][^\[\](){}]*[\])}]\s*")
_WEIGHTED = re.compile(r"(.+)(:|=)[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
_CODE = re.compile(r"\S*\d\S*")
"""An element that is no word of prose."""
_COMMAS = {
    "decimals with a comma": re.compile(r"[+-]?\d+(,\d+)?"),
    "numbers with commas between thousands": re.compile(r"[+-]?\d{1,3}(,\d{3})*(\.\d+)?"),
}
"""Numbers that look like lists."""


@dataclass(frozen=True, slots=True)
class InferredColumn:
    """A column as the sampled rows show it."""

    name: str
    features: tuple[dict[str, Any], ...]
    """What it may become: the keys of each feature in a schema file. A float is a dense one."""
    num_distinct: int = 0
    """Distinct values without missing ones; for lists, distinct elements."""
    num_missing: int = 0
    note: str = ""
    """Description for people."""
    is_used: bool = True
    """Whether the column is proposed as a feature; the note says why not."""
    lists: ListForm | None = None
    """How lists are written, of a column that holds any."""
    is_readable: bool = True
    """Whether the column could be used, if someone wants it all the same."""
    times: InferredTimes | None = None
    """How times are written, of a column whose features are made from them."""

    @property
    def kind(self) -> str:
        """Kind of its first feature: one of KINDS or TIME_KINDS, or float."""
        return str(self.features[0]["kind"])

    @property
    def line(self) -> str:
        """The line of the column in a schema file."""
        return f"{key_of(self.name)} = {toml_of(entry_of(self.features))}"


def _left_out(name: str, why: str) -> InferredColumn:
    """Return a column that cannot be used."""
    return InferredColumn(name, ({"kind": "text"},), note=why, is_used=False, is_readable=False)


def infer_column(name: str, values: Any, num_rows: int, names: list[str]) -> InferredColumn:
    """Infer what a column is from its values: texts, or a typed column.

    Args:
        name: of the column.
        values: of the sampled rows.
        num_rows: how many these are.
        names: of all columns.
    """
    # What ingest would refuse is left out, whatever it holds.
    fault = _unusable(name, values, names)
    if fault:
        return _left_out(name, fault)
    lists = ListForm("") if is_list(values.type) else None
    is_bool = pa.types.is_boolean(values.type)
    values = undivided(values)
    times = None if lists else infer_times(name, values, names)
    if times is not None and times.is_certain:
        return _of_times(name, times) if times.features else replace(_left_out(name, times.note), times=times)
    found = _read_plainest(values)
    if found is None:
        return _left_out(name, _no_number(values))

    # Text may be lists, for certain or perhaps.
    column = _described(name, *found, lists, is_bool=is_bool)
    hints = []
    if times is not None:
        hints.append(f"if these are times, write: {_of_times(name, times).line}")
    if is_text(values.type) and column.kind == "text":
        form, is_certain, remark = infer_list(texts_of(values))
        hints += filter(None, [remark, _odd_values(name, values)])
        as_lists = None if form is None else _read_plainest(TextLists(values, form))
        if as_lists is not None:
            other = _described(name, *as_lists, form)
            if is_certain or name.endswith("_seq"):  # the types in names of RecBole's files
                column, found = other, as_lists
            else:
                hints.append(f"if these are lists, write: {other.line}")

    # What teaches a model nothing, or cannot teach it in this form, is left out.
    reason = _no_feature(found[1], column, num_rows)
    if reason:
        return replace(column, note="; ".join([reason, *hints]), is_used=False)
    # The rest is proposed, with what has to be known to choose well.
    if column.kind == "float":
        column = _with_transform(column, found[1])
    return replace(column, note="; ".join([column.note, *hints]))


def _of_times(name: str, times: InferredTimes) -> InferredColumn:
    """Return a column of times: the hour and the weekday."""
    form = {"unit": times.form.unit, "format": times.form.format}
    written = {key: value for key, value in form.items() if value}
    features = tuple({"kind": kind, **written, "name": feature} for feature, kind in times.features)
    return InferredColumn(name, features, note=times.note, times=times)


def _described(
    name: str, kind: str, found: Values, lists: ListForm | None, *, is_bool: bool = False
) -> InferredColumn:
    """Return a column with what its values are like."""
    is_there = found.states != MISSING
    num_missing = int(np.count_nonzero(~is_there))
    num_distinct = np.unique(found.values[is_there]).shape[0]
    notes = ["true or false" if is_bool else f"{num_distinct:,} distinct"]
    if num_missing:
        notes.append(f"{num_missing / max(1, found.states.shape[0]):.0%} missing")
    if found.offsets is not None:
        lengths = np.diff(found.offsets)
        notes.append(f"lists of {lengths.mean():.1f} on average, {lengths.max()} at most")
    keys: dict[str, Any] = {"kind": kind}
    if lists is not None:
        marks = {"separator": lists.separator, "weight_separator": lists.weight_separator}
        keys["list"] = BRACKETS if lists.has_brackets else True
        keys |= {key: mark for key, mark in marks.items() if mark}
    return InferredColumn(name, (keys,), num_distinct, num_missing, ", ".join(notes), lists=lists)


def _no_feature(found: Values, column: InferredColumn, num_rows: int) -> str | None:
    """Return why a column is no feature: it never changes, or its values never recur."""
    if num_rows < MIN_ROWS_TO_JUDGE:
        return None
    num_values = found.states.shape[0] - column.num_missing
    if num_values == 0:
        return "every value is missing"
    is_single = found.offsets is None or bool((np.diff(found.offsets) == 1).all())
    if column.num_distinct == 1 and not column.num_missing and is_single:
        return "every row has the same value"
    if column.kind == "float" or found.offsets is not None or column.num_distinct < num_values:
        return None
    # The rows of a sample from several places are numbered with gaps.
    steps = np.diff(found.values[found.states == GOOD].view(np.int64))
    if column.kind == "integer" and (steps > 0).all() and (steps == 1).mean() > 0.9:
        return "it numbers the rows"
    if num_values < _MIN_DIFFERENT:
        return None
    return "no value occurs twice" if column.num_missing else "every row has another value"


def _with_transform(column: InferredColumn, found: Values) -> InferredColumn:
    """Return a column of floats: negative ones have no logarithm, so that they keep their values.

    Without a transform a value must fit in a float32; a column that does not keeps log1p.
    """
    values = found.values[found.states != MISSING]
    share = float((values < 0).mean()) if values.size else 0.0
    if not share:
        return column
    note = f"{column.note}, {f'{share:.0%}' if share >= 0.005 else 'under 1%'} negative"
    if (np.abs(values) > np.finfo(np.float32).max).any():
        return replace(column, note=f"{note}, which log1p turns into 0")
    return replace(column, note=note, features=({"kind": "float", "transform": "none"},))


def _odd_values(name: str, values: Any) -> str:
    """Return a remark on what keeps a column of text from being one of numbers."""
    states = read_column(values, "float").states
    num_odd, num_values = int(np.count_nonzero(states == BAD)), int(np.count_nonzero(states != MISSING))
    if not num_odd and _are_versions(values):
        amounts = f'{key_of(name)} = "float"'
        return f"numbers such as 1.9 beside 1.10; if they are amounts, write under [dense]: {amounts}"
    if not 0 < num_odd <= _FEW_ODD * num_values:
        return ""
    return f"{num_odd:,} of {num_values:,} values {'is no number' if num_odd == 1 else 'are no numbers'}"


def _are_versions(values: Any) -> bool:
    """Return whether decimals are codes, such as 1.9 and 1.10: one ends in a zero, another one is shorter."""
    decimals = [found[1] for found in map(_DECIMAL.fullmatch, set(texts_of(values))) if found]
    least = min(map(len, decimals), default=0)
    return any(each.endswith("0") and len(each) > least for each in decimals)


def _no_number(values: Any) -> str:
    """Return why no kind fits a typed column."""
    if not is_list(values.type) and pa.types.is_floating(values.type):
        num_infinite = int(np.isinf(values.drop_null().to_numpy(zero_copy_only=False)).sum())
        if num_infinite:
            which = "value is" if num_infinite == 1 else "values are"
            return f'{num_infinite:,} {which} infinite: with missing = ["inf", "-inf"] they are missing'
    return "it holds neither text nor finite numbers"


def _unusable(name: str, values: Any, names: list[str]) -> str | None:
    """Return why a schema cannot contain a column."""
    if names.count(name) > 1:
        return "there are two columns of that name"
    if not name:
        return "its name is empty"
    if name != "label":
        try:
            check_name(name)
        except ConfigError as error:
            return f"{error}; {error.hint}"
    tests = [is_text, pa.types.is_null, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean]
    kind = values.type
    if is_list(kind):
        kind = kind.value_type
    else:
        tests += [pa.types.is_decimal, is_temporal]
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_known = any(test(kind) for test in tests)
    # Names inside a type may hold anything, and a note is one line.
    return None if is_known else f"{' '.join(str(values.type).split())} is not supported"


def _read_plainest(values: Any) -> tuple[str, Values] | None:
    """Return the plainest kind that no value contradicts, with the values read so; None if there is none."""
    are_texts = isinstance(values, TextLists) or is_text(values.type)
    for kind in _kinds_for(values):
        found = read_column(values, kind)
        # An empty column fits every kind; of text it is called text, the widest.
        is_empty = bool((found.states == MISSING).all())
        if (found.states == BAD).any() or (is_empty and are_texts and kind != "text"):
            continue
        # Whole numbers that fit no integer kind, and codes such as 007 or 1.10, would lose digits.
        is_number = kind in ("integer", "unsigned", "float")
        if is_number and not isinstance(values, TextLists) and are_texts:
            is_whole = kind == "float" and bool((found.values == np.floor(found.values)).all())
            if is_whole or _have_leading_zeros(values) or (kind == "float" and _are_versions(values)):
                continue
        return kind, found
    return None


def _kinds_for(values: Any) -> tuple[str, ...]:
    """Return the kinds that values may have, the plainest first."""
    of_text = isinstance(values, TextLists)
    if not of_text and is_text(values.type):
        return ("integer", "unsigned", "hex8", "float", "text")
    if not of_text and not is_list(values.type):
        has_digits = pa.types.is_decimal(values.type) and values.type.scale
        return ("float",) if has_digits else ("integer", "unsigned", "float")
    kind = pa.string() if of_text else values.type.value_type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return ("integer", "unsigned", *(("hex8", "text") if is_text(kind) else ()))


def _have_leading_zeros(texts: Any) -> bool:
    """Return whether a number has leading zeros: then it is a code, and reading it would merge codes."""
    return any(map(_LEADING_ZERO.match, texts.to_pylist()))


def infer_list(texts: Sequence[str]) -> tuple[ListForm | None, bool, str]:
    """Return how lists are written in texts, if at all, whether that is certain, and a remark."""
    filled = [text for text in texts if text]
    if filled and all(_IN_BRACKETS.fullmatch(text) for text in filled):
        if any(re.search(r"[\"\']\s*:", text) for text in filled):
            return None, False, ""
        separator = next(
            (each for each in ",; " if any(each in text.strip("[](){} ") for text in filled)), ","
        )
        return ListForm(separator, has_brackets=True), True, ""
    for character in _LIST_SEPARATORS if filled else "":
        many = [text for text in filled if character in text]
        if len(many) < _LIST_SHARE * len(filled):
            continue
        if character == ",":
            for what, pattern in _COMMAS.items():
                if all(map(pattern.fullmatch, filled)):
                    return None, False, f"looks like {what}, which only text can hold"
        # Blanks around separators belong to them.
        num_found = sum(text.count(character) for text in many)
        around = (f" {character} ", f"{character} ") if character != " " else ()
        fits = (each for each in around if sum(text.count(each) for text in many) == num_found)
        separator = next(fits, character)
        elements = [element for text in filled for element in text.split(separator) if element]
        parts = [_WEIGHTED.fullmatch(element) for element in elements]
        weights = {part[2] for part in parts if part is not None}
        weight = next(iter(weights)) if len(weights) == 1 and all(parts) else ""
        names = {part[1] for part in parts if part is not None} if weight else set(elements)
        if len(names) >= len(set(filled)):
            continue
        is_certain = character in _SURE_SEPARATORS or all(map(_CODE.fullmatch, names))
        # Words of prose recur, too, but not all of them as often as those of a few classes do.
        if character == " " and not is_certain and 2 * len(names) > len(set(filled)):
            continue
        ends = sum(text.endswith(separator) for text in many)
        remark = f"{ends:,} of them end with {separator!r}, so with a missing element" if ends else ""
        return ListForm(separator, weight_separator=weight), is_certain, remark
    return None, False, ""
