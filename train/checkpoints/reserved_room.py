"""Disk space held for files of a run, so that a disk that is too small is an error before the first step."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path

from ...pipeline.errors import HotsetError, format_byte_size


class ReservedRoom:
    """A file without a name that takes space, and gives it back as the files are written that it is for.

    Args:
        folder: where it lies.
        num_bytes: to reserve.
        what: the files it is for, for the message.
        way_out: the option that does without them, for the hint.

    Raises:
        HotsetError: the disk is too small.
    """

    def __init__(
        self,
        folder: Path,
        num_bytes: int,
        what: str = "checkpoints",
        way_out: str = "train without them: --checkpoint-every off",
    ) -> None:
        self._left = num_bytes
        # The file has no name, so the room is free again however the process ends.
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                if num_bytes:
                    os.posix_fallocate(file.fileno(), 0, num_bytes)
                self._file = os.dup(file.fileno())
        except OSError as error:
            raise HotsetError(
                f"{folder} has no room for {format_byte_size(num_bytes)} of {what}: {error.strerror}",
                hint=f"write --out to a larger disk, or {way_out}",
            ) from error
        weakref.finalize(self, os.close, self._file)

    def give(self, num_bytes: int) -> None:
        """Give so many bytes back, as far as there are any left, to a file that is about to be written."""
        if self._left:
            self._left = max(self._left - num_bytes, 0)
            os.ftruncate(self._file, self._left)
