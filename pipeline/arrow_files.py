"""Arrow IPC files of the stages: one record batch each for inner stages, written once, read mapped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .errors import ManifestError
from .manifest import FileEntry, Manifest

NO_NULLS = np.zeros(0, np.uint8)
"""The validity bitmap of a column without missing values."""


@contextmanager
def open_writer(path: Path, schema: Any) -> Iterator[Any]:
    """An Arrow IPC file writer at ``path``; each ``write_batch`` becomes one record batch."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        yield writer


def write_batch(path: Path, columns: dict[str, Any]) -> None:
    """Write Arrow arrays of equal length as a file of one record batch."""
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    with open_writer(path, batch.schema) as writer:
        writer.write_batch(batch)


def read_batch(manifest: Manifest, entry: FileEntry) -> Any:
    """The one record batch of a stage's file, memory-mapped.

    Raises:
        ManifestError: missing, of another size, or not what Arrow or the manifest says it is.
    """
    path = manifest.checked_path(entry)
    try:
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        batch.validate()
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: there is no batch
        raise ManifestError(
            f"{path} is damaged: {str(error).splitlines()[0]}",
            hint="remove its folder and run its stage again",
        ) from error
    if batch.num_rows != entry.num_samples:
        raise ManifestError(f"{path} has {batch.num_rows} samples, its manifest says {entry.num_samples}")
    return batch


def values_of(array: Any, dtype: Any) -> NDArray[Any]:
    """The values of an Arrow array of fixed width as a NumPy view; missing ones hold anything."""
    buffer = array.buffers()[1]
    values = np.frombuffer(buffer, dtype) if buffer is not None and buffer.size else np.zeros(0, dtype)
    return values[array.offset : array.offset + len(array)]


def validity_of(array: Any) -> NDArray[np.uint8]:
    """The validity bitmap of an Arrow array that starts at offset 0, NO_NULLS where all values are there."""
    buffer = array.buffers()[0]
    return NO_NULLS if buffer is None or array.null_count == 0 else np.frombuffer(buffer, np.uint8)


def fixed_lists(array: Any, width: int, dtype: Any) -> NDArray[Any]:
    """A fixed-size-list array as ``(len, width)``."""
    return values_of(array.values, dtype).reshape(-1, width)[array.offset : array.offset + len(array)]


def as_fixed_lists(matrix: NDArray[Any]) -> Any:
    """``(num_samples, width)`` as a fixed-size-list array of the same memory."""
    flat = np.ascontiguousarray(matrix).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), matrix.shape[1])
