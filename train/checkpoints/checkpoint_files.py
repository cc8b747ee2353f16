"""The files of checkpoints, in the folder ``checkpoints/`` of a run.

    step-000000500.json                 written last: what the checkpoint holds, with a checksum of each file
    dense-000000500.safetensors         dense layers, their optimizers, batches so far (see `dense_state`)
    rows-000000500-00000.safetensors    rows: tables, ids, weights, state; one row width in a file

A checkpoint has the rows that changed since the one before, and lists the files of those before it too: of a
row that is in several files the last one has its value, and one that is in none has its initial value. Once
the files have more than twice as many rows as were ever changed, they are merged. A file that no checkpoint
lists any more is removed.

Nothing in a file is trusted: its checksum is taken before it is read, every table and id is checked against
the shards, and no format can run code.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...pipeline.errors import HotsetError, first_line
from ...pipeline.folders.checksum import hash_file
from ...pipeline.folders.manifest import JsonRecord, RecordError, checksum_of
from .run_state import RunState

_log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints in that of the run."""
_VERSION = 1
_RECORD_NAME = re.compile(r"step-(\d{9,18})\.json")
_FILE_NAME = re.compile(r"(dense|rows)-\d{9,18}(-[0-9]+)?\.safetensors")
_MOST_RECORD_BYTES = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord(JsonRecord):
    """One file of a checkpoint."""

    path: str
    """Name in the folder of checkpoints."""
    bytes: int
    xxh3_128: str
    rows: int = 0
    """Rows in it."""

    def refuse_nonsense(self, where: str) -> None:
        if not _FILE_NAME.fullmatch(self.path):
            raise RecordError(f"{where}path is {self.path!r}, no name of a checkpoint's file")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRecord(JsonRecord):
    """The contents of ``step-N.json`` but for its checksum."""

    version: int
    run: str
    """Checksum of the run's settings."""
    state: RunState
    dense: FileRecord
    rows: tuple[FileRecord, ...]
    """Files of rows, the oldest first."""

    @property
    def files(self) -> tuple[FileRecord, ...]:
        return (self.dense, *self.rows)


def record_path(folder: Path, step: int) -> Path:
    """Where the record of a checkpoint is."""
    return folder / f"step-{step:09}.json"


def record_paths(folder: Path) -> list[Path]:
    """The records of all checkpoints in a folder, whole or not, the newest first."""
    if not folder.is_dir():
        return []
    found = {int(match[1]): path for path in folder.iterdir() if (match := _RECORD_NAME.fullmatch(path.name))}
    return [found[step] for step in sorted(found, reverse=True)]


def write_record(folder: Path, record: CheckpointRecord) -> None:
    """Write the record, which makes the checkpoint whole.

    Raises:
        OSError: the disk is full or does not work.
    """
    parts = record.to_json()
    path = record_path(folder, record.state.step)
    aside = path.with_name(f".{path.name}.tmp")
    with open(aside, "w") as file:
        file.write(json.dumps(parts | {"checksum": checksum_of(parts)}))
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def read_record(path: Path) -> CheckpointRecord:
    """Read and check a record, but not the files it lists.

    Raises:
        HotsetError: it is damaged, or of another version.
    """
    try:
        # Size and checksum before contents, so that nothing damaged is interpreted.
        _refuse_no_file(path)
        if path.stat().st_size > _MOST_RECORD_BYTES:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        parts = json.loads(path.read_bytes())
        if not isinstance(parts, dict):
            raise ValueError("it is no object")
        checksum = parts.pop("checksum", None)
        if checksum != checksum_of(parts):
            raise ValueError(f"its checksum is {checksum!r}, want {checksum_of(parts)!r}")
        if parts.get("version") != _VERSION:
            raise ValueError(f"it is of version {parts.get('version')!r}, want {_VERSION}")
        record = CheckpointRecord.from_json(parts)
        # A record under another name is a copy that someone renamed.
        if record_path(path.parent, record.state.step) != path:
            raise ValueError(f"it is of step {record.state.step}")
    except (OSError, ValueError, RecursionError) as error:
        raise HotsetError(f"{path} is damaged: {first_line(error)}") from error
    return record


def refuse_damaged_files(folder: Path, record: CheckpointRecord) -> None:
    """Hash every file of a checkpoint; raises HotsetError where one is not as it was written."""
    for entry in record.files:
        # Hashing reads every byte, which also finds files that the disk no longer gives back.
        path = folder / entry.path
        try:
            _refuse_no_file(path)
            found = hash_file(path)
        except (OSError, ValueError) as error:
            raise HotsetError(f"{path} cannot be read: {first_line(error)}") from error
        if found != (entry.bytes, entry.xxh3_128):
            raise HotsetError(
                f"{path} is damaged: {found[0]} bytes with the checksum {found[1]}, "
                f"want {entry.bytes} with {entry.xxh3_128}"
            )


def _refuse_no_file(path: Path) -> None:
    """Raise ValueError unless it is a plain file: a link may lead anywhere, and a pipe waits forever."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError("it is not a plain file")


def new_record(
    run: str, state: RunState, dense: FileRecord, rows: tuple[FileRecord, ...]
) -> CheckpointRecord:
    """Return the record of a checkpoint that this version writes."""
    return CheckpointRecord(version=_VERSION, run=run, state=state, dense=dense, rows=rows)


def newest_whole(folder: Path, run: str | None = None) -> CheckpointRecord | None:
    """Return the newest checkpoint all of whose files are as they were written; None where there is none.

    One that is damaged is named in a warning.

    Args:
        run: checksum of the settings that it must be of; None: of any.

    Raises:
        HotsetError: there are checkpoints, and all are damaged.
    """
    # From the newest on, until one is whole; those passed over are told, with the step that is used instead.
    faults = []
    for path in record_paths(folder):
        try:
            record = read_record(path)
            if run is not None and record.run != run:
                raise HotsetError(f"{path} is of a run with other settings")
            refuse_damaged_files(folder, record)
        except HotsetError as error:
            faults.append(str(error))
            continue
        for fault in faults:
            _log.warning("%s: going back to the checkpoint of step %s", fault, record.state.step)
        return record
    if faults:
        raise HotsetError(
            f"no checkpoint in {folder} is whole: {faults[0]}",
            hint="take the run from a copy, or remove its folder to train from the start",
        )
    return None


def remove_others(folder: Path, keep: int, newest: int) -> None:
    """Remove all checkpoints but the ``keep`` newest up to step ``newest``, and files that none of them
    lists."""
    # Records first: a file that no record names any more can go, and not the other way round.
    records: list[CheckpointRecord] = []
    for path in record_paths(folder):
        if int(path.stem.removeprefix("step-")) > newest or len(records) == keep:
            path.unlink()
            continue
        try:
            records.append(read_record(path))
        except HotsetError:
            path.unlink()
    listed = {entry.path for record in records for entry in record.files}
    for path in _data_files(folder):
        if path.name not in listed:
            path.unlink()


def _data_files(folder: Path) -> Iterator[Path]:
    for path in list(folder.iterdir()):
        if _FILE_NAME.fullmatch(path.name) or (path.name.startswith(".step-") and path.suffix == ".tmp"):
            yield path
