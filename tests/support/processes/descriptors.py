"""The files that this process has open, as the system lists them."""

from __future__ import annotations

import os
from pathlib import Path


def open_files(folder: Path) -> list[Path]:
    """Return the files below ``folder`` that are open: others come and go with what else the process does."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        except FileNotFoundError:  # that of the list itself, or one that another thread closed
            continue
    return [path for path in found if path.is_relative_to(folder)]
