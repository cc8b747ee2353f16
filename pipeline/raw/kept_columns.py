"""Columns of a raw log as they are, for a file of scores: rows are those that are predicted, in their order.

The log is read a second time, so that what is not kept costs nothing. Text keeps its bytes, which must be
UTF-8; columns of Parquet keep their types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from ..errors import ConfigError, InputError
from ..schema.schema import Schema, refuse_twice
from .csv_parts import CsvParts
from .log_parts import COLUMNAR, as_read
from .raw_file import RawFile
from .tabular import constants_of, find_fields
from .text_fields import Spans, array_of


def kept_columns(
    files: Iterable[RawFile], schema: Schema, names: Sequence[str], *, block_bytes: int, has_label: bool
) -> Iterator[Any]:
    """Return record batches of some columns of a log; names are checked at once.

    Args:
        files: the files of the log.
        names: as the log, its folders or, for text without names, the schema have them.
        block_bytes: of text that is read at a time.
        has_label: whether the lines of text without names have labels.

    Raises:
        InputError: the log has no such column, or its text is not UTF-8.
        ConfigError: a name occurs twice.
    """
    refuse_twice(names, "--keep")
    kept = []
    lacking: list[tuple[RawFile, Sequence[str]]] = []
    for file in files:
        form, as_it_is = as_read(file, schema)
        if form not in (*COLUMNAR, "json") and as_it_is.format != "csv" and not as_it_is.fields:
            as_it_is = replace(as_it_is, fields=schema.columns(has_label=True))
        fields, batches = _open(file, form, as_it_is, block_bytes=block_bytes, has_label=has_label)
        constants = constants_of(file, names, fields)
        own = [name for name in names if name not in constants] or fields[:1]
        if form == "json":
            lacking.append((file, [name for name in own if name not in fields]))
        elif fields:  # a text may have no row, nor a header
            find_fields(own, fields, file)
        kept.append(_named(batches(own), names, constants))
    if lacking:
        from .json_parts import refuse_lacking

        refuse_lacking(lacking)
    return chain.from_iterable(kept)


def _open(
    file: RawFile, form: str, schema: Schema, **ways: Any
) -> tuple[Sequence[str], Callable[[Sequence[str]], Iterator[Any]]]:
    """Return the columns of a file, and what reads some of them."""
    if form == "json":
        from .json_parts import batches_of, first_rows

        return first_rows(file)[0].schema.names, partial(batches_of, file)
    if form in COLUMNAR:
        from .columnar_parts import open_rows

        with open_rows(file, form) as rows:
            return rows.fields.names, partial(_batches, file, form)
    parts = partial(CsvParts, file, 0, schema, **ways)
    return parts(names=()).fields, lambda names: _texts(parts(names=names), names)


def _named(batches: Iterable[Any], names: Sequence[str], constants: Mapping[str, str]) -> Iterator[Any]:
    """Yield batches with all columns; those of the folders have one text in all rows, or none."""
    for batch in batches:
        texts = {name: pa.scalar(text or None, pa.string()) for name, text in constants.items()}
        arrays = [
            pa.repeat(texts[name], batch.num_rows) if name in texts else batch.column(name) for name in names
        ]
        yield pa.record_batch(arrays, names=list(names))


def _batches(file: RawFile, form: str, names: Sequence[str]) -> Iterator[Any]:
    from .columnar_parts import open_rows

    with open_rows(file, form) as rows:
        yield from rows.batches(names)


def _texts(parts: CsvParts, names: Sequence[str]) -> Iterator[Any]:
    for unread, head in parts.blocks():
        block = unread.read()
        found = parts.split(block, head)
        arrays = []
        for name, starts, stops in zip(names, found.starts, found.stops, strict=True):
            array = array_of(Spans(block.text, starts, stops)).cast(pa.binary())
            try:
                arrays.append(array.cast(pa.string()))
            except pa.ArrowInvalid as error:
                raise InputError(
                    f"{parts.file.path}: column {name!r} is not UTF-8, so --keep cannot copy it"
                ) from error
        yield pa.record_batch(arrays, names=list(names))


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


def refuse_name(names: Sequence[str], taken: Sequence[str]) -> None:
    """Raise ConfigError where a column that is kept has the name of one of the scores."""
    for name in names:
        if name in taken:
            raise ConfigError(
                f"--keep names {name!r}, the column of the scores", hint="leave the column out of --keep"
            )
