"""Ids of categories as a log, a file or a frame has them, and categories of ids.

Values are read by the kind of the table's features, as those of a log that is predicted are: "5.0" and 5 are
one integer, and words that the schema names are missing. Categories of hours and weekdays are their numbers.
Vocabularies know texts by their hash. A text that none of them kept is written as ``#`` and the 16 hex digits
of its hash, which is read as that text where the vocabulary has no such text itself.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ...stats.id_tables import build_id_table, find_ids
from ..errors import ConfigError, InputError
from ..folders.manifest import Manifest
from ..folders.totals import VocabularyTotals, by_feature
from ..formats.arrow_files import NO_NULLS, read_batch, validity_of, values_of
from ..formats.columns import texts_of_table
from ..raw.column_values import is_list, plain
from ..raw.tabular import misfit, parse_rows, rows_of_batch
from ..raw.text_fields import Spans
from ..schema.schema import TIME_KINDS, Schema, nearest, shown

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
        spans = plain(values)
        if not isinstance(spans, Spans):  # a column without a value
            return
        found = [
            (row, bytes(spans.text[spans.starts[row] : spans.stops[row]])) for row in _hashed(spans, ids_N)
        ]
        rows = [(row, int(text[1:], 16)) for row, text in found if _HASH.fullmatch(text)]
        hashes = np.array([number for _, number in rows], np.uint64)
        ids_N[[row for row, _ in rows]] = self._ids_of(hashes, NO_NULLS)


def _hashed(spans: Spans, ids_N: NDArray[np.int32]) -> list[int]:
    """Return the texts without a row that are as long as a hash."""
    is_long = spans.stops - spans.starts == _HASH_BYTES
    return list(map(int, np.flatnonzero((ids_N < 0) & is_long)))


def _hash_of(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())
