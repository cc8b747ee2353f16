"""``manifest.json``: what a finished stage folder holds, how it was made, and from what.

A folder without one is unfinished. It lists every file with its samples, bytes and checksum, the
stage's config and version, and the fingerprints of the inputs; its own checksum is the folder's
fingerprint, so a chain of folders is pinned from raw log to shards. It names no time, host, worker
count or absolute path: the same inputs give the same bytes.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import xxhash

from ..errors import ManifestError

MANIFEST = "manifest.json"
_FILE_KEYS = ("path", "samples", "bytes", "xxh3_128")
_KINDS = {"stage": str, "version": int, "config": dict, "inputs": list, "totals": dict}
_NOT_PLAIN = "a stage writes plain files: links, which may leave the folder, and pipes are not read"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a stage folder."""

    path: str
    """Name inside the folder; never a path that leaves it."""
    num_samples: int
    num_bytes: int
    xxh3_128: str
    """Checksum of the bytes, hex."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What else the stage says of this file."""

    def to_json(self) -> dict[str, Any]:
        """The entry as it stands in the manifest."""
        own = (self.path, self.num_samples, self.num_bytes, self.xxh3_128)
        return dict(zip(_FILE_KEYS, own, strict=True)) | self.facts

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> FileEntry:
        """Raises KeyError, TypeError or ValueError on anything a stage would not have written."""
        path, num_samples, num_bytes, checksum = (entry[key] for key in _FILE_KEYS)
        if not isinstance(path, str) or not isinstance(checksum, str):
            raise TypeError("path and xxh3_128 must be strings")
        if Path(path).name != path or path in ("", ".", ".."):
            raise ValueError(f"file name {path!r} leaves the folder")
        if type(num_samples) is not int or type(num_bytes) is not int or min(num_samples, num_bytes) < 0:
            raise TypeError(f"samples and bytes of {path} must be whole numbers")
        facts = {key: fact for key, fact in entry.items() if key not in _FILE_KEYS}
        return cls(path, num_samples, num_bytes, checksum, facts)


@dataclass(frozen=True)
class Manifest:
    """A sealed stage folder."""

    folder: Path
    stage: str
    version: int
    config: dict[str, Any]
    inputs: list[dict[str, Any]]
    files: list[FileEntry]
    totals: dict[str, Any]
    fingerprint: str
    """The manifest's own checksum, hex: changes when any byte of the folder or its history does."""

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read ``folder/manifest.json`` and check its checksum, not those of the files.

        Raises:
            ManifestError: no such folder, unfinished, or damaged.
        """
        path = folder / MANIFEST
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise ManifestError(f"{path} is not a plain file", hint=_NOT_PLAIN)
            text = path.read_bytes()
        except FileNotFoundError:
            state = "is unfinished" if folder.is_dir() else "does not exist"
            raise ManifestError(
                f"{folder} {state}: it has no {MANIFEST}", hint="run the stage that makes it"
            ) from None
        except OSError as error:
            raise ManifestError(f"{path} cannot be read: {error.strerror}") from error
        try:
            return cls._parse(folder, text)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ManifestError(
                f"{path} is damaged: {first_line(error)}",
                hint="remove the folder and run its stage again",
            ) from error

    @classmethod
    def _parse(cls, folder: Path, text: bytes) -> Manifest:
        parts = json.loads(text)
        checksum = parts.pop("checksum")
        if checksum != checksum_of(parts):
            raise ValueError(f"its checksum is {checksum!r}, want {checksum_of(parts)!r}")
        files = [FileEntry.from_json(entry) for entry in parts["files"]]
        for key, kind in _KINDS.items():
            if type(parts[key]) is not kind:
                raise TypeError(f"{key} is not of type {kind.__name__}")
        if len({entry.path for entry in files}) != len(files):
            raise ValueError("it lists a file twice")
        if not all(isinstance(made_from["name"], str) for made_from in parts["inputs"]):
            raise TypeError("an input's name is not a string")
        return cls(folder, files=files, fingerprint=checksum, **{key: parts[key] for key in _KINDS})

    def __reduce__(self) -> Any:
        """By name: a log has thousands of files, and each task in another process would bring their list."""
        return _read_again, (self.folder, self.fingerprint)

    @property
    def num_samples(self) -> int:
        """Samples in all files together."""
        return sum(entry.num_samples for entry in self.files)

    @cached_property
    def entries(self) -> dict[str, FileEntry]:
        """Files by name: a log has thousands of them, and each is asked for."""
        return {entry.path: entry for entry in self.files}

    def entry(self, name: str) -> FileEntry:
        """What is listed of a file; raises ManifestError where it is not."""
        if name not in self.entries:
            raise ManifestError(f"{self.folder / MANIFEST} lists no file {name!r}")
        return self.entries[name]

    def path_of(self, name: str) -> Path:
        """The path of a listed file whose size is what the manifest says.

        Raises:
            ManifestError: not listed, missing, or of another size.
        """
        return self.checked_path(self.entry(name))

    def checked_path(self, entry: FileEntry) -> Path:
        """The path of ``entry``; raises ManifestError when it is missing, of another size, or a link."""
        path = self.folder / entry.path
        hint = "the folder was changed after it was sealed: remove it and run its stage again"
        try:
            status = path.lstat()
        except OSError as error:
            raise ManifestError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
        if not stat.S_ISREG(status.st_mode):
            raise ManifestError(f"{path} is not a plain file", hint=_NOT_PLAIN)
        if status.st_size != entry.num_bytes:
            raise ManifestError(f"{path} has {status.st_size} bytes, want {entry.num_bytes}", hint=hint)
        return path


@lru_cache(maxsize=8)
def _read_again(folder: Path, fingerprint: str) -> Manifest:
    """In another process: the manifest that was meant, read once."""
    manifest = Manifest.read(folder)
    if manifest.fingerprint != fingerprint:
        raise ManifestError(
            f"{folder} is another folder here than where the run was started",
            hint="all machines must see the folders of a run at the same paths",
        )
    return manifest


def checksum_of(parts: Mapping[str, Any]) -> str:
    """xxh3-128 of the canonical JSON of ``parts``, hex."""
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return str(xxhash.xxh3_128_hexdigest(canonical.encode()))


def first_line(error: BaseException) -> str:
    """An error in one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
