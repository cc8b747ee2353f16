"""What the first rows of a log say of a column: which kind fits, and how many values it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import ConfigError
from ..raw.column_values import ListSpans, Spans, Values, is_list, is_text, plain, read_column
from ..raw.text_fields import BAD, MISSING
from ..schema.schema_names import check_name

_LABEL_NAMES = ("label", "click", "clicked", "is_click", "target", "y", "conversion", "converted")
_MIN_ROWS_FOR_ID = 100
_LIST_SEPARATORS = "|;,"


@dataclass(frozen=True, slots=True)
class ColumnLook:
    """What the first rows say of one column."""

    name: str
    kind: str
    """One of KINDS, or float."""
    num_distinct: int
    """Distinct values, missing left out; of lists, distinct elements."""
    num_missing: int
    note: str
    """The same in words."""
    is_used: bool
    """Whether it is proposed; the note says why not."""
    is_list: bool = False


def look_at(name: str, values: Any, num_rows: int, names: list[str]) -> ColumnLook:
    """Look at Spans, or at a Parquet column.

    Args:
        name: of the column.
        values: of its first rows.
        num_rows: how many these are.
        names: of all columns.
    """
    fault = _unusable(name, values, names)
    if fault:
        return ColumnLook(name, "text", 0, 0, fault, False)
    holds_lists = not isinstance(values, Spans) and is_list(values.type)
    if not isinstance(values, Spans):
        values = plain(values)
    fitting = next(_fitting_kinds(values), None)
    if fitting is None:
        return ColumnLook(name, "text", 0, 0, "it holds neither text nor finite numbers", False)
    kind, found = fitting
    num_missing = int(np.count_nonzero(found.states == MISSING))
    num_distinct = np.unique(found.values[found.states != MISSING]).shape[0]
    note = f"{num_distinct:,} distinct"
    if num_missing:
        note += f", {num_missing / max(1, found.states.shape[0]):.0%} missing"
    if found.offsets is not None:
        lengths = np.diff(found.offsets)
        note += f", lists of {lengths.mean():.1f} on average, {lengths.max()} at most"
    elif kind != "float" and num_distinct == num_rows >= _MIN_ROWS_FOR_ID:
        return ColumnLook(name, kind, num_distinct, num_missing, "every row has another value", False)
    if isinstance(values, Spans) and kind == "text":
        note += _list_hint(values, num_distinct)
    return ColumnLook(name, kind, num_distinct, num_missing, note, True, holds_lists)


def _unusable(name: str, values: Any, names: list[str]) -> str | None:
    """Why a column cannot stand in a schema."""
    if names.count(name) > 1:
        return "there are two columns of that name"
    if name != "label":
        try:
            check_name(name)
        except ConfigError as error:
            return f"{error}; {error.hint}"
    if not isinstance(values, Spans):
        kind = values.type.value_type if is_list(values.type) else values.type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        is_number = is_number or (pa.types.is_decimal(kind) and not is_list(values.type))
        if not (is_number or is_text(kind) or pa.types.is_null(kind)):
            return f"{values.type} is not supported"
    return None


def _fitting_kinds(values: Any) -> Iterator[tuple[str, Values]]:
    """Kinds that no value contradicts, the plainest first, with the values read so."""
    is_spans = isinstance(values, (Spans, ListSpans))
    for kind in _kinds_for(values):
        found = read_column(values, kind)
        is_empty = bool((found.states == MISSING).all())
        if (found.states == BAD).any() or (is_empty and is_spans and kind != "text"):
            continue
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
    """Whether a number has zeros before it: then it is a code, and reading it would merge codes."""
    long = spans.starts[spans.stops - spans.starts > 1]
    is_zero = spans.text[long] == ord("0")
    is_code = is_zero & (spans.text[long + 1] >= ord("0")) & (spans.text[long + 1] <= ord("9"))
    return bool(long.shape[0] and is_code.any())


def _list_hint(spans: Spans, num_distinct: int) -> str:
    """What to write where text looks like lists: most fields have a separator, and elements recur."""
    for separator in _LIST_SEPARATORS:
        lists = ListSpans(spans, ord(separator))
        kind, found = next(_fitting_kinds(lists))
        lengths = np.diff(found.offsets) if found.offsets is not None else np.ones(1)
        elements = np.unique(found.values[found.states != MISSING]).shape[0]
        if (lengths > 1).mean() >= 0.5 and elements < num_distinct:
            keys = f'kind = "{kind}", list = true, separator = "{separator}"'
            return f"; looks like a list: {{ {keys} }}"
    return ""


def label_among(looks: list[ColumnLook], columns: list[tuple[str, Any]]) -> str | None:
    """A column of zeros and ones without gaps, one with a telling name if there is one."""
    values = dict(columns)
    fitting = []
    for look in looks:
        if look.num_distinct > 2 or look.num_missing or not look.num_distinct or look.is_list:
            continue
        cells = values[look.name] if isinstance(values[look.name], Spans) else plain(values[look.name])
        if not (isinstance(cells, Spans) or look.kind in ("integer", "unsigned")):
            continue
        if not (read_column(cells, "label").states == BAD).any():
            fitting.append(look.name)
    named = [name for known in _LABEL_NAMES for name in fitting if name.lower() == known]
    return next(iter(named or fitting), None)
