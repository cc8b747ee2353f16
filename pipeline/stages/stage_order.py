"""The stages in order, their folders, and what a longer log outdates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..folders.disk import folder_exists, refuse_discarded, remove_folders, rename_folder
from ..folders.manifest import Manifest, is_sealed
from ..folders.resume import FolderState, refuse_other_config
from .rank import RankConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FOLDERS = {
    "ingest": "columns",
    "count": "counts",
    "rank": "vocabulary",
    "encode": "samples",
    "split": "plan",
    "pack": "shards",
}
"""Stages of `preprocess` in order, and the folder each writes inside DIR."""

INPUTS = {
    "count": ("columns",),
    "rank": ("counts",),
    "encode": ("columns", "vocabulary"),
    "split": ("vocabulary", "samples"),
    "pack": ("columns", "samples", "plan"),
}
"""Folders each stage after `ingest` reads with its default settings."""

OLD_VOCABULARY = "old_vocabulary"
"""Folder of the previous vocabulary in an extension, until its ids are mapped."""

BESIDE = {"id_map": "vocabulary"}
"""Folders that no stage reads, and the folder that each is removed with."""


def stages_from(stage: str) -> list[str]:
    """Return a stage and those that read, directly or not, what it writes; in order."""
    found = [stage]
    for name in FOLDERS:
        if name != stage and {FOLDERS[made] for made in found} & {*INPUTS.get(name, ())}:
            found.append(name)
    return found


def inputs_of(stage: str, config: object) -> tuple[str, ...]:
    """Return the folders a stage after `ingest` reads; orders other than by frequency read columns, too."""
    needs_columns = isinstance(config, RankConfig) and config.rank_by != "frequency"
    return INPUTS[stage] + (("columns",) if needs_columns else ())


def folders_beside(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return folders of `BESIDE` inside ``folder`` that are removed with one of ``names``."""
    names = set(names)
    return [
        folder / name for name, other in BESIDE.items() if other in names and folder_exists(folder / name)
    ]


def stale_folders(folder: Path) -> list[Path]:
    """Return the folders inside ``folder`` whose inputs are not the folders now next to them.

    Counts that can be continued are not among them, but what was made from them is.
    """
    stale: list[Path] = []
    outdated: set[str] = set()
    for stage, name in FOLDERS.items():
        path = folder / name
        state = FolderState.read(path)
        if state.is_removed:  # a kill interrupted the removal
            stale.append(path)
            continue
        identity = state.sealed or state.begun
        if stage == "ingest" or identity is None:
            continue
        # A folder is outdated if one it was made from is another now, or is outdated and will be another.
        made_from = [made for made in identity["inputs"] if "name" in made]
        if any(_is_other(folder / made["name"], made, outdated) for made in made_from):
            outdated.add(name)
            # Counts add up, so old ones are continued; but only those that a run finished once.
            can_continue = state.sealed is not None or state.before is not None
            if stage != "count" or not can_continue:
                stale.append(path)
    return stale + folders_beside(folder, [path.name for path in stale])


def _is_other(path: Path, made: dict[str, Any], outdated: set[str]) -> bool:
    if path.name not in FOLDERS.values():
        return False  # the model's folder inside another DIR
    if path.name in outdated or not is_sealed(path):
        return True
    return Manifest.read(path).fingerprint != made.get("fingerprint")


def remove_stale(folder: Path, *, keep_vocabulary: bool = False) -> list[Path]:
    """Remove what `stale_folders` finds, the last stage first; return what was removed.

    With ``keep_vocabulary`` a finished one is set aside as OLD_VOCABULARY, unless an older one is there.
    """
    # Last stage first: a folder must never outlive what it was made from.
    doomed = stale_folders(folder)[::-1]
    vocabulary = folder / "vocabulary"
    is_kept = keep_vocabulary and vocabulary in doomed and is_sealed(vocabulary)
    if is_kept and not folder_exists(folder / OLD_VOCABULARY):
        rename_folder(vocabulary, OLD_VOCABULARY)
        doomed.remove(vocabulary)
    remove_folders(doomed)
    return doomed


def refuse_extension(folder: Path, configs: Mapping[str, DataclassInstance]) -> None:
    """Raise ManifestError if a log cannot be added to ``folder``, before anything is changed.

    Args:
        folder: DIR.
        configs: of the stages that continue from what they wrote, `ingest` and `count`.
    """
    refuse_discarded(folder / "columns", "--extend", "ingest")
    for stage, config in configs.items():
        if is_sealed(folder / FOLDERS[stage]):
            refuse_other_config(Manifest.read(folder / FOLDERS[stage]), stage, config)
