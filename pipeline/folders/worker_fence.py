"""Which workers may write a folder: those of the run that holds its lock, and none that outlived theirs.

Workers in other processes do not hold the folder's lock: the run does, and the lock is free as soon as the
run is killed, its workers perhaps still at work. So each run leaves a token of its own beside the lock. A
worker holds the token's file shared while it is at a task, and does nothing where the token is not that of
its run; the next run waits until no worker holds the file before it puts another token there.
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
"""A worker that lost its run ends within a task, or when it sees that the run is gone."""
_POLL_SECONDS = 0.02
_TOKEN_BYTES = 16
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def raise_fence(path: Path, folder: Path) -> str:
    """Wait until no worker of an earlier run is at work in ``folder``; returns the token of this run.

    Args:
        path: the token's file, made where it is not there.
        folder: for the message.

    Raises:
        ManifestError: a worker did not end within a minute.
    """
    token = secrets.token_hex(_TOKEN_BYTES)
    with open(path, "ab+") as file:
        deadline = time.monotonic() + _MOST_SECONDS
        while not _locked(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise ManifestError(
                    f"{folder} is still being written by a worker of an earlier run",
                    hint="wait until it ends, or stop it: the same command then goes on from there",
                )
            time.sleep(_POLL_SECONDS)
        file.truncate(0)
        file.write(token.encode())
    return token


@contextmanager
def inside_fence(path: Path, token: str, folder: Path) -> Iterator[None]:
    """In a worker: keep later runs waiting while it is at a task.

    Raises:
        ManifestError: the run that sent the task has ended, and the folder is another's.
    """
    gone = ManifestError(f"{folder} belongs to another run by now")
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        raise gone from None
    with file:
        if not _locked(file.fileno(), fcntl.LOCK_SH) or file.read() != token.encode():
            raise gone
        yield


def _locked(descriptor: int, kind: int) -> bool:
    """Whether the lock was got; a file system without locks gives any."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        if error.errno not in _WITHOUT_LOCKS:
            raise
    return True
