"""Files of named columns, written a record batch at a time: Parquet and CSV."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from ..errors import ConfigError

LIST_SEPARATOR = "^"
"""Between the elements of a list in CSV, as FuxiCTR and others read it."""
_ROW_GROUP = 1 << 17
"""Samples of a row group of Parquet: large enough for columns to compress, small enough to be read ahead."""


class BatchWriter(Protocol):
    """Takes record batches in order."""

    def __call__(self, batch: Any, /) -> None:
        """Write one batch."""


@contextmanager
def parquet_writer(path: Path, schema: Any) -> Iterator[BatchWriter]:
    """Open a Parquet file, compressed by zstd, whose row groups gather many batches."""
    waiting: list[Any] = []

    def write(batch: Any) -> None:
        waiting.append(batch)
        # Batches are small, and a row group pays for each of its columns.
        if sum(map(len, waiting)) >= _ROW_GROUP:
            flush()

    def flush() -> None:
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting).combine_chunks())
            waiting.clear()

    with pa.parquet.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer:
        yield write
        flush()


@contextmanager
def csv_writer(path: Path, schema: Any) -> Iterator[BatchWriter]:
    """Open a CSV file with a header; the elements of a list stand between `LIST_SEPARATOR`.

    Raises:
        ConfigError: a list is empty, which such a file cannot tell from a missing one.
    """
    flat = pa.schema([(field.name, _flat_type(field.type)) for field in schema])
    with pa.csv.CSVWriter(path, flat) as writer:

        def write(batch: Any) -> None:
            columns = [_flat(column, field.name) for column, field in zip(batch.columns, schema, strict=True)]
            writer.write_batch(pa.record_batch(columns, schema=flat))

        yield write


def _flat_type(kind: Any) -> Any:
    return pa.string() if pa.types.is_list(kind) else kind


def _flat(column: Any, name: str) -> Any:
    if not pa.types.is_list(column.type):
        return column
    # An empty text is a missing value in CSV.
    if pc.any(pc.equal(pc.list_value_length(column), 0)).as_py():
        raise ConfigError(
            f"a list of {name} is empty, which CSV cannot tell from a missing one",
            hint="take --to parquet",
        )
    texts = pa.ListArray.from_arrays(column.offsets, column.values.cast(pa.string()))
    return pc.binary_join(texts, LIST_SEPARATOR)
