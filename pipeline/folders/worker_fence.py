"""Which workers may write a folder: those of the run that holds its lock, and none that outlived theirs.

Workers in other processes do not hold the folder's lock: the run does, and the lock is free as soon as the
run is killed, though its workers may still be running. So each run starts a generation: it writes a fencing
token of its own beside the lock. A worker holds the token's file shared while it runs a task, and refuses
the task if the token is not that of its run; the next run waits until no worker holds the file before it
writes another token.
"""

from __future__ import annotations

import errno
import fcntl
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ManifestError

_MOST_SECONDS = 60.0
"""A worker that lost its run ends with its task, or when it notices that the run is gone."""
_POLL_SECONDS = 0.02
_TOKEN_BYTES = 16
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def start_generation(path: Path, folder: Path) -> str:
    """Wait until no worker of an earlier run writes ``folder``; return the token of this run.

    Args:
        path: the token's file, created if missing.
        folder: for the message.

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
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        if error.errno not in _WITHOUT_LOCKS:
            raise
    return True
