"""A limit of memory that the system enforces on a process, page cache included: a control group."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ....pipeline.runtime.control_groups import control_groups

_REMOVING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A control group with a limit; a process that joins it stays until it ends."""

    folder: Path
    version: int
    """1 or 2, of the system's control groups."""

    def join(self) -> None:
        """Put this process into the group."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def peak_bytes(self) -> int | None:
        """Return the most memory that the group had, page cache included; None where it is not known."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        try:
            return int((self.folder / name).read_text())
        except (OSError, ValueError):
            return None


@contextmanager
def memory_limit(num_bytes: int) -> Iterator[MemoryLimit | None]:
    """Make a group for the time of the block; None where this process may not, or the system has none."""
    limit = _make(num_bytes)
    try:
        yield limit
    finally:
        if limit is not None:
            _remove(limit.folder)


def _make(num_bytes: int) -> MemoryLimit | None:
    # The first group that can be made and limited; a container may allow neither.
    for version, parent, file in _places():
        folder = parent / f"hotset-{os.getpid()}-{time.monotonic_ns()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        # A group that takes no limit is of no use, and another place is tried.
        try:
            (folder / file).write_text(str(num_bytes))
            return MemoryLimit(folder, version)
        except OSError:
            _remove(folder)
    return None


def _places() -> Iterator[tuple[int, Path, str]]:
    """Yield the groups of this process that may have a group below them, and the file of a limit."""
    for group in control_groups("memory"):
        yield group.version, group.folder, "memory.limit_in_bytes" if group.version == 1 else "memory.max"


def _remove(folder: Path) -> None:
    """Remove a group, which the system allows a moment after its last process has ended."""
    deadline = time.monotonic() + _REMOVING_SECONDS
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
