"""Writing a stage folder so that a kill at any moment loses at most the files in flight.

    folder/.partial/lock           held by the run that writes; see `lock`
    folder/.partial/workers        held by its workers in other processes; see `fence`
    folder/.partial/begun.json     config and inputs of the run that began the folder
    folder/.partial/NAME           a file being written; what a kill leaves of it is written over
    folder/NAME                    a finished file, renamed into place ...
    folder/.partial/NAME.json      ... and then recorded: no record, not finished
    folder/manifest.json           comes last; then .partial goes
    folder/.partial/removed.json   what the manifest is renamed to when the folder is to be removed
    folder/.partial/before/        where it goes when the folder is opened again; see `extension`

Tasks in other processes write through copies of the output. Each writes aside under a name of its own,
because a task may be at work twice where a machine that seemed dead is not, and tells home what it finished.

Only manifests are synced to the device: after a SIGKILL the page cache still holds the rest, and after
a power cut the checksums decide. Inside `durable_files` every file is, before its record.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..errors import ManifestError
from ..runtime.remote_objects import Traveller
from .checksum import checksum_of_written
from .checksum import hash_file as hash_file
from .folder_lock import FolderLock
from .manifest import MANIFEST, FileEntry, Manifest, checksum_of
from .partial_folder import (
    BEGUN,
    LOCK,
    REMOVED,
    WORKERS,
    durable_files,
    is_durable,
    sync,
    write_errors_explained,
    write_synced,
)
from .partial_folder import PARTIAL as PARTIAL
from .removal import empty_folder
from .reopening import BEFORE, Extension, drop_added, go_back, read_before, reopen, set_aside
from .run_identity import identity_of, read_begun, refuse_difference
from .worker_fence import inside_fence, raise_fence

_ASIDE = ".aside"


class Output(Traveller):
    """A stage folder being written; see the module for its layout."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        self._partial = folder / PARTIAL
        self._identity = identity
        self._unlock: Callable[[], object] = lambda: None
        self._token = ""
        self._is_durable = False
        self._suffix = ""
        """Of what a copy writes aside."""
        self.finished: dict[str, FileEntry] = {}
        self.before: Manifest | None = None
        """The folder as it was sealed with fewer inputs, where this run goes on from there."""

    @classmethod
    def begin(
        cls,
        stage: str,
        version: int,
        config: Any,
        inputs: Sequence[dict[str, Any]],
        folder: Path,
        *,
        extension: Extension | None = None,
    ) -> Output | Manifest:
        """Open ``folder`` for this stage: fresh, or resumed where an equal run left it.

        Returns the manifest itself where the folder is already sealed by an equal run; such a folder is
        only read. Any other is locked until it is sealed or the output is let go of.

        Args:
            config: a dataclass of plain data, part of the folder's identity.
            inputs: ``{"name", "fingerprint"}`` of each input folder, or name and bytes of a raw file.
            extension: how to go on from a folder sealed with fewer inputs, where the stage can.

        Raises:
            ManifestError: the folder was begun or sealed with another config, version or inputs, a file it
                lists is missing or of another size, another run is writing it, or it cannot be written.
        """
        identity = json.loads(
            json.dumps({"stage": stage, "version": version, "config": asdict(config), "inputs": list(inputs)})
        )
        output = cls(folder, identity)
        with write_errors_explained(folder):
            if extension is not None and extension.is_wanted and (folder / MANIFEST).exists():
                output._reopen(extension)
            if not (folder / MANIFEST).exists():
                output._refuse_strangers()
                output._lock()
            if not (folder / MANIFEST).exists():
                output._resume(extension)
            if not (folder / MANIFEST).exists():
                return output
        output._unlock()  # sealed by another run while this one waited, or long ago
        return output._sealed()

    def _reopen(self, extension: Extension) -> None:
        """Unseal the folder where this run goes on from it; leave any other as it is."""
        sealed = Manifest.read(self.folder)
        if extension.may_go_on(identity_of(sealed), self._identity):
            for entry in sealed.files:
                sealed.checked_path(entry)
            self._lock()
            if (self.folder / MANIFEST).exists():  # or another run was faster
                reopen(self.folder, json.dumps(self._identity).encode())

    def _sealed(self) -> Manifest:
        sealed = Manifest.read(self.folder)
        refuse_difference(self.folder, identity_of(sealed), self._identity)
        for entry in sealed.files:
            sealed.checked_path(entry)
        shutil.rmtree(self._partial, ignore_errors=True)
        return sealed

    def _refuse_strangers(self) -> None:
        """Leave a folder alone that holds files and was neither begun nor marked for removal by a run."""
        is_ours = any((self._partial / name).exists() for name in (BEGUN, REMOVED, BEFORE))
        if not is_ours and self.folder.exists():
            if any(child != self._partial for child in self.folder.iterdir()):
                raise ManifestError(
                    f"{self.folder} is not empty and was not begun by this stage",
                    hint="give another --out, or remove the folder",
                )

    def _lock(self) -> None:
        lock = FolderLock.take(self._partial / LOCK, self.folder)
        self._unlock = weakref.finalize(self, lock.release)

    def _resume(self, extension: Extension | None) -> None:
        workers = self._partial / WORKERS
        if (self._partial / REMOVED).exists():
            raise_fence(workers, self.folder)
            empty_folder(self.folder)
        begun, before = self._partial / BEGUN, read_before(self.folder)
        if before is not None and identity_of(before) == self._identity:
            raise_fence(workers, self.folder)
            go_back(self.folder, before)
            return
        if begun.exists():
            self._refuse_other_run(read_begun(begun), before, extension)
        self._token = raise_fence(workers, self.folder)
        write_synced(begun, json.dumps(self._identity).encode(), sync=False)
        for left in self._partial.glob(f"*{_ASIDE}"):
            left.unlink(missing_ok=True)
        for record in self._partial.glob("*.json"):
            entry = None if record.name == BEGUN else self._finished_file(record)
            if entry is not None:
                self.finished[entry.path] = entry
        if before is not None and extension is not None:
            self._go_on_from(before, extension)

    def _refuse_other_run(
        self, found: dict[str, Any], before: Manifest | None, extension: Extension | None
    ) -> None:
        """Refuse a folder begun by another run, unless it can go on from there or from before it."""
        is_equal = found == self._identity
        if is_equal or (extension and extension.keeps_files and extension.may_go_on(found, self._identity)):
            return
        if extension and before and extension.may_go_on(identity_of(before), self._identity):
            raise_fence(self._partial / WORKERS, self.folder)
            drop_added(self.folder, before)
        else:
            refuse_difference(self.folder, found, self._identity)

    def _go_on_from(self, before: Manifest, extension: Extension) -> None:
        if extension.keeps_files:
            self.finished = {entry.path: entry for entry in before.files} | self.finished
        else:
            set_aside(self.folder, before, self.has)
        self.before = before

    def _finished_file(self, record: Path) -> FileEntry | None:
        """What ``record`` says of a file; None where a power cut left half of either."""
        try:
            entry = FileEntry.from_json(json.loads(record.read_bytes()))
            return entry if (self.folder / entry.path).stat().st_size == entry.num_bytes else None
        except (KeyError, TypeError, ValueError, AttributeError, FileNotFoundError):
            return None

    def has(self, name: str) -> bool:
        """Whether ``name`` was finished, now or before an interruption."""
        if self._suffix and name not in self.finished:
            entry = self._finished_file(self._partial / f"{name}.json")
            if entry is not None:
                self.finished[name] = entry
        return name in self.finished

    def refuse(self) -> None:
        """Let the next run begin with other settings, where these were refused before a file was finished."""
        if not self.finished:
            (self._partial / BEGUN).unlink(missing_ok=True)

    def luggage(self) -> tuple[Path, dict[str, Any], str, bool]:
        """What a copy needs; not what is finished, which the copy looks up."""
        return self.folder, self._identity, self._token, is_durable()

    @classmethod
    def arrive(cls, folder: Path, identity: dict[str, Any], token: str, is_durable: bool) -> Output:
        """A copy in a worker."""
        copy = cls(folder, identity)
        copy._token, copy._is_durable, copy._suffix = token, is_durable, f".{secrets.token_hex(4)}{_ASIDE}"
        return copy

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep runs that come later waiting while a copy is at its task."""
        with inside_fence(self._partial / WORKERS, self._token, self.folder), durable_files(self._is_durable):
            yield

    def news(self) -> list[dict[str, Any]]:
        """What a copy finished or found finished."""
        return [entry.to_json() for entry in self.finished.values()]

    def hear(self, news: list[dict[str, Any]]) -> None:
        """Take note of what a copy finished."""
        self.finished |= {entry["path"]: FileEntry.from_json(entry) for entry in news}

    def scratch_path(self, name: str) -> Path:
        """Where a task may keep what it needs no longer than it runs; what a kill leaves is written over."""
        return self._partial / f"{name}{self._suffix}"

    @contextmanager
    def writing(self, name: str, num_samples: int, **facts: Any) -> Iterator[Path]:
        """Give a path to write ``name`` at; on leaving it is hashed, renamed and recorded.

        Raises:
            ManifestError: the device is full, or the file cannot be written for another such reason.
        """
        aside = self.scratch_path(name)
        with write_errors_explained(self.folder / name):
            yield aside
            num_bytes, checksum = checksum_of_written(aside)
            entry = FileEntry(name, num_samples, num_bytes, checksum, facts)
            if is_durable():
                sync(aside)
            self._place(aside, entry)

    def adopt(self, before: Manifest, entry: FileEntry, name: str, **facts: Any) -> None:
        """Take a file that the folder held before over as ``name``, as it is."""
        source, aside = before.checked_path(entry), self.scratch_path(name)
        with write_errors_explained(self.folder / name):
            aside.unlink(missing_ok=True)
            try:
                os.link(source, aside)
            except OSError:  # a file system without links
                shutil.copyfile(source, aside)
            self._place(aside, replace(entry, path=name, facts=facts))

    def _place(self, aside: Path, entry: FileEntry) -> None:
        os.replace(aside, self.folder / entry.path)
        text, record = json.dumps(entry.to_json()).encode(), self._partial / f"{entry.path}.json"
        write_synced(record, text, aside=self.scratch_path(f"{entry.path}.json.tmp"), sync=is_durable())
        self.finished[entry.path] = entry

    def seal(self, totals: dict[str, Any]) -> Manifest:
        """Write the manifest, which makes the folder finished, and remove what is no part of it."""
        files = [self.finished[name].to_json() for name in sorted(self.finished)]
        parts: dict[str, Any] = self._identity | {"files": files, "totals": totals}
        parts = json.loads(json.dumps(parts))
        text = json.dumps(parts | {"checksum": checksum_of(parts)}, indent=1) + "\n"
        aside = self._partial / "manifest.tmp"
        with write_errors_explained(self.folder / MANIFEST):
            write_synced(self.folder / MANIFEST, text.encode(), aside=aside, sync=True)
            sync(self.folder)
        shutil.rmtree(self._partial, ignore_errors=True)
        self._unlock()
        return Manifest.read(self.folder)


def input_of(manifest: Manifest) -> dict[str, Any]:
    """How a stage names ``manifest`` among its inputs."""
    return {"name": manifest.folder.name, "fingerprint": manifest.fingerprint}
