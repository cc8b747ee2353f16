"""A sealed folder that is opened again because its inputs grew: a day more, and what was done stays done.

    folder/.partial/before/manifest.json   where the manifest goes: the folder as it was sealed
    folder/.partial/before/NAME            its files, where the stage writes others of the same names

From the rename on the folder is unfinished like any other; `Output` resumes it. Until it is sealed again, a
run with the inputs of before puts everything back.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .manifest import MANIFEST, Manifest
from .partial_folder import BEGUN, LOCK, PARTIAL, WORKERS, write_synced

_FOLDER = "before"
BEFORE = f"{_FOLDER}/{MANIFEST}"


@dataclass(frozen=True, slots=True)
class Extension:
    """How a stage goes on from a folder that it sealed with fewer inputs."""

    continues: Callable[[list[Any], list[Any]], bool]
    """Whether the inputs wanted continue those found."""
    keeps_files: bool
    """The files stay as they are; otherwise they are put aside and read through `Output.before`."""
    is_wanted: bool
    """Whether to begin; what was begun is gone on with in any case."""

    def may_go_on(self, found: dict[str, Any], wanted: dict[str, Any]) -> bool:
        """Whether it is wanted, and the inputs alone differ, as they may."""
        if not self.is_wanted or found["inputs"] == wanted["inputs"]:
            return False
        same = all(found.get(key) == wanted[key] for key in ("stage", "version", "config"))
        return same and self.continues(found["inputs"], wanted["inputs"])


def reopen(folder: Path, begun: bytes) -> None:
    """Turn a sealed folder, locked by this run, into one that the run described by ``begun`` resumes."""
    partial = folder / PARTIAL
    clear_partial(folder)
    (partial / _FOLDER).mkdir()
    write_synced(partial / BEGUN, begun, sync=False)
    os.replace(folder / MANIFEST, partial / BEFORE)


def read_before(folder: Path) -> Manifest | None:
    """The manifest that a reopened folder was sealed with; its files are looked for in ``before/``."""
    before = folder / PARTIAL / BEFORE
    return Manifest.read(before.parent) if before.exists() else None


def set_aside(folder: Path, before: Manifest, is_recorded: Callable[[str], bool]) -> None:
    """Move what the folder held to ``before/``; stopped at any moment, the next call goes on."""
    for entry in before.files:
        path, aside = folder / entry.path, before.folder / entry.path
        if path.exists() and not aside.exists() and not is_recorded(entry.path):
            os.replace(path, aside)


def go_back(folder: Path, before: Manifest) -> None:
    """Seal a reopened folder as it was; what was added goes."""
    drop_added(folder, before)
    for entry in before.files:
        if (before.folder / entry.path).exists():
            os.replace(before.folder / entry.path, folder / entry.path)
    os.replace(folder / PARTIAL / BEFORE, folder / MANIFEST)


def drop_added(folder: Path, before: Manifest) -> None:
    """Remove what was written since a folder was reopened, records first."""
    clear_partial(folder, BEGUN, _FOLDER)
    kept = {entry.path for entry in before.files}
    for path in folder.iterdir():
        if path.name not in kept and path.name != PARTIAL:
            path.unlink()


def clear_partial(folder: Path, *kept: str) -> None:
    """Remove what is in ``.partial`` but for the locks and what is named."""
    for path in (folder / PARTIAL).iterdir():
        if path.name not in (LOCK, WORKERS, *kept):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
