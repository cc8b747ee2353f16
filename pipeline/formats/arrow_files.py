"""Arrow IPC files of the stages: one record batch each for inner stages, written once, read mapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import ManifestError
from ..folders.checksum import HashedFile
from ..folders.manifest import FileEntry, Manifest, first_line
from .tables import multi_hot, offsets_of, one_hot

NO_NULLS = np.zeros(0, np.uint8)
"""The validity bitmap of a column without missing values."""
DAMAGE = (
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    TypeError,
    ValueError,
)
"""What reading a damaged file, or one that does not fit its manifest, raises where it is not looked for."""
_HINT = "remove its folder and run its stage again"
_CATEGORY = (pa.uint32(), pa.uint64())
_DENSE = (pa.int32(),)
_FLOAT = (pa.float64(),)
_LIST = (pa.list_(pa.uint64()),)
_MAY_LACK = (_CATEGORY, _DENSE, _FLOAT)


@contextmanager
def open_writer(path: Path, schema: Any) -> Iterator[Any]:
    """An Arrow IPC file writer at ``path``; each ``write_batch`` becomes one record batch."""
    with HashedFile(path) as file, pa.ipc.new_file(pa.PythonFile(file, "w"), schema) as writer:
        yield writer


def write_batch(path: Path, columns: dict[str, Any]) -> None:
    """Write Arrow arrays of equal length as a file of one record batch."""
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    with open_writer(path, batch.schema) as writer:
        writer.write_batch(batch)


def map_batch(path: Path) -> Any:
    """The first record batch of an Arrow file, memory-mapped, not checked."""
    return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)


def read_batch(manifest: Manifest, entry: FileEntry) -> Any:
    """The one record batch of a stage's file, memory-mapped; its columns are those of the stage.

    Raises:
        ManifestError: missing, of another size, or not what Arrow or the manifest says it is.
    """
    path = manifest.checked_path(entry)
    try:
        batch = map_batch(path)
        batch.validate()
        _check_columns(batch, columns_of(manifest))
        if manifest.stage == "count":
            _check_counts(batch)
    except DAMAGE as error:
        raise ManifestError(f"{path} is damaged: {first_line(error)}", hint=_HINT) from error
    if batch.num_rows != entry.num_samples:
        raise ManifestError(
            f"{path} has {batch.num_rows} samples, its manifest says {entry.num_samples}", hint=_HINT
        )
    return batch


def columns_of(manifest: Manifest) -> dict[str, tuple[Any, ...]]:
    """Columns that the files of a stage have, and the types each may have; none for other stages."""
    totals = manifest.totals
    match manifest.stage:
        case "ingest":
            label = {"label": (pa.uint8(),)} if totals["has_label"] else {}
            dense = dict.fromkeys(totals["dense"], _DENSE) | dict.fromkeys(totals.get("floats", ()), _FLOAT)
            sparse = dict.fromkeys(totals["sparse"], _CATEGORY) | dict.fromkeys(
                totals.get("lists", ()), _LIST
            )
            return label | dense | sparse
        case "count":
            return {"category": _CATEGORY, "count": (pa.int64(),)}
        case "rank":
            sampled = {"sampled": (pa.int64(),)} if totals.get("rank_by") == "sampled" else {}
            return {"category": _CATEGORY, "count": (pa.int64(),), "place": (pa.int64(),)} | sampled
        case "encode":
            lists = {table["name"]: (pa.list_(pa.int32()),) for table in multi_hot(totals["tables"])}
            return {"ids": (pa.list_(pa.int32(), len(one_hot(totals["tables"]))),)} | lists
        case "map-ids":
            return {"new_id": (pa.int32(),)}
        case "split":
            return {"is_hot": (pa.uint8(),)}
    return {}


def _check_columns(batch: Any, wanted: dict[str, tuple[Any, ...]]) -> None:
    found = Counter(batch.schema.names)
    for name, kinds in wanted.items():
        if found[name] != 1:
            raise ValueError(f"it has {found[name]} columns {name!r}, want 1")
        column = batch.column(name)
        if column.type not in kinds:
            raise TypeError(f"column {name!r} is {column.type}, want {' or '.join(map(str, kinds))}")
        num_missing = column.null_count
        if pa.types.is_list(column.type):
            offsets_of(column)
        if column.type.num_fields and kinds != _LIST:
            num_missing += column.values.null_count
        if num_missing and kinds not in _MAY_LACK:
            raise ValueError(f"column {name!r} lacks {num_missing} values")


def _check_counts(batch: Any) -> None:
    """Sums of counts are trusted further on: none is below 1."""
    counts = values_of(batch.column("count"), np.int64)
    if counts.shape[0] and counts.min() < 1:
        raise ValueError(f"it counts a category {counts.min()} times")


def values_of(array: Any, dtype: Any) -> NDArray[Any]:
    """The values of an Arrow array of fixed width as a NumPy view; missing ones hold anything.

    Raises:
        ManifestError: the array is of another type, or its buffer too short for a kernel to trust.
    """
    if array.type.to_pandas_dtype() != dtype:
        raise ManifestError(f"a column is {array.type}, want {np.dtype(dtype)}", hint=_HINT)
    buffer = array.buffers()[1]
    values = np.frombuffer(buffer, dtype) if buffer is not None and buffer.size else np.zeros(0, dtype)
    values = values[array.offset : array.offset + len(array)]
    if values.shape[0] != len(array):
        raise ManifestError(f"a column holds {values.shape[0]} values, want {len(array)}", hint=_HINT)
    return values


def validity_of(array: Any) -> NDArray[np.uint8]:
    """The validity bitmap of an Arrow array that starts at offset 0, NO_NULLS where all values are there."""
    buffer = array.buffers()[0]
    return NO_NULLS if buffer is None or array.null_count == 0 else np.frombuffer(buffer, np.uint8)


def fixed_lists(array: Any, width: int, dtype: Any) -> NDArray[Any]:
    """A fixed-size-list array as ``(len, width)``."""
    if array.type.list_size != width:
        raise ManifestError(f"a column has lists of {array.type.list_size}, want {width}", hint=_HINT)
    flat = values_of(array.values, dtype)[array.offset * width : (array.offset + len(array)) * width]
    return flat.reshape(len(array), width)


def as_fixed_lists(matrix: NDArray[Any]) -> Any:
    """``(num_samples, width)`` as a fixed-size-list array of the same memory."""
    num_samples, width = matrix.shape
    if width == 0:  # which from_arrays refuses
        kind = pa.from_numpy_dtype(matrix.dtype)
        return pa.Array.from_buffers(pa.list_(kind, 0), num_samples, [None], children=[pa.array([], kind)])
    flat = np.ascontiguousarray(matrix).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), width)
