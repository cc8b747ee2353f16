"""Files with a vector for each category: Parquet, or NumPy's ``.npz``.

Parquet has a column ``category``, or one of another name that the caller takes for it, and the vectors in one
column of lists of floats or in one column of floats for each dimension, in order. An ``.npz`` has the arrays
``categories``, (N,), and ``vectors``, (N, D); one that needs pickle is refused. Either is read in blocks of
rows, so that memory holds one of them whatever the file has.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..errors import MIB, InputError, first_line, raise_system_fault
from ..raw.column_values import is_list

CATEGORY = "category"
_CATEGORIES, _VECTORS = "categories.npy", "vectors.npy"
_FORMS = (
    "write Parquet with a column category and a column of lists of floats, or "
    "numpy.savez(FILE, categories=..., vectors=...)"
)
_BLOCK_BYTES = 8 * MIB
_MOST_ROWS = 1 << 16
_KINDS = "iufbUS"
"""Types of categories that NumPy writes without pickle."""
_DAMAGE = (
    pa.ArrowException,
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
    MemoryError,
)
"""Errors of the readers for files that are damaged, encrypted, or not what their first bytes say."""

Block = tuple[Any, NDArray[np.float32]]
"""Categories of consecutive rows as an Arrow array, and their vectors, (N, D), all finite."""


class VectorFile:
    """A file of vectors, which is opened each time it is read.

    Args:
        path: the file.
        embedding_dim: length that the vectors must have.
        names: columns that may hold the categories.

    Raises:
        InputError: it is no such file, or its vectors have another length or type.
    """

    def __init__(self, path: Path, embedding_dim: int, names: Sequence[str] = (CATEGORY,)) -> None:
        self.path = path
        self.embedding_dim = embedding_dim
        self.column = CATEGORY
        """Column of the categories, for messages."""
        self._names = tuple(dict.fromkeys(names))
        self._rows = max(1, min(_BLOCK_BYTES // (4 * embedding_dim), _MOST_ROWS))
        with self._explained():
            if not path.is_file():  # opening a pipe would wait forever
                raise InputError(f"{path} {'is no plain file' if path.exists() else 'does not exist'}")
            with open(path, "rb") as file:
                start = file.read(6)
        if start[:4] == b"PAR1":
            self._read: Callable[[], Iterator[Block]] = self._read_parquet
        elif start[:2] == b"PK":
            self._read = self._read_npz
        else:
            raise self._misfit("is neither Parquet nor .npz of NumPy")

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of rows in order; raises InputError where one is damaged or has no number."""
        first = 0
        with self._explained():
            for categories, vectors_ND in self._read():
                is_finite_N = np.isfinite(vectors_ND).all(axis=1)
                if not is_finite_N.all():
                    row = first + int(np.argmin(is_finite_N)) + 1
                    raise InputError(
                        f"{self.path}, row {row}: a vector is not finite, want numbers that a float32 holds"
                    )
                yield categories, vectors_ND
                first += len(categories)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except _DAMAGE as error:
            raise_system_fault(self.path, error)
            raise InputError(f"{self.path} cannot be read: {first_line(error)}") from error

    def _misfit(self, found: str) -> InputError:
        return InputError(f"{self.path} {found}", hint=_FORMS)

    def _refuse_width(self, found: int) -> None:
        if found != self.embedding_dim:
            raise InputError(
                f"{self.path}: its vectors have {found} numbers, the table {self.embedding_dim}",
                hint=f"preprocess with --embedding-dim {found}, or --feature-dims for one table",
            )

    def _read_parquet(self) -> Iterator[Block]:
        with pq.ParquetFile(self.path, memory_map=True, page_checksum_verification=True) as file:
            fields = file.schema_arrow
            self.column = next((name for name in self._names if name in fields.names), "")
            if not self.column:
                raise self._misfit(f"has no column {' or '.join(map(repr, self._names))}")
            others = [name for name in fields.names if name != self.column]
            lists = [name for name in others if is_list(fields.field(name).type)]
            if lists and len(others) > 1:
                raise self._misfit(f"has the columns {', '.join(others)}: want one of lists")
            for name in others:
                kind = fields.field(name).type
                value = kind.value_type if name in lists else kind
                if not pa.types.is_floating(value):
                    raise self._misfit(f"has {kind} in column {name!r}, want floats")
            if not lists:
                self._refuse_width(len(others))
            first = 0
            for batch in file.iter_batches(self._rows, columns=[self.column, *others], use_threads=False):
                batch.validate(full=True)
                columns = [batch.column(name) for name in others]
                vectors_ND = self._of_lists(columns[0], first) if lists else self._of_columns(columns, first)
                yield batch.column(self.column), vectors_ND
                first += batch.num_rows

    def _of_lists(self, array: Any, first: int) -> NDArray[np.float32]:
        self._refuse_nulls(array, first)
        lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
        for length in lengths[lengths != self.embedding_dim][:1].tolist():
            self._refuse_width(length)
        values = array.flatten()
        if values.null_count:
            self._refuse_nulls(values, first, self.embedding_dim)
        return _floats(values).reshape(len(array), self.embedding_dim)

    def _of_columns(self, columns: Sequence[Any], first: int) -> NDArray[np.float32]:
        for array in columns:
            self._refuse_nulls(array, first)
        return np.stack([_floats(array) for array in columns], axis=1)

    def _refuse_nulls(self, array: Any, first: int, width: int = 1) -> None:
        if array.null_count:
            place = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
            raise InputError(f"{self.path}, row {first + place // width + 1}: a vector is missing")

    def _read_npz(self) -> Iterator[Block]:
        with zipfile.ZipFile(self.path) as archive, ExitStack() as opened:
            names = set(archive.namelist())
            if not {_CATEGORIES, _VECTORS} <= names:
                raise self._misfit(f"has {', '.join(sorted(names))}, want arrays categories and vectors")
            categories, vectors = (
                opened.enter_context(archive.open(name)) for name in (_CATEGORIES, _VECTORS)
            )
            shape, kind = self._header(categories, "categories", _KINDS, 1)
            (num_rows, width), float_kind = self._header(vectors, "vectors", "f", 2)
            self._refuse_width(width)
            if shape[0] != num_rows:
                raise InputError(f"{self.path} has {shape[0]} categories and {num_rows} vectors")
            for first in range(0, num_rows, self._rows):
                count = min(self._rows, num_rows - first)
                found = _read_values(categories, count, kind)
                vectors_ND = _float32(_read_values(vectors, count * width, float_kind))
                yield pa.array(found.astype(kind.newbyteorder("="))), vectors_ND.reshape(count, width)
            # The end of each, at which the archive's checksums are compared.
            if categories.read(1) or vectors.read(1):
                raise ValueError("an array is longer than its header says")

    def _header(
        self, file: IO[bytes], name: str, kinds: str, num_dims: int
    ) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return the shape and the type of an array, which is read next."""
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in read:
            raise ValueError(f"{name} is an array of version {version}")
        shape, is_fortran, dtype = read[version](file)
        if dtype.hasobject:
            raise self._misfit(f"has objects of Python as {name}, want numpy.array(texts, dtype=str)")
        wanted = "floats of shape (N, D)" if num_dims == 2 else "numbers or texts of shape (N,)"
        if dtype.kind not in kinds or len(shape) != num_dims or min(shape) < 0:
            raise self._misfit(f"has {name} of {dtype} and shape {shape}, want {wanted}")
        if is_fortran and num_dims > 1:
            raise self._misfit(f"has {name} column by column, want numpy.ascontiguousarray({name})")
        return shape, dtype


def _read_values(file: IO[bytes], count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    data = file.read(count * dtype.itemsize)
    if len(data) != count * dtype.itemsize:
        raise ValueError("an array ends before its last row")
    return np.frombuffer(data, dtype)


def _floats(array: Any) -> NDArray[np.float32]:
    return _float32(array.to_numpy(zero_copy_only=False))


def _float32(values: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return values.astype(np.float32)
