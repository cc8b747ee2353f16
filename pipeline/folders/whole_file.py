"""Write atomic files and folders: complete under their name, or absent.

A file is written without a name (``O_TMPFILE``), so the kernel drops it with its process, and is linked to
its name when complete. Linking fails if another run took the name. File systems without unnamed files (NFS,
some FUSE) get a hidden file that is locked while it is written; the next run removes those without a lock.

A folder is written next to its final name and renamed when sealed. A sealed folder can be added to what was
made with it: its files are linked, or copied from another device.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import HotsetError
from .disk import LOCK, link_or_copy, new_folder, paths_in, write_errors_explained
from .manifest import MANIFEST, FileEntry, Manifest, checksum_of, hash_file

_PREFIX = ".hotset-"
_SUFFIX = ".tmp"
_WITHOUT_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


@contextmanager
def whole_file(path: Path, *, overwrite: bool = False, option: str = "--out") -> Iterator[BinaryIO]:
    """Yield a file that gets the name ``path`` when the block ends without an error.

    Args:
        path: where it appears.
        overwrite: replace a file of that name.
        option: the command's option that names the file, for hints.

    Raises:
        HotsetError: ``path`` exists, its folder does not, or the file cannot be written.
    """
    check_target(path, overwrite=overwrite, option=option)
    try:
        # All names are relative to the open folder, which may be renamed meanwhile.
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _remove_abandoned(folder)
            descriptor, name = _create(folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    yield file
                    file.flush()
                    name = _publish(folder, descriptor, name, path.name, overwrite=overwrite)
            finally:
                # An error of this cleanup must not hide the original one.
                if name is not None:
                    with suppress(OSError):
                        os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)
    except FileExistsError as error:
        raise HotsetError(
            f"{path} was written by another run in the meantime", hint=f"give another {option}"
        ) from error
    except OSError as error:
        raise HotsetError(
            f"{path} cannot be written: {error.strerror or error}",
            hint=f"give another {option}, or free disk space",
        ) from error


def check_target(path: Path, *, overwrite: bool, option: str = "--out") -> None:
    """Raise HotsetError where ``path`` cannot become a file: it exists, or its folder does not or is
    read-only."""
    # Report faults that a user can mend before any work is done.
    if not path.parent.is_dir():
        raise HotsetError(
            f"{path.parent} is not a directory", hint=f"`mkdir -p {shlex.quote(str(path.parent))}` creates it"
        )
    # Also where the user may write, but the device is mounted for reading alone.
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise HotsetError(
            f"{path} cannot be written: {path.parent} is read-only", hint=f"give another {option}"
        )
    try:
        os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:  # a name that is too long, a folder that may not be searched
        raise HotsetError(
            f"{path} cannot be written: {error.strerror}", hint=f"give another {option}"
        ) from error
    if overwrite and path.exists() and not path.is_file():
        raise HotsetError(f"{path} is not a regular file", hint=f"give another {option}")
    if not overwrite:
        raise HotsetError(f"{path} exists", hint=f"give another {option}, or delete it first")


def _create(folder: int) -> tuple[int, str | None]:
    """Open a new file for writing: without a name, or with the hidden one that is returned."""
    # An unnamed file vanishes with its process; file systems without them get a hidden, locked file.
    try:
        return os.open(".", os.O_TMPFILE | os.O_RDWR, 0o666, dir_fd=folder), None
    except OSError as error:
        if error.errno not in _WITHOUT_NAMELESS:
            raise
    name = _hidden_name()
    descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666, dir_fd=folder)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor, name


def _publish(folder: int, descriptor: int, name: str | None, target: str, *, overwrite: bool) -> str | None:
    """Link the file to its name; return the hidden name, which is still to be removed."""
    source = f"/proc/self/fd/{descriptor}" if name is None else name
    if not overwrite:
        try:
            # Links, unlike renames, fail where the name was taken meanwhile.
            os.link(source, target, src_dir_fd=folder, dst_dir_fd=folder)
            return name
        except OSError as error:
            if name is None or error.errno not in _WITHOUT_LINKS:
                raise
    if name is None:
        name = _hidden_name()
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.link(source, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.replace(name, target, src_dir_fd=folder, dst_dir_fd=folder)
    return None


def _remove_abandoned(folder: int) -> None:
    """Remove hidden files of killed runs: those that nobody holds a lock on."""
    for name in os.listdir(folder):
        if not (name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
            continue
        # A lock means that its owner is alive; an error, that this user may not remove the file.
        with suppress(OSError):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=folder)
            finally:
                os.close(descriptor)


def _hidden_name() -> str:
    return f"{_PREFIX}{uuid.uuid4().hex}{_SUFFIX}"


@contextmanager
def whole_folder(
    path: Path, *, stage: str, version: int, inputs: Sequence[Mapping[str, Any]]
) -> Iterator[Path]:
    """Yield an empty folder that gets a manifest and the name ``path`` when the block ends without an error.

    Raises:
        HotsetError: ``path`` exists, another process is writing it, or it cannot be written.
    """
    check_target(path, overwrite=False)
    with new_folder(path) as folder:
        yield folder
        # The lock is no file of the folder, and goes before the rename.
        names = [file.name for file in paths_in(folder) if file.name != LOCK]
        write_json(folder / MANIFEST, manifest_of(folder, names, stage, version, inputs))


def manifest_of(
    folder: Path, names: Iterable[str], stage: str, version: int, inputs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the manifest of a folder without settings and totals, its files hashed as they are on disk."""
    entries = [FileEntry(name, 0, *hash_file(folder / name)) for name in names]
    parts = {
        "stage": stage,
        "version": version,
        "config": {},
        "inputs": list(inputs),
        "files": [entry.to_json() for entry in entries],
        "totals": {},
    }
    return parts | {"checksum": checksum_of(parts)}


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object as text into a folder that gets its name later."""
    path.write_bytes((json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode())


def link_folder(source: Manifest, target: Path) -> None:
    """Link a sealed folder to another place, where it stays when the first is removed.

    Files of a sealed folder are replaced and never changed in place, so a link takes no disk space and its
    bytes stay as they are. A file system without links gets copies. A folder of the same bytes
    that is at ``target`` is kept, any other is replaced.

    Raises:
        ManifestError: a file of the source is missing or damaged, or the target cannot be written.
    """
    if (target / MANIFEST).exists() and Manifest.read(target).fingerprint == source.fingerprint:
        return
    # Aside first, so that a folder under its final name is whole.
    aside = target.with_name(f".{target.name}.tmp")
    with write_errors_explained(target):
        for folder in (aside, target):
            if folder.exists():
                shutil.rmtree(folder)
        aside.mkdir()
        for entry in source.files:
            link_or_copy(source.checked_path(entry), aside / entry.path)
        shutil.copyfile(source.folder / MANIFEST, aside / MANIFEST)
        os.rename(aside, target)
