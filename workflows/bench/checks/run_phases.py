"""Reads from the folder of an unfinished run what the run was doing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ....pipeline.errors import HotsetError
from ....train.checkpoints.checkpoint_files import CHECKPOINTS, read_record, record_paths

PHASES = ("start", "steps", "checkpoint", "end")


def newest_checkpoint(out: Path) -> str:
    """Return the name of the record of the newest checkpoint of a run, which sorts behind those of earlier
    ones; of a run without checkpoints the empty one."""
    # A run that ends may remove the folder at this moment.
    with suppress(FileNotFoundError):
        return max((path.name for path in record_paths(out / CHECKPOINTS)), default="")
    return ""


def phase_of(out: Path) -> str:
    """Return what a killed run was doing: starting, taking steps, writing a checkpoint, or its results."""
    # The files that are there say how far the run had come.
    if not (out / "config.json").exists():
        return "start"
    # Weights are written when the last step is over, so even a part of them tells the end.
    if (out / "weights.safetensors").exists() or (out / ".weights.safetensors.tmp").exists():
        return "end"
    folder = out / CHECKPOINTS
    listed: set[str] = set()
    # Files of a checkpoint that no record lists yet are being written.
    for path in record_paths(folder):
        try:
            record = read_record(path)
        except HotsetError:
            continue
        listed |= {path.name, *(entry.path for entry in record.files)}
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return "checkpoint" if found - listed else "steps"
