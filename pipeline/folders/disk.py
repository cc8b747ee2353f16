"""Find, measure, rename and remove folders, and check free space.

``--shards-only`` removes the files of folders that are not needed once the shards are packed. The manifest
stays, so the chain from raw log to shards stays pinned and a repeated run finds its stages finished. A mark
next to the manifest records that the files were removed on purpose; stages that need them refuse.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..errors import ManifestError
from .manifest import MANIFEST, Manifest
from .partial import (
    BEGUN,
    LOCK,
    PARTIAL,
    REMOVED,
    WORKERS,
    FolderLock,
    remove_children,
    start_generation,
    sync,
    write_errors_explained,
    write_synced,
)


def folder_exists(path: Path) -> bool:
    """Return whether ``path`` is a folder."""
    return path.is_dir()


def paths_in(folder: Path) -> list[Path]:
    """Return what ``folder`` holds, in the order of names."""
    return sorted(folder.iterdir())


def bytes_in(folder: Path) -> int:
    """Return the bytes of the files of a folder; 0 if there is none."""
    if not folder.is_dir():
        return 0
    with os.scandir(folder) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder next to ``path`` that is renamed to it when the block ends without an error.

    After an error it is removed; the next call removes what a killed process left.

    Raises:
        ManifestError: ``path`` exists and is not an empty folder, another process is writing it, or it cannot
            be written.
    """
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise ManifestError(f"{path} exists", hint="remove it, or give another --out")
    # Everything is written next to the final name, synced, and renamed as a whole.
    partial = path.with_name(f".{path.name}.partial")
    with write_errors_explained(partial):
        lock = FolderLock.take(partial / LOCK, path)
        try:
            remove_children(partial, LOCK)
            yield partial
            for file in partial.iterdir():
                sync(file)
            (partial / LOCK).unlink()
            os.replace(partial, path)  # an empty folder may be there
            sync(path.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        finally:
            lock.release()


def free_bytes(folder: Path) -> int:
    """Return the bytes that are free where ``folder`` is or would be."""
    existing = next(above for above in (folder.absolute(), *folder.absolute().parents) if above.exists())
    return shutil.disk_usage(existing).free


def rename_folder(folder: Path, name: str) -> None:
    """Rename a folder in place.

    Raises:
        ManifestError: the system does not allow it.
    """
    renamed = folder.with_name(name)
    with write_errors_explained(renamed):
        os.rename(folder, renamed)


def remove_folders(folders: Sequence[Path]) -> None:
    """Remove stage folders; after an interruption the next run still gives correct bytes.

    All are marked before any is emptied, in the order given: none is left unmarked without the folders it
    was made from. A run that begins a marked folder empties it first.

    Raises:
        ManifestError: another run is writing one of the folders, or one cannot be removed.
    """
    with ExitStack() as locks:
        # All locks are taken before anything is marked: a folder in use refuses the removal as a whole.
        for folder in folders:
            with write_errors_explained(folder):
                lock = FolderLock.take(folder / PARTIAL / LOCK, folder)
                locks.callback(lock.release)
        for folder in folders:
            with write_errors_explained(folder):
                start_generation(folder / PARTIAL / WORKERS, folder)
                mark_removed(folder)
        for folder in folders:
            with write_errors_explained(folder):
                empty_folder(folder)
                shutil.rmtree(folder)


def mark_removed(folder: Path) -> None:
    """Mark a folder for removal, which `empty_folder` or the next run finishes; its lock must be held."""
    mark = folder / PARTIAL / REMOVED
    names = (folder / MANIFEST, folder / PARTIAL / BEGUN)
    # One rename both takes away what makes the folder finished or begun, and marks it.
    found = next((path for path in names if path.exists()), None)
    if found:
        os.replace(found, mark)
    else:
        mark.touch()


def empty_folder(folder: Path) -> None:
    """Remove what a folder marked for removal holds; the mark goes last, the locks stay."""
    remove_children(folder, PARTIAL)
    remove_children(folder / PARTIAL, LOCK, WORKERS, REMOVED)
    (folder / PARTIAL / REMOVED).unlink()


DISCARDABLE = ("columns", "samples")
"""Folders whose files are read only by `count`, `encode`, `split`, `pack` and `stats`; nine tenths of the
bytes between raw log and shards."""
MARK = "discarded.json"


def discard_files(folder: Path) -> int:
    """Remove the data files of a sealed folder; return the bytes freed. If interrupted, call it again."""
    manifest = Manifest.read(folder)
    freed = 0
    try:
        # Write the mark first: without it, missing files would look like damage.
        write_synced(folder / MARK, json.dumps({"checksum": manifest.fingerprint}).encode(), sync=True)
        for entry in manifest.files:
            path = folder / entry.path
            if path.exists():
                freed += path.stat().st_size
                path.unlink()
    except OSError as error:
        raise ManifestError(f"{folder} cannot be discarded: {error.strerror or error}") from error
    return freed


def is_discarded(folder: Path) -> bool:
    """Return whether the files of ``folder`` were removed by `discard_files`."""
    return (folder / MARK).exists()


def refuse_discarded(folder: Path, needed_by: str, redo: str) -> None:
    """Raise ManifestError if ``needed_by`` would read files that were discarded."""
    if is_discarded(folder):
        raise ManifestError(
            f"{folder} was discarded, and {needed_by} needs its files",
            hint=f"`hotset preprocess RAW --out {shlex.quote(str(folder.parent))} --redo {redo}` rebuilds it",
        )
