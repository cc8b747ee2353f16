"""Columns of a raw log as they are, for a file of scores: rows are those that are predicted, in their order.

The log is read a second time, so that what is not kept costs nothing. Text keeps its bytes, which must be
UTF-8; columns of Parquet keep their types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import ConfigError, InputError
from ..schema.schema import Schema, refuse_twice
from .csv_parts import TextRecords
from .log_parts import COLUMNAR, as_read
from .part import Block
from .raw_file import RawFile
from .tabular import find_fields


def kept_columns(
    file: RawFile, schema: Schema, names: Sequence[str], *, block_bytes: int, has_label: bool
) -> Iterator[Any]:
    """Return record batches of some columns of a log; names are checked at once.

    Args:
        names: as the log or, for text without names, the schema has them.
        has_label: whether the lines of text without names have labels.

    Raises:
        InputError: the log has no such column, or its text is not UTF-8.
        ConfigError: a name occurs twice.
    """
    refuse_twice(names, "--keep")
    form, schema = as_read(file, schema)
    if form == "json":
        from .json_parts import batches_of

        return batches_of(file, names)
    if form in COLUMNAR:
        from .arrow_parts import open_rows

        with open_rows(file, form) as rows:
            find_fields(names, rows.fields.names, file)
        return _batches(file, form, names)
    records = TextRecords(file, schema, block_bytes)
    has_names = schema.format == "csv" and not schema.fields
    fields = records.header.fields if has_names else schema.fields or schema.columns(has_label=True)
    if not has_label and not has_names:
        fields = tuple(name for name in fields if name not in schema.label_columns)
    columns = np.full(len(fields), -1, np.int64)
    columns[find_fields(names, fields, file)] = np.arange(len(names))
    return _texts(records, names, columns)


def _batches(file: RawFile, form: str, names: Sequence[str]) -> Iterator[Any]:
    from .arrow_parts import open_rows

    with open_rows(file, form) as rows:
        yield from rows.batches(names)


def _texts(records: TextRecords, names: Sequence[str], columns: NDArray[np.int64]) -> Iterator[Any]:
    for unread, head in records.blocks():
        block = unread.read()
        found = records.split(block, head, columns)
        ends = zip(names, found.starts, found.stops, strict=True)
        yield pa.record_batch(
            [_text_of(records.file, name, block, *each) for name, *each in ends], names=list(names)
        )


def _text_of(
    file: RawFile, name: str, block: Block, starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> Any:
    """Copy the fields of one column, one after another."""
    lengths = stops - starts
    offsets = np.zeros(lengths.shape[0] + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = block.text[np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    try:
        return pa.Array.from_buffers(pa.binary(), lengths.shape[0], buffers).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise InputError(f"{file.path}: column {name!r} is not UTF-8, so --keep cannot copy it") from error


def beside(probabilities: Iterable[Any], kept: Iterator[Any], logs: Sequence[RawFile]) -> Iterator[Any]:
    """Yield batches of probabilities with the columns of the same rows.

    Raises:
        InputError: the log is another one now.
    """
    rest: Any = None
    first: Any = None
    for found in probabilities:
        parts = []
        missing = len(found)
        while missing:
            rest = rest if rest is not None and len(rest) else next(kept, None)
            if rest is None:
                raise _changed(logs[0])
            first = rest.schema if first is None else first
            rest = _as_first(rest, first)
            parts.append(rest.slice(0, missing))
            rest = rest.slice(len(parts[-1]))
            missing -= len(parts[-1])
        if parts:
            columns = pa.Table.from_batches(parts).combine_chunks()
            yield found.from_arrays(
                [*found.columns, *(column.chunk(0) for column in columns.columns)],
                schema=pa.schema([*found.schema, *columns.schema]),
            )
    for log in logs:
        if not log.is_unchanged():
            raise _changed(log)


def _as_first(batch: Any, schema: Any) -> Any:
    """Return a batch with the types of the log's first one: files of a log may differ in them."""
    try:
        return batch if batch.schema.equals(schema) else batch.cast(schema)
    except pa.ArrowException as error:
        raise InputError(
            f"--keep: a column has other types in later files: {str(error).splitlines()[0]}",
            hint="leave the column out of --keep, or predict the files one by one",
        ) from error


def _changed(log: RawFile) -> InputError:
    return InputError(f"{log.path} changed while it was read", hint="run again when it is complete")


def refuse_name(names: Sequence[str], taken: str) -> None:
    """Raise ConfigError where a column that is kept has the name of the scores."""
    if taken in names:
        raise ConfigError(
            f"--keep names {taken!r}, the column of the scores", hint="leave the column out of --keep"
        )
