"""Write a stage folder; a kill loses only the files in flight.

    folder/.partial/lock           held by the run that writes; see `disk`
    folder/.partial/workers        held by its workers in other processes; see `disk`
    folder/.partial/begun.json     config and inputs of the run that began the folder
    folder/.partial/NAME           a file being written; what a kill leaves of it is overwritten
    folder/NAME                    a finished file, renamed into place ...
    folder/.partial/NAME.json      ... and then recorded: without a record it is not finished
    folder/manifest.json           written last; then .partial is removed
    folder/.partial/removed.json   what the manifest is renamed to when the folder is to be removed
    folder/.partial/before/        where the manifest goes when the folder is reopened; see `resume`
    folder/.partial/scratch        names of folders elsewhere that hold temporary files

`resume` decides what a run does with an existing folder. Tasks in other processes write through
copies of the output. Each copy writes aside under names that no other uses, because a task may run twice if
a machine that seemed dead is not, and reports to the main process what it finished.

Only manifests are synced to the device: after a SIGKILL the page cache still holds the rest, and after
a power cut the checksums decide. Inside `durable_files` every file is synced before it is recorded.

Large temporary data of a stage, or data of several processes, are files in ``.partial``, too. Their mapped
pages belong to the page cache: they do not count as the stage's memory, and all processes of a machine share
them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import ManifestError
from ..runtime.tasks import RemoteObject
from .disk import (
    BEGUN,
    LOCK,
    PARTIAL,
    REMOVED,
    SCRATCH,
    SCRATCH_PREFIX,
    WORKERS,
    FolderLock,
    durable_files,
    empty_folder,
    folder_exists,
    held_by_worker,
    is_discarded,
    is_durable,
    link_or_copy,
    mark_removed,
    remove_scratch,
    removed_on_failure,
    start_generation,
    sync,
    write_errors_explained,
    write_synced,
)
from .manifest import (
    MANIFEST,
    FileEntry,
    FileState,
    JsonRecord,
    Manifest,
    checksum_of,
    checksum_of_written,
    note_checksum,
    overwritten_file,
    states_in,
)
from .resume import (
    Continuation,
    Decision,
    FolderState,
    RunIdentity,
    decide,
    drop_added,
    go_back,
    identity_of_run,
    read_before,
    reopen,
    set_aside,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_ASIDE = ".aside"
_SCRATCH_HERE = "pieces"
_log = logging.getLogger(__name__)


class Output(RemoteObject):
    """A stage folder being written or finished by an equal run; see the module."""

    def __init__(self, folder: Path, identity: RunIdentity) -> None:
        self.folder = folder
        self._partial = folder / PARTIAL
        self._identity = identity
        # `begin` fills these: the lock that it took, and how files of this writer are named while they are
        # written.
        self._unlock: Callable[[], object] = lambda: None
        self._generation = ""
        """Token of this run, which its workers show; see `disk`."""
        self._inputs_before: list[FileState] = []
        """States of the files of all input folders when this run began."""
        self._is_durable = False
        self._suffix = ""
        """Ending of what a copy in a worker writes aside, different in each copy."""
        self.sealed: Manifest | None = None
        """The folder as an equal run has finished it; then nothing is written."""
        self.finished: dict[str, FileEntry] = {}
        """Files that are written and recorded, by name."""
        self._written: dict[str, str] = {}
        """Checksums of those that this run wrote."""
        self.before: Manifest | None = None
        """The folder as it was sealed with fewer inputs, if this run continues from there."""

    @classmethod
    def begin(
        cls,
        stage: str,
        version: int,
        config: DataclassInstance,
        inputs: Sequence[dict[str, Any]],
        folder: Path,
        *,
        continuation: Continuation | None = None,
    ) -> Output:
        """Open ``folder`` for a run of ``stage``; `decide` has the cases.

        If an equal run has sealed the folder, it is only read, and ``sealed`` is its manifest. Otherwise it
        is locked until it is sealed or the output is garbage.

        Args:
            stage: name that the manifest records.
            version: of the stage; raised when its output changes.
            config: a dataclass of plain data, part of the folder's identity.
            inputs: ``{"name", "fingerprint"}`` of each input folder, or name and bytes of a raw file.
            folder: the folder to write.
            continuation: how to continue from a folder sealed with fewer inputs, if the stage can.

        Raises:
            ManifestError: the folder was begun or sealed with another config, version or inputs, a file it
                lists is missing or of another size, another run is writing it, or it cannot be written.
        """
        output = cls(folder, identity_of_run(stage, version, config, inputs))
        with write_errors_explained(folder):
            output._begin(continuation)
        return output

    def _begin(self, continuation: Continuation | None) -> None:
        state = FolderState.read(self.folder)
        decision = None if state.is_unfinished else decide(state, self._identity, continuation)
        if decision is None or decision is Decision.EXTEND_SEALED:
            # Decided under the lock: another run may have sealed or changed the folder since.
            self._lock()
            decision = decide(FolderState.read(self.folder), self._identity, continuation)
        _log.info("%s: %s", self.folder, decision.value)
        match decision:
            case Decision.SEALED:
                return self._read_sealed()
            case Decision.GO_BACK:
                self._start_generation()
                go_back(self.folder)
                return self._read_sealed()
            # Put the folder into a state that an interrupted run could have left, then resume it.
            case Decision.EXTEND_SEALED:
                sealed = Manifest.read(self.folder)
                for entry in sealed.files:
                    sealed.checked_path(entry)
                reopen(self.folder, json.dumps(self._identity).encode())
            case Decision.EXTEND_BEFORE:
                self._start_generation()
                drop_added(self.folder)
        self._resume(continuation, starts_fresh=decision is Decision.FRESH)
        _log.info("%s: %s files are finished", self.folder, len(self.finished))

    def _lock(self) -> None:
        lock = FolderLock.take(self._partial / LOCK, self.folder)
        self._unlock = weakref.finalize(self, lock.release)

    def _start_generation(self) -> None:
        """Wait for workers of earlier runs to end, and keep them from writing from now on."""
        self._generation = start_generation(self._partial / WORKERS, self.folder)

    def _read_sealed(self) -> None:
        self._unlock()  # taken if this run had to wait for the one that sealed the folder
        sealed = Manifest.read(self.folder)
        check_files(sealed)
        remove_scratch(self._partial)
        shutil.rmtree(self._partial, ignore_errors=True)
        self.sealed = sealed

    def _resume(self, continuation: Continuation | None, *, starts_fresh: bool) -> None:
        """Make an unfinished folder this run's."""
        for made_from in self._identity["inputs"]:
            self._inputs_before += states_in(self.folder.parent / made_from["name"])
        self._start_generation()
        if starts_fresh and (self._partial / BEGUN).exists():
            # Leftovers of a run with other settings must not pass for this run's.
            mark_removed(self.folder)
        if (self._partial / REMOVED).exists():
            empty_folder(self.folder)
        write_synced(self._partial / BEGUN, json.dumps(self._identity).encode(), sync=False)
        for left in self._partial.glob(f"*{_ASIDE}"):
            left.unlink(missing_ok=True)
        # A file is finished if it is recorded: find the records that earlier runs left.
        for record in self._partial.glob("*.json"):
            entry = None if record.name == BEGUN else self._finished_file(record)
            if entry is not None:
                self.finished[entry.path] = entry
        before = read_before(self.folder)
        if before is None or continuation is None:
            return
        if continuation.keeps_files:
            self.finished = {entry.path: entry for entry in before.files} | self.finished
        else:
            set_aside(self.folder, before, self.has)
        self.before = before

    def _finished_file(self, record: Path) -> FileEntry | None:
        """Return the file that ``record`` describes; None if a power cut left half of either."""
        try:
            parts = json.loads(record.read_bytes())
            # A record that is damaged in any way is as good as none: its file is written again.
            if parts.pop("checksum") != checksum_of(parts):
                return None
            entry = FileEntry.from_json(parts)
            return entry if (self.folder / entry.path).stat().st_size == entry.num_bytes else None
        except (KeyError, TypeError, ValueError, AttributeError, FileNotFoundError):
            return None

    def abandon(self) -> None:
        """Reset the folder for a next run with any settings; no task may be running.

        For a run that cannot end with these inputs and settings. A folder that was sealed with fewer inputs
        is left as it is: the next run drops what this one added.
        """
        if self.before is None:
            mark_removed(self.folder)

    def has(self, name: str) -> bool:
        """Return whether ``name`` is finished, by this run or before an interruption."""
        # A copy in a worker starts with no entries: sending thousands with each task would cost more.
        if self._suffix and name not in self.finished:
            entry = self._finished_file(self._partial / f"{name}.json")
            if entry is not None:
                self.finished[name] = entry
        return name in self.finished

    def state_for_worker(self) -> tuple[Path, RunIdentity, str, bool]:
        """Return what a copy needs; not what is finished, which the copy looks up."""
        return self.folder, self._identity, self._generation, is_durable()

    @classmethod
    def in_worker(cls, folder: Path, identity: RunIdentity, generation: str, is_durable: bool) -> Output:
        """Build a copy in a worker."""
        copy = cls(folder, identity)
        copy._generation = generation
        copy._is_durable = is_durable
        copy._suffix = f".{secrets.token_hex(4)}{_ASIDE}"
        return copy

    @contextmanager
    def while_working(self) -> Iterator[None]:
        """Keep later runs waiting while a copy's task runs; refuse the task if one has begun already."""
        workers = self._partial / WORKERS
        with held_by_worker(workers, self._generation, self.folder), durable_files(self._is_durable):
            yield

    def report(self) -> list[dict[str, Any]]:
        """Return what a copy finished or found finished."""
        return [entry.to_json() for entry in self.finished.values()]

    def apply_report(self, report: list[dict[str, Any]]) -> None:
        """Record what a copy finished."""
        entries = [FileEntry.from_json(entry) for entry in report]
        for entry in entries:
            self._check_new_file(entry)
        self.finished |= {entry.path: entry for entry in entries}

    def temporary_path(self, name: str) -> Path:
        """Return where a task keeps what it needs while it runs; what a kill leaves is overwritten."""
        return self._partial / f"{name}{self._suffix}"

    def shared_path(self, name: str) -> Path:
        """Return where tasks in other processes read what a task left there by `share`."""
        return self._partial / name

    def read_note(self, name: str) -> str | None:
        """Return a text that an earlier run has noted; None where there is none."""
        data = self.kept(name)
        return None if data is None else data.decode()

    def write_note(self, name: str, text: str) -> None:
        """Note a short text for a run that resumes this one; it goes when the folder is sealed."""
        self.keep(name, text.encode())

    def kept(self, name: str) -> bytes | None:
        """Return what this run or an earlier one keeps under a name; None where there is nothing."""
        path = self.shared_path(name)
        return path.read_bytes() if path.exists() else None

    def keep(self, name: str, data: bytes) -> None:
        """Keep bytes for a run that resumes this one, until the folder is sealed."""
        with write_errors_explained(self.folder):
            aside = self.temporary_path(f"{name}.tmp")
            write_synced(self.shared_path(name), data, aside=aside, sync=False)

    def scratch_folders(self) -> list[Path]:
        """Return the folders in which this run or earlier ones keep large temporary files.

        They are removed when this folder is sealed or removed.
        """
        folders = [self._partial / _SCRATCH_HERE, *map(Path, self._noted_scratch())]
        return [folder for folder in folders if folder_exists(folder)]

    def scratch_folder(self, scratch: Path | None) -> Path:
        """Return a folder for large temporary files inside ``scratch``; None takes the partial folder."""
        if scratch is None:
            return self._partial / _SCRATCH_HERE
        place = scratch.absolute()
        noted = self._noted_scratch()
        found = next((Path(name) for name in noted if Path(name).parent == place), None)
        if found is None:
            # Noted before it is made, so that a kill leaves no folder that is forgotten.
            found = place / f"{SCRATCH_PREFIX}{secrets.token_hex(8)}"
            self.write_note(SCRATCH, json.dumps([*noted, str(found)]))
        return found

    def _noted_scratch(self) -> list[str]:
        try:
            noted: list[str] = json.loads(self.read_note(SCRATCH) or "[]")
        except ValueError:  # a power cut left half of it
            return []
        return noted

    def share(self, name: str) -> None:
        """Move the temporary file ``name`` to its shared path; two workers may run the same task."""
        os.replace(self.temporary_path(name), self.shared_path(name))

    def drop(self, names: Iterable[str]) -> None:
        """Take finished files out of this run, which would not write them; those of before are set aside."""
        for name in names:
            del self.finished[name]
            path = self.folder / name
            # The record first, as none may outlive its file; a kill leaves this to the next run.
            (self._partial / f"{name}.json").unlink(missing_ok=True)
            if self.before is not None and name in self.before.entries and path.exists():
                os.replace(path, self.before.folder / name)
            path.unlink(missing_ok=True)

    @contextmanager
    def writing(self, name: str, num_samples: int, facts: JsonRecord | None = None) -> Iterator[Path]:
        """Yield a path to write ``name`` at; on leaving, the file is hashed, renamed and recorded.

        Raises:
            ManifestError: the device is full, or the file cannot be written for another such reason.
        """
        aside = self.temporary_path(name)
        with write_errors_explained(self.folder / name), removed_on_failure(aside):
            yield aside
            num_bytes, checksum = checksum_of_written(aside)  # while it is in the page cache
            entry = FileEntry(name, num_samples, num_bytes, checksum, facts.to_json() if facts else {})
            self._place(aside, entry)

    def adopt(self, folder: Manifest, entry: FileEntry, name: str, facts: JsonRecord | None = None) -> None:
        """Keep a file of another sealed folder as ``name``, with other facts if any are given."""
        source = folder.hashed_path(entry)
        aside = self.temporary_path(name)
        with write_errors_explained(self.folder / name):
            aside.unlink(missing_ok=True)
            link_or_copy(source, aside)
            self._place(aside, replace(entry, path=name, facts=facts.to_json() if facts else entry.facts))

    def _place(self, aside: Path, entry: FileEntry) -> None:
        self._check_new_file(entry)
        if is_durable():
            sync(aside)
        # Renamed first, then recorded: a kill between the two costs this file, and no record is wrong.
        os.replace(aside, self.folder / entry.path)
        note_checksum(self.folder / entry.path, entry.xxh3_128)
        parts = json.loads(json.dumps(entry.to_json()))
        text = json.dumps(parts | {"checksum": checksum_of(parts)}).encode()
        record = self._partial / f"{entry.path}.json"
        write_synced(record, text, aside=self.temporary_path(f"{entry.path}.json.tmp"), sync=is_durable())
        self.finished[entry.path] = entry

    def _check_new_file(self, entry: FileEntry) -> None:
        """Raise ManifestError where this run wrote other bytes under the same name: two features share it.

        A task that is repeated after its worker was killed writes the same bytes.
        """
        if self._written.setdefault(entry.path, entry.xxh3_128) != entry.xxh3_128:
            raise ManifestError(
                f"{self.folder / entry.path} would be written twice, with different contents",
                hint="rename one of the features whose names give that file",
            )

    def _check_inputs(self) -> None:
        """Raise ManifestError where another program wrote to a file that this run has mapped."""
        path = overwritten_file(self._inputs_before)
        if path is not None:
            # What is finished may be of either contents, so no run resumes it.
            self.abandon()
            raise ManifestError(
                f"{path} was overwritten while it was read; nothing was kept of {self.folder}"
            )

    def seal(self, totals: JsonRecord) -> Manifest:
        """Write the manifest, which finishes the folder, and remove what is no part of it.

        Raises:
            ManifestError: a file of an input was written to in place meanwhile, or the disk is full.
        """
        self._check_inputs()
        # Through JSON once, so that the checksum is of what a reader parses.
        files = [self.finished[name].to_json() for name in sorted(self.finished, key=log_order)]
        parts = json.loads(json.dumps({**self._identity, "files": files, "totals": totals.to_json()}))
        text = json.dumps(parts | {"checksum": checksum_of(parts)}, indent=1) + "\n"
        aside = self._partial / "manifest.tmp"
        with write_errors_explained(self.folder / MANIFEST):
            write_synced(self.folder / MANIFEST, text.encode(), aside=aside, sync=True)
            sync(self.folder)
        remove_scratch(self._partial)
        shutil.rmtree(self._partial, ignore_errors=True)
        self._unlock()
        return Manifest.read(self.folder)


def log_order(name: str) -> str:
    """Return the key by which files of a stage are in the order of the log, also those of ten thousand."""
    return re.sub(r"\Afile(\d{4})(\d+)-", lambda found: f"file:{len(found[2])}{found[0]}", name)


def check_files(sealed: Manifest) -> None:
    """Raise ManifestError if a file is not as the manifest lists it, unless it was discarded."""
    may_miss = is_discarded(sealed.folder)
    for entry in sealed.files:
        if not may_miss or os.path.lexists(sealed.folder / entry.path):
            sealed.checked_path(entry)


def input_of(manifest: Manifest) -> dict[str, Any]:
    """Return how a stage names ``manifest`` among its inputs."""
    return {"name": manifest.folder.name, "fingerprint": manifest.fingerprint}


@contextmanager
def spill_errors_explained(folder: Path) -> Iterator[None]:
    """Raise ManifestError if the device has no space for spill files."""
    try:
        yield
    except OSError as error:
        raise ManifestError(
            f"{folder} has no space for spill files: {error.strerror or error}",
            hint="free disk space, or give more --memory; the same command resumes the run",
        ) from error


def array_in(room_bytes: int, output: Output, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """Return zeros: in memory if they fit in ``room_bytes``, else mapped from a nameless file of ``output``.

    Raises:
        ManifestError: the device has no room for them.
    """
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if num_bytes <= max(room_bytes, 0) or num_bytes == 0:
        return np.zeros(shape, dtype)
    with spill_errors_explained(output.folder), tempfile.TemporaryFile(dir=output.folder / PARTIAL) as file:
        # All blocks are allocated now: writing to a mapped page that finds no block kills the process.
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        return np.asarray(np.memmap(file, dtype, "r+", shape=tuple(shape)))


def write_arrays(path: Path, arrays: Iterable[NDArray[Any]], *, appends: bool = False) -> None:
    """Write arrays one after another to a temporary file of an output, or append them to it.

    Raises:
        ManifestError: the device is full.
    """
    # Opened for each call: a stage may append to thousands of files.
    with spill_errors_explained(path.parents[1]), path.open("ab" if appends else "wb") as file:
        for array in arrays:
            array.tofile(file)


def map_arrays(path: Path, dtype: DTypeLike) -> NDArray[Any]:
    """Return what `write_arrays` wrote as one array, read-only; it stays valid when the file is removed."""
    return np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.zeros(0, dtype)


def remove_arrays(path: Path) -> None:
    """Remove a file of `write_arrays`, if it is there."""
    path.unlink(missing_ok=True)
