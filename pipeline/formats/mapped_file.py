"""Maps of files that take no open file each: a stage may hold as many as a log has days or parts.

Python's maps keep a descriptor until they are closed, and processes may have 1,024 of them or fewer. Arrow's
do too, and refuse names that are not UTF-8. NumPy's follow every link of the path first, which would be a
tenth of the time that preprocessing a small log takes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

import pyarrow as pa

_library = ctypes.CDLL(None, use_errno=True)
_library.mmap.restype = ctypes.c_void_p
_library.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


def map_file(path: Path) -> Any:
    """Map a whole file for reading; returns an Arrow buffer, which keeps the map.

    Raises:
        OSError: it cannot be opened or mapped.
        ValueError: it is empty, and so cannot be mapped.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        num_bytes = os.fstat(descriptor).st_size
        if num_bytes == 0:
            raise ValueError("it is empty")
        # The library call keeps no descriptor, which Python's map would.
        address = _library.mmap(None, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
    return pa.foreign_buffer(address, num_bytes, _Map(address, num_bytes))


class _Map:
    """Pages of a file, given back when the last buffer over them is gone."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self._address = address
        self._num_bytes = num_bytes
        self._unmap = _library.munmap  # modules may be gone when the interpreter ends

    def __del__(self) -> None:
        self._unmap(self._address, self._num_bytes)
