"""``encode``: columns/ + vocabulary/ -> samples/, every category replaced by its id.

Independent of budget, batch size and seed, so it is made once. Ids of a sample stand together: later
stages and the trainer read whole samples. Tables are looked up together where they fit in memory; where
not, in passes over the log, each with some tables or a part of one, whose ids wait on disk for the last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.counting.hash_table import (
    MAX_LOAD,
    capacity_for,
    find_ids,
    find_short_ids,
    insert_ids,
    insert_short_ids,
    new_short_table,
    new_table,
)
from ..encoding.mapped_array import ArrayFile
from ..folders.manifest import FileEntry, Manifest
from ..folders.output import PARTIAL, Output, input_of
from ..formats.arrow_files import read_batch, validity_of, values_of, write_batch
from ..formats.category_texts import is_texts
from ..formats.part_ids import PartIds, PartSize, largest_part
from ..formats.tables import is_multi_hot, lookups_of, one_hot
from ..runtime.memory import room_for, spill_errors_explained
from ..runtime.tasks import ProgressCallback, num_processes, num_workers, run_tasks, silent
from ..runtime.thread_buffers import scratch
from ..sizes import MIB

VERSION = 1
_LEAST_TABLES = 4 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeConfig:
    """The encode stage has nothing to vary."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive rows of one table, in most cases all of them, to be looked up in one pass."""

    feature: int
    """Position of the table."""
    facts: dict[str, Any]
    """Of the table: name, num_rows, missing_id, oov_id."""
    first_id: int
    stop_id: int
    entry_bytes: int
    """8 for categories of 32 bits, else 16."""

    @property
    def num_bytes(self) -> int:
        """Of its hash table."""
        return self.entry_bytes * capacity_for(self.stop_id - self.first_id)


@dataclass(frozen=True, slots=True)
class _Table:
    """A piece, ready to be looked up in."""

    piece: _Piece
    kept: NDArray[np.uint64] | ArrayFile

    @property
    def entries(self) -> NDArray[np.uint64]:
        """Its hash table."""
        return self.kept.open() if isinstance(self.kept, ArrayFile) else self.kept

    def find(self, batch: Any, ids: NDArray[np.int32]) -> None:
        """Write the id of each look-up of a part to ``ids``, -1 where this piece has none."""
        array, _ = lookups_of(batch.column(self.piece.facts["name"]), 0)
        categories, facts = values_of(array, array.type.to_pandas_dtype()), self.piece.facts
        entries = self.entries
        find = find_short_ids if entries.ndim == 1 else find_ids
        find(categories, validity_of(array), entries, facts["missing_id"], -1, ids)


@dataclass(frozen=True, slots=True)
class _Lookup:
    """One pass over the log, and what the passes before it left."""

    tables: list[_Table]
    earlier: list[list[_Piece]]
    columns: Manifest
    output: Output
    facts: list[dict[str, Any]]
    """What the vocabulary says of every table."""

    def spill_path(self, entry: FileEntry, number: int) -> Path:
        """Where the ids of one file's look-ups in pass ``number`` wait."""
        return self.output.folder / PARTIAL / f"{entry.path}.ids{number}"


def encode(
    config: EncodeConfig,
    columns: Manifest,
    vocabulary: Manifest,
    out: Path,
    *,
    workers: int = 0,
    memory_bytes: int | None = None,
    progress: ProgressCallback = silent,
) -> Manifest:
    """columns, vocabulary -> samples: the ids of each sample's look-ups.

    Reads:   ``*.arrow`` of columns, C*; ``{feature}.arrow`` of vocabulary
    Writes:  the same files: ids, fixed-size list<int32>[one-hot features], and for each multi-hot feature
             a list<int32> called like it; unknown categories are oov
    """
    output = Output.begin("encode", VERSION, config, [input_of(columns), input_of(vocabulary)], out)
    if isinstance(output, Manifest):
        return output
    todo = [(entry, first) for first, entry in iterate_parts(columns) if not output.has(entry.path)]
    facts = vocabulary.totals["tables"]
    needed = needed_bytes(largest_part([entry for entry, _ in todo]), len(one_hot(facts)), workers)
    room = room_for("encode", memory_bytes, needed, workers=workers) - needed + _LEAST_TABLES
    passes = list(_passes(vocabulary, room)) if todo else []
    done, shared = 0, output if num_processes(workers) else None
    for number, pieces in enumerate(passes):
        loading = ((vocabulary, piece, shared) for piece in pieces)
        tables = list(run_tasks(_load_table, loading, workers=workers))
        lookup = _Lookup(tables, passes[:number], columns, output, facts)
        is_last = number == len(passes) - 1
        num_train: int = vocabulary.totals["num_train_samples"]
        tasks = ((entry, num_train - first, lookup) for entry, first in todo)
        for num_samples in run_tasks(_encode_part if is_last else _spill_part, tasks, workers=workers):
            done += num_samples
            progress("encode", done, len(passes) * columns.num_samples)
        for table in tables:
            if isinstance(table.kept, ArrayFile):
                table.kept.remove()
        del tables, lookup, tasks
    return output.seal(_totals(vocabulary, output))


def needed_bytes(part: PartSize, num_one_hot: int, workers: int) -> int:
    """The least that `encode` can do with: ids of a part for each worker, and small tables."""
    ids_bytes = part.num_samples * (9 * num_one_hot // 2 + 16) + 9 * part.num_list_lookups
    return num_workers(workers) * ids_bytes + _LEAST_TABLES


def _passes(vocabulary: Manifest, room_bytes: int) -> Iterator[list[_Piece]]:
    """All tables, in groups whose hash tables fit in ``room_bytes`` together."""
    group: list[_Piece] = []
    for piece in _pieces(vocabulary, room_bytes):
        if group and sum(other.num_bytes for other in group) + piece.num_bytes > room_bytes:
            yield group
            group = []
        group.append(piece)
    yield group


def _pieces(vocabulary: Manifest, room_bytes: int) -> Iterator[_Piece]:
    """Each table, cut where it does not fit in ``room_bytes`` alone."""
    entries = {entry.path: entry for entry in vocabulary.files}
    for feature, facts in enumerate(vocabulary.totals["tables"]):
        array = read_batch(vocabulary, entries[f"{facts['name']}.arrow"]).column("category")
        entry_bytes = 8 if array.type.bit_width == 32 else 16
        largest_capacity = 1 << (max(room_bytes // entry_bytes, 16).bit_length() - 1)
        num_rows = int(largest_capacity * MAX_LOAD)
        for first in range(0, facts["num_rows"], num_rows):
            yield _Piece(feature, facts, first, min(first + num_rows, facts["num_rows"]), entry_bytes)


def iterate_parts(manifest: Manifest) -> Iterator[tuple[int, FileEntry]]:
    """Each part of a log-ordered folder with the number of its first sample."""
    first = 0
    for entry in manifest.files:
        if not is_texts(entry):
            yield first, entry
            first += entry.num_samples


def _load_table(vocabulary: Manifest, piece: _Piece, shared: Output | None) -> _Table:
    """Make a hash table, beside what ``shared`` writes where other processes are to look up in it."""
    path = f"{piece.facts['name']}.arrow"
    array = read_batch(vocabulary, vocabulary.entry(path)).column("category")
    rows = values_of(array, array.type.to_pandas_dtype())[piece.first_id : piece.stop_id]
    is_short = piece.entry_bytes == 8
    entries = (new_short_table if is_short else new_table)(rows.shape[0])
    insert = insert_short_ids if is_short else insert_ids
    insert(rows, piece.first_id, piece.facts["missing_id"], piece.facts["oov_id"], entries)
    if shared is None:
        return _Table(piece, entries)
    return _Table(piece, ArrayFile.write(entries, shared, f"{path}.table{piece.first_id}"))


def _spill_part(entry: FileEntry, num_train: int, lookup: _Lookup) -> int:
    """Leave the ids of one pass for the last one: those of one table behind those of the other."""
    batch = read_batch(lookup.columns, entry)
    path = lookup.spill_path(entry, len(lookup.earlier))
    with spill_errors_explained(lookup.output):
        aside = lookup.output.scratch_path(f"{path.name}.tmp")
        with aside.open("wb") as file:
            for table in lookup.tables:
                _, num_lookups = lookups_of(batch.column(table.piece.facts["name"]), entry.num_samples)
                ids = scratch("found", (num_lookups,), np.int32)
                table.find(batch, ids)
                ids.tofile(file)
        os.replace(aside, path)
    return entry.num_samples


def _encode_part(entry: FileEntry, num_train: int, lookup: _Lookup) -> int:
    """Encode one file, of which the first ``num_train`` samples are for training."""
    if lookup.output.has(entry.path):  # by a worker that was killed before it could say so
        return entry.num_samples
    batch = read_batch(lookup.columns, entry)
    part = PartIds.unset(batch, lookup.facts)
    ids_of_tables = part.ids
    if lookup.earlier:
        _collect_spilled(entry, lookup, ids_of_tables)
    for table in lookup.tables:
        ids = ids_of_tables[table.piece.feature]
        if table.piece.first_id == 0:
            table.find(batch, ids)
        else:
            found = scratch("found", ids.shape, np.int32)
            table.find(batch, found)
            np.maximum(ids, found, out=ids)
    facts = part.settle_oov(min(max(num_train, 0), entry.num_samples))
    with lookup.output.writing(entry.path, entry.num_samples, **facts) as path:
        write_batch(path, part.columns())
    for number in range(len(lookup.earlier)):
        lookup.spill_path(entry, number).unlink()
    return entry.num_samples


def _collect_spilled(entry: FileEntry, lookup: _Lookup, ids_of_tables: list[NDArray[np.int32]]) -> None:
    """Add what earlier passes found; at most one piece of a table has a category, the others say -1."""
    for ids in ids_of_tables:
        ids.fill(-1)
    for number, pieces in enumerate(lookup.earlier):
        with lookup.spill_path(entry, number).open("rb") as file:
            for piece in pieces:
                ids = ids_of_tables[piece.feature]
                np.maximum(ids, np.fromfile(file, np.int32, ids.shape[0]), out=ids)


def _totals(vocabulary: Manifest, output: Output) -> dict[str, Any]:
    facts = [entry.facts for entry in output.finished.values()]
    tables = []
    for feature, table in enumerate(vocabulary.totals["tables"]):
        oov = {key: sum(fact[key][feature] for fact in facts) for key in ("oov_train", "oov_evaluation")}
        lookups = [fact["lookups"][table["name"]] for fact in facts] if is_multi_hot(table) else []
        names = ("lookups_train", "lookups_evaluation") if is_multi_hot(table) else ()
        tables.append(
            table | oov | {key: sum(pair[place] for pair in lookups) for place, key in enumerate(names)}
        )
    return vocabulary.totals | {"tables": tables}
