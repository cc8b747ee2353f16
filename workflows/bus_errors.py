"""End a command in one line if its mapped file is truncated.

Without this, the signal would end it. Stages map the files they read: their pages are the page cache's, so
they take none of ``--memory``, and columns that a stage does not need are never read. Linux ends a process by
SIGBUS where it reads a page that the file has lost since it was mapped. Nothing can be computed from then on,
and nothing has to be: a run that ends at any moment resumes to the same bytes. So the handler names the file
and ends the process.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

_MAPS = Path("/proc/self/maps")
_SHOW_CURSOR = "\x1b[?25h"
_STATUS = 1
_handlers: list[Any] = []
"""Handlers that are installed; the C library holds their addresses alone."""


def explain_bus_errors() -> None:
    """Let SIGBUS end this process with an error line; does nothing on systems without Linux's ``/proc``."""
    if _handlers or not _MAPS.exists():
        return
    # Python's own handlers run between two instructions of the interpreter, which are never reached here.
    library = ctypes.CDLL(None)
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_end)
    library.signal.argtypes = [ctypes.c_int, type(handler)]
    library.signal.restype = ctypes.c_void_p
    _handlers.append(handler)
    library.signal(signal.SIGBUS, handler)


def _end(_: int) -> None:
    """Print which file was cut short, and end the process."""
    try:
        found = cut_files()
        what = f"{found[0]} was cut short by another program" if found else "a mapped file cannot be read"
        lines = (
            f"error: {what} while it was in use",
            "hint: leave the folder alone while a command works on it; `hotset verify` finds what is damaged",
        )
        text = "".join(f"{line}\n" for line in lines)
        with suppress(OSError):
            end_of_bar = f"{_SHOW_CURSOR}\n" if os.isatty(2) else ""
            os.write(2, (end_of_bar + text).encode(errors="backslashreplace"))
    finally:
        # Nothing may run any more, also no other thread: it would read the same page.
        os._exit(_STATUS)


def cut_files() -> list[Path]:
    """Return the mapped files of this process that are shorter than what is mapped of them."""
    found = []
    for line in _MAPS.read_bytes().splitlines():
        addresses, _, offset, _, inode, *name = line.split(maxsplit=5)
        if inode == b"0" or not name:
            continue
        first, stop = (int(address, 16) for address in addresses.split(b"-"))
        path = Path(os.fsdecode(name[0]))
        with suppress(OSError):  # deleted, which leaves its pages as they are
            # The last page of a map may reach beyond the end of its file.
            num_bytes = int(offset, 16) + stop - first
            if path.stat().st_size <= num_bytes - os.sysconf("SC_PAGE_SIZE"):
                found.append(path)
    return found
