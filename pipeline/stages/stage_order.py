"""The stages in order, the folder each writes inside DIR, and which of them another log made stale."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..folders.discard import refuse_discarded
from ..folders.manifest import MANIFEST, Manifest
from ..folders.partial_folder import BEGUN, PARTIAL, REMOVED, write_errors_explained
from ..folders.removal import remove_folders
from ..folders.reopening import BEFORE
from ..folders.run_identity import read_begun, refuse_other_config
from .rank import RankConfig

FOLDERS = {
    "ingest": "columns",
    "count": "counts",
    "rank": "vocabulary",
    "encode": "samples",
    "split": "plan",
    "pack": "shards",
}
"""Stages of `preprocess` in order, and the folder each writes inside DIR."""

ALL_FOLDERS = FOLDERS | {"schedule": "schedule"}
"""Those, and of the stage that is run by itself."""

INPUTS = {
    "count": ("columns",),
    "rank": ("counts",),
    "encode": ("columns", "vocabulary"),
    "split": ("vocabulary", "samples"),
    "pack": ("columns", "samples", "plan"),
}
"""Folders each stage after `ingest` reads with its default settings."""

ALL_INPUTS = INPUTS | {"schedule": ("shards",)}
"""Likewise, with the stage that is run by itself."""

OLD_VOCABULARY = "old_vocabulary"
"""Where the vocabulary of before waits until the ids are mapped."""

BESIDE = {"id_map": "vocabulary"}
"""Folders that no stage needs, and what each goes with."""


def inputs_of(stage: str, config: object) -> tuple[str, ...]:
    """Folders a stage after `ingest` reads: other orders than by frequency need the columns, too."""
    needs_columns = isinstance(config, RankConfig) and config.rank_by != "frequency"
    return ALL_INPUTS[stage] + (("columns",) if needs_columns else ())


def folders_beside(folder: Path, names: Iterable[str]) -> list[Path]:
    """Folders of `BESIDE` inside ``folder`` that go with one of ``names``."""
    names = set(names)
    return [folder / name for name, other in BESIDE.items() if other in names and (folder / name).exists()]


def stale_folders(folder: Path) -> list[Path]:
    """Folders inside ``folder`` that were made from, or begun with, others than those beside them now.

    Counts that can be gone on from are not among them, but what was made from them is.
    """
    stale: list[Path] = []
    outdated: set[str] = set()
    for stage, name in ALL_FOLDERS.items():
        path = folder / name
        if (path / PARTIAL / REMOVED).exists():  # killed while it was removed
            stale.append(path)
            continue
        made_from = _inputs_of(path)
        if stage == "ingest" or made_from is None:
            continue
        if any(_is_other(folder / made["name"], made, outdated) for made in made_from if "name" in made):
            outdated.add(name)
            can_go_on = (path / MANIFEST).exists() or (path / PARTIAL / BEFORE).exists()
            if stage != "count" or not can_go_on:
                stale.append(path)
    return stale + folders_beside(folder, [path.name for path in stale])


def _is_other(path: Path, made: dict[str, Any], outdated: set[str]) -> bool:
    if path.name not in ALL_FOLDERS.values():
        return False  # the model's folder of another DIR
    if path.name in outdated or not (path / MANIFEST).exists():
        return True
    return Manifest.read(path).fingerprint != made.get("fingerprint")


def _inputs_of(path: Path) -> list[dict[str, Any]] | None:
    """Inputs of a stage folder, finished or begun; None where there is none."""
    if (path / MANIFEST).exists():
        return Manifest.read(path).inputs
    begun = path / PARTIAL / BEGUN
    return list(read_begun(begun)["inputs"]) if begun.exists() else None


def remove_stale(folder: Path, *, keep_vocabulary: bool = False) -> list[Path]:
    """Remove what `stale_folders` finds, the last stage first; returns what was removed.

    With ``keep_vocabulary`` a finished one is put aside as OLD_VOCABULARY, unless an older one is there.
    """
    doomed = stale_folders(folder)[::-1]
    vocabulary, kept = folder / "vocabulary", folder / OLD_VOCABULARY
    if keep_vocabulary and vocabulary in doomed and (vocabulary / MANIFEST).exists() and not kept.exists():
        with write_errors_explained(kept):
            os.rename(vocabulary, kept)
        doomed.remove(vocabulary)
    remove_folders(doomed)
    return doomed


def refuse_extension(folder: Path, configs: dict[str, Any]) -> None:
    """Raise ManifestError where a log cannot be added to ``folder``, before anything is changed.

    Args:
        folder: DIR.
        configs: of the stages that go on from what they made, `ingest` and `count`.
    """
    refuse_discarded(folder / "columns", "--extend", "ingest")
    for stage, config in configs.items():
        if (folder / FOLDERS[stage] / MANIFEST).exists():
            refuse_other_config(Manifest.read(folder / FOLDERS[stage]), stage, config)
