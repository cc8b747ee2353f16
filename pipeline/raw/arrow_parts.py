"""Files of Arrow (also its streams) and ORC as batches of rows.

Their own parts may be of any size, so that few rows are decoded at a time and joined until they fill a part.
Arrow's compressed batches are decoded whole, however large they were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from ..errors import FormatError, raise_system_fault
from ..folders.manifest import FileEntry
from .parquet_parts import DAMAGE, VALUE_BYTES, ParquetParts, RowsPart, damaged_parquet, open_parquet
from .part import FilePart, RawParts
from .raw_file import RawFile

_ROWS_OF_BATCH = 4096
"""Rows that are decoded at a time where the format allows it."""


class ArrowParts(ParquetParts):
    """Batches of the rows of a file of Arrow or ORC."""

    def __init__(self, file: RawFile, *settings: Any, form: str, **more: Any) -> None:
        self._format = form
        super().__init__(file, *settings, **more)

    def _look(self) -> tuple[Any, Any]:
        with open_rows(self._file, self._format) as rows:
            return rows.fields, None

    @property
    def is_in_order(self) -> bool:
        """Whether parts are found by reading, as they always are: a part joins batches of any size."""
        return True

    describe = RawParts.describe

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[FilePart]:
        """Yield each batch of rows; those that are finished are decoded, too."""
        with open_rows(self._file, self._format) as rows:
            row = 0
            num_rows = rows.num_rows()
            for batch in self._joined(rows.batches(self._names)):
                first_byte = self._file.num_bytes * row // num_rows
                last_byte = self._file.num_bytes * (row + batch.num_rows) // num_rows
                yield RowsPart(self._name(row), self, batch, last_byte - first_byte)
                row += batch.num_rows

    def _joined(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield batches of about ``block_bytes`` each, cut and joined at places that follow from the file."""
        waiting: list[Any] = []
        num_bytes = 0
        for batch in (piece for each in batches for piece in self._pieces(each)):
            size = self._bytes_of(batch)
            if waiting and num_bytes + size > self._block_bytes:
                yield _join(waiting)
                waiting, num_bytes = [], 0
            waiting.append(batch)
            num_bytes += size
        if waiting:
            yield _join(waiting)

    def _pieces(self, batch: Any) -> Iterator[Any]:
        """Yield a batch in pieces that fit in a part, one row at least."""
        if batch.num_rows == 0:
            return
        if batch.num_rows == 1 or self._bytes_of(batch) <= self._block_bytes:
            yield batch
            return
        half = batch.num_rows // 2
        yield from self._pieces(batch.slice(0, half))
        yield from self._pieces(batch.slice(half))

    def _bytes_of(self, batch: Any) -> int:
        num_bytes: int = max(batch.nbytes, batch.num_rows * batch.num_columns * VALUE_BYTES)
        return num_bytes


def _join(batches: Sequence[Any]) -> Any:
    """Return one batch, with arrays of its own: a slice would hold all that it was cut from."""
    columns = pa.Table.from_batches(batches).combine_chunks()
    return columns.to_batches()[0] if columns.num_columns else batches[0]


class _Rows:
    """The rows of an open file."""

    def __init__(self, file: RawFile, form: str) -> None:
        self._file = file
        self._form = form
        self._dataset: Any = None
        if form == "stream":
            self.fields = self._stream().schema
        elif form != "parquet":
            import pyarrow.dataset
            import pyarrow.fs

            kind = {"arrow": "ipc"}.get(form, form)
            system = pyarrow.fs.LocalFileSystem(use_mmap=True)
            self._dataset = pyarrow.dataset.dataset(str(file.path), format=kind, filesystem=system)
            self.fields = self._dataset.schema
        else:
            self.fields = open_parquet(file).schema_arrow

    def _stream(self) -> Any:
        return pa.ipc.open_stream(pa.memory_map(str(self._file.path)))

    def num_rows(self) -> int:
        """Return the number of rows; those of a stream are counted."""
        if self._form == "orc":
            import pyarrow.orc

            return int(pyarrow.orc.ORCFile(str(self._file.path)).nrows)
        if self._form == "stream":
            return sum(batch.num_rows for batch in self._stream())
        return int(self._dataset.count_rows())

    def batches(self, names: Sequence[str]) -> Iterator[Any]:
        """Yield batches of some columns, of any number of rows."""
        if self._form == "parquet":
            with open_parquet(self._file) as parquet:
                yield from parquet.iter_batches(_ROWS_OF_BATCH, columns=list(names), use_threads=False)
        elif self._form == "stream":
            for batch in self._stream():
                chosen = batch.select(list(names))
                for first in range(0, batch.num_rows, _ROWS_OF_BATCH):
                    yield chosen.slice(first, _ROWS_OF_BATCH)
        else:
            ways = {"use_threads": False, "batch_readahead": 0, "fragment_readahead": 0}
            yield from self._dataset.to_batches(columns=list(names), batch_size=_ROWS_OF_BATCH, **ways)


@contextmanager
def open_rows(file: RawFile, form: str) -> Iterator[_Rows]:
    """Open a file of typed columns: parquet, arrow, stream or orc.

    Raises:
        FormatError: it is not what its first bytes say.
        InputError: it cannot be read to its end.
    """
    try:
        rows = _Rows(file, form)
        rows.fields.names  # noqa: B018 - names that are not UTF-8 are damage
    except DAMAGE as error:
        raise_system_fault(file.path, error)
        name = "ORC" if form == "orc" else "Arrow"
        raise FormatError(f"{file.path} is not a file of {name}: {str(error).splitlines()[0]}") from error
    try:
        yield rows
    except DAMAGE as error:
        raise damaged_parquet(file, error) from error
