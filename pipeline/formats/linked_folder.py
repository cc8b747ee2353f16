"""A sealed folder beside what was made with it: its files are linked, or copied from another device."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..folders.manifest import MANIFEST, Manifest
from ..folders.partial_folder import write_errors_explained


def link_folder(source: Manifest, target: Path) -> None:
    """Give a sealed folder another place, where it stays whatever becomes of the first.

    Files of a sealed folder are replaced and never changed in place, so a link takes no disk space and its
    bytes stay as they are. A file system without links gets copies.

    Args:
        source: the sealed folder.
        target: path of the new one; one of the same bytes that is there is kept, any other is replaced.

    Raises:
        ManifestError: a file of the source is missing or damaged, or the target cannot be written.
    """
    if (target / MANIFEST).exists() and Manifest.read(target).fingerprint == source.fingerprint:
        return
    # Aside first, so that a folder under its final name is whole.
    aside = target.with_name(f".{target.name}.tmp")
    with write_errors_explained(target):
        for folder in (aside, target):
            if folder.exists():
                shutil.rmtree(folder)
        aside.mkdir()
        for entry in source.files:
            _link(source.checked_path(entry), aside / entry.path)
        shutil.copyfile(source.folder / MANIFEST, aside / MANIFEST)
        os.rename(aside, target)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another device, or a file system without links
        shutil.copyfile(source, target)
