"""Rows of a slow tier larger than memory: a file mapped into it, without a name and gone with the process.

Nothing reads such a spill file after a kill: what lasts is a checkpoint or the weights of the run. Its disk
space is reserved at the start, since a mapped file that meets a full disk later kills the process without a
message.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ...pipeline.errors import MIB, HotsetError, format_byte_size
from ...pipeline.runtime.memory import available_bytes


@dataclass(slots=True)
class HostMemory:
    """The memory that slow tiers may take, and the folder for rows that do not fit."""

    left_bytes: int | None
    """Memory not yet used; None: no limit."""
    folder: Path
    may_spill: bool = True
    """Whether the command has an option for rows in a file."""
    is_planned: bool = False
    """Whether rows that do not fit lie in files by their next use (see `spill`), and not in mapped ones."""
    is_pinned: bool = False
    """Whether a device reads and writes the rows, for which their memory is pinned page by page."""

    def rows(self, num_rows: int, width: int) -> torch.Tensor:
        """(num_rows, width) float32 zeros; raises HotsetError where the disk is too small."""
        num_bytes = 4 * num_rows * width
        if self.left_bytes is not None and num_bytes > self.left_bytes:
            return mapped_rows(num_rows, width, self.folder)
        if self.left_bytes is not None:
            self.left_bytes -= num_bytes
        if self.is_pinned and num_bytes:
            return _pages_of_rows(num_rows, width)
        return torch.zeros(num_rows, width)


def refuse_more_rows_than_memory(num_rows: int, fast_bytes: int, slow_bytes: int, host: HostMemory) -> None:
    """Raise HotsetError before rows are allocated that host memory cannot hold.

    Args:
        num_rows: for the message.
        fast_bytes: rows of the fast tier with their state, 0 where that is on a GPU.
        slow_bytes: those of the slow tier, which may lie in a file.
        host: the memory that the slow tier may take.
    """
    # Where the machine does not say what is free, nothing is refused.
    available = available_bytes()
    in_memory = slow_bytes if host.left_bytes is None else min(slow_bytes, host.left_bytes)
    if available is None or fast_bytes + in_memory <= available:
        return
    # A quarter is left for the dense layers, batches and the page cache.
    enough = (3 * available // 4 - fast_bytes) // MIB * MIB
    hint = f"--slow-bytes {enough // MIB}MiB keeps the other rows in a file in --out"
    # Two settings that would do, and the last resort where neither helps.
    if not slow_bytes:
        enough = 3 * available // 4 // MIB * MIB
        hint = f"--placement lookahead --slow-bytes {enough // MIB}MiB keeps most rows in a file in --out"
    if enough <= 0 or not host.may_spill:
        hint = "use a machine with more memory, or fewer or narrower rows: --min-count, --embedding-dim"
    needed = format_byte_size(fast_bytes + in_memory)
    raise HotsetError(
        f"{num_rows:,} embedding rows take {needed} of memory with their optimizer state, "
        f"and {format_byte_size(available)} is available",
        hint=hint,
    )


def _pages_of_rows(num_rows: int, width: int) -> torch.Tensor:
    """(num_rows, width) float32 zeros in pages with nothing else in them: no page is pinned twice."""
    pages = mmap.mmap(-1, 4 * num_rows * width, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Large pages are pinned, and found by the device, several times as fast.
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system may have none
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(pages, np.float32).reshape(num_rows, width))


def mapped_rows(num_rows: int, width: int, folder: Path) -> torch.Tensor:
    """(num_rows, width) float32 zeros in a nameless file of ``folder``.

    Raises:
        HotsetError: the disk is too small, or the folder cannot be written.
    """
    num_bytes = 4 * num_rows * width
    if num_bytes == 0:
        return torch.zeros(num_rows, width)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            mapped = mmap.mmap(file.fileno(), num_bytes)
        # Rows are used in no order: reading ahead of a page would read 32 for one (70 times slower on tables
        # four times the memory).
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)
    except OSError as error:
        raise HotsetError(
            f"{folder} has no room for {format_byte_size(num_bytes)} of rows: {error.strerror}",
            hint="write --out to a larger disk, or raise --slow-bytes",
        ) from error
    return torch.from_numpy(np.frombuffer(mapped, np.float32).reshape(num_rows, width))
