"""Removing stage folders so that a kill half-way leaves nothing a later run would stumble over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from .folder_lock import FolderLock
from .manifest import MANIFEST
from .partial_folder import BEGUN, LOCK, PARTIAL, REMOVED, WORKERS, write_errors_explained
from .worker_fence import raise_fence


def remove_folders(folders: Sequence[Path]) -> None:
    """Remove stage folders; stopped at any moment, the run that comes next ends in the bytes of a fresh one.

    All are marked before any is emptied, in the order given: none is left without the folders it was made
    from and its mark. Whoever begins a marked folder empties it first.

    Raises:
        ManifestError: another run is writing one of them, or one cannot be removed.
    """
    with ExitStack() as locks:
        for folder in folders:
            with write_errors_explained(folder):
                lock = FolderLock.take(folder / PARTIAL / LOCK, folder)
                locks.callback(lock.release)
        for folder in folders:
            with write_errors_explained(folder):
                raise_fence(folder / PARTIAL / WORKERS, folder)
                _mark_removed(folder)
        for folder in folders:
            with write_errors_explained(folder):
                empty_folder(folder)
                shutil.rmtree(folder)


def _mark_removed(folder: Path) -> None:
    mark, names = folder / PARTIAL / REMOVED, (folder / MANIFEST, folder / PARTIAL / BEGUN)
    found = next((path for path in names if path.exists()), None)
    if found:
        os.replace(found, mark)
    else:
        mark.touch()


def empty_folder(folder: Path) -> None:
    """Remove what a folder marked for removal holds; the mark goes last, the locks stay."""
    mark, locks = folder / PARTIAL / REMOVED, [folder / PARTIAL / name for name in (LOCK, WORKERS)]
    for child in [*folder.iterdir(), *(folder / PARTIAL).iterdir()]:
        if child not in (folder / PARTIAL, mark, *locks):
            shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
    mark.unlink()
