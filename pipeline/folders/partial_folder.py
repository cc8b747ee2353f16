"""``.partial``, where a stage folder is written until it is sealed: file names, errors and syncing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ManifestError

PARTIAL = ".partial"
LOCK = "lock"
WORKERS = "workers"
BEGUN = "begun.json"
REMOVED = "removed.json"
_syncs_data = False


@contextmanager
def durable_files(wanted: bool = True) -> Iterator[None]:
    """Sync data files too, in all folders that this process writes inside the block; changes no byte."""
    global _syncs_data
    before = _syncs_data
    _syncs_data = wanted
    try:
        yield
    finally:
        _syncs_data = before


def is_durable() -> bool:
    """Return whether data files are synced before they are recorded, or only manifests."""
    return _syncs_data


@contextmanager
def write_errors_explained(path: Path) -> Iterator[None]:
    """Raise system errors while ``path`` is written as a ManifestError of one line."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ManifestError(
            f"{path} cannot be written: {reason}",
            hint="make room or fix the cause, and run the same command again",
        ) from error


def sync(path: Path) -> None:
    """Wait until the device holds a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, text: bytes, *, aside: Path | None = None, sync: bool) -> None:
    """Write a small file aside and rename it into place, so that no reader sees half of it."""
    aside = aside or path.with_name(path.name + ".tmp")
    with open(aside, "wb") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(aside, path)


def num_recorded(folder: Path) -> int:
    """Return how many data files of an unfinished folder are finished."""
    return len(list((folder / PARTIAL).glob("*.arrow.json")))
