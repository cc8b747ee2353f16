"""Infer from sampled rows what a column of a log is: its kind, and whether it holds times or lists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from .errors import ConfigError
from .infer_times import InferredTimes, infer_times, texts_of
from .raw.column_values import Values, is_list, is_text, plain, read_column
from .raw.text_fields import BAD, GOOD, MISSING, Spans
from .raw.text_lists import ListForm, ListSpans
from .raw.times import is_temporal
from .schema.schema import Schema, check_name
from .schema.schema_file import write_schema

MIN_ROWS_TO_JUDGE = 100
"""Rows from which on a constant is no accident."""
_MIN_DIFFERENT = 500
"""Rows from which on values that never recur are no accident."""
_LIST_SEPARATORS = "|^\x01\x02\x03\x04\x05;, "
_SURE_SEPARATORS = "|^\x01\x02\x03\x04\x05"
"""Those that no prose has."""
_LIST_SHARE = 1 / 3
"""Share of the fields with something in them that have a separator, from which on they look like lists."""
_IN_BRACKETS = re.compile(r"\s*[\[({][^\[\](){}]*[\])}]\s*")
_ELEMENT = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[^{}]+'
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
    kind: str
    """One of KINDS, or float; of a column of times the kind of its first feature."""
    num_distinct: int
    """Distinct values without missing ones; for lists, distinct elements."""
    num_missing: int
    note: str
    """Description for people."""
    is_used: bool
    """Whether the column is proposed as a feature; the note says why not."""
    lists: ListForm | None = None
    """How lists are written, of a column that holds any."""
    is_readable: bool = True
    """Whether the column could be used, if someone wants it all the same."""
    is_transformed: bool = True
    """Whether a float gets the default transform; it makes 0 of negative values."""
    times: InferredTimes | None = None
    """The features of a column of times, which are proposed in place of its values."""

    @property
    def is_list(self) -> bool:
        """Whether its rows hold lists."""
        return self.lists is not None

    @property
    def features(self) -> Sequence[tuple[str, str]]:
        """Name and kind of each feature that the column may become."""
        return self.times.features if self.times is not None else ((self.name, self.kind),)

    @property
    def line(self) -> str:
        """The line of the column in a schema file."""
        format = "csv" if self.lists is None or self.lists.separator else "parquet"
        return write_schema(schema_of([self], format=format)).splitlines()[-1]


def schema_of(columns: Sequence[InferredColumn], **keys: Any) -> Schema:
    """Return the schema of the features that columns become; ``keys`` are its other fields."""
    dense = [column.name for column in columns if column.kind == "float"]
    sparse = [column for column in columns if column.kind != "float"]
    features = [(column, name, kind) for column in sparse for name, kind in column.features]
    lists = [(column.name, column.lists) for column in sparse if column.lists is not None]
    times = [(name, column.times) for column, name, _ in features if column.times is not None]
    return Schema(
        dense=tuple(dense),
        sparse=tuple(name for _, name, _ in features),
        kinds=tuple(kind for *_, kind in features),
        lists=tuple((name, each.separator) for name, each in lists),
        brackets=tuple(name for name, each in lists if each.has_brackets),
        weight_separators=tuple(
            (name, each.weight_separator) for name, each in lists if each.weight_separator
        ),
        floats=tuple(dense),
        untransformed=tuple(column.name for column in columns if not column.is_transformed),
        renamed=tuple((name, column.name) for column, name, _ in features if name != column.name),
        time_units=tuple((name, each.form.unit) for name, each in times if each.form.unit),
        time_formats=tuple((name, each.form.format) for name, each in times if each.form.format),
        **keys,
    )


def infer_column(name: str, values: Any, num_rows: int, names: list[str]) -> InferredColumn:
    """Infer what a column is from its values: Spans, or a Parquet column.

    Args:
        name: of the column.
        values: of the sampled rows.
        num_rows: how many these are.
        names: of all columns.
    """
    # What ingest would refuse is left out, whatever it holds.
    fault = _unusable(name, values, names)
    if fault:
        return InferredColumn(name, "text", 0, 0, fault, False, is_readable=False)
    is_parquet = not isinstance(values, Spans)
    holds_lists = is_parquet and is_list(values.type)
    is_bool = is_parquet and pa.types.is_boolean(values.type)
    if is_parquet:
        values = plain(values)
    times = None if holds_lists else infer_times(name, values, names)
    if times is not None and times.is_certain:
        kind = times.features[0][1] if times.features else "text"
        is_used = bool(times.features)
        return InferredColumn(name, kind, 0, 0, times.note, is_used, is_readable=is_used, times=times)
    fitting = next(_fitting_kinds(values), None)
    if fitting is None:
        fault = "it holds neither text nor finite numbers"
        return InferredColumn(name, "text", 0, 0, fault, False, is_readable=False)

    # Text may be lists, for certain or perhaps.
    kind, found = fitting
    column = _described(name, kind, found, ListForm("") if holds_lists else None, is_bool=is_bool)
    hints = []
    if times is not None:
        other = replace(column, kind=times.features[0][1], lists=None, times=times)
        hints.append(f"if these are times, write: {other.line}")
    if isinstance(values, Spans) and kind == "text":
        lists, is_certain, remark = infer_list(texts_of(values))
        hints += [each for each in (remark, _odd_values(values)) if each]
        if lists is not None:
            kind, found = next(_fitting_kinds(ListSpans(values, lists)))
            other = _described(name, kind, found, lists)
            if is_certain or name.endswith("_seq"):  # the types in names of RecBole's files
                column = other
            else:
                kind, found = fitting
                hints.append(f"if these are lists, write: {other.line}")

    # What teaches a model nothing, or cannot teach it in this form, is left out.
    reason = _no_feature(kind, found, column, num_rows)
    if reason:
        return replace(column, note="; ".join([reason, *hints]), is_used=False)
    # The rest is proposed, with what has to be known to choose well.
    notes = [column.note]
    is_transformed = True
    if kind == "float":
        negative, is_transformed = _negative_share(found)
        if negative:
            becomes = ", which log1p turns into 0" if is_transformed else ""
            notes = [f"{column.note}, {negative} negative{becomes}"]
    return replace(column, note="; ".join([*notes, *hints]), is_transformed=is_transformed)


_FEW_ODD = 0.05
"""Share of values that are no numbers up to which a column of text was meant to be one of numbers."""


def _odd_values(values: Spans) -> str:
    """Return a remark on the few values that keep a column from being one of numbers."""
    states = read_column(values, "float").states
    num_odd, num_values = int(np.count_nonzero(states == BAD)), int(np.count_nonzero(states != MISSING))
    if not 0 < num_odd <= _FEW_ODD * num_values:
        return ""
    return f"{num_odd:,} of {num_values:,} values {'is no number' if num_odd == 1 else 'are no numbers'}"


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
    return InferredColumn(name, kind, num_distinct, num_missing, ", ".join(notes), True, lists)


def _no_feature(kind: str, found: Values, column: InferredColumn, num_rows: int) -> str | None:
    """Return why a column is no feature: it never changes, or its values never recur."""
    if num_rows < MIN_ROWS_TO_JUDGE:
        return None
    num_values = found.states.shape[0] - column.num_missing
    if num_values == 0:
        return "every value is missing"
    is_single = found.offsets is None or bool((np.diff(found.offsets) == 1).all())
    if column.num_distinct == 1 and not column.num_missing and is_single:
        return "every row has the same value"
    if kind == "float" or found.offsets is not None or column.num_distinct < num_values:
        return None
    # The rows of a sample from several places are numbered with gaps.
    steps = np.diff(found.values[found.states == GOOD].view(np.int64))
    if kind == "integer" and (steps > 0).all() and (steps == 1).mean() > 0.9:
        return "it numbers the rows"
    if num_values < _MIN_DIFFERENT:
        return None
    return "no value occurs twice" if column.num_missing else "every row has another value"


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
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        is_number = is_number or (pa.types.is_decimal(kind) and not is_list(found))
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
    if pa.types.is_decimal(values.type) and values.type.scale:
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
