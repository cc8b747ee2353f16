"""Memory that a thread uses again for its next task: fresh pages cost more than what is done with them.

An array fresh from the system costs 0.1 s a GiB at its first touch, and 2 s where a virtual machine's host
has to find the memory first; what is used again stays in the cache besides. A stage's threads end with it,
and their arrays with them; those of the caller's own thread go when the next stage makes room.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_local = threading.local()


def scratch(name: str, shape: Sequence[int], dtype: Any) -> NDArray[Any]:
    """An array that holds anything, the calling thread's until it asks for ``name`` again."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    held: dict[str, NDArray[np.uint8]] = _local.__dict__
    if name not in held or held[name].nbytes < num_bytes:
        held.pop(name, None)  # first, so that both never exist
        held[name] = np.empty(num_bytes + num_bytes // 8, np.uint8)
    array: NDArray[Any] = held[name][:num_bytes].view(dtype).reshape(shape)
    return array


def drop_scratch() -> None:
    """Let go of the calling thread's arrays."""
    _local.__dict__.clear()


def forget(array: NDArray[Any]) -> None:
    """Let the system have the pages of a contiguous array at once; what it holds from then on is anything."""
    start = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (array.ctypes.data + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if stop > start and hasattr(mmap, "MADV_DONTNEED"):
        address, num_bytes = ctypes.c_void_p(start), ctypes.c_size_t(stop - start)
        ctypes.CDLL(None).madvise(address, num_bytes, mmap.MADV_DONTNEED)
