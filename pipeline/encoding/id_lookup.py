"""Categories looked up in hash tables of ids, in one pass over the log or in several.

Tables are looked up together where they fit in memory; where not, in passes, each with some tables or a piece
of one, whose ids wait in spill files for the last pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.id_tables import build_id_table, find_ids, id_table_bytes, most_rows_within
from ..folders.manifest import FileEntry, Manifest
from ..folders.output import Output
from ..folders.stage_totals import VocabularyTotals
from ..folders.table_info import VocabularyTable
from ..folders.temporary_files import ArrayFile, read_shared_arrays
from ..formats.arrow_files import read_batch, validity_of, values_of
from ..formats.tables import lookups_of
from ..runtime.memory import groups_within
from ..sizes import MIB

LEAST_TABLE_BYTES = 4 * MIB
"""Memory for hash tables below which the passes over the log would be too many."""


@dataclass(frozen=True, slots=True)
class TablePiece:
    """Consecutive rows of one table, in most cases all of them, to be looked up in one pass."""

    feature: int
    """Position of the table among all tables."""
    table: VocabularyTable
    first_id: int
    stop_id: int
    category_bytes: int
    """4 or 8."""

    @property
    def num_bytes(self) -> int:
        """Bytes of its hash table."""
        return id_table_bytes(self.stop_id - self.first_id, self.category_bytes)


@dataclass(frozen=True, slots=True)
class LoadedPiece:
    """A piece with its hash table, ready to be looked up in."""

    piece: TablePiece
    kept: NDArray[np.uint64] | ArrayFile

    @property
    def entries(self) -> NDArray[np.uint64]:
        """The hash table; mapped where other processes look up in it too."""
        return self.kept.open() if isinstance(self.kept, ArrayFile) else self.kept

    def find(self, batch: Any, ids: NDArray[np.int32]) -> None:
        """Write the id of each lookup of a part to ``ids``, -1 where this piece has none."""
        # The lists of a multi-hot table are looked up flat: where each begins does not matter here.
        array, _ = lookups_of(batch.column(self.piece.table.name), 0)
        categories = values_of(array, array.type.to_pandas_dtype())
        find_ids(categories, validity_of(array), self.entries, self.piece.table.missing_id, -1, ids)

    def remove(self) -> None:
        """Remove the file that other processes mapped, where there is one."""
        if isinstance(self.kept, ArrayFile):
            self.kept.remove()


@dataclass(frozen=True, slots=True)
class LookupPass:
    """One pass over the log, and the pieces of the passes before it."""

    tables: list[LoadedPiece]
    earlier: list[list[TablePiece]]
    columns: Manifest
    output: Output
    every_table: tuple[VocabularyTable, ...]
    """All tables of the vocabulary, in order."""

    def spill_name(self, entry: FileEntry, number: int) -> str:
        """Return the name of the file where the ids of one part's lookups in pass ``number`` wait."""
        return f"{entry.path}.ids{number}"

    def collect_spilled(self, entry: FileEntry, ids_of_tables: list[NDArray[np.int32]]) -> None:
        """Set the ids that earlier passes found for a file, -1 where they found none."""
        for ids in ids_of_tables:
            ids.fill(-1)
        for number, pieces in enumerate(self.earlier):
            lengths = [ids_of_tables[piece.feature].shape[0] for piece in pieces]
            spilled = read_shared_arrays(self.output, self.spill_name(entry, number), np.int32, lengths)
            for piece, found in zip(pieces, spilled, strict=True):
                ids = ids_of_tables[piece.feature]
                # At most one piece of a table has a category, and the others wrote -1.
                np.maximum(ids, found, out=ids)


def plan_passes(vocabulary: Manifest, room_bytes: int) -> Iterator[list[TablePiece]]:
    """Group all tables so that the hash tables of each group fit in ``room_bytes`` together."""
    return groups_within(room_bytes, _pieces(vocabulary, room_bytes), lambda piece: piece.num_bytes)


def whole_tables(vocabulary: Manifest) -> Iterator[TablePiece]:
    """Yield a piece for each table, whatever memory they take together."""
    return _pieces(vocabulary, None)


def _pieces(vocabulary: Manifest, room_bytes: int | None) -> Iterator[TablePiece]:
    """Each table, cut where it does not fit in ``room_bytes`` alone; None never cuts."""
    for feature, table in enumerate(VocabularyTotals.of(vocabulary).tables):
        array = read_batch(vocabulary, vocabulary.entry(f"{table.name}.arrow")).column("category")
        category_bytes = array.type.bit_width // 8
        num_rows = table.num_rows if room_bytes is None else most_rows_within(room_bytes, category_bytes)
        for first in range(0, table.num_rows, num_rows):
            yield TablePiece(feature, table, first, min(first + num_rows, table.num_rows), category_bytes)


def load_piece(vocabulary: Manifest, piece: TablePiece, shared: Output | None) -> LoadedPiece:
    """Build the hash table of a piece.

    ``shared``: the output beside whose files it lies where other processes are to look up in it.
    """
    path = f"{piece.table.name}.arrow"
    array = read_batch(vocabulary, vocabulary.entry(path)).column("category")
    # Only the rows of this piece are inserted, with the ids that they have in the whole table.
    rows = values_of(array, array.type.to_pandas_dtype())[piece.first_id : piece.stop_id]
    entries = build_id_table(rows, piece.first_id, piece.table.missing_id, piece.table.oov_id)
    # Written to a file, the table is mapped once by each process; as an argument it would be pickled for each
    # task.
    if shared is None:
        return LoadedPiece(piece, entries)
    return LoadedPiece(piece, ArrayFile.write(entries, shared, f"{path}.table{piece.first_id}"))
