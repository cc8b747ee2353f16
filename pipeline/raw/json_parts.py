"""Lines of JSON, each an object with the columns of a row, as record batches.

Arrow parses a block with the types that the first lines have. Where it fails, because a line is damaged or a
column has values of several types, the block is read again, slowly, and values of that block count as text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import KIB, MIB
from ..schema.schema import LABEL, NUMBER, WEIGHT, Schema
from .column_values import FLOATS, is_list
from .part import MAX_LINE_BYTES, Block, Rows, iterate_blocks
from .raw_file import BOM, RawFile
from .tabular import check_types, columns_of, constants_of, find_fields, rows_of_batch
from .text_parts import TextParts

_ROWS_OF_LOOK = 10_000
_TEXT = pa.string()
_NULL = pa.null()
_BRACKETS = "[{("
"""Begin a list that is text."""
_UNREADABLE = (pa.ArrowException, UnicodeDecodeError)


def types_of(found: Any, schema: Schema, names: Sequence[str], *, has_label: bool) -> Any:
    """Return the types to parse columns with: as the first rows have them, but exact, and never a time.

    Args:
        found: Arrow schema of the first rows.
        names: the columns, all in ``found``.
    """
    kinds: dict[str, set[str]] = {}
    types = {name: found.field(name).type for name in names}
    marks: dict[str, dict[str, str]] = {}
    for column in columns_of(schema, has_label):
        kinds.setdefault(column.column, set()).add("unit" if column.form.unit else column.kind)
        # A list that the first rows lack must not be read as the text of one further down.
        if column.list_form is not None and types.get(column.column) == _NULL:
            types[column.column] = pa.list_(_NULL)
        if column.list_form is not None and column.list_form.separator:
            brackets = _BRACKETS if column.list_form.has_brackets else ""
            marks[column.column] = {"separator": column.list_form.separator, "brackets": brackets}
    return pa.schema(
        [
            pa.field(name, _type_for(kind, kinds[name]), metadata=marks.get(name))
            for name, kind in types.items()
        ]
    )


def first_rows(file: RawFile, num_rows: int = _ROWS_OF_LOOK, lists: Collection[str] = ()) -> tuple[Any, int]:
    """Return the first rows of a file, at most a MiB of them, as a record batch of all its columns.

    Next to it is the number of lines among them that are no objects, which the batch leaves out.

    Args:
        lists: columns that one array makes lists; others are where arrays are half of their values.

    Raises:
        InputError: the file cannot be read.
    """
    block = next((block.read() for block in iterate_blocks(file, MIB)), None)
    if block is None:
        return pa.record_batch({}), 0
    lines = block.lines.tobytes().split(b"\n")[:num_rows]
    text = np.frombuffer(b"\n".join(lines) + b"\n", np.uint8)
    try:
        return _with_large_numbers(_read(text, None), text), 0
    except _UNREADABLE:
        rows = [row for row in map(_row_of, lines) if row]
        values = [(name, value) for row in rows for name, value in row.items()]
        arrays = Counter(name for name, value in values if isinstance(value, list))
        others = Counter(name for name, value in values if value is not None) - arrays
        types = {name: _as_text(False) if others[name] else _NULL for name, _ in values}
        for name, count in arrays.items():
            # A stray array among numbers or texts is a bad value.
            if name in lists or count >= others[name]:
                types[name] = _as_text(True)
        batch, is_damaged = read_lines(text, pa.schema(list(types.items())))
        return batch.filter(pa.array(~is_damaged)), int(np.count_nonzero(is_damaged))


def _as_text(in_list: bool) -> Any:
    """Return the type of texts, or of lists of them."""
    return pa.list_(_TEXT) if in_list else _TEXT


def _with_large_numbers(batch: Any, text: NDArray[np.uint8]) -> Any:
    """Return the batch with integers above 2**63 as such: Arrow takes them for floats."""
    for number, field in enumerate(batch.schema):
        values = field.type.value_type if is_list(field.type) else field.type
        if pa.types.is_floating(values):
            kind = pa.list_(pa.uint64()) if is_list(field.type) else pa.uint64()
            with suppress(*_UNREADABLE):
                exact = _read(text, pa.schema([(field.name, kind)])).column(0)
                batch = batch.set_column(number, field.name, exact)
    return batch


def read_lines(text: NDArray[np.uint8], fields: Any) -> tuple[Any, NDArray[np.bool_]]:
    """Return the columns ``fields`` of lines as a record batch, and which rows are no objects.

    A column is of another type than its field, text or lists of text, where its values have several.
    """
    try:
        batch = _read(text, fields)
        return batch, np.zeros(batch.num_rows, np.bool_)
    except _UNREADABLE:
        schema = pa.schema(
            [(each.name, _NULL if each.type == _NULL else _as_text(is_list(each.type))) for each in fields]
        )
        batches = []
        is_damaged: list[bool] = []
        # A few lines at a time: as objects of Python they take ten times their bytes.
        for lines in _pieces_of(text):
            rows = [_row_of(line) for line in lines]
            for each in (each for each in fields if each.metadata):
                rows = [_DAMAGED if _is_other_form(row.get(each.name), each) else row for row in rows]
            is_damaged += [row is _DAMAGED for row in rows]
            arrays = [
                pa.array([_plain(row.get(each.name), is_list(each.type)) for row in rows], each.type)
                for each in schema
            ]
            batches.append(pa.record_batch(arrays, schema=schema))
        return pa.concat_batches(batches), np.array(is_damaged, np.bool_)


def _pieces_of(text: NDArray[np.uint8]) -> Iterator[list[bytes]]:
    """Yield the lines that are not empty, some at a time."""
    first = 0
    while first < text.shape[0]:
        piece = text[first : first + MAX_LINE_BYTES + 1].tobytes()
        piece = piece[: piece.rfind(b"\n") + 1] or piece
        first += len(piece)
        yield [line for line in piece.split(b"\n") if line.strip()]


def _read(text: NDArray[np.uint8], fields: Any) -> Any:
    import pyarrow.json as pj

    text = text[len(BOM) :] if bytes(text[: len(BOM)]) == BOM else text
    if not any(text[first : first + KIB].tobytes().strip() for first in range(0, text.shape[0], KIB)):
        return pa.record_batch(
            [pa.nulls(0, each.type) for each in fields or ()], schema=fields or pa.schema([])
        )
    options = pj.ParseOptions(
        explicit_schema=fields, unexpected_field_behavior="infer" if fields is None else "ignore"
    )
    reading = pj.ReadOptions(use_threads=False, block_size=text.shape[0] + 1)
    table = pj.read_json(pa.BufferReader(pa.py_buffer(text)), reading, options).combine_chunks()
    return table.to_batches()[0]


_DAMAGED: dict[str, Any] = {}
"""Stands for a line that is no object."""


_CONSTANTS = {"NaN": None, "Infinity": "Infinity", "-Infinity": "-Infinity"}
"""What is no number is missing, as it is for Arrow."""


def _row_of(line: bytes) -> dict[str, Any]:
    """Return the object of a line, numbers as they are written."""
    number: Callable[[str], str] = str
    ways: dict[str, Any] = {"parse_int": number, "parse_float": number, "parse_constant": _CONSTANTS.get}
    try:
        row = json.loads(line.removeprefix(BOM), **ways)
        json.dumps(row, ensure_ascii=False).encode()  # half a pair of \\u escapes is no text
    except (ValueError, RecursionError):
        return _DAMAGED
    return row if isinstance(row, dict) else _DAMAGED


def _is_other_form(value: Any, field: Any) -> bool:
    """Return whether a list is an array where the column has text of lists, or the other way round."""
    separator, brackets = (field.metadata[name].decode() for name in (b"separator", b"brackets"))
    if not is_list(field.type):
        return isinstance(value, list) and not brackets
    return isinstance(value, str) and (separator in value or value.lstrip().startswith(tuple(brackets)))


def _plain(value: Any, in_list: bool) -> Any:
    """Return a value as text, or as a list of texts."""
    if value is None:
        return None
    if in_list:
        return [_plain(each, False) for each in (value if isinstance(value, list) else [value])]
    if isinstance(value, bool):
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value)


_TYPES = {
    "integer": pa.int64(),
    "unsigned": pa.uint64(),
    "float": pa.float64(),
    "float32": pa.float64(),
    LABEL: pa.int64(),
    WEIGHT: pa.float64(),
    NUMBER: pa.float64(),
    "dense": pa.int64(),
    "unit": pa.int64(),
}
"""Types of values of each kind that are numbers."""


def _type_for(found: Any, kinds: set[str]) -> Any:
    if is_list(found):
        return pa.list_(_type_for(found.value_type, kinds))
    if pa.types.is_null(found):
        return _TYPES.get(min(kinds), _TEXT)
    is_number = pa.types.is_integer(found) or pa.types.is_floating(found)
    if kinds & {"text", "hex8"} and (is_number or pa.types.is_boolean(found)):
        return _TEXT  # what the first rows have, others may not have
    # Arrow takes integers above 2**63, and all next to a decimal, for floats, which would not be exact.
    if is_number:
        exact = kinds & {"integer", "unsigned"} or (kinds if kinds <= set(FLOATS) else ())
        return _TYPES[max(exact)] if exact else found
    return _TEXT if pa.types.is_temporal(found) else found


def refuse_lacking(files: Sequence[tuple[RawFile, Sequence[str]]]) -> None:
    """Raise InputError where all files lack the same column: one alone may, as values may be left out.

    Args:
        files: those of a log that are JSON Lines, each with the columns that it lacks.
    """
    everywhere = [name for name in files[0][1] if all(name in lacking for _, lacking in files)]
    if everywhere:
        find_fields(everywhere, first_rows(files[0][0])[0].schema.names, files[0][0])


def _with_all(found: Any, names: Iterable[str]) -> Any:
    """Return an Arrow schema with all of these columns: of those that no row has, all values are missing."""
    return pa.schema([*found, *(pa.field(name, _NULL) for name in names if name not in found.names)])


def batches_of(file: RawFile, names: Sequence[str]) -> Iterator[Any]:
    """Yield record batches of some columns, of the types that the first rows have."""
    found = _with_all(first_rows(file)[0].schema, names)
    fields = pa.schema([(name, _type_for(found.field(name).type, {"kept"})) for name in names])
    for unread in iterate_blocks(file, MIB):
        block = unread.read()
        if block.num_bytes:
            batch = read_lines(block.lines, fields)[0]
            yield batch if batch.schema == fields else batch.cast(fields)


@dataclass
class JsonParts(TextParts):
    """Blocks of JSON Lines."""

    unit = "row"
    min_line_bytes = 2

    def __post_init__(self) -> None:
        wanted = self.schema.columns(has_label=self.has_label)
        columns = columns_of(self.schema, self.has_label)
        lists = {each.column for each in columns if each.list_form is not None}
        found = first_rows(self.file, lists=lists)[0].schema
        self._constants = constants_of(self.file, wanted, found.names)
        names = [name for name in wanted if name not in self._constants]
        if found.names:  # else it is damaged, or has no row
            self.lacking = tuple(name for name in names if name not in found.names)
        self._fields = types_of(_with_all(found, names), self.schema, names, has_label=self.has_label)
        check_types(self.file, self.schema, self._fields, has_label=self.has_label)

    def rows_of(self, block: Block, context: int | None) -> Rows:
        """Return the lines of a block as Arrow reads them."""
        batch, is_damaged = read_lines(block.lines, self._fields)
        rows = rows_of_batch(batch, self._constants, is_damaged)
        also = (
            ", with no column of both arrays and text of lists"
            if any(f.metadata for f in self._fields)
            else ""
        )
        return replace(rows, why_bad=lambda row: f": want one JSON object on the line{also}")
