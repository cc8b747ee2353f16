"""Infer from the first rows of a log which kind of feature a column is, and how many values it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import ConfigError
from ..raw.column_values import ListSpans, Spans, Values, is_list, is_text, plain, read_column
from ..raw.text_fields import BAD, MISSING
from ..raw.times import is_temporal
from ..schema.schema_names import check_name
from .infer_times import InferredTimes, infer_times

_LABEL_NAMES = ("label", "click", "clicked", "is_click", "target", "y", "conversion", "converted")
_MIN_ROWS_TO_JUDGE = 100
"""Rows from which on a constant, or a value that never comes back, is no accident."""
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
    # Text has no lists of its own: a schema declares them, and the note below proposes it.
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

    # What was seen of the values.
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
    """Say why a column is no feature: it never changes, or its values never come back."""
    if num_rows < _MIN_ROWS_TO_JUDGE:
        return None
    num_values = found.states.shape[0] - num_missing
    if num_values == 0:
        return "every value is missing"
    is_single = found.offsets is None or bool((np.diff(found.offsets) == 1).all())
    if num_distinct == 1 and not num_missing and is_single:
        return "every row has the same value"
    if kind != "float" and found.offsets is None and num_distinct == num_values >= _MIN_ROWS_TO_JUDGE:
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
    """Return why a column cannot stand in a schema."""
    if names.count(name) > 1:
        return "there are two columns of that name"
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
        kind, found = next(_fitting_kinds(ListSpans(filled, ord(separator))))
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


def label_among(inferred: list[InferredColumn], columns: list[tuple[str, Any]]) -> str | None:
    """Return a column of zeros and ones without gaps, one with a telling name if there is one."""
    values = dict(columns)
    # Zeros and ones may also be written as text or stand in a column of integers, but never in lists.
    fitting = []
    for column in inferred:
        if column.num_distinct > 2 or column.num_missing or not column.num_distinct or column.is_list:
            continue
        cells = values[column.name] if isinstance(values[column.name], Spans) else plain(values[column.name])
        if not (isinstance(cells, Spans) or column.kind in ("integer", "unsigned")):
            continue
        if not (read_column(cells, "label").states == BAD).any():
            fitting.append(column.name)
    named = [name for known in _LABEL_NAMES for name in fitting if name.lower() == known]
    return next(iter(named or fitting), None)
