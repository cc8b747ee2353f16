"""What every part of a GPU day is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PartSettings:
    """What a part works with."""

    device: str
    """Name of the torch device."""
    scratch: Path
    """Folder for temporary files."""
    is_small: bool
    """Few rows and samples: only to see that everything runs."""
