"""Lookups by row that `hotset transpose` stored, read batch by batch beside the shards they are of.

The folder is used where there is one: its files are hashed before training begins, read and not mapped, and
every number is held against the ids of its batch. Lookups of other shards, or damaged ones, are an error that
names the folder: it is never passed over in silence.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError, ManifestError, first_line, refuse_system_fault
from ...pipeline.folders.checksum import hash_file
from ...pipeline.folders.file_facts import LookupsFacts, ShardFacts
from ...pipeline.folders.manifest import FileEntry, Manifest
from ...pipeline.folders.stage_totals import LookupsTotals
from ...pipeline.formats.arrow_files import DAMAGE
from ...pipeline.formats.lookup_files import is_lookup_schema, stored_lookups
from ...pipeline.runtime.tasks import run_tasks
from ...pipeline.stage_commands import hint_to_rewrite
from ...stats.batches.stored_lookups import StoredLookups
from ...stats.staging.cold_rows import stored_cold_rows
from .shards import Shards
from .unchanged_file import UnchangedFile

_STAGE = "transpose"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """The stored lookups of one training batch; checked when it is placed."""

    lookups: StoredLookups
    path: Path
    index: int
    tables: tuple[str, ...]

    def other_lookups(self, table: int) -> ManifestError:
        """The error of a batch that looks up other rows of this table."""
        fault = f"batch {self.index}: its lookups of {self.tables[table]} are not those of the shards"
        return _damaged(self.path, fault)

    def cold_rows(
        self,
        tables: NDArray[np.int64],
        layout: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The distinct rows of some tables within a range of ids, and the lookups of each.

        For planning alone: when the batch runs, all that is stored of it is held against its ids.

        Args:
            tables: ascending.
            layout: first id of each table, one past its last id, and the number of the first row.
        """
        try:
            return stored_cold_rows(self.lookups, tables, *layout)
        except ValueError as error:
            raise self.other_lookups(*error.args) from None


class StoredBatches:
    """A sealed folder of lookups by row, and its batches by number.

    Args:
        manifest: of the folder.
        shards: of which it is.

    Raises:
        ManifestError: it is of other shards, or damaged.
    """

    def __init__(self, manifest: Manifest, shards: Shards) -> None:
        self._names = tuple(table.name for table in shards.tables)
        _refuse_other_shards(manifest, shards)
        LookupsTotals.of(manifest)
        _refuse_damage(manifest)
        # Training batches are numbered in the order of the shards: hot-only files first, then mixed ones.
        self._positions: list[tuple[_LookupFile, int]] = []
        for position in shards.training_positions():
            entry = manifest.entries[position.path]
            file = self._positions[-1][0] if self._positions else None
            if file is None or file.path.name != position.path:
                file = _LookupFile(manifest.checked_path(entry), LookupsFacts.of(manifest, entry))
            self._positions.append((file, position.index))

    @classmethod
    def find(cls, shards: Shards) -> StoredBatches | None:
        """The lookups beside ``shards``; None where there are none.

        Raises:
            ManifestError: there are some, and they are unfinished, damaged or of other shards.
        """
        manifest = Manifest.read_if_begun(shards.manifest.folder.parent / "lookups")
        return None if manifest is None else cls(manifest, shards)

    def read(self, number: int) -> StoredBatch:
        """Return the stored lookups of a training batch."""
        file, index = self._positions[number]
        return StoredBatch(file.read(index, len(self._names)), file.path, index, self._names)


class _LookupFile:
    """One Arrow file; every array of a batch is a view of the memory that the batch was read into."""

    def __init__(self, path: Path, facts: LookupsFacts) -> None:
        self.path = path
        self._readers = threading.local()
        try:
            self._file = UnchangedFile(path)
            reader = self._reader()
            # The schema is compared whole, because batches are read without another look at their types.
            if not is_lookup_schema(reader.schema):
                raise TypeError("its columns are not those of lookups by row")
            if reader.num_record_batches != facts.num_batches:
                raise ValueError(f"it has {reader.num_record_batches} batches, want {facts.num_batches}")
        except HotsetError:
            raise
        except DAMAGE as error:
            refuse_system_fault(path, error)
            raise _damaged(path, first_line(error)) from error

    def read(self, index: int, num_tables: int) -> StoredLookups:
        try:
            # Each batch is validated before a kernel indexes by it.
            batch = self._get_batch(index)
            batch.validate()
            return stored_lookups(batch, num_tables)
        except HotsetError:
            raise
        except DAMAGE as error:
            refuse_system_fault(self.path, error)
            raise _damaged(self.path, f"batch {index}: {first_line(error)}") from error

    def _get_batch(self, index: int) -> Any:
        reader = self._reader()
        self._file.refuse_change()
        self._file.chunks.clear()
        return reader.get_batch(index)

    def _reader(self) -> Any:
        """The file as Arrow parsed it for this thread: others read other batches meanwhile."""
        if not hasattr(self._readers, "reader"):
            self._readers.reader = pa.ipc.open_file(pa.PythonFile(self._file, "r"))
        return self._readers.reader


def _refuse_other_shards(manifest: Manifest, shards: Shards) -> None:
    """Raise ManifestError where a folder is not the lookups of these shards, file by file."""
    if (manifest.stage, manifest.version) != (_STAGE, _VERSION):
        raise ManifestError(
            f"{manifest.folder} holds {manifest.stage!r} of version {manifest.version}, want {_STAGE!r} of "
            f"{_VERSION}",
            hint=hint_to_rewrite(manifest.folder),
        )
    # Lookups are positions in batches, so they hold for the very shards they were made from.
    if all(source.get("fingerprint") != shards.manifest.fingerprint for source in manifest.inputs):
        raise ManifestError(
            f"{manifest.folder} was written for other shards than {shards.manifest.folder}",
            hint=hint_to_rewrite(manifest.folder),
        )
    # And these files of them: each training file, with as many batches.
    batches = {
        entry.path: ShardFacts.of(shards.manifest, entry).num_batches for entry in shards.manifest.files
    }
    wanted = {position.path: batches[position.path] for position in shards.training_positions()}
    found = {entry.path: LookupsFacts.of(manifest, entry).num_batches for entry in manifest.files}
    if found != wanted:
        raise _damaged(manifest.folder, f"it has batches {found}, want {wanted}")


def _refuse_damage(manifest: Manifest) -> None:
    """Hash every file: a flipped bit may well be another sample."""
    entries: list[FileEntry] = manifest.files
    tasks = ((manifest.checked_path(entry),) for entry in entries)
    for entry, (_, checksum) in zip(entries, run_tasks(hash_file, tasks), strict=True):
        if checksum != entry.xxh3_128:
            path = manifest.folder / entry.path
            raise _damaged(path, f"its checksum is {checksum}, want {entry.xxh3_128}")


def _damaged(path: Path, fault: str) -> ManifestError:
    folder = path if path.is_dir() else path.parent
    return ManifestError(
        f"{path} is damaged: {fault}",
        hint=f"{hint_to_rewrite(folder)}; training works without it, too",
    )
