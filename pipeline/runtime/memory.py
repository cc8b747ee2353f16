"""Keeping to ``--memory``: how much a stage may hold, and arrays on disk where that does not do.

The cap is on anonymous resident memory, of this process and its workers together. Part of it is spent before
a stage begins (interpreter, libraries, compiled kernels, what the allocators keep): the rest is the stage's
room. Pages of mapped files are the page cache's and do not count, so what is written and read in order may
lie in one, and so may what several processes look things up in.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import ConfigError, ManifestError
from ..folders.output import PARTIAL, Output
from ..sizes import MIB, format_byte_size
from .tasks import num_processes
from .thread_buffers import drop_scratch

FIXED_BYTES = 160 * MIB
"""Interpreter, libraries and compiled kernels; 47 MiB at import, 110 to 140 after a few stages."""
_SLACK_BYTES = 32 * MIB


def default_memory_bytes() -> int:
    """A quarter of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


def anonymous_bytes() -> int:
    """Anonymous resident memory of this process; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def room_for(stage: str, memory_bytes: int | None, needed_bytes: int, *, workers: int = 0) -> int:
    """Bytes that ``stage`` may hold at a time, in all its processes, at least ``needed_bytes``.

    Args:
        stage: for the message.
        memory_bytes: the cap; None takes a quarter of the machine's memory, or what is needed.
        needed_bytes: the least the stage can do with.
        workers: as the stage was given; each may be a process, which has fixed costs of its own.

    Raises:
        ConfigError: the cap given cannot be kept; the hint says which could be.
    """
    if memory_bytes is not None:
        refuse_small_cap(stage, memory_bytes, needed_bytes, workers=workers)
    give_back()
    spent = max(FIXED_BYTES, anonymous_bytes() + _SLACK_BYTES) + num_processes(workers) * FIXED_BYTES
    return max(needed_bytes, (memory_bytes or default_memory_bytes()) - spent)


def refuse_small_cap(stage: str, memory_bytes: int, needed_bytes: int, *, workers: int = 0) -> None:
    """Raise ConfigError where ``stage`` cannot do with a cap of ``memory_bytes``."""
    wanted = (1 + num_processes(workers)) * FIXED_BYTES + needed_bytes
    if memory_bytes < wanted:
        enough = -(-wanted // MIB)
        raise ConfigError(
            f"{stage} cannot keep within {format_byte_size(memory_bytes)} of memory",
            hint=f"--memory {enough}MiB would do; fewer --workers need less",
        )


def give_back() -> None:
    """Have this thread and the allocators return what they keep to the system."""
    drop_scratch()
    pa.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # another C library
        return


def array_in(room_bytes: int, output: Output, shape: Sequence[int], dtype: Any) -> NDArray[Any]:
    """Zeros: in memory where they fit in ``room_bytes``, else mapped from a nameless file of ``output``.

    Raises:
        ManifestError: the device has no room for them.
    """
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if num_bytes <= max(room_bytes, 0) or num_bytes == 0:
        return np.zeros(shape, dtype)
    with spill_errors_explained(output), tempfile.TemporaryFile(dir=output.folder / PARTIAL) as file:
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        return np.asarray(np.memmap(file, dtype, "r+", shape=tuple(shape)))


@contextmanager
def spill_errors_explained(output: Output) -> Iterator[None]:
    """Raise ManifestError where the device has no room for what does not fit in memory."""
    try:
        yield
    except OSError as error:
        raise ManifestError(
            f"{output.folder} has no room for what does not fit in memory: {error.strerror or error}",
            hint="make room, or give more --memory: the same command goes on from here",
        ) from error
