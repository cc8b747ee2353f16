"""Writing a stage folder so that a kill at any moment loses at most the files in flight.

    folder/.partial/begun.json     config and inputs of the run that began the folder
    folder/.partial/NAME           a file being written; what a kill leaves of it is written over
    folder/NAME                    a finished file, renamed into place ...
    folder/.partial/NAME.json      ... and then recorded: no record, not finished
    folder/manifest.json           comes last; then .partial goes

Only manifests are synced to the device: after a SIGKILL the page cache still holds the rest, and after
a power cut the checksums decide.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xxhash

from .errors import ManifestError
from .manifest import MANIFEST, FileEntry, Manifest, checksum_of

PARTIAL = ".partial"
_BEGUN = "begun.json"
_HASH_BLOCK_BYTES = 1 << 20


class Output:
    """A stage folder being written; see the module for its layout."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        self._partial = folder / PARTIAL
        self._identity = identity
        self.finished: dict[str, FileEntry] = {}

    @classmethod
    def begin(
        cls, stage: str, version: int, config: Any, inputs: Sequence[dict[str, Any]], folder: Path
    ) -> Output | Manifest:
        """Open ``folder`` for this stage: fresh, or resumed where an equal run left it.

        Returns the manifest itself where the folder is already sealed by an equal run.

        Args:
            config: a dataclass of plain data, part of the folder's identity.
            inputs: ``{"name", "fingerprint"}`` of each input folder, or name and bytes of a raw file.

        Raises:
            ManifestError: the folder was begun or sealed with another config, version or inputs, or a
                file it lists is missing or of another size.
        """
        identity = json.loads(
            json.dumps({"stage": stage, "version": version, "config": asdict(config), "inputs": list(inputs)})
        )
        output = cls(folder, identity)
        if (folder / MANIFEST).exists():
            sealed = Manifest.read(folder)
            found = {key: getattr(sealed, key) for key in identity}
            refuse_difference(folder, found, identity)
            for entry in sealed.files:
                sealed.checked_path(entry)
            shutil.rmtree(output._partial, ignore_errors=True)
            return sealed
        with _write_errors_explained(folder):
            output._resume()
        return output

    def _resume(self) -> None:
        begun = self._partial / _BEGUN
        if begun.exists():
            refuse_difference(self.folder, _read_begun(begun), self._identity)
        elif self.folder.exists() and any(child != self._partial for child in self.folder.iterdir()):
            raise ManifestError(
                f"{self.folder} is not empty and was not begun by this stage",
                hint="give another --out, or remove the folder",
            )
        self._partial.mkdir(parents=True, exist_ok=True)
        write_synced(begun, json.dumps(self._identity).encode(), sync=False)
        for record in self._partial.glob("*.json"):
            entry = None if record.name == _BEGUN else self._finished_file(record)
            if entry is not None:
                self.finished[entry.path] = entry

    def _finished_file(self, record: Path) -> FileEntry | None:
        """What ``record`` says of a file; None where a power cut left half of either."""
        try:
            entry = FileEntry.from_json(json.loads(record.read_bytes()))
            return entry if (self.folder / entry.path).stat().st_size == entry.num_bytes else None
        except (KeyError, TypeError, ValueError, AttributeError, FileNotFoundError):
            return None

    def has(self, name: str) -> bool:
        """Whether ``name`` was finished, now or before an interruption."""
        return name in self.finished

    @contextmanager
    def writing(self, name: str, num_samples: int, **facts: Any) -> Iterator[Path]:
        """Give a path to write ``name`` at; on leaving it is hashed, renamed and recorded.

        Raises:
            ManifestError: the device is full, or the file cannot be written for another such reason.
        """
        aside = self._partial / name
        with _write_errors_explained(self.folder / name):
            yield aside
            num_bytes, checksum = hash_file(aside)
            entry = FileEntry(name, num_samples, num_bytes, checksum, facts)
            os.replace(aside, self.folder / name)
            write_synced(self._partial / f"{name}.json", json.dumps(entry.to_json()).encode(), sync=False)
        self.finished[name] = entry

    def seal(self, totals: dict[str, Any]) -> Manifest:
        """Write the manifest, which makes the folder finished, and remove what is no part of it."""
        files = [self.finished[name].to_json() for name in sorted(self.finished)]
        parts: dict[str, Any] = self._identity | {"files": files, "totals": totals}
        parts = json.loads(json.dumps(parts))
        text = json.dumps(parts | {"checksum": checksum_of(parts)}, indent=1) + "\n"
        aside = self._partial / "manifest.tmp"
        with _write_errors_explained(self.folder / MANIFEST):
            write_synced(self.folder / MANIFEST, text.encode(), aside=aside, sync=True)
        shutil.rmtree(self._partial, ignore_errors=True)
        return Manifest.read(self.folder)


def input_of(manifest: Manifest) -> dict[str, Any]:
    """How a stage names ``manifest`` among its inputs."""
    return {"name": manifest.folder.name, "fingerprint": manifest.fingerprint}


@contextmanager
def _write_errors_explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ManifestError(
            f"{path} cannot be written: {error.strerror or error}",
            hint="make room or mend what is in the way: the same command goes on from here",
        ) from error


def _read_begun(path: Path) -> dict[str, Any]:
    try:
        identity: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise ManifestError(
            f"{path} is damaged: {error}", hint="remove the folder of this stage and run it again"
        ) from error
    return identity


def refuse_difference(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise ManifestError where a folder's identity differs, naming the first setting that does."""
    if found == wanted:
        return
    stage = wanted["stage"]
    hint = f"give another --out, or --redo {stage} to make it and what follows again"
    if found.get("stage") != stage:
        raise ManifestError(f"{folder} holds stage {found.get('stage')!r}, want {stage!r}", hint=hint)
    for name, setting in wanted["config"].items():
        before = found["config"].get(name)
        if before != setting:
            raise ManifestError(f"{folder} was made with {name} = {before}, now {setting}", hint=hint)
    what = "other inputs" if found["inputs"] != wanted["inputs"] else "another version of hotset"
    raise ManifestError(f"{folder} was made from {what}", hint=hint)


def hash_file(path: Path) -> tuple[int, str]:
    """Bytes and xxh3-128 (hex) of a file, read through one reused block."""
    digest, block, num_bytes = xxhash.xxh3_128(), bytearray(_HASH_BLOCK_BYTES), 0
    view = memoryview(block)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(view[:count])
            num_bytes += count
    return num_bytes, str(digest.hexdigest())


def write_synced(path: Path, text: bytes, *, aside: Path | None = None, sync: bool) -> None:
    """Write a small file aside and rename it into place, so that no reader sees half of it."""
    aside = aside or path.with_name(path.name + ".tmp")
    with open(aside, "wb") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(aside, path)
