"""A spill file of blocks of one size, without a name and gone with the process.

Blocks are written and read whole, past the page cache where the file system allows it: under a limit of
memory the cache would compete with the rows, and copy each byte once more. The disk space is reserved at the
start, so that a full disk is an error of one line before the first step and not after hours.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import threading
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import KIB, HotsetError, format_byte_size

LEAST_BLOCK_BYTES = 4 * KIB
"""Blocks of direct input and output are multiples of a page."""
_HINT = "give another --slow-dir, free disk space, or raise --slow-bytes"


def aligned_blocks(num_blocks: int, block_bytes: int) -> NDArray[np.uint8]:
    """Return zeros, (num_blocks, block_bytes), that begin with a page, as direct input and output wants them.

    Pages take memory once they are written to.
    """
    num_bytes = num_blocks * block_bytes
    if num_bytes == 0:
        return np.zeros((num_blocks, block_bytes), np.uint8)
    return np.frombuffer(mmap.mmap(-1, num_bytes), np.uint8).reshape(num_blocks, block_bytes)


class BlockFile:
    """Blocks on disk by number; may be used by several threads.

    Args:
        folder: where the file lies.
        block_bytes: bytes of each block, a multiple of ``LEAST_BLOCK_BYTES``.
        num_blocks: blocks that are reserved; more are taken if there is room.

    Raises:
        HotsetError: the folder cannot be written, or its disk is too small.
    """

    def __init__(self, folder: Path, block_bytes: int, num_blocks: int) -> None:
        assert block_bytes % LEAST_BLOCK_BYTES == 0
        self.block_bytes = block_bytes
        self.reads = 0
        self.writes = 0
        self._folder = folder
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._num_blocks = 0
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)
            # Also where a run ends by an error before it closes its files.
            self._close = weakref.finalize(self, self._file.close)
            if num_blocks:
                # All room is taken at once: a disk that is too small is found before training begins.
                os.posix_fallocate(self._file.fileno(), 0, num_blocks * block_bytes)
        except OSError as error:
            wanted = format_byte_size(num_blocks * block_bytes)
            raise HotsetError(
                f"{folder} has no room for {wanted} of rows: {error.strerror}", hint=_HINT
            ) from error
        self.is_direct = self._use_direct()

    def allocate(self) -> int:
        """Return the number of a free place for a block."""
        with self._lock:
            number = self._free.pop() if self._free else self._num_blocks
            self._num_blocks = max(self._num_blocks, number + 1)
            return number

    def write(self, number: int, block: NDArray[np.uint8]) -> None:
        """Write one block to its place.

        Raises:
            HotsetError: the disk is full or does not work.
        """
        with self._lock:
            self.writes += 1
        self._move(os.pwrite, "written", block, number)

    def read(self, number: int, block: NDArray[np.uint8]) -> None:
        """Read the block ``number`` into ``block``.

        Raises:
            HotsetError: the disk does not work, or the file is shorter than what was written.
        """
        with self._lock:
            self.reads += 1
        self._move(lambda *args: os.preadv(args[0], [args[1]], args[2]), "read", block, number)
        if not self.is_direct:
            self._drop_cache(number)

    def free(self, number: int) -> None:
        """Let the place of a block be used again."""
        with self._lock:
            self._free.append(number)

    def close(self) -> None:
        """Give the disk space back."""
        self._close()

    def _move(self, call: object, verb: str, block: NDArray[np.uint8], number: int) -> None:
        """Call ``call`` until the whole block has moved."""
        assert callable(call) and block.nbytes == self.block_bytes
        first = number * self.block_bytes
        done = 0
        view = block.data
        # A call may move less than a block, after a signal or at the end of the file.
        while done < self.block_bytes:
            try:
                moved = call(self._file.fileno(), view[done:], first + done)
            except OSError as error:
                raise self._fault(verb, error.strerror or str(error)) from error
            if moved == 0:
                raise self._fault(verb, f"it ends after {done} of {self.block_bytes} bytes of a block")
            done += moved

    def _fault(self, verb: str, reason: str) -> HotsetError:
        return HotsetError(f"the spill file in {self._folder} cannot be {verb}: {reason}", hint=_HINT)

    def _use_direct(self) -> bool:
        """Go past the page cache; False where the system or the file system cannot."""
        if not hasattr(os, "O_DIRECT"):
            return False
        # The flag can only be set on the open file, since a temporary one has no name to open again.
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_DIRECT)
        except OSError:
            return False
        # Some file systems take the flag and refuse the first write.
        try:
            os.pwrite(self._file.fileno(), aligned_blocks(1, self.block_bytes)[0].data, 0)
        except OSError:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags)
            return False
        return True

    def _drop_cache(self, number: int) -> None:
        """Let the page cache forget a block that is not read again."""
        if hasattr(os, "posix_fadvise"):
            first = number * self.block_bytes
            os.posix_fadvise(self._file.fileno(), first, self.block_bytes, os.POSIX_FADV_DONTNEED)
