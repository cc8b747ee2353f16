"""A sealed folder that is reopened because its inputs grew: one more day, and what was done stays done.

    folder/.partial/before/manifest.json   where the manifest goes: the folder as it was sealed
    folder/.partial/before/NAME            its files, if the stage writes others of the same names

Once the manifest is renamed, the folder is unfinished like any other, and `Output` resumes it. Until it is
sealed again, a run with the inputs of before puts everything back.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .manifest import MANIFEST, Manifest
from .partial_folder import BEGUN, LOCK, PARTIAL, WORKERS, write_synced
from .run_identity import Inputs, RunIdentity

_FOLDER = "before"
BEFORE = f"{_FOLDER}/{MANIFEST}"


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a stage continues from a folder that it sealed with fewer inputs."""

    continues: Callable[[Inputs, Inputs], bool]
    """Whether the second inputs, those of this run, continue the first, those of the folder."""
    keeps_files: bool
    """Whether the files stay in place; otherwise they are set aside and read through `Output.before`."""
    is_wanted: bool
    """Whether to start a continuation; one that was started by an equal run is resumed in any case."""

    def may_continue(self, found: RunIdentity, wanted: RunIdentity) -> bool:
        """Return whether a continuation is wanted, and nothing but the inputs differs, as it may."""
        if not self.is_wanted or found["inputs"] == wanted["inputs"]:
            return False
        is_same_stage = found.get("stage") == wanted["stage"] and found.get("version") == wanted["version"]
        is_same = is_same_stage and found.get("config") == wanted["config"]
        return is_same and self.continues(found["inputs"], wanted["inputs"])


def reopen(folder: Path, begun: bytes) -> None:
    """Turn a sealed folder, locked by this run, into one that the run of identity ``begun`` resumes."""
    partial = folder / PARTIAL
    # First what earlier runs left, or a record of theirs would pass for one of this run.
    clear_partial(folder)
    (partial / _FOLDER).mkdir()
    write_synced(partial / BEGUN, begun, sync=False)
    # Last, for it unseals the folder: until then a kill leaves it sealed as it was.
    os.replace(folder / MANIFEST, partial / BEFORE)


def read_before(folder: Path) -> Manifest | None:
    """Return the manifest that a reopened folder was sealed with; its files are looked for in ``before/``."""
    before = folder / PARTIAL / BEFORE
    return Manifest.read(before.parent) if before.exists() else None


def set_aside(folder: Path, before: Manifest, is_recorded: Callable[[str], bool]) -> None:
    """Move the files of a reopened folder to ``before/``; if interrupted, the next call resumes."""
    for entry in before.files:
        path = folder / entry.path
        aside = before.folder / entry.path
        # A recorded file was written since, under the same name.
        if path.exists() and not aside.exists() and not is_recorded(entry.path):
            os.replace(path, aside)


def go_back(folder: Path, before: Manifest) -> None:
    """Seal a reopened folder as it was; what was added is removed."""
    # The manifest comes last: until it is back, a kill leaves a folder that is still reopened.
    drop_added(folder, before)
    for entry in before.files:
        if (before.folder / entry.path).exists():
            os.replace(before.folder / entry.path, folder / entry.path)
    os.replace(folder / PARTIAL / BEFORE, folder / MANIFEST)


def drop_added(folder: Path, before: Manifest) -> None:
    """Remove what was written since a folder was reopened, records first: none may outlive its file."""
    clear_partial(folder, BEGUN, _FOLDER)
    kept = {entry.path for entry in before.files}
    for path in folder.iterdir():
        if path.name not in kept and path.name != PARTIAL:
            path.unlink()


def clear_partial(folder: Path, *kept: str) -> None:
    """Remove what is in ``.partial`` except the locks and what is named."""
    for path in (folder / PARTIAL).iterdir():
        if path.name not in (LOCK, WORKERS, *kept):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
