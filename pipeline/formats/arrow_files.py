"""Arrow IPC files of the stages, written once and read mapped.

Files of inner stages have one record batch each. Maps here keep no open file, because a stage may hold as
many as a log has days or parts. Python's and Arrow's maps keep a descriptor until they are closed, and a
process may have only 1,024; Arrow also refuses names that are not UTF-8. NumPy's maps resolve every link of
the path first, which would take a tenth of the time of preprocessing a small log.

Parts stay mapped while a stage reads them repeatedly: a log larger than memory is packed in several passes
over the same parts, and peeling reads them once for each table. Opening a part of 69,000 samples (mapping,
parsing and checking it) takes 0.2 ms, and each new map faults its pages in again.

Columns of samples in shards that are no features (labels, weight and group) travel through the shuffle as
words of 32 bits in the row of their sample. A label and a weight are one, the bits of a float32, which is NaN
where a label is missing. A group is three: the halves of its number, and whether there is one, because every
number may be a group.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.kernel import read_only
from ..errors import HotsetError, ManifestError, first_line, hint_to_rewrite, raise_system_fault
from ..folders.manifest import FileEntry, HashedFile, Manifest
from ..folders.totals import ColumnsTotals, SamplesTotals, VocabularyTotals, multi_hot, one_hot
from ..schema.schema import GROUP, LABEL, WEIGHT

_library = ctypes.CDLL(None, use_errno=True)
_library.mmap.restype = ctypes.c_void_p
_library.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value
_NUMPY_TYPES = {pa.from_numpy_dtype(np.dtype(code)): np.dtype(code) for code in "?bhilBHILefd"}


def map_file(path: Path) -> Any:
    """Map a whole file for reading; returns an Arrow buffer, which keeps the map.

    Raises:
        OSError: it cannot be opened or mapped.
        ValueError: it is empty, and so cannot be mapped.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        num_bytes = os.fstat(descriptor).st_size
        if num_bytes == 0:
            raise ValueError("it is empty")
        # The library call keeps no descriptor, which Python's map would.
        address = _library.mmap(None, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
    return pa.foreign_buffer(address, num_bytes, _Map(address, num_bytes))


class _Map:
    """Mapped pages of a file, unmapped when the last buffer over them is freed."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self._address = address
        self._num_bytes = num_bytes
        self._unmap = _library.munmap  # modules may be unloaded when the interpreter ends

    def __del__(self) -> None:
        self._unmap(self._address, self._num_bytes)


NO_NULLS = read_only(np.zeros(0, np.uint8))
"""The validity bitmap of a column without missing values."""
DAMAGE = (
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    SystemError,
    TypeError,
    ValueError,
)
"""Errors of reading a damaged file, or one unlike its manifest, where that is not checked beforehand.

SystemError is how Python meets an Arrow array of negative length. A machine without memory, threads or
descriptors raises some of them, too: `raise_system_fault` comes first.
"""
_HINT = "remove its folder and run its stage again"
_CATEGORY = (pa.uint32(), pa.uint64())
_DENSE = (pa.int32(),)
_FLOAT = (pa.float64(),)
_LIST = (pa.list_(pa.uint64()),)
_MOST_LOOKUPS = 2.0**60
"""Lookups of a table: sums of more could leave 64 bits."""
_LABEL = (pa.uint8(),)
_LABEL_OR_NOTHING = (pa.uint8(), None)
_NUMBER_OR_NOTHING = (pa.float32(), None)
_MAY_LACK = (_CATEGORY, _DENSE, _FLOAT, _LABEL_OR_NOTHING, _NUMBER_OR_NOTHING)
ColumnTypes = dict[str, tuple[Any, ...]]
"""The types that each column of a file may have, by its name; None where it may lack values, too."""
COUNT_COLUMNS: ColumnTypes = {"category": _CATEGORY, "count": (pa.int64(),)}
VOCABULARY_COLUMNS: ColumnTypes = COUNT_COLUMNS | {"place": (pa.int64(),)}
SAMPLED_COLUMNS: ColumnTypes = {"sampled": (pa.int64(),), "appearance": (pa.int64(),)}


@contextmanager
def damage_named(
    path: Path, error_type: type[HotsetError] = ManifestError, fault: str = "is damaged"
) -> Iterator[None]:
    """Turn errors of a damaged file into one line that names the file.

    A HotsetError that names a file is unchanged. A fault of the system is raised as such.
    """
    try:
        yield
    except DAMAGE as error:
        # Checks of arrays, such as `values_of`, do not know their file.
        is_unnamed = type(error) is ManifestError and os.sep not in str(error)
        if isinstance(error, HotsetError) and not is_unnamed:
            raise
        raise_system_fault(path, error)
        raise error_type(f"{path} {fault}: {first_line(error)}", hint=hint_to_rewrite(path.parent)) from error


@contextmanager
def open_writer(path: Path, schema: Any) -> Iterator[Any]:
    """Open an Arrow IPC file writer at ``path``; each ``write_batch`` becomes one record batch."""
    with HashedFile(path) as file, pa.ipc.new_file(pa.PythonFile(file, "w"), schema) as writer:
        yield writer


def write_batch(path: Path, columns: dict[str, Any]) -> None:
    """Write Arrow arrays of equal length as a file of one record batch."""
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    with open_writer(path, batch.schema) as writer:
        writer.write_batch(batch)


def row_groups(batches: Iterable[Any], num_rows: int) -> Iterator[Any]:
    """Yield tables of ``num_rows`` or more from batches: a row group pays for each of its columns."""
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= num_rows:
            yield pa.Table.from_batches(waiting)
            waiting.clear()
    if waiting:
        yield pa.Table.from_batches(waiting)


def map_batch(path: Path) -> Any:
    """Map the first record batch of an Arrow file, not checked."""
    return open_mapped(path).get_batch(0)


def open_mapped(path: Path) -> Any:
    """Map an Arrow file and open it; its arrays keep the map, not the file."""
    return pa.ipc.open_file(map_file(path))


def read_batch(manifest: Manifest, entry: FileEntry) -> Any:
    """Map the one record batch of a stage's file, and check that it has the columns of the stage.

    Raises:
        ManifestError: missing, of another size or checksum, or not what Arrow or the manifest says it is.
    """
    # A flipped bit may well be another value: what this process did not write itself is hashed first.
    path = manifest.hashed_path(entry)
    batch = read_file(path, entry.num_samples, columns_of(manifest))
    if manifest.stage in ("rank", "adopt"):
        _check_rows(path, batch, VocabularyTotals.of(manifest).num_rows)
    return batch


def _check_rows(path: Path, batch: Any, num_rows: int) -> None:
    """Raise ManifestError for counts or places of rows that no vocabulary has: sums and orders trust them."""
    counts, places = (values_of(batch.column(name), np.int64) for name in ("count", "place"))
    fault = None
    if places.size and not 0 <= places.min() <= places.max() < num_rows:
        fault = f"a place is outside its {num_rows} rows"
    elif counts.size and (counts.min() < 0 or counts.sum(dtype=np.float64) > _MOST_LOOKUPS):
        fault = "its counts are not those of a log"
    if fault is not None:
        raise ManifestError(f"{path} is damaged: {fault}", hint=hint_to_rewrite(path.parent))


def read_file(path: Path, num_samples: int, columns: ColumnTypes) -> Any:
    """Map the one record batch of a file with these columns, sealed or not.

    Raises:
        ManifestError: not what Arrow says it is, or of other columns or another length.
    """
    with damage_named(path):
        batch = map_batch(path)
        # Buffers first, then columns, then values: each check may trust the ones before it.
        batch.validate()
        _check_columns(batch, columns)
        if columns == COUNT_COLUMNS:
            _check_counts(batch)
    if batch.num_rows != num_samples:
        raise ManifestError(
            f"{path} has {batch.num_rows} samples, its manifest says {num_samples}",
            hint=hint_to_rewrite(path.parent),
        )
    return batch


def columns_of(manifest: Manifest) -> ColumnTypes:
    """Return the columns of a stage's files and the types each may have; none for other stages."""
    match manifest.stage:
        case "ingest":
            log = ColumnsTotals.of(manifest)
            label = _LABEL_OR_NOTHING if log.labels else _LABEL
            kinds: ColumnTypes = {WEIGHT: (pa.float32(),), GROUP: _CATEGORY}
            kinds |= dict.fromkeys(log.number_columns, _NUMBER_OR_NOTHING)
            names = [*([LABEL] if log.has_label else []), *log.sample_columns]
            of_samples = {name: kinds.get(name, label) for name in names}
            dense = dict.fromkeys(log.dense, _DENSE) | dict.fromkeys(log.floats, _FLOAT)
            sparse = dict.fromkeys(log.sparse, _CATEGORY) | dict.fromkeys(log.lists, _LIST)
            return of_samples | dense | sparse
        case "count":
            return COUNT_COLUMNS
        case "rank" | "adopt":
            is_sampled = VocabularyTotals.of(manifest).rank_by == "sampled"
            return VOCABULARY_COLUMNS | (SAMPLED_COLUMNS if is_sampled else {})
        case "encode":
            tables = SamplesTotals.of(manifest).tables
            lists = {feature.name: (pa.list_(pa.int32()),) for feature in multi_hot(tables)}
            return {"ids": (pa.list_(pa.int32(), len(one_hot(tables))),)} | lists
        case "map-ids":
            return {"new_id": (pa.int32(),)}
        case "split":
            return {"is_hot": (pa.uint8(),)}
    return {}


def _check_columns(batch: Any, wanted: ColumnTypes) -> None:
    # Extra columns are fine; those of the stage are there once, of their type, without gaps where none may
    # be.
    found = Counter(batch.schema.names)
    for name, kinds in wanted.items():
        if found[name] != 1:
            raise ValueError(f"it has {found[name]} columns {name!r}, want 1")
        column = batch.column(name)
        if column.type not in kinds:
            wanted_types = " or ".join(str(kind) for kind in kinds if kind is not None)
            raise TypeError(f"column {name!r} is {column.type}, want {wanted_types}")
        num_missing = column.null_count
        # A list is checked by its offsets, a fixed-size list by the values inside.
        if pa.types.is_list(column.type):
            offsets_of(column)
        if column.type.num_fields and kinds != _LIST:
            num_missing += column.values.null_count
        if num_missing and kinds not in _MAY_LACK:
            raise ValueError(f"column {name!r} lacks {num_missing} values")


def _check_counts(batch: Any) -> None:
    """Raise ValueError for a count below 1: later stages trust sums of counts."""
    counts = values_of(batch.column("count"), np.int64)
    if counts.shape[0] and counts.min() < 1:
        raise ValueError(f"it counts a category {counts.min()} times")
    if counts.sum(dtype=np.float64) > _MOST_LOOKUPS:
        raise ValueError("its counts are not those of a log")


def numpy_type(kind: Any) -> np.dtype[Any]:
    """Return the NumPy type of an Arrow type of numbers, object for any other.

    Arrow's own function for it imports pandas in versions before 25.
    """
    return _NUMPY_TYPES.get(kind, np.dtype(object))


def values_of(array: Any, dtype: Any = None) -> NDArray[Any]:
    """Return the values of a fixed-width Arrow array as a NumPy view; missing are undefined.

    Args:
        dtype: the type that it must have; None takes any type of numbers.

    Raises:
        ManifestError: the array is of another type, or its buffer too short for a kernel to trust.
    """
    found = numpy_type(array.type)
    dtype = found if dtype is None else dtype
    if found != dtype:
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


def lookups_of(array: Any, num_samples: int) -> tuple[Any, int]:
    """Return the lookups of a column, elements of its lists if any, and how many the first samples have.

    A multi-hot feature is a column of lists, none of which is null: its lookups are the elements of all.
    """
    if not pa.types.is_list(array.type):
        return array, num_samples
    return array.values, int(offsets_of(array)[num_samples])


def offsets_of(array: Any) -> NDArray[np.int32]:
    """Return where the elements of each list begin, (len + 1,); a kernel may trust them.

    Raises:
        ManifestError: the array is no list column as stages write it, or its offsets run backwards.
    """
    if array.offset or array.null_count or not pa.types.is_list(array.type):
        raise ManifestError(f"a column of {array.type} is not one of lists that are all there")
    buffer = array.buffers()[1]
    num_lookups = len(array.values)
    if not len(array) and not num_lookups:
        return np.zeros(1, np.int32)
    offsets = np.frombuffer(buffer, np.int32)[: len(array) + 1]
    # Kernels read between offsets without a check, so they must rise and end with the elements.
    is_whole = offsets.shape[0] == len(array) + 1 and offsets[0] == 0 and offsets[-1] == num_lookups
    if not is_whole or (offsets[1:] < offsets[:-1]).any():
        raise ManifestError(
            f"the offsets of a list column do not cut its {num_lookups} elements into {len(array)} lists",
            hint="remove its folder and run its stage again",
        )
    return offsets


def as_lists(offsets: NDArray[np.int32], values: NDArray[Any]) -> Any:
    """``values``, (offsets[-1],), as a list array of the same memory."""
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def fixed_lists(array: Any, width: int, dtype: Any) -> NDArray[Any]:
    """Return a fixed-size-list array as ``(len, width)``."""
    if array.type.list_size != width:
        raise ManifestError(f"a column has lists of {array.type.list_size}, want {width}", hint=_HINT)
    flat = values_of(array.values, dtype)[array.offset * width : (array.offset + len(array)) * width]
    return flat.reshape(len(array), width)


def as_fixed_lists(matrix: NDArray[Any]) -> Any:
    """Return ``(num_samples, width)`` as a fixed-size-list array of the same memory."""
    num_samples, width = matrix.shape
    if width == 0:  # which from_arrays refuses
        kind = pa.from_numpy_dtype(matrix.dtype)
        return pa.Array.from_buffers(pa.list_(kind, 0), num_samples, [None], children=[pa.array([], kind)])
    flat = np.ascontiguousarray(matrix).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), width)


_MOST_FILES = 2048
"""Files kept open, of about 6 MiB each: their page tables take 24 MiB, which are the system's."""


class OpenedParts:
    """Record batches of parts, each opened by the first pass that needs it; for any number of threads."""

    def __init__(self) -> None:
        self._batches: dict[tuple[str, str], Any] = {}

    def read(self, folder: Manifest, entry: FileEntry) -> Any:
        """Return the record batch of one part, checked when it was opened.

        Raises:
            ManifestError: it cannot be read, or is damaged.
        """
        key = (folder.fingerprint, entry.path)
        batch = self._batches.get(key)
        if batch is None:
            batch = read_batch(folder, entry)
            # The first parts are kept, not the latest: passes read parts in order, so the latest are the ones
            # that are needed last.
            if len(self._batches) < _MOST_FILES:
                self._batches[key] = batch
        return batch


def type_of(name: str) -> Any:
    """Return the Arrow type of a column in shards."""
    return pa.uint64() if name == GROUP else pa.float32()


def num_words(name: str) -> int:
    """Return the words that a sample's value of a column takes in its row."""
    return 3 if name == GROUP else 1


def is_there(column: Any) -> NDArray[np.bool_]:
    """Return which samples have a value, (num_samples,)."""
    found: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def clicks_and_gaps(column: Any) -> NDArray[np.bool_]:
    """Return which samples have label 1, and which have none, of a column of columns/: (2, num_samples).

    A label that is any number counts as 1 where it is not 0.
    """
    is_missing = ~is_there(column)
    return np.stack([(values_of(column) != 0) & ~is_missing, is_missing])


def write_words(name: str, column: Any, chosen: NDArray[np.int32], words: NDArray[np.int32]) -> None:
    """Write some samples' values of a column of columns/.

    Args:
        name: of the column.
        column: Arrow array of all samples of a part.
        chosen: (num_chosen,), positions of the samples.
        words: (num_words, num_chosen) out.
    """
    if name == GROUP:
        halves = values_of(column, np.uint64)[chosen].view(np.int32).reshape(-1, 2)
        words[:2] = halves.T
        words[2] = is_there(column)[chosen]
        return
    values = words[0].view(np.float32)
    values[:] = values_of(column)[chosen]
    if column.null_count:
        values[~is_there(column)[chosen]] = np.nan


def column_of(name: str, words: NDArray[np.int32]) -> Any:
    """Return the Arrow array of a column in shards; ``words``: (num_samples, num_words)."""
    if name == GROUP:
        values = np.ascontiguousarray(words[:, :2]).view(np.uint64)[:, 0]
        is_missing = words[:, 2] == 0
    else:
        values = np.ascontiguousarray(words[:, 0]).view(np.float32)
        is_missing = np.isnan(values)
    return pa.array(values, mask=is_missing) if is_missing.any() else pa.array(values)
