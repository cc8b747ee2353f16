"""Frames, files of vectors, and categories, as callers of hotset give them.

Frames of Polars, pandas and Arrow become Arrow tables, whose readers are those of Parquet files. Most columns
of Polars and Arrow are taken as they are, without a copy; those of pandas are converted. A frame that is
preprocessed goes through a Parquet file, because stages read their log by parts and in any order.

Files with a vector for each category are Parquet, or NumPy's ``.npz``. Parquet has a column ``category``, or
one of another name that the caller takes for it, and the vectors in one column of lists of floats or in one
column of floats for each dimension, in order. An ``.npz`` has the arrays ``categories``, (N,), and
``vectors``, (N, D); one that needs pickle is refused. Either is read in blocks of rows, so that memory holds
one of them whatever the file has.

Values are read by the kind of the table's features, as those of a log that is predicted are: "5.0" and 5 are
one integer, and words that the schema names are missing. Categories of hours and weekdays are their numbers.
Vocabularies know texts by their hash. A text that none of them kept is written as ``#`` and the 16 hex digits
of its hash, which is read as that text where the vocabulary has no such text itself.
"""

from __future__ import annotations

import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from ...stats.id_tables import build_id_table, find_ids
from ..errors import MIB, ConfigError, InputError, first_line, raise_system_fault
from ..folders.manifest import Manifest
from ..folders.totals import VocabularyTotals, by_feature
from ..raw.column_values import is_list, is_text, plain
from ..raw.tabular import misfit, parse_rows, rows_of_batch
from ..raw.text_fields import lengths_of
from ..schema.schema import TIME_KINDS, Schema, nearest, shown
from .arrow_files import NO_NULLS, read_batch, validity_of, values_of
from .columns import texts_of_table


class ArrowFrame(Protocol):
    """A frame that Arrow can read: a table of pyarrow, or a DataFrame of Polars or pandas."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Frame: TypeAlias = ArrowFrame | Mapping[str, Any]
"""A frame, or a dictionary of columns."""
_ONLY_FEATURES = "leave out columns that are no features, or cast them to numbers, texts or times"


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
        raise InputError(
            f"the frame cannot be read as an Arrow table: {first_line(error)}", hint=_ONLY_FEATURES
        ) from error


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
    """Write a frame as a Parquet file; equal frames give equal bytes.

    Raises:
        ConfigError: it is no frame.
        InputError: a column has values that Parquet has not.
    """
    table = table_of(frame)
    for place, field in enumerate(table.schema):
        if _is_for_arrow(field.type):
            column = table.column(place)
            chunks = column.chunks or [column.combine_chunks()]
            table = table.set_column(place, field.name, pa.chunked_array([*map(_without_codes, chunks)]))
    try:
        pq.write_table(table, path)
    except pa.ArrowException as error:
        raise InputError(
            f"the frame cannot be written as Parquet: {first_line(error)}",
            hint=_ONLY_FEATURES,
        ) from error


def _is_for_arrow(kind: Any) -> bool:
    """Return whether Parquet lacks an Arrow type: categoricals of Polars, their lists, runs of values."""
    if pa.types.is_large_list(kind):
        return _is_for_arrow(kind.value_type)
    is_text = pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type)
    return bool(is_text or pa.types.is_run_end_encoded(kind))


def _without_codes(array: Any) -> Any:
    """Return the texts of categoricals, whose numbers depend on the process, and the values of runs."""
    if pa.types.is_run_end_encoded(array.type):
        return pc.run_end_decode(array)
    if pa.types.is_dictionary(array.type):
        return array.dictionary.cast(pa.large_string()).take(array.indices)
    # Arrow makes no list with nulls of a slice of offsets, so both are copied.
    offsets = pa.array(array.offsets.to_numpy())
    is_null = pa.array(array.is_null().to_numpy(zero_copy_only=False))
    return pa.LargeListArray.from_arrays(offsets, _without_codes(array.values), mask=is_null)


def _is_of(library: str, name: str, frame: Any) -> bool:
    # A frame of a library that is not imported cannot be here.
    kind = getattr(sys.modules.get(library), name, None)
    return kind is not None and isinstance(frame, kind)


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


_CATEGORY = "category"
_HASH = re.compile(rb"#[0-9a-f]{16}")
_HASH_BYTES = 17


class CategoryIds:
    """The categories of one table and their ids; holds a hash table of them.

    Args:
        vocabulary: its sealed folder.
        schema: that of the log.
        name: the table, or a feature that looks up in it.

    Raises:
        ConfigError: there is no such table or feature.
        ManifestError: the vocabulary is damaged.
    """

    def __init__(self, vocabulary: Manifest, schema: Schema, name: str) -> None:
        tables = VocabularyTotals.of(vocabulary).tables
        found = {feature.name: table for table in tables for feature in by_feature([table])}
        found |= {table.name: table for table in tables}
        if name not in found:
            names = shown(", ".join(found))
            raise ConfigError(
                f"{vocabulary.folder} has no table {name!r}", hint=nearest(name, found) or f"it has {names}"
            )
        self.table = found[name]
        """The table as the vocabulary describes it."""
        self.kind = schema.kind_of[schema.features_of_tables[self.table.name][0]]
        """Kind of its categories; all of its features are of one."""
        self._missing = schema.missing
        self._vocabulary = vocabulary
        batch = read_batch(vocabulary, vocabulary.entry(f"{self.table.name}.arrow"))
        self._rows = values_of(batch.column(_CATEGORY))
        self._entries = build_id_table(self._rows, 0, self.table.missing_id, self.table.oov_id)

    def find(
        self, values: Any, *, source: str = "", column: str = _CATEGORY, first_row: int = 0
    ) -> NDArray[np.int32]:
        """Return the id of each category, (N,); -1 where it has no row.

        Args:
            values: an Arrow array, in which nulls are missing values.
            source: what the values are from, for messages; with ``column`` and the rows before them.

        Raises:
            InputError: they are of another type, or one is no category of the table's kind.
        """
        kind = "unsigned" if self.kind in TIME_KINDS else self.kind
        renamed = ((_CATEGORY, column),)
        schema = Schema(
            (), (_CATEGORY,), (kind,), None, format="parquet", missing=self._missing, renamed=renamed
        )
        where = f"{source}: " if source else ""
        batch = pa.record_batch([values], names=[column])
        fault = misfit(schema, batch.schema, has_label=False)
        if is_list(values.type):
            fault = f"column {column!r} is {values.type}, want one category in each row"
        if fault is not None:
            raise InputError(f"{where}{fault}", hint=f"categories of {self.table.name} are {kind}")
        part = parse_rows(rows_of_batch(batch), schema, has_label=False)
        if part.fault is not None:
            row = first_row + part.fault.line_in_block + 1
            raise InputError(f"{where}row {row}{part.fault.text}")
        found = part.columns[_CATEGORY]
        ids_N = self._ids_of(values_of(found), validity_of(found))
        if self.kind == "text":
            self._find_hashes(values, ids_N)
        return ids_N

    def ids(self, values: Any) -> NDArray[np.int32]:
        """Return the row that each category of an Arrow array has, (N,): `find`, with oov for the others."""
        ids_N = self.find(values)
        ids_N[ids_N < 0] = self.table.oov_id
        return ids_N

    def categories(self, ids_N: NDArray[np.integer[Any]]) -> Any:
        """Return the category of each id as an Arrow array; null for missing values and for oov.

        Integers and numbers are such, 8 hex digits and texts are texts.

        Raises:
            ConfigError: an id that the table has not.
        """
        num_rows = self.table.num_rows
        stray = ids_N[(ids_N < 0) | (ids_N >= num_rows)]
        if stray.size:
            raise ConfigError(
                f"table {self.table.name} has no id {stray[0]}", hint=f"its ids go from 0 to {num_rows - 1}"
            )
        found_N = self._rows[ids_N].astype(np.uint64)
        is_nobody = (ids_N == self.table.missing_id) | (ids_N == self.table.oov_id)
        if self.kind == "integer":
            return pa.array(found_N.view(np.int64), mask=is_nobody)
        if self.kind == "hex8":
            return pa.array([f"{number:08x}" for number in found_N.tolist()], pa.string(), mask=is_nobody)
        if self.kind != "text":
            return pa.array(found_N, mask=is_nobody)
        # A text that was cut, or is not UTF-8, is not the one that is looked up.
        texts = texts_of_table(self._vocabulary, self.table.name)
        whole = {row: text for row, text in texts.items() if _hash_of(text) == int(self._rows[row])}
        pairs = zip(ids_N.tolist(), found_N.tolist(), strict=True)
        written = [whole.get(row, f"#{number:016x}") for row, number in pairs]
        return pa.array(written, pa.string(), mask=is_nobody)

    def _ids_of(self, categories_N: NDArray[Any], is_valid: NDArray[np.uint8]) -> NDArray[np.int32]:
        # Tables of 8 hex digits have 32 bits.
        ids_N = np.empty(categories_N.size, np.int32)
        own_N = categories_N.astype(self._rows.dtype, copy=False)
        find_ids(own_N, is_valid, self._entries, self.table.missing_id, -1, ids_N)
        return ids_N

    def _find_hashes(self, values: Any, ids_N: NDArray[np.int32]) -> None:
        """Set the ids of texts without a row that name one by its hash."""
        texts = plain(values)
        if pa.types.is_dictionary(texts.type):
            texts = texts.dictionary_decode()
        if not is_text(texts.type):  # a column without a value
            return
        found = [(row, texts[row].as_py()) for row in _hashed(texts, ids_N)]
        rows = [(row, int(text[1:], 16)) for row, text in found if _HASH.fullmatch(text)]
        hashes = np.array([number for _, number in rows], np.uint64)
        ids_N[[row for row, _ in rows]] = self._ids_of(hashes, NO_NULLS)


def _hashed(texts: Any, ids_N: NDArray[np.int32]) -> list[int]:
    """Return the texts without a row that are as long as a hash."""
    return list(map(int, np.flatnonzero((ids_N < 0) & (lengths_of(texts) == _HASH_BYTES))))


def _hash_of(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())
