"""A Parquet file as batches of rows. Row groups are streamed: memory holds a batch a worker, not a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from ..errors import InputError
from ..folders.manifest import FileEntry
from ..folders.output import hash_file
from ..schema.schema import Schema
from .raw_blocks import RawFile, iterate_blocks
from .tabular import Part, find_fields, misfit, parse_batch

if TYPE_CHECKING:
    from ..stages.ingest import IngestConfig

DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What pyarrow raises of a file that is damaged or no Parquet."""
_VALUE_BYTES = 8


class ParquetParts:
    """Batches of the rows of a Parquet file, none across two row groups."""

    unit = "row"
    num_header_lines = 0
    min_line_bytes = 0

    def __init__(self, file: RawFile, number: int, config: IngestConfig, schema: Schema) -> None:
        self._file, self._number, self._config, self._schema = file, number, config, schema
        self._has_label = config.label and schema.label is not None
        self._names = schema.columns(has_label=self._has_label)
        renamed = dict(schema.renamed)
        self._lists = {renamed.get(name, name) for name, _ in schema.lists}
        with self._open() as parquet:
            self._check_columns(parquet.schema_arrow)

    def _open(self) -> Any:
        try:
            return pq.ParquetFile(self._file.path, memory_map=True, page_checksum_verification=True)
        except DAMAGE as error:
            raise InputError(
                f"{self._file.path} is no Parquet file: {str(error).splitlines()[0]}",
                hint='a log of text has the format "csv" in its schema',
            ) from error

    def _check_columns(self, fields: Any) -> None:
        find_fields(self._names, fields.names, self._file)
        for name in self._names:
            fault = misfit(self._schema, name, fields.field(name).type, has_label=self._has_label)
            if fault:
                raise InputError(f"{self._file.path}: {fault}", hint="mend the schema, or cast the column")

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[tuple[str, Callable[[], Part | None]]]:
        """Each batch of rows; a row group that is finished is not read again."""
        with self._open() as parquet:
            row, num_rows = 0, parquet.metadata.num_rows
            for group in range(parquet.num_row_groups):
                end = row + parquet.metadata.row_group(group).num_rows
                names = self._finished_names(row, end, finished)
                yield from ((name, _read_nothing) for name in names)
                if names:
                    row = end
                    continue
                for batch in self._cut(self._batches(parquet, group)):
                    share = [self._file.num_bytes * at // num_rows for at in (row, row + batch.num_rows)]
                    yield self._name(row), partial(self._parse, batch, share[1] - share[0])
                    row += batch.num_rows

    def _parse(self, batch: Any, raw_bytes: int) -> Part:
        try:
            batch.validate(full=True)  # a damaged file may decode to offsets or indexes that point nowhere
            part = parse_batch(batch, self._schema, has_label=self._has_label)
        except DAMAGE as error:
            raise self._damaged(error) from error
        return replace(part, facts={"raw_bytes": raw_bytes})

    def _batches(self, parquet: Any, group: int) -> Iterator[Any]:
        try:
            yield from parquet.iter_batches(
                self._rows_of_part(parquet.metadata.row_group(group)),
                row_groups=[group],
                columns=list(self._names),
                use_threads=False,
            )
        except DAMAGE as error:
            raise self._damaged(error) from error

    def _cut(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Batches, those with much longer lists than others cut at ``block_bytes`` of values."""
        most = self._config.block_bytes // _VALUE_BYTES
        for batch in batches:
            values = np.full(batch.num_rows, len(self._names) - len(self._lists), np.int64)
            for name in self._lists:
                lengths = pc.fill_null(pc.list_value_length(batch.column(name)), 1)
                values += lengths.to_numpy(zero_copy_only=False)
            ends = np.cumsum(values)
            first, is_long = 0, batch.num_rows > 0 and ends[-1] > 2 * most
            while first < batch.num_rows:
                start = ends[first - 1] if first else 0
                stop = int(np.searchsorted(ends, start + most, side="right")) if is_long else batch.num_rows
                stop = min(max(stop, first + 1), batch.num_rows)
                yield batch.slice(first, stop - first)
                first = stop

    def _rows_of_part(self, group: Any) -> int:
        """Rows that have ``block_bytes`` of values; in lists, as many elements as they have on average."""
        chunks = (group.column(number) for number in range(group.num_columns))
        starts = tuple(f"{name}." for name in self._lists)
        lists = [chunk.num_values for chunk in chunks if chunk.path_in_schema.startswith(starts)]
        values_of_row = len(self._names) - len(lists) + sum(lists) / max(group.num_rows, 1)
        return max(1, int(self._config.block_bytes / (_VALUE_BYTES * max(values_of_row, 1))))

    def _damaged(self, error: Exception) -> InputError:
        return InputError(
            f"{self._file.path} cannot be read to its end: {str(error).splitlines()[0]}",
            hint="the file may be cut off or damaged: fetch it again",
        )

    def _name(self, row: int) -> str:
        return f"file{self._number:04}-row{row:012}.arrow"

    def _finished_names(self, row: int, end: int, finished: Mapping[str, FileEntry]) -> list[str]:
        """Names of the parts of rows ``[row, end)`` where all are finished, none otherwise."""
        names = []
        while row < end:
            entry = finished.get(self._name(row))
            if entry is None:
                return []
            names.append(entry.path)
            row += entry.facts["lines"]
        return names

    def finish(self, digest: Any) -> None:
        """Hash the file as `verify` hashes any log: by blocks, or whole where no line ends cut it."""
        try:
            for read in iterate_blocks(self._file, self._config.block_bytes, in_scratch=True):
                block = read()
                if block.num_bytes:
                    digest.update(xxhash.xxh3_128_digest(block.lines.data))
        except InputError:
            digest.update(bytes.fromhex(hash_file(self._file.path)[1]))


def _read_nothing() -> None:
    """What there is to read of a part that is finished."""
