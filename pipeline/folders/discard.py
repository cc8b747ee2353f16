"""``--shards-only``: remove the files of folders that nothing needs once shards are packed.

The manifest stays, so that the chain from raw log to shards stays pinned and a run of the same command finds
its stages done; a mark beside it records that the files are gone on purpose. Stages that need them refuse.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from ..errors import ManifestError
from .manifest import Manifest
from .partial_folder import write_synced

DISCARDABLE = ("columns", "samples")
"""Folders whose files are read only by `count`, `encode`, `split`, `pack` and `stats`; nine tenths of the
bytes between raw log and shards."""
MARK = "discarded.json"


def discard_files(folder: Path) -> int:
    """Remove the data files of a sealed folder; return the bytes freed. If interrupted, call it again."""
    manifest = Manifest.read(folder)
    freed = 0
    try:
        # The mark comes first: without it, missing files would look like damage.
        write_synced(folder / MARK, json.dumps({"checksum": manifest.fingerprint}).encode(), sync=True)
        for entry in manifest.files:
            path = folder / entry.path
            if path.exists():
                freed += path.stat().st_size
                path.unlink()
    except OSError as error:
        raise ManifestError(f"{folder} cannot be discarded: {error.strerror or error}") from error
    return freed


def is_discarded(folder: Path) -> bool:
    """Return whether the files of ``folder`` were removed by `discard_files`."""
    return (folder / MARK).exists()


def refuse_discarded(folder: Path, needed_by: str, redo: str) -> None:
    """Raise ManifestError if ``needed_by`` would read files that were discarded."""
    if is_discarded(folder):
        raise ManifestError(
            f"{folder} was discarded, and {needed_by} needs its files",
            hint=f"`hotset preprocess RAW --out {shlex.quote(str(folder.parent))} --redo {redo}` rebuilds it",
        )
