"""Candidates that processes of the benchmark harness run; apart from tests, so that they start quickly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def write_down(folder: Path, diary: Path, name: str) -> dict[str, Any]:
    """Note in a file when a candidate ran, and where."""
    with diary.open("a") as lines:
        lines.write(f"{name} {os.getpid()} {os.environ['POLARS_MAX_THREADS']} {list(folder.iterdir())}\n")
    return {"num_samples": 10}
