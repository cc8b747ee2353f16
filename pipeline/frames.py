"""Frames of Polars, pandas and Arrow as Arrow tables, whose readers are those of Parquet files.

Most columns of Polars and Arrow are taken as they are, without a copy; those of pandas are converted. A frame
that is preprocessed goes through a Parquet file, because stages read their log by parts and in any order.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .errors import ConfigError, InputError, first_line


class ArrowFrame(Protocol):
    """A frame that Arrow can read: a table of pyarrow, or a DataFrame of Polars or pandas."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Frame: TypeAlias = ArrowFrame | Mapping[str, Any]
"""A frame, or a dictionary of columns."""


def table_of(frame: Any) -> Any:
    """Return a frame as a `pyarrow.Table`.

    Raises:
        ConfigError: it is no frame.
        InputError: a column has values of several types, or objects of Python.
    """
    try:
        if isinstance(frame, Mapping):
            return pa.table({name: _column_of(values) for name, values in frame.items()})
        if _is_of("polars", "LazyFrame", frame):
            frame = frame.collect()
        if _is_of("polars", "DataFrame", frame):
            _refuse_objects(frame)
        if _is_of("pandas", "DataFrame", frame):
            return pa.Table.from_pandas(frame, preserve_index=False)
        check_frame(frame)
        return pa.table(frame)
    except (ConfigError, InputError):
        raise
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"the frame cannot be read as an Arrow table: {first_line(error)}") from error


def _refuse_objects(frame: Any) -> None:
    """Raise InputError where Polars would give the addresses of objects of Python for their values."""
    for name, kind in frame.schema.items():
        if str(kind) == "Object":
            raise InputError(
                f"column {name!r} of the frame is of Python objects",
                hint="make the column again with a type, such as polars.String",
            )


def _column_of(values: Any) -> Any:
    """Return a column of a dictionary; rows of a matrix are lists."""
    if getattr(values, "ndim", 1) != 2:
        return values
    matrix = values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), matrix.shape[1])


def array_of(values: Any) -> Any:
    """Return a list, an array or a column of a frame as an Arrow array.

    Raises:
        ConfigError: it is none.
        InputError: it has values of several types.
    """
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise ConfigError(f"want a list, an array or a column of a frame, got {type(values).__name__}")
    try:
        if hasattr(values, "detach"):  # a tensor of torch
            values = values.detach().cpu().numpy()
        is_arrow = hasattr(values, "__arrow_c_stream__")
        found = pa.chunked_array(values) if is_arrow else pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"the values cannot be read as one column: {first_line(error)}") from error
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def check_frame(frame: Any) -> None:
    """Raise ConfigError where an object is no frame."""
    is_lazy = _is_of("polars", "LazyFrame", frame)
    if is_lazy or isinstance(frame, Mapping) or hasattr(frame, "__arrow_c_stream__"):
        return
    raise ConfigError(
        f"want a path or a frame of Polars, pandas or Arrow, got {type(frame).__name__}",
        hint="give the path as text, or a frame such as polars.DataFrame(columns)",
    )


def like_frame(frame: Any, columns: dict[str, Any]) -> Any:
    """Return a frame with some columns, of the kind of ``frame``; one of pandas has its index, too."""
    if _is_of("pandas", "DataFrame", frame):
        return type(frame)(columns, index=frame.index)
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return pa.table(columns)
    import polars as pl

    return pl.DataFrame(columns)


def write_frame(frame: Any, path: Path) -> None:
    """Write a frame as a Parquet file; equal frames give equal bytes."""
    pq.write_table(table_of(frame), path)


def _is_of(library: str, name: str, frame: Any) -> bool:
    # A frame of a library that is not imported cannot be here.
    kind = getattr(sys.modules.get(library), name, None)
    return kind is not None and isinstance(frame, kind)
