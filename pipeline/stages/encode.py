"""``encode``: columns/ + vocabulary/ -> samples/, every category replaced by its id.

The result is independent of budget, batch size and seed, so it is made once. The ids of a sample are
contiguous, because later stages and the trainer read whole samples.

Categories are looked up in hash tables of ids. Tables that fit in memory are looked up together, in one pass
over the log. Otherwise each pass has some tables or a piece of one, and its ids wait in spill files for the
last pass.

A log that is only predicted becomes no folders: its parts are parsed and encoded in threads, in order, and
at most some of them are in memory at a time. Every sample is kept: a line that does not match the schema is
refused, whatever `ingest` may skip.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.id_tables import build_id_table, find_ids, id_table_bytes, id_table_of, most_rows_within
from ..errors import MIB, InputError, ManifestError, hint_to_rewrite
from ..folders.manifest import FileEntry, Manifest, is_sealed
from ..folders.output import Output, input_of, map_arrays, remove_arrays, write_arrays
from ..folders.totals import (
    SamplesFacts,
    SamplesTotals,
    SampleTable,
    VocabularyTable,
    VocabularyTotals,
    by_feature,
    multi_hot,
    one_hot,
)
from ..formats.arrow_files import lookups_of, read_batch, validity_of, values_of, write_batch
from ..formats.columns import transform_columns
from ..formats.ids import FoundIds, PartIds, PartSize, largest_part
from ..raw.part import Fault, Part, RawParts, UnreadPart
from ..runtime.tasks import (
    DEFAULT_RESOURCES,
    Resources,
    check_cap,
    crew_size,
    groups_within,
    nodes,
    num_processes,
    room_for,
    rooms_of_machines,
    run_tasks,
    thread_buffer,
    workers_within,
)
from ..schema.schema import Schema

LEAST_TABLE_BYTES = 4 * MIB
"""Memory for hash tables below which the passes over the log would be too many."""


@dataclass(frozen=True, slots=True)
class TablePiece:
    """Consecutive rows of one table, in most cases all of them, to be looked up in one pass."""

    features: dict[str, int]
    """Features of the table, and the position of each among all."""
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
    kept: NDArray[np.uint64] | Path
    """The hash table, or its file where other processes look up in it, too."""

    def find(self, feature: str, batch: Any, ids: NDArray[np.int32]) -> None:
        """Write the id of each lookup of a part to ``ids``, -1 where this piece has none."""
        # The lists of a multi-hot feature are looked up flat: where each begins does not matter here.
        array, _ = lookups_of(batch.column(feature), 0)
        categories = values_of(array)
        entries = self.kept
        if isinstance(entries, Path):
            entries = id_table_of(map_arrays(entries, np.uint64), self.piece.category_bytes)
        find_ids(categories, validity_of(array), entries, self.piece.table.missing_id, -1, ids)

    def remove(self) -> None:
        """Remove the file that other processes mapped, where there is one."""
        if isinstance(self.kept, Path):
            remove_arrays(self.kept)


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

    def collect_spilled(self, entry: FileEntry, ids_of_features: list[NDArray[np.int32]]) -> None:
        """Set the ids that earlier passes found for a file, -1 where they found none."""
        for ids in ids_of_features:
            ids.fill(-1)
        for number, pieces in enumerate(self.earlier):
            spilled = map_arrays(self.output.shared_path(self.spill_name(entry, number)), np.int32)
            for feature in chain.from_iterable(piece.features.values() for piece in pieces):
                ids = ids_of_features[feature]
                # At most one piece of a table has a category, and the others wrote -1.
                np.maximum(ids, spilled[: ids.shape[0]], out=ids)
                spilled = spilled[ids.shape[0] :]


def pieces_of(vocabulary: Manifest, room_bytes: int | None) -> Iterator[TablePiece]:
    """Yield each table, cut where it does not fit in ``room_bytes`` alone; None never cuts."""
    position = count()
    for table in VocabularyTotals.of(vocabulary).tables:
        features = {feature.name: next(position) for feature in by_feature([table])}
        array = read_batch(vocabulary, vocabulary.entry(f"{table.name}.arrow")).column("category")
        category_bytes = array.type.bit_width // 8
        for first, stop in cuts_of_table(table.num_rows, category_bytes, room_bytes):
            yield TablePiece(features, table, first, stop, category_bytes)


def cuts_of_table(num_rows: int, category_bytes: int, room_bytes: int | None) -> Iterator[tuple[int, int]]:
    """Yield the rows ``[first, stop)`` of each piece of a table."""
    most = num_rows if room_bytes is None else most_rows_within(room_bytes, category_bytes)
    for first in range(0, num_rows, most):
        yield first, min(first + most, num_rows)


def load_piece(vocabulary: Manifest, piece: TablePiece, shared: Output | None) -> LoadedPiece:
    """Build the hash table of a piece.

    ``shared``: the output in whose folder the table is written if other processes look up in it.
    """
    path = f"{piece.table.name}.arrow"
    array = read_batch(vocabulary, vocabulary.entry(path)).column("category")
    # Only the rows of this piece are inserted, with the ids that they have in the whole table.
    rows = values_of(array)[piece.first_id : piece.stop_id]
    entries = build_id_table(rows, piece.first_id, piece.table.missing_id, piece.table.oov_id)
    # Written to a file, the table is mapped once by each process; as an argument it would be pickled for each
    # task.
    if shared is None:
        return LoadedPiece(piece, entries)
    kept = shared.temporary_path(f"{path}.table{piece.first_id}")
    write_arrays(kept, [entries])
    return LoadedPiece(piece, kept)


VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeConfig:
    """The encode stage has nothing to vary."""


def encode(
    config: EncodeConfig,
    columns: Manifest,
    vocabulary: Manifest,
    out: Path,
    resources: Resources = DEFAULT_RESOURCES,
) -> Manifest:
    """columns, vocabulary -> samples: the ids of each sample's lookups.

    Reads:   ``*.arrow`` of columns, C*; ``{table}.arrow`` of vocabulary
    Writes:  the same files: ids, fixed-size list<int32>[one-hot features], and for each multi-hot feature
             a list<int32> called like it; unknown categories are oov
    """
    if not is_sealed(out):
        check_encode(config, columns, vocabulary, resources)
    output = Output.begin("encode", VERSION, config, [input_of(columns), input_of(vocabulary)], out)
    if output.sealed is not None:
        return output.sealed
    todo = [(entry, first) for first, entry in columns.parts() if not output.has(entry.path)]
    totals = VocabularyTotals.of(vocabulary)
    largest = largest_part(columns, [entry for entry, _ in todo])
    num_one_hot = len(one_hot(totals.tables))
    table_bytes = sum(piece.num_bytes for piece in pieces_of(vocabulary, None))
    resources = replace(resources, workers=workers_for(largest, num_one_hot, table_bytes, resources))
    room = room_of_tables(largest, num_one_hot, resources)
    pieces = pieces_of(vocabulary, room) if todo else []
    passes = list(groups_within(room, pieces, lambda piece: piece.num_bytes))
    # Workers in other processes map the hash tables from files; threads share them as they are.
    shared = output if num_processes(resources.workers) else None
    done = 0
    for number, pieces in enumerate(passes):
        loading = ((vocabulary, piece, shared) for piece in pieces)
        tables = list(run_tasks(load_piece, loading, workers=resources.workers))
        lookup = LookupPass(tables, passes[:number], columns, output, totals.tables)
        # Only the last pass writes samples: by then the ids of every earlier pass wait on disk.
        is_last = number == len(passes) - 1
        tasks = ((entry, totals.num_train_samples - first, lookup) for entry, first in todo)
        for num_samples in run_tasks(
            _encode_part if is_last else _spill_part, tasks, workers=resources.workers
        ):
            done += num_samples
            resources.progress("encode", done, len(passes) * columns.num_samples)
        for table in tables:
            table.remove()
        del tables, lookup, tasks  # the next pass needs their memory
    return output.seal(_totals(vocabulary, output))


def check_encode(config: EncodeConfig, columns: Manifest, vocabulary: Manifest, resources: Resources) -> None:
    """Raise ConfigError where `encode` would refuse, before it writes anything."""
    num_one_hot = len(one_hot(VocabularyTotals.of(vocabulary).tables))
    largest = largest_part(columns, [entry for _, entry in columns.parts()])
    check_cap("encode", resources, needed_bytes(largest, num_one_hot, resources.workers))


def needed_bytes(part: PartSize, num_one_hot: int, workers: int) -> int:
    """The least that `encode` can do with on a machine: ids of a part for each worker, and small tables."""
    return crew_size(workers) * _ids_bytes(part, num_one_hot) + LEAST_TABLE_BYTES


def _ids_bytes(part: PartSize, num_one_hot: int) -> int:
    return part.num_samples * (9 * num_one_hot + 16) + 9 * part.num_list_lookups


def workers_for(part: PartSize, num_one_hot: int, table_bytes: int, resources: Resources) -> int:
    """Return the workers, of a cluster so few that half of each machine's room is left for hash tables.

    Every process has costs of its own, and each pass that the tables take reads the whole log.
    """
    if not num_processes(resources.workers):
        return resources.workers
    # Processes of a machine map the same tables, so these take their room once.
    most = min(rooms_of_machines(replace(resources, workers=len(nodes())))) // 2
    ids_bytes = _ids_bytes(part, num_one_hot)
    return workers_within("encode", resources, ids_bytes, max(0, min(table_bytes, most - ids_bytes)))


def room_of_tables(part: PartSize, num_one_hot: int, resources: Resources) -> int:
    """Return the bytes of a machine for hash tables: what the ids of the largest part leave, for each worker.

    Raises:
        MemoryCapError: the stage cannot keep within the cap.
    """
    needed = needed_bytes(part, num_one_hot, resources.workers)
    return room_for("encode", resources, needed) - needed + LEAST_TABLE_BYTES


def _spill_part(entry: FileEntry, num_train: int, lookup: LookupPass) -> int:
    """Store the ids of one pass for the last one, table by table."""
    batch = read_batch(lookup.columns, entry)

    def ids_of_tables() -> Iterator[NDArray[np.int32]]:
        pairs = [(table, feature) for table in lookup.tables for feature in table.piece.features]
        for table, feature in pairs:
            _, num_lookups = lookups_of(batch.column(feature), entry.num_samples)
            ids = thread_buffer("found", (num_lookups,), np.int32)
            table.find(feature, batch, ids)
            yield ids  # written before the next feature reuses the buffer

    name = lookup.spill_name(entry, len(lookup.earlier))
    write_arrays(lookup.output.temporary_path(name), ids_of_tables())
    lookup.output.share(name)
    return entry.num_samples


def _encode_part(entry: FileEntry, num_train: int, lookup: LookupPass) -> int:
    """Encode one file, of which the first ``num_train`` samples are for training."""
    if lookup.output.has(entry.path):  # by a worker that was killed before it could say so
        return entry.num_samples
    batch = read_batch(lookup.columns, entry)
    found_ids = FoundIds.unset(batch, lookup.every_table)
    ids_of_features = found_ids.ids
    if lookup.earlier:
        lookup.collect_spilled(entry, ids_of_features)
    for table in lookup.tables:
        for feature, position in table.piece.features.items():
            ids = ids_of_features[position]
            # The first piece of a table writes its ids in place; the others add theirs, -1 where unknown.
            if table.piece.first_id == 0:
                table.find(feature, batch, ids)
            else:
                found = thread_buffer("found", ids.shape, np.int32)
                table.find(feature, batch, found)
                np.maximum(ids, found, out=ids)
    # Ids still at -1 have no row: they become oov, counted apart for training and evaluation.
    matrix = thread_buffer("ids", found_ids.of_one_hot.shape[::-1], np.int32)
    part, facts = found_ids.settle(min(max(num_train, 0), entry.num_samples), matrix)
    with lookup.output.writing(entry.path, entry.num_samples, facts) as path:
        write_batch(path, part.columns())
    # Only when the part is written may its spilled ids go: a killed run reads them again.
    for number in range(len(lookup.earlier)):
        remove_arrays(lookup.output.shared_path(lookup.spill_name(entry, number)))
    return entry.num_samples


def _totals(vocabulary: Manifest, output: Output) -> SamplesTotals:
    """The totals of the vocabulary, with how often the log looks up each table."""
    totals = VocabularyTotals.of(vocabulary)
    # Facts are from manifests of parts that another process may have written: each must be of these tables.
    facts = [entry.read_facts(SamplesFacts) for entry in output.finished.values()]
    names = {feature.name for feature in multi_hot(totals.tables)}
    for entry, found in zip(output.finished.values(), facts, strict=True):
        lengths = {len(found.oov_train), len(found.oov_evaluation)}
        if lengths != {len(totals.tables)} or found.lookups.keys() != names:
            raise ManifestError(
                f"{output.folder}: the record of {entry.path} is damaged: it is of other tables",
                hint=hint_to_rewrite(output.folder),
            )
    tables = tuple(_describe_table(number, totals, facts) for number in range(len(totals.tables)))
    return totals.extended(SamplesTotals, tables=tables)


def _describe_table(number: int, totals: VocabularyTotals, facts: list[SamplesFacts]) -> SampleTable:
    table = totals.tables[number]
    lookups = [found.lookups[each.name] for each in multi_hot([table]) for found in facts]
    # A one-hot feature that shares its table looks it up once for each sample.
    num_one_hot = len(one_hot([table]))
    of_train = num_one_hot * totals.num_train_samples + sum(train for train, _ in lookups)
    of_all = num_one_hot * totals.num_samples + sum(map(sum, lookups))
    return table.extended(
        SampleTable,
        oov_train=sum(found.oov_train[number] for found in facts),
        oov_evaluation=sum(found.oov_evaluation[number] for found in facts),
        lookups_train=of_train if table.is_multi_hot else None,
        lookups_evaluation=of_all - of_train if table.is_multi_hot else None,
    )


@dataclass(frozen=True, slots=True)
class EncodedSamples:
    """Consecutive samples of a log."""

    dense: NDArray[np.float32]
    """(num_samples, dense features); transformed, 0 where missing."""
    ids: PartIds
    num_raw_bytes: int = 0
    """Bytes of the raw file that they were parsed from; of Parquet, their share of them."""
    num_other_lines: int = 0
    """Lines among them that are no samples."""

    @property
    def num_lines(self) -> int:
        return self.num_samples + self.num_other_lines

    @property
    def num_samples(self) -> int:
        return int(self.dense.shape[0])


class SampleEncoder:
    """Encode parsed samples by a finished vocabulary, whose hash tables are in memory.

    Args:
        schema: schema of the log that the vocabulary was made from.
        vocabulary: its sealed folder.
        workers: threads that build the hash tables; 0: one for each core.

    Raises:
        ManifestError: the vocabulary is damaged, or has other features than the schema.
    """

    def __init__(self, schema: Schema, vocabulary: Manifest, workers: int = 0) -> None:
        self.schema = schema
        self.tables = VocabularyTotals.of(vocabulary).tables
        found = {table.name: tuple(each.name for each in by_feature([table])) for table in self.tables}
        names = tuple(feature.name for feature in by_feature(self.tables))
        if found != schema.features_of_tables:
            raise ManifestError(
                f"{vocabulary.folder} has the features {', '.join(names)}, "
                f"the schema has {', '.join(schema.sparse)}"
            )
        # Whole tables are loaded once and shared by the threads: lines are looked up as they arrive.
        loading = ((vocabulary, piece, None) for piece in pieces_of(vocabulary, None))
        self._pieces: list[LoadedPiece] = list(
            run_tasks(load_piece, loading, workers=workers, shares_memory=True)
        )

    def encode(self, part: Part) -> EncodedSamples:
        """Encode the samples of a part; the result shares no memory with the part."""
        pieces = [(piece, feature) for piece in self._pieces for feature in piece.piece.features]
        arrays = [self._categories(piece, part.columns[feature]) for piece, feature in pieces]
        batch = pa.record_batch(arrays, names=[feature for _, feature in pieces])
        found = FoundIds.unset(batch, self.tables)
        for (piece, feature), ids_N in zip(pieces, found.ids, strict=True):
            piece.find(feature, batch, ids_N)
        # Categories without an id get that of oov, as in every stage.
        matrix = np.empty((part.num_samples, len(one_hot(self.tables))), np.int32)
        ids, _ = found.settle(part.num_samples, matrix)
        lists = {name: (offsets.copy(), flat) for name, (offsets, flat) in ids.lists.items()}
        every_sample = np.arange(part.num_samples, dtype=np.int32)
        dense = np.empty((part.num_samples, len(self.schema.dense)), np.float32)
        transform_columns(self.schema, part.columns, every_sample, dense.T)
        return EncodedSamples(dense, replace(ids, lists=lists), part.num_raw_bytes, part.num_other_lines)

    def _categories(self, piece: LoadedPiece, array: Any) -> Any:
        # A table in memory has 64 bits where Criteo's text has 32: the hash table decides.
        is_short = piece.piece.category_bytes == 4
        return array.cast(pa.uint32()) if is_short and array.type != pa.uint32() else array


def encode_parts(
    parts: RawParts, source: str, encoder: SampleEncoder, workers: int = 0
) -> Generator[EncodedSamples]:
    """Yield the samples of all parts in order; the threads end when the generator is closed.

    Args:
        parts: those of a raw file, or of a table in memory.
        source: name of the log in messages.
        workers: threads that parse and encode; 0: one for each core.

    Raises:
        InputError: a line does not match the schema.
    """
    tasks = ((part, encoder) for part in parts.iterate({}))
    num_lines = 0
    with closing(run_tasks(_encode_raw_part, tasks, workers=workers, shares_memory=True)) as results:
        for found in results:
            if isinstance(found, Fault):
                # Lines count from the beginning of the log, its header included.
                line = num_lines + found.line_in_block + 1 + parts.num_header_lines
                raise InputError(f"{source}, {parts.unit} {line}{found.text}", hint=_hint(found))
            if found is not None:
                num_lines += found.num_lines
                yield found


def _encode_raw_part(unread: UnreadPart, encoder: SampleEncoder) -> EncodedSamples | Fault | None:
    part = unread.read()
    if part is None:
        return None
    return part.fault or encoder.encode(part)


def _hint(fault: Fault) -> str:
    if fault.is_label_off:
        return "a log without labels is read with --no-label, one that has them without"
    return "fix the line: every line gets a prediction, so none is skipped"
