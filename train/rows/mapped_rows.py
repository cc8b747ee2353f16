"""Rows of a slow tier larger than memory: a file mapped into it, without a name and gone with the process.

Nothing reads such a file after a kill, a checkpoint or the run's weights are what lasts. Its disk is taken at
the start, since a mapped file that meets a full disk later ends the process without a word.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ...pipeline.errors import HotsetError
from ...pipeline.sizes import format_byte_size


@dataclass(slots=True)
class HostMemory:
    """How much memory slow tiers may take, and where rows go that do not fit."""

    left_bytes: int | None
    """None: any."""
    folder: Path

    def rows(self, num_rows: int, width: int) -> torch.Tensor:
        """(num_rows, width) float32 zeros; raises HotsetError where the disk is too small."""
        num_bytes = 4 * num_rows * width
        if self.left_bytes is not None and num_bytes > self.left_bytes:
            return mapped_rows(num_rows, width, self.folder)
        if self.left_bytes is not None:
            self.left_bytes -= num_bytes
        return torch.zeros(num_rows, width)


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
    except OSError as error:
        raise HotsetError(
            f"{folder} has no room for {format_byte_size(num_bytes)} of rows: {error.strerror}",
            hint="write --out to a larger disk, or raise --slow-bytes",
        ) from error
    return torch.from_numpy(np.frombuffer(mapped, np.float32).reshape(num_rows, width))
