"""Parse CSV blocks and Parquet batches, and describe faults of bad rows.

`column_values` reads the values. A value that does not match the schema makes a bad row, which `ingest`
refuses or counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import ConfigError, InputError
from ..schema.schema import (
    GROUP,
    LABEL,
    NUMBER,
    SAMPLE_TIME,
    TIME_KINDS,
    WEIGHT,
    Column,
    Form,
    Schema,
    find_columns,
)
from .column_values import (
    FLOATS,
    Values,
    elements_of_row,
    holds_text,
    is_list,
    is_temporal,
    is_text,
    other_kind,
    plain,
    read_column,
    shown_time,
)
from .part import Fault, Part, Rows, shown_bytes
from .raw_file import RawFile
from .text_fields import BAD, MISSING, ListForm, TextLists

NO_CONSTANTS: Mapping[str, str] = {}
_WANTED = {
    LABEL: "0 or 1",
    NUMBER: "a number that a float32 can hold",
    WEIGHT: "a number that is 0 or more and that a float32 can hold",
    "dense": "an integer from -2147483648 to 2147483647",
    "float": "a finite number",
    "float32": "a number that a float32 can hold",
    "integer": "an integer from -2**63 to 2**63 - 1",
    "unsigned": "an integer from 0 to 2**64 - 1",
    "text": "text",
    "hex8": "8 hex digits",
}
_TIME = "a time such as 2026-01-31 23:59:59"
MISSING_WORDS = tuple(rb"null (null) <null> nan -nan none nil na n/a #n/a <na> nat \n - ? .".split())
"""Words of other programs for a missing value, in small letters."""
_REASONS = {
    SAMPLE_TIME: "bad_time",
    LABEL: "bad_label",
    NUMBER: "bad_label",
    WEIGHT: "bad_weight",
    "dense": "bad_integer",
    "float": "bad_float",
    "float32": "bad_float",
}
"""Reason for a bad value of each kind; any other kind's is bad_category."""


def _wanted_of(column: Column) -> str:
    """Return the form that a value should have, for messages."""
    if column.kind in (*TIME_KINDS, SAMPLE_TIME):
        unit, format = column.form.unit, column.form.format
        wanted = f"a number ({unit} since 1970)" if unit else f"a time as {format}" if format else _TIME
        wanted += ", 1970 or later" if column.kind == SAMPLE_TIME else ""
    else:
        wanted = "a number" if column.form.above is not None else _WANTED[column.kind]
    return f"{wanted}, or nothing" if column.may_lack else wanted


@lru_cache(maxsize=8)
def columns_of(schema: Schema, has_label: bool) -> tuple[Column, ...]:
    """Return what is read from a log, in the order of a row: columns of samples, then features."""
    kinds = schema.kind_of | dict.fromkeys(schema.dense, "dense")
    kinds |= {name: "float32" if name in schema.untransformed else "float" for name in schema.floats}
    formats = dict(schema.time_formats)
    units = dict(schema.time_units)
    columns = schema.column_of
    any_form = Form(zone=schema.zone, missing=schema.missing)
    weights = dict(schema.weight_separators)
    lists = {
        name: ListForm(separator, name in schema.brackets, weights.get(name, ""), schema.trim)
        for name, separator in schema.lists
    }
    return (
        *schema.sample_columns(has_label=has_label),
        *(
            Column(
                name,
                columns[name],
                kinds[name],
                replace(any_form, unit=units.get(name), format=formats.get(name)),
                lists.get(name),
            )
            for name in (*schema.dense, *schema.sparse)
        ),
    )


def find_fields(wanted: Iterable[str], fields: Sequence[str], file: RawFile) -> list[int]:
    """Return the position of each wanted column in ``file``; raises InputError where it lacks one."""
    try:
        return find_columns(wanted, fields, str(file.path))
    except ConfigError as error:
        raise InputError(str(error), hint=error.hint) from None


def constants_of(file: RawFile, wanted: Iterable[str], fields: Sequence[str]) -> dict[str, str]:
    """Return the wanted columns that a file lacks and its folders give, and their values."""
    lacking = set(wanted).difference(fields)
    return {name: value for name, value in file.partitions.items() if name in lacking}


def repeated(texts: Mapping[str, str], num_rows: int) -> dict[str, Any]:
    """Return columns that have the same text in each row."""
    scalars = {name: pa.scalar(text.encode(), pa.large_binary()) for name, text in texts.items()}
    return {name: pa.repeat(scalar, num_rows) for name, scalar in scalars.items()}


def _is_joinable(values: Any) -> bool:
    if not isinstance(values, pa.DictionaryArray):
        return True
    return values.type.index_type.bit_width >= 32 and not values.dictionary.null_count


def rows_of_batch(
    batch: Any,
    constants: Mapping[str, str] = NO_CONSTANTS,
    is_damaged: NDArray[np.bool_] | None = None,
) -> Rows:
    """Return the rows of a record batch whose columns have types without a `misfit`.

    Args:
        constants: columns that it lacks, and the text that stands for each row.
        is_damaged: (num_rows,); rows that are bad whatever their values are.
    """
    # Not all numbered values can be joined with those of other batches as they are.
    cells = {
        name: values if _is_joinable(values) else plain(values)
        for name, values in zip(batch.schema.names, batch.columns, strict=True)
    } | repeated(constants, batch.num_rows)
    is_damaged = np.zeros(batch.num_rows, np.bool_) if is_damaged is None else is_damaged
    return Rows(cells, is_damaged, batch.get_total_buffer_size())


def check_types(file: RawFile, schema: Schema, fields: Any, *, has_label: bool) -> None:
    """Raise InputError where a column of an Arrow schema does not match that of the log."""
    fault = misfit(schema, fields, has_label=has_label)
    if fault:
        raise InputError(f"{file.path}: {fault}", hint="fix the schema, or cast the column")


@lru_cache(maxsize=8)
def misfit(schema: Schema, fields: Any, *, has_label: bool) -> str | None:
    """Return why the type of an Arrow column does not match the schema, or None where all do."""
    kinds = {field.name: field.type for field in fields}
    faults = (
        _misfit(column, kinds[column.column], is_sparse=column.name in schema.sparse)
        for column in columns_of(schema, has_label)
        if column.column in kinds
    )
    return next((fault for fault in faults if fault), None)


def _misfit(column: Column, kind: Any, *, is_sparse: bool) -> str | None:
    found = f"column {column.column!r} is {kind}"
    wanted = _wanted_of(column)

    # Of lists and dictionaries the type of the values decides; text may hold lists if it says how.
    lists = column.list_form
    if lists is not None and not (lists.separator and is_text(kind)):
        wanted = f"a list of {wanted}"
        if not is_list(kind):
            return None if pa.types.is_null(kind) else f"{found}, want {wanted}"
        kind = kind.value_type
    elif is_list(kind) and is_sparse:
        return f"{found}: rows that hold lists need list = true in the schema"
    if pa.types.is_dictionary(kind):
        kind = kind.value_type

    is_integer = pa.types.is_integer(kind) or pa.types.is_null(kind)
    is_number = is_integer or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if column.kind in (*TIME_KINDS, SAMPLE_TIME):
        fits = is_text(kind) or is_temporal(kind) or pa.types.is_null(kind)
        fits = fits or (is_number and column.form.unit is not None)
        fits = fits or (is_integer and column.form.format is not None)
        return None if fits else f"{found}, want times as text or timestamps, or numbers with a unit"
    is_number = is_number or pa.types.is_boolean(kind)  # as 1 and 0
    fits = is_text(kind) or (is_number and column.kind not in ("text", "hex8")) or pa.types.is_null(kind)
    return None if fits else f"{found}, want {wanted}"


def parse_rows(rows: Rows, schema: Schema, *, has_label: bool) -> Part:
    """Read every column; a row that one of them finds bad is left out of all."""
    found = {name: plain(each) for name, each in rows.cells.items()}
    is_ragged = rows.is_bad
    columns: list[tuple[Column, Any]] = []
    for column in columns_of(schema, has_label):
        cells = found[column.column]
        if column.list_form is not None:
            if holds_text(cells):
                cells = TextLists(cells, column.list_form)
            elif not is_list(cells.type):  # no row of the file has a list
                cells = pa.nulls(len(cells), pa.list_(pa.null()))
        columns.append((column, cells))
    # What several read of a column in the same way, such as a group and a feature, is read once.
    ways = [(column.column, column.kind, column.form, column.list_form) for column, _ in columns]
    cells_of = {way: cells for way, (_, cells) in zip(ways, columns, strict=True)}
    values_of = {way: read_column(cells, way[1], way[2]) for way, cells in cells_of.items()}
    read = [values_of[way] for way in ways]

    # Blame each bad row on its first bad column from the left, or on its number of fields (-1).
    bad: Counter[str] = Counter()
    is_bad = is_ragged.copy()
    bad["field_count"] = int(np.count_nonzero(is_ragged))
    blame = np.full(is_ragged.shape[0], -1, np.int64)
    for number, ((column, _), values) in enumerate(zip(columns, read, strict=True)):
        refused = {BAD: _REASONS.get(column.kind, "bad_category")}
        if not column.may_lack:
            refused[MISSING] = refused[BAD].replace("bad", "missing")
        for state, reason in refused.items():
            is_new = values.is_row(state) & ~is_bad
            bad[reason] += int(np.count_nonzero(is_new))
            blame[is_new] = number
            is_bad |= is_new

    # Describe the first bad row.
    fault = None
    if is_bad.any():
        row = int(np.argmax(is_bad))
        where = int(blame[row])
        fault = Fault("field_count", row, rows.why_bad(row))
        if where >= 0:
            fault = _fault(row, *columns[where], read[where])

    keep = None if fault is None else ~is_bad
    pairs = [(column, values) for (column, _), values in zip(columns, read, strict=True)]
    arrays = {column.name: _array(column, values, keep) for column, values in pairs}
    # Texts of features alone are kept to be shown.
    shown = [(column.name, values.texts) for column, values in pairs if column.name != GROUP]
    texts = {name: found for name, found in shown if found is not None}
    times = next((values for column, values in pairs if column.kind == SAMPLE_TIME), None)
    disorder = None if times is None else _disorder(times.values.view(np.int64), ~is_bad)
    if rows.lines is not None:
        fault, disorder = (
            replace(each, line_in_block=int(rows.lines[each.line_in_block])) if each else None
            for each in (fault, disorder)
        )
    # What follows a wrong quote could be in quotes or not, so that no line can be skipped.
    fault, disorder = fault or rows.wrong, rows.wrong or disorder
    return Part(arrays, int(np.count_nonzero(~is_bad)), +bad, fault, disorder=disorder, texts=texts)


def _disorder(seconds: NDArray[np.int64], is_good: NDArray[np.bool_]) -> Fault | None:
    """Describe the first good row whose time is before that of the good row above it."""
    rows = np.flatnonzero(is_good)
    is_before = np.diff(seconds[rows]) < 0
    if not is_before.any():
        return None
    first = int(np.argmax(is_before))
    earlier, later = (shown_time(int(seconds[rows[row]])) for row in (first + 1, first))
    return Fault("unordered_time", int(rows[first + 1]), f": its time, {earlier}, is before {later} above it")


def _array(column: Column, values: Values, keep: NDArray[np.bool_] | None) -> Any:
    types: dict[str, Any] = dict.fromkeys(FLOATS, np.float64)
    types |= {
        WEIGHT: np.float32,
        NUMBER: np.float32,
        LABEL: np.uint8,
        SAMPLE_TIME: np.int64,
        "dense": np.int32,
    }
    values = values if keep is None else values.rows(keep)
    is_missing = values.states == MISSING
    # Categories of any kind have one type.
    typed = values.values.astype(types.get(column.kind, np.uint64), copy=False)
    array = pa.array(typed, mask=is_missing) if is_missing.any() else pa.array(typed)
    if values.offsets is None:
        return array
    if values.offsets[-1] >= 2**31:
        raise InputError(
            f"column {column.column!r} has {values.offsets[-1]} elements in a part, which may have 2**31 - 1",
            hint="lower --block-bytes",
        )
    return pa.ListArray.from_arrays(pa.array(values.offsets.astype(np.int32)), array)


def _fault(row: int, column: Column, cells: Any, values: Values) -> Fault:
    """Describe the bad value of a row; of a list, its first bad element."""
    where = f", column {column.column!r}"
    position = row
    if values.offsets is not None:
        position = values.first_bad(row) - int(values.offsets[row])
        where += f", element {position + 1}"
        cells = elements_of_row(cells, row)

    # The value as the log has it: text cut short, or the number.
    found = cells[position].as_py()
    is_missing = found in (None, b"")
    shown = shown_bytes(found) if isinstance(found, bytes) else str(found)
    reason = _REASONS.get(column.kind, "bad_category")
    remedy = None
    if is_missing:
        reason = reason.replace("bad", "missing")  # where a row may lack a value, a missing one is good
        shown = "nothing"
    else:
        remedy = _remedy(column, cells[position : position + 1])
    return Fault(reason, row, f"{where}: found {shown}, want {_wanted_of(column)}", remedy=remedy)


def _remedy(column: Column, value: Any) -> str | None:
    """Return what would make a bad value, an array of one, good; as a hint's beginning, or None."""
    word = value[0].as_py()
    if isinstance(word, bytes):
        if column.may_lack and word.lower() in MISSING_WORDS:
            missing = json.dumps([*column.form.missing, word.decode()])
            return f"if {word.decode()} stands for a missing value, set missing = {missing} in the schema"
        if column.kind in (*TIME_KINDS, SAMPLE_TIME) and any(byte in b"0123456789" for byte in word):
            return (
                f"if it is a time, say in the schema how those of column {column.column!r} are written: "
                'format = "%d/%b/%Y:%H:%M:%S %z", or unit = "s" for numbers'
            )
    if column.kind == LABEL and column.form.above is None and not column.form.positive:
        forms = f'{{ column = "{column.column}", positive = ["yes"] }}, or above = 3 in place of positive'
        key = "among labels, " if column.may_lack else "label = "
        return f"if all labels are of this form, say in the schema which ones are 1: {key}{forms}"
    if column.kind in (LABEL, NUMBER) or not column.may_lack:
        return None
    other = other_kind(value, column.kind, is_element=column.list_form is not None)
    if other is None or (other == "float" and column.name == GROUP):
        return None
    if (column.kind, other) == ("float32", "float"):
        return f'if the value is right, take transform = "none" of column {column.column!r} from the schema'
    remedy = f'if the value is right, give column {column.column!r} the kind "{other}" in the schema'
    # Floats are dense and texts sparse, so the column may have to move; a plain list has no kinds.
    is_dense = column.kind in ("dense", *FLOATS)
    if other == "float":
        place = "in a section [dense]" if is_dense else "not under [sparse] but in a section [dense]"
        return f'{remedy}, {place}, which replaces any line "dense = ..."'
    return f"{remedy}, under [sparse] instead of dense" if other == "text" and is_dense else remedy
