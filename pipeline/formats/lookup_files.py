"""Lookups by row as Arrow files: one record batch for each training batch, in it one row for each table.

Numbers within a table fit 16 bits where no batch of a file has more than 65,536 lookups in a table; ids are
32 bits wide. Reading them makes views of what Arrow holds, with checked offsets; the values are checked where
they are used, by `place_lookups`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.batches.lookups_by_row import LookupsByRow
from ...stats.batches.stored_lookups import LONG_LOOKUPS, StoredLookups
from .arrow_files import values_of

_MOST_SHORT = 1 << 16
"""Lookups of a table in a batch up to which their numbers are 16 bits wide."""
_NUMBERS = {pa.uint16(): np.uint16, pa.int32(): np.int32}
_COLUMNS = ("order", "rows", "starts", "long_rows")


def lookup_schema(most_lookups: int) -> Any:
    """Return the columns of a file none of whose batches has more lookups than this in a table."""
    number = pa.uint16() if most_lookups <= _MOST_SHORT else pa.int32()
    kinds = (number, pa.int32(), number, pa.int32())
    return pa.schema([pa.field(name, pa.list_(kind)) for name, kind in zip(_COLUMNS, kinds, strict=True)])


def lookup_batch(schema: Any, found: LookupsByRow, offsets: NDArray[np.int64]) -> Any:
    """Return the record batch of one training batch.

    Args:
        schema: of the file, see `lookup_schema`.
        found: lookups by row, numbered within their tables.
        offsets: (num_tables + 1,), lookups of the tables before each one.
    """
    number = _NUMBERS[schema.field("order").type.value_type]
    # Positions of rows and of lookups count from the beginning of their table.
    num_rows = np.diff(found.first_F1)
    lookups_before = np.repeat(offsets[:-1].astype(np.int32), num_rows)
    is_long = found.counts_U > LONG_LOOKUPS
    long_rows = np.flatnonzero(is_long)
    num_long = np.searchsorted(long_rows, found.first_F1)
    rows_before = np.repeat(found.first_F1[:-1], np.diff(num_long))
    # Four lists of a table each: lookups by row, rows, the start of each row's lookups, and long rows.
    lists = (
        (offsets, found.order_N.astype(number)),
        (found.first_F1, found.rows_U),
        (found.first_F1, (found.starts_U1[:-1] - lookups_before).astype(number)),
        (num_long, (long_rows - rows_before).astype(np.int32)),
    )
    arrays = [
        pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), pa.array(values))
        for bounds, values in lists
    ]
    return pa.record_batch(arrays, schema=schema)


def is_lookup_schema(schema: Any) -> bool:
    """Return whether a file has the columns of lookups by row."""
    return any(schema.equals(lookup_schema(most)) for most in (_MOST_SHORT, _MOST_SHORT + 1))


def stored_lookups(batch: Any, num_tables: int) -> StoredLookups:
    """Read a record batch of a file with these columns, as views of its memory.

    Raises:
        ValueError: it is not of as many tables, or its lists are not cut as Arrow cuts them.
        ManifestError: a buffer is too short.
    """
    if batch.num_rows != num_tables:
        raise ValueError(f"it is of {batch.num_rows} tables, want {num_tables}")
    (order_offsets, order), (row_offsets, rows), (start_offsets, starts), (long_offsets, long_rows) = (
        _list_of(batch.column(name), name) for name in _COLUMNS
    )
    if not np.array_equal(row_offsets, start_offsets):
        raise ValueError("its lists of rows and of starts are not of the same length")
    return StoredLookups(order, order_offsets, rows, row_offsets, starts, long_rows, long_offsets)


def _list_of(column: Any, name: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Offsets that a kernel may trust, and values."""
    values = values_of(column.values, _NUMBERS[column.type.value_type])
    if column.offset or column.null_count:
        raise ValueError(f"its lists of {name} are not all there")
    buffer = column.buffers()[1]
    offsets = np.frombuffer(buffer, np.int32)[: len(column) + 1].astype(np.int64)
    # Kernels read between offsets without a check, so they must rise and end with the values.
    is_whole = offsets.size == len(column) + 1 and offsets[0] == 0 and offsets[-1] == values.size
    if not is_whole or (np.diff(offsets) < 0).any():
        raise ValueError(f"its lists of {name} do not cut {values.size} values into {len(column)} lists")
    return offsets, values
