"""Lock, write, measure, rename and remove folders; write files that are complete under their name, or absent.

``--shards-only`` removes the files of folders that are not needed once the shards are packed. The manifest
stays, so the chain from raw log to shards stays pinned and a repeated run finds its stages finished. A mark
next to the manifest records that the files were removed on purpose; stages that need them refuse.

In ``.partial`` one writer writes a stage folder until it is sealed. The lock is a POSIX record lock
(``fcntl.lockf``) on a file there. The kernel releases it when its holder dies, and sealing removes the file,
so nothing is left to clean up. The text of the file is the holder's process id, for the error message only;
the kernel's lock decides.

Workers in other processes do not hold this lock, and may outlive a killed run. So each run writes a new
fencing token next to the lock. A worker holds a shared lock on the token's file while it runs a task, and
refuses the task if the token is not that of its run. The next run waits for these workers before it writes
another token.

A run that failed in a process that continues (a notebook) leaves its lock to the next run of the same thread.
Over NFS the lock holds between machines where the mount has locking (version 4, or lockd); the process id may
then be that of another machine. Mounts with ``nolock`` or ``local_lock``, and file systems without locks, do
not keep two machines apart: give each machine a separate folder there.

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
import secrets
import shlex
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import HotsetError, ManifestError
from .manifest import MANIFEST, FileEntry, Manifest, checksum_of, hash_file


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


@contextmanager
def removed_on_failure(path: Path) -> Iterator[None]:
    """Remove an incomplete file, which on a full device takes space that others need."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def free_bytes(folder: Path) -> int:
    """Return the bytes that are free where ``folder`` is or would be."""
    return shutil.disk_usage(existing_above(folder)).free


def make_folder(path: Path) -> None:
    """Create a folder and its parents; raises ManifestError where that is impossible."""
    with _unwritable_explained(path):
        path.mkdir(parents=True, exist_ok=True)


def check_writable(folder: Path) -> None:
    """Raise ManifestError where no file can be written to ``folder``, which need not exist."""
    with _unwritable_explained(folder):
        tempfile.TemporaryFile(dir=existing_above(folder)).close()


@contextmanager
def _unwritable_explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ManifestError(
            f"{path} cannot be written: {error.strerror}", hint="give a folder that can be written"
        ) from error


def existing_above(folder: Path) -> Path:
    """Return ``folder``, or the nearest folder above it that exists."""
    return next(above for above in (folder.absolute(), *folder.absolute().parents) if above.exists())


def is_in_memory(folder: Path) -> bool:
    """Return whether the files of a folder are in memory, as in ``/dev/shm``."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    # A line is: number, parent, device, root, folder, options, -, kind of the file system, ...
    lines = [line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    kinds = [after.split()[0] for before, after in lines if before.split()[2] == wanted]
    return bool({"tmpfs", "ramfs"} & {*kinds})


def rename_folder(folder: Path, name: str) -> None:
    """Rename a folder in place.

    Raises:
        ManifestError: the system does not allow it.
    """
    renamed = folder.with_name(name)
    with write_errors_explained(renamed):
        os.rename(folder, renamed)


def remove_folders(folders: Sequence[Path], *, keeps_marks: bool = False) -> None:
    """Remove stage folders; after an interruption the next run still gives correct bytes.

    All are marked before any is emptied, in the order given: none is left unmarked without the folders it
    was made from. A run that begins a marked folder empties it first. With ``keeps_marks`` the marks stay:
    they have the settings of the folders.

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
                empty_folder(folder, keeps_mark=keeps_marks)
                if not keeps_marks:
                    # A link to a folder, such as one on another disk, stays for the next run.
                    shutil.rmtree(folder / PARTIAL if folder.is_symlink() else folder)


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


def empty_folder(folder: Path, *, keeps_mark: bool = False) -> None:
    """Remove what a folder marked for removal holds; the mark goes last if at all, the locks stay."""
    remove_scratch(folder / PARTIAL)
    remove_children(folder, PARTIAL)
    remove_children(folder / PARTIAL, LOCK, WORKERS, REMOVED)
    if not keeps_mark:
        (folder / PARTIAL / REMOVED).unlink()


def remove_scratch(partial: Path) -> None:
    """Remove the folders for large temporary files outside ``partial``, which a note in it names."""
    with suppress(OSError, ValueError):
        for name in json.loads((partial / SCRATCH).read_text()):
            # Only what a run has made is removed, whatever the note says.
            if Path(name).name.startswith(SCRATCH_PREFIX):
                shutil.rmtree(name, ignore_errors=True)


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


def check_not_discarded(folder: Path, needed_by: str, redo: str) -> None:
    """Raise ManifestError if ``needed_by`` would read files that were discarded."""
    if is_discarded(folder):
        raise ManifestError(
            f"{folder} was discarded, and {needed_by} needs its files",
            hint=f"`hotset preprocess RAW --out {shlex.quote(str(folder.parent))} --redo {redo}` rebuilds it",
        )


PARTIAL = ".partial"
LOCK = "lock"
WORKERS = "workers"
BEGUN = "begun.json"
REMOVED = "removed.json"
SCRATCH = "scratch"
SCRATCH_PREFIX = "hotset-"
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
    """Write a small file atomically, by a rename."""
    aside = aside or path.with_name(path.name + ".tmp")
    with open(aside, "wb") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(aside, path)


def remove_children(folder: Path, *kept: str) -> None:
    """Remove what a folder holds, except what is named."""
    for child in folder.iterdir():
        if child.name not in kept:
            shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()


def link_or_copy(source: Path, target: Path) -> None:
    """Link a file, which costs nothing; copy it to another device, or on a file system without links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def num_recorded(folder: Path) -> int:
    """Return how many data files of an unfinished folder are finished."""
    return len(list((folder / PARTIAL).glob("*.arrow.json")))


_MOST_SECONDS = 60.0
"""A worker that lost its run ends with its task, or when it notices that the run has ended."""
_POLL_SECONDS = 0.02
_TOKEN_BYTES = 16
_HELD_BY_ANOTHER = (errno.EACCES, errno.EAGAIN)
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def start_generation(path: Path, folder: Path) -> str:
    """Wait until no worker of an earlier run writes ``folder``; return this run's token, now in ``path``.

    Raises:
        ManifestError: a worker did not end within a minute.
    """
    token = secrets.token_hex(_TOKEN_BYTES)
    # Opened for appending, so that opening does not erase the token that workers may still be checking.
    with open(path, "ab+") as file:
        deadline = time.monotonic() + _MOST_SECONDS
        while not _locked(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise ManifestError(
                    f"{folder} is still being written by a worker of an earlier run",
                    hint="wait until it ends, or stop it: the same command then resumes",
                )
            time.sleep(_POLL_SECONDS)
        file.truncate(0)
        file.write(token.encode())
    return token


@contextmanager
def held_by_worker(path: Path, token: str, folder: Path) -> Iterator[None]:
    """In a worker: keep later runs waiting while its task runs.

    Raises:
        ManifestError: the run that sent the task has ended, and the folder is another's.
    """
    gone = ManifestError(f"{folder} belongs to another run now")
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        raise gone from None
    with file:
        # Locked first, then read: no later run can write its token in between.
        if not _locked(file.fileno(), fcntl.LOCK_SH) or file.read() != token.encode():
            raise gone
        yield


def _locked(descriptor: int, kind: int) -> bool:
    """Return whether the lock was taken; without locks in the file system it always is."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_BY_ANOTHER:
            return False
        if error.errno not in _WITHOUT_LOCKS:
            raise
    return True


_MOST_ATTEMPTS = 100
_held: dict[tuple[int, int], FolderLock] = {}
"""Locks of this process by device and inode; closing any other descriptor of such a file would free it."""
_changing = threading.RLock()  # reentrant: a finalizer may release a lock while this thread takes one


@dataclass(frozen=True, slots=True, eq=False)
class FolderLock:
    """A lock that this process holds."""

    inode: tuple[int, int]
    """Device and inode of the locked file."""
    descriptor: int
    """Open descriptor of the file; closing it releases the lock."""
    thread: threading.Thread
    """Thread that took the lock: other threads of the process are refused while it lives."""
    process: int
    """Process that took the lock: a forked child inherits this record, but not the lock."""

    @classmethod
    def take(cls, path: Path, folder: Path) -> FolderLock:
        """Lock ``folder`` by the file ``path``, which is created, with the folders above it, if missing.

        Raises:
            ManifestError: another run holds the lock; the message names its process.
            OSError: the file cannot be written.
        """
        with _changing:
            for _ in range(_MOST_ATTEMPTS):
                lock = cls._take_over(path, folder) or cls._take_file(path, folder)
                if lock is not None:
                    _held[lock.inode] = lock
                    return lock
        raise ManifestError(f"{folder} keeps being removed by another run", hint="stop one of the runs")

    @classmethod
    def _take_over(cls, path: Path, folder: Path) -> FolderLock | None:
        """Return the lock that an earlier run of this or an ended thread still holds."""
        held = _held.get(_inode_of(path)) if path.exists() else None
        if held is None or held.process != os.getpid():
            return None
        if held.thread is not threading.current_thread() and held.thread.is_alive():
            raise _refusal(folder, f"another thread of this process ({os.getpid()})")
        return cls(held.inode, held.descriptor, threading.current_thread(), os.getpid())

    @classmethod
    def _take_file(cls, path: Path, folder: Path) -> FolderLock | None:
        """Return a new lock; None if its file was removed in the meantime."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            return None
        try:
            _lock_or_refuse(descriptor, folder)
            # The lock counts only if the path still names the locked file: a run that sealed or removed the
            # folder may have unlinked it, and a later run locks another one.
            status = os.fstat(descriptor)
            inode = (status.st_dev, status.st_ino)
            if path.exists() and _inode_of(path) == inode:
                os.pwrite(descriptor, f"{os.getpid():<10}\n".encode(), 0)
                return cls(inode, descriptor, threading.current_thread(), os.getpid())
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def release(self) -> None:
        """Release the lock, unless a later run took it over."""
        with _changing:
            if _held.get(self.inode) is self:
                del _held[self.inode]
                os.close(self.descriptor)


def _inode_of(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _lock_or_refuse(descriptor: int, folder: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # The holder has written its number into the lock, so the message can name it.
        if error.errno in _HELD_BY_ANOTHER:
            number = os.pread(descriptor, 32, 0).strip()
            raise _refusal(
                folder, f"process {int(number)}" if number.isdigit() else "another process"
            ) from None
        if error.errno not in _WITHOUT_LOCKS:
            raise


def _refusal(folder: Path, who: str) -> ManifestError:
    return ManifestError(
        f"{folder} is being written by {who}",
        hint="wait until that run ends, or stop it: the same command then resumes",
    )


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
    # A link is none either: of /dev/stdout, a rename would make a file.
    if overwrite and (path.is_symlink() or not path.is_file()):
        found = "a link" if path.is_symlink() else "not a regular file"
        raise HotsetError(f"{path} is {found}", hint=f"give another {option}")
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
