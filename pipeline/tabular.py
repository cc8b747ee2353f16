"""CSV blocks and Parquet batches to Arrow columns, as a schema says; in words what is wrong with a row.

Every value is read by the kernels of `text_fields` or from typed Arrow arrays, never by guessing: what
is not as the schema says is a bad row, which `ingest` refuses or counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..stats.text_fields import BAD, GOOD, MISSING, parse_hex8, parse_integers, split_fields
from .criteo_columns import Fault
from .criteo_parser import count_newlines
from .errors import ConfigError, InputError
from .hash_text import hash_text
from .raw import Block, RawFile
from .schema import Schema
from .schema_names import find_columns

_SHOWN_BYTES = 40
_BOM = b"\xef\xbb\xbf"
_LIMITS = {
    "label": (0, 1),
    "dense": (2**31, 2**31 - 1),
    "integer": (2**63, 2**63 - 1),
    "unsigned": (0, 2**64 - 1),
}
"""How far values of a kind go below and above 0."""
_WANTED = {
    "label": "0 or 1",
    "dense": "an integer from -2147483648 to 2147483647, or nothing",
    "integer": "an integer from -2**63 to 2**63 - 1, or nothing",
    "unsigned": "an integer from 0 to 2**64 - 1, or nothing",
    "text": "text, or nothing",
    "hex8": "8 hex digits, or nothing",
}
_REASONS = {"label": "bad_label", "dense": "bad_integer"}
"""Any other kind is a bad_category."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Text of one column: ``text[starts[i]:stops[i]]``."""

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """The good samples of one part of a raw file, and what is wrong with the others."""

    columns: dict[str, Any]
    num_samples: int
    bad: Counter[str]
    """Bad lines by reason; may be empty where ``fault`` stands for them."""
    fault: Fault | None
    """The first bad line."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Of the raw bytes: raw_bytes and, of text, raw_xxh3_128."""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    """What it is called in columns/."""
    column: str
    """What the log calls it."""
    kind: str
    """label, dense, or one of KINDS."""


def _columns_of(schema: Schema, has_label: bool) -> list[_Column]:
    label = ["label"] if has_label else []
    kinds = schema.kind_of | dict.fromkeys(schema.dense, "dense") | dict.fromkeys(label, "label")
    names = [*label, *schema.dense, *schema.sparse]
    columns = schema.columns(has_label=has_label)
    return [_Column(name, column, kinds[name]) for name, column in zip(names, columns, strict=True)]


def find_fields(wanted: Iterable[str], fields: Sequence[str], file: RawFile) -> list[int]:
    """The place of each wanted column in ``file``; raises InputError where it lacks one."""
    try:
        return find_columns(wanted, fields, str(file.path))
    except ConfigError as error:
        raise InputError(str(error), hint=error.hint) from None


def fields_of_header(line: Block, separator: str) -> list[str]:
    """The column names that the first line of a CSV file gives."""
    first = _after_bom(line)
    places = np.arange(int(np.count_nonzero(line.lines == ord(separator))) + 1, dtype=np.int64)
    starts = np.zeros((places.shape[0], 1), np.int64)
    stops, found = np.zeros_like(starts), np.zeros(1, np.int64)
    split_fields(line.text, first, line.num_bytes, ord(separator), places, starts, stops, found)
    spans = zip(starts[: found[0], 0], stops[: found[0], 0], strict=True)
    return [bytes(line.text[start:stop]).decode("utf-8", "replace") for start, stop in spans]


def parse_csv(
    block: Block, schema: Schema, places: NDArray[np.int64], *, has_label: bool, is_first: bool
) -> Part:
    """Parse the lines of ``block``, which is changed where a field holds a doubled quote.

    Args:
        places: per field of a line its place among the columns that are read, -1 where it is not.
        is_first: the block begins its file: perhaps with a byte order mark, perhaps with a header line.
    """
    first = _after_bom(block) if is_first else 0
    if is_first and not schema.fields:
        first = int(np.flatnonzero(block.lines == ord("\n"))[0]) + 1
    columns = _columns_of(schema, has_label)
    num_lines = count_newlines(block.text[first : block.num_bytes])
    starts = np.zeros((len(columns), num_lines), np.int64)
    stops, num_fields = np.zeros_like(starts), np.zeros(num_lines, np.int64)
    split_fields(block.text, first, block.num_bytes, ord(schema.separator), places, starts, stops, num_fields)
    spans = [Spans(block.text, start, stop) for start, stop in zip(starts, stops, strict=True)]
    is_ragged = num_fields != places.shape[0]
    rows = _rows(list(zip(columns, spans, strict=True)), is_ragged)
    if rows.fault is None or not is_ragged[rows.fault.line_in_block]:
        return rows
    line = rows.fault.line_in_block
    return replace(rows, fault=_ragged(line, num_fields[line], places.shape[0], schema))


def _ragged(line: int, found: int, wanted: int, schema: Schema) -> Fault:
    if found < 0:
        return Fault("field_count", line, ": a quoted field is not closed before the next field or line")
    fields = "1 field" if found == 1 else f"{found} fields"
    between = "tabs" if schema.separator == "\t" else repr(schema.separator)
    return Fault("field_count", line, f": found {fields}, want {wanted} between {between}")


def _after_bom(block: Block) -> int:
    return len(_BOM) if bytes(block.lines[: len(_BOM)]) == _BOM else 0


def parse_batch(batch: Any, schema: Schema, *, has_label: bool) -> Part:
    """Parse one record batch of a Parquet file that has the schema's columns in types `fits` accepts."""
    columns = _columns_of(schema, has_label)
    arrays = [plain(batch.column(column.column)) for column in columns]
    return _rows(list(zip(columns, arrays, strict=True)), np.zeros(batch.num_rows, np.bool_))


def misfit(schema: Schema, name: str, kind: Any, *, has_label: bool) -> str | None:
    """Why a Parquet column of Arrow type ``kind`` cannot be what the schema says; None where it can."""
    (column,) = [column for column in _columns_of(schema, has_label) if column.column == name]
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_nested(kind):
        return f"column {name!r} is {kind}: list-valued columns are not supported yet"
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)
    fits = is_text(kind) or (is_number and column.kind not in ("text", "hex8")) or pa.types.is_null(kind)
    if column.kind == "label":
        fits = fits or pa.types.is_boolean(kind)
    return None if fits else f"column {name!r} is {kind}, want {_WANTED[column.kind]}"


def is_text(kind: Any) -> bool:
    """Whether `plain` gives Spans of a Parquet column of this Arrow type."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(kind) for test in (*tests, pa.types.is_binary, pa.types.is_large_binary))


def plain(array: Any) -> Any:
    """A Parquet column as Spans, or as a typed array without a dictionary."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return array.cast(pa.int64())
    if not is_text(array.type):
        return array
    if not pa.types.is_large_binary(array.type):
        array = array.cast(pa.large_string() if pa.types.is_string_view(array.type) else pa.large_binary())
    _, offsets, text = array.buffers()
    spans = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    stops = np.where(array.is_valid().to_numpy(zero_copy_only=False), spans[1:], spans[:-1])
    bytes_of_text = np.frombuffer(text, np.uint8) if text is not None else np.zeros(0, np.uint8)
    return Spans(bytes_of_text, spans[:-1].copy(), stops)


def _rows(columns: list[tuple[_Column, Any]], is_ragged: NDArray[np.bool_]) -> Part:
    """Read every column; a row that one of them finds bad is left out of all."""
    read = [read_values(values, column.kind) for column, values in columns]
    bad: Counter[str] = Counter()
    is_bad = is_ragged.copy()
    bad["field_count"] = int(np.count_nonzero(is_ragged))
    blame = np.full(is_ragged.shape[0], -1, np.int64)
    for number, ((column, _), (_, states)) in enumerate(zip(columns, read, strict=True)):
        refused = {BAD: _REASONS.get(column.kind, "bad_category")}
        if column.kind == "label":
            refused[MISSING] = "missing_label"
        for state, reason in refused.items():
            is_new = (states == state) & ~is_bad
            bad[reason] += int(np.count_nonzero(is_new))
            blame[is_new] = number
            is_bad |= is_new
    fault = None
    if is_bad.any():
        row = int(np.argmax(is_bad))
        fault = Fault("field_count", row, "") if blame[row] < 0 else _fault(row, *columns[blame[row]])
    keep = None if fault is None else ~is_bad
    arrays = {}
    for (column, _), (values, states) in zip(columns, read, strict=True):
        arrays[column.name] = _array(column.kind, values, states, keep)
    return Part(arrays, int(np.count_nonzero(~is_bad)), +bad, fault)


def read_values(values: Any, kind: str) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """The values of one column, negative ones as two's complement, and the state of each."""
    if not isinstance(values, Spans):
        return _read_numbers(values, kind)
    found = np.zeros(values.starts.shape[0], np.uint64)
    states = np.zeros(values.starts.shape[0], np.uint8)
    spans = (values.text, values.starts, values.stops)
    if kind == "text":
        found = hash_text(*spans)
        states[values.starts == values.stops] = MISSING
        found[states == MISSING] = 0
    elif kind == "hex8":
        parse_hex8(*spans, found, states)
    else:
        below, above = _LIMITS[kind]
        parse_integers(*spans, np.uint64(below), np.uint64(above), found, states)
    return found, states


def _read_numbers(array: Any, kind: str) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    below, above = _LIMITS.get(kind, (0, 0))  # text and hex8 come here from columns of nothing but nulls
    is_valid = array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    if numbers.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            fits = (numbers == np.floor(numbers)) & (np.abs(numbers) <= 2.0**53)
        numbers = np.where(fits, numbers, 0).astype(np.int64)
    else:
        fits = np.ones(numbers.shape[0], np.bool_)
    if numbers.dtype.kind == "u":
        fits &= numbers <= np.uint64(above)
    else:
        fits &= (numbers >= -below) & (numbers <= min(above, 2**63 - 1))
    states = np.where(is_valid, np.where(fits, GOOD, BAD), MISSING).astype(np.uint8)
    wide = numbers.astype(np.int64).view(np.uint64) if numbers.dtype.kind == "i" else numbers
    return np.where(states == GOOD, wide, 0).astype(np.uint64), states


def _array(
    kind: str, values: NDArray[np.uint64], states: NDArray[np.uint8], keep: NDArray[np.bool_] | None
) -> Any:
    types = {"label": np.uint8, "dense": np.int32}  # all categories of a log have one type
    if keep is not None:
        values, states = values[keep], states[keep]
    is_missing = states == MISSING
    typed = values.astype(types.get(kind, np.uint64))
    return pa.array(typed, mask=is_missing) if is_missing.any() else pa.array(typed)


def _fault(row: int, column: _Column, values: Any) -> Fault:
    if isinstance(values, Spans):
        found = bytes(values.text[values.starts[row] : values.stops[row]])
        shown = repr(found[:_SHOWN_BYTES])[1:]
        shown += f"... ({len(found)} bytes)" if len(found) > _SHOWN_BYTES else ""
        is_missing = not found
    else:
        is_missing, shown = not values[row].is_valid, str(values[row].as_py())
    reason = _REASONS.get(column.kind, "bad_category")
    if is_missing:
        reason, shown = "missing_label", "nothing"
    return Fault(reason, row, f", column {column.column!r}: found {shown}, want {_WANTED[column.kind]}")
