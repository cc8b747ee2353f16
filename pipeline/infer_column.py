"""Infer from its first rows what a column of a log is: its kind, and whether it holds times.

Of a time only the hour and the weekday are features, because a moment never recurs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .errors import ConfigError
from .raw.column_values import Form, Values, is_list, is_text, plain, read_column
from .raw.text_fields import BAD, GOOD, MISSING
from .raw.text_lists import ListForm, ListSpans, Spans
from .raw.times import TICKS, is_temporal
from .schema.schema import TIME_KINDS, check_name
from .schema.schema_file import write_time_entry

_MIN_TIMES = 100
"""Distinct integers from which on they may be times, and rows from which on a constant is no accident."""
_EARLIEST, _LATEST = 1_000_000_000, 2_000_000_000
"""Seconds of the years 2001 and 2033, between which integers may be times."""
_TELLING = re.compile(r"(^|[^a-z])(ts|time|date|datetime|timestamp|epoch|when)([^a-z]|$)|time$|stamp$")


@dataclass(frozen=True, slots=True)
class InferredTimes:
    """The kinds that a column of times may become."""

    features: tuple[tuple[str, str], ...]
    """Name and kind of each feature: the hour, the weekday, or both; none where neither changes."""
    unit: str | None
    """Unit of times that are integers."""
    is_certain: bool
    """Whether the column is surely one of times; integers may as well be something else."""
    note: str


def infer_times(name: str, values: Any, names: Sequence[str]) -> InferredTimes | None:
    """Return what a column of times may become; None where it holds none.

    Args:
        name: of the column.
        values: of its first rows, as `plain` gives them.
        names: of all columns, with which the features' names must not collide.
    """
    # Text and Arrow's types of time are explicit; integers are recognized by their size.
    unit = None
    if not are_times(values):
        unit = _unit_of(values)
        if unit is None:
            return None

    # A feature that never changes is left out, such as the hour of dates.
    found = {kind: _values_of(values, kind, unit) for kind in TIME_KINDS}
    num_times = found["hour"].shape[0]
    changing = [
        kind
        for kind in TIME_KINDS
        if np.unique(found[kind]).shape[0] > 1 or (num_times < _MIN_TIMES and found[kind].any())
    ]
    # Each feature is named after the column and its kind, unless that name is taken.
    features = tuple((_free_name(f"{name}_{kind}", names), kind) for kind in changing)
    try:
        for feature, _ in features:
            check_name(feature)
    except ConfigError:  # the column's name is too long for a suffix
        features = ()
    # Integers are times for sure where they never go back or their name says so.
    is_certain = unit is None or _is_ascending(values) or bool(_TELLING.search(name.lower()))
    if not features:
        return InferredTimes((), unit, is_certain, "times with the same hour and weekday in every row")
    if is_certain:
        return InferredTimes(features, unit, True, f"{' and '.join(changing)} of times, in UTC")
    entry = write_time_entry(features, unit)
    return InferredTimes(features, unit, False, f"if these are Unix times, write: {entry}")


def are_times(values: Any) -> bool:
    """Return whether every value is written as a time, or has a type of times."""
    if not isinstance(values, Spans) and not is_temporal(values.type):
        return False
    states = read_column(values, "hour").states
    return bool((states == GOOD).any() and not (states == BAD).any())


def _values_of(values: Any, kind: str, unit: str | None) -> NDArray[Any]:
    """Return the hours or weekdays of the times that are not missing."""
    found = read_column(values, kind, Form(unit))
    times: NDArray[Any] = found.values[found.states == GOOD]
    return times


def _unit_of(values: Any) -> str | None:
    """Return the unit in which integers are recent times; None if none fits."""
    if not isinstance(values, Spans) and not pa.types.is_integer(values.type):
        return None
    # Few distinct integers could be anything; many within our years are hardly chance.
    found = read_column(values, "integer")
    numbers = found.values[found.states == GOOD].view(np.int64)
    if (found.states == BAD).any() or np.unique(numbers).shape[0] < _MIN_TIMES:
        return None
    for unit, ticks in TICKS.items():
        if numbers.min() >= _EARLIEST * ticks and numbers.max() < _LATEST * ticks:
            return unit
    return None


def _is_ascending(values: Any) -> bool:
    """Return whether times never go back, as in a log; numbers of users do."""
    found = read_column(values, "integer")
    numbers = found.values[found.states == GOOD].view(np.int64)
    return bool((np.diff(numbers) >= 0).all())


def _free_name(name: str, names: Sequence[str]) -> str:
    while name in names:
        name += "_"
    return name


MIN_ROWS_TO_JUDGE = 100
"""Rows from which on a constant, or a value that never recurs, is no accident."""
_LIST_SEPARATORS = "|;,"
_LIST_SHARE = 1 / 3
"""Share of the fields with something in them that have a separator, from which on they look like lists."""


@dataclass(frozen=True, slots=True)
class InferredColumn:
    """A column as the first rows show it."""

    name: str
    kind: str
    """One of KINDS, or float; of a column of times the kind of its first feature."""
    num_distinct: int
    """Distinct values without missing ones; for lists, distinct elements."""
    num_missing: int
    note: str
    """Description for people."""
    is_used: bool
    """Whether the column is proposed as a feature; the note says why not."""
    is_list: bool = False
    is_readable: bool = True
    """Whether the column could be used, if someone wants it all the same."""
    is_transformed: bool = True
    """Whether a float gets the default transform; it makes 0 of negative values."""
    times: InferredTimes | None = None
    """The features of a column of times, which are proposed in place of its values."""


def infer_column(name: str, values: Any, num_rows: int, names: list[str]) -> InferredColumn:
    """Infer what a column is from its values: Spans, or a Parquet column.

    Args:
        name: of the column.
        values: of its first rows.
        num_rows: how many these are.
        names: of all columns.
    """
    # What ingest would refuse is left out, whatever it holds.
    fault = _unusable(name, values, names)
    if fault:
        return InferredColumn(name, "text", 0, 0, fault, False, is_readable=False)
    is_parquet = not isinstance(values, Spans)
    # A text column cannot hold lists by itself: the schema declares them, and the note below proposes it.
    holds_lists = is_parquet and is_list(values.type)
    is_bool = is_parquet and pa.types.is_boolean(values.type)
    if is_parquet:
        values = plain(values)
    times = None if holds_lists else infer_times(name, values, names)
    if times is not None and times.is_certain:
        kind = times.features[0][1] if times.features else "text"
        return InferredColumn(
            name, kind, 0, 0, times.note, bool(times.features), is_readable=False, times=times
        )
    fitting = next(_fitting_kinds(values), None)
    if fitting is None:
        fault = "it holds neither text nor finite numbers"
        return InferredColumn(name, "text", 0, 0, fault, False, is_readable=False)

    # Findings about the values.
    kind, found = fitting
    is_there = found.states != MISSING
    num_missing = int(np.count_nonzero(~is_there))
    num_distinct = np.unique(found.values[is_there]).shape[0]
    notes = ["true or false" if is_bool else f"{num_distinct:,} distinct"]
    if num_missing:
        notes.append(f"{num_missing / max(1, found.states.shape[0]):.0%} missing")
    if found.offsets is not None:
        lengths = np.diff(found.offsets)
        notes.append(f"lists of {lengths.mean():.1f} on average, {lengths.max()} at most")

    # What teaches a model nothing, or cannot teach it in this form, is left out.
    hint = "" if times is None else times.note
    reason = _no_feature(kind, found, num_distinct, num_missing, num_rows)
    if reason:
        note = "; ".join(filter(None, [reason, hint]))
        return InferredColumn(name, kind, num_distinct, num_missing, note, False, holds_lists)

    # The rest is proposed, with what has to be known to choose well.
    is_transformed = True
    if kind == "float":
        negative, is_transformed = _negative_share(found)
        if negative:
            becomes = ", which log1p turns into 0" if is_transformed else ""
            notes.append(f"{negative} negative{becomes}")
    if isinstance(values, Spans) and kind == "text":
        hint = hint or _list_hint(values, num_distinct, is_parquet=is_parquet)
    note = "; ".join(filter(None, [", ".join(notes), hint]))
    return InferredColumn(
        name, kind, num_distinct, num_missing, note, True, holds_lists, is_transformed=is_transformed
    )


def _no_feature(kind: str, found: Values, num_distinct: int, num_missing: int, num_rows: int) -> str | None:
    """Return why a column is no feature: it never changes, or its values never recur."""
    if num_rows < MIN_ROWS_TO_JUDGE:
        return None
    num_values = found.states.shape[0] - num_missing
    if num_values == 0:
        return "every value is missing"
    is_single = found.offsets is None or bool((np.diff(found.offsets) == 1).all())
    if num_distinct == 1 and not num_missing and is_single:
        return "every row has the same value"
    if kind != "float" and found.offsets is None and num_distinct == num_values >= MIN_ROWS_TO_JUDGE:
        return "no value occurs twice" if num_missing else "every row has another value"
    return None


def _negative_share(found: Values) -> tuple[str, bool]:
    """Return the share of negative values as text, empty if there are none, and whether to keep log1p.

    Without a transform a value must fit in a float32; a column that does not keeps log1p.
    """
    values = found.values[found.states != MISSING]
    share = float((values < 0).mean()) if values.size else 0.0
    if not share:
        return "", True
    fits = bool((np.abs(values) <= np.finfo(np.float32).max).all())
    return f"{share:.0%}" if share >= 0.005 else "under 1%", not fits


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
    if not isinstance(values, Spans):
        found = values.type
        kind = found.value_type if is_list(found) else found
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        is_number = is_number or (
            (pa.types.is_decimal(kind) or pa.types.is_boolean(kind)) and not is_list(found)
        )
        is_time = is_temporal(found)
        if not (is_number or is_time or is_text(kind) or pa.types.is_null(kind)):
            # Names inside a type may hold anything, and a note is one line.
            return f"{' '.join(str(found).split())} is not supported"
    return None


def _fitting_kinds(values: Any) -> Iterator[tuple[str, Values]]:
    """Kinds that no value contradicts, the plainest first, with the values read so."""
    is_spans = isinstance(values, (Spans, ListSpans))
    # An empty column fits every kind; of text it is called text, the widest.
    for kind in _kinds_for(values):
        found = read_column(values, kind)
        is_empty = bool((found.states == MISSING).all())
        if (found.states == BAD).any() or (is_empty and is_spans and kind != "text"):
            continue
        # Whole numbers that fit no integer kind, and codes such as 007, would lose digits as numbers.
        if isinstance(values, Spans) and kind in ("integer", "unsigned", "float"):
            is_whole = kind == "float" and bool((found.values == np.floor(found.values)).all())
            if is_whole or _have_leading_zeros(values):
                continue
        yield kind, found


def _kinds_for(values: Any) -> tuple[str, ...]:
    if isinstance(values, Spans):
        return ("integer", "unsigned", "hex8", "float", "text")
    if isinstance(values, ListSpans):
        return ("integer", "unsigned", "hex8", "text")
    if is_list(values.type):
        return ("integer", "unsigned", "hex8", "text") if _is_text_list(values) else ("integer", "unsigned")
    if pa.types.is_decimal(values.type):
        return ("float",)
    return ("integer", "unsigned", "float")


def _is_text_list(array: Any) -> bool:
    kind = array.type.value_type
    return is_text(kind.value_type if pa.types.is_dictionary(kind) else kind)


def _have_leading_zeros(spans: Spans) -> bool:
    """Return whether a number has leading zeros: then it is a code, and reading it would merge codes."""
    long = spans.starts[spans.stops - spans.starts > 1]
    is_zero = spans.text[long] == ord("0")
    is_code = is_zero & (spans.text[long + 1] >= ord("0")) & (spans.text[long + 1] <= ord("9"))
    return bool(long.shape[0] and is_code.any())


def _list_hint(spans: Spans, num_distinct: int, *, is_parquet: bool) -> str:
    """Return what to write if text looks like lists: many fields have a separator, and elements recur."""
    is_filled = spans.stops > spans.starts
    filled = Spans(spans.text, spans.starts[is_filled], spans.stops[is_filled])
    for separator in _LIST_SEPARATORS if is_filled.any() else "":
        kind, found = next(_fitting_kinds(ListSpans(filled, ListForm(separator))))
        lengths = np.diff(found.offsets) if found.offsets is not None else np.ones(1)
        elements = np.unique(found.values[found.states != MISSING]).shape[0]
        if (lengths > 1).mean() < _LIST_SHARE or elements >= num_distinct:
            continue
        if is_parquet:
            return (
                f"looks like a list: split the text at {separator!r} into a column of lists to use it as one"
            )
        keys = f'kind = "{kind}", list = true, separator = "{separator}"'
        return f"looks like a list: {{ {keys} }}"
    return ""
