"""The worker processes of this process, as the system lists them."""

from __future__ import annotations

import os
from pathlib import Path


def children() -> set[int]:
    """Workers of this process."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"\nPPid:\t{os.getpid()}\n" in (entry / "status").read_text():
                if "LokyProcess" in (entry / "cmdline").read_text():
                    found.add(int(entry.name))
        except OSError:
            continue
    return found
