"""A folder that appears whole and sealed, or not at all: what is written is beside it until the end."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..folders.checksum import hash_file
from ..folders.manifest import MANIFEST, FileEntry, checksum_of
from ..folders.partial_folder import write_errors_explained
from .whole_file import refuse_target, whole_file


@contextmanager
def whole_folder(
    path: Path, *, stage: str, version: int, inputs: Sequence[Mapping[str, Any]]
) -> Iterator[Path]:
    """Yield an empty folder that gets a manifest and the name ``path`` when the block ends without an error.

    Args:
        stage: stage, version and inputs are those of the manifest.

    Raises:
        HotsetError: ``path`` exists, or cannot be written.
    """
    refuse_target(path, overwrite=False)
    # Beside the final place, so that the rename stays on one device; what a killed run left is replaced.
    aside = path.with_name(f".{path.name}.tmp")
    try:
        with write_errors_explained(path):
            if aside.exists():
                shutil.rmtree(aside)
            aside.mkdir()
        yield aside
        with write_errors_explained(path):
            entries = [FileEntry(name, 0, *hash_file(aside / name)) for name in sorted(os.listdir(aside))]
        parts = {
            "stage": stage,
            "version": version,
            "config": {},
            "inputs": list(inputs),
            "files": [entry.to_json() for entry in entries],
            "totals": {},
        }
        write_json(aside / MANIFEST, parts | {"checksum": checksum_of(parts)})
        with write_errors_explained(path):
            os.rename(aside, path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object as text."""
    write_text(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a new file of UTF-8 text; raises HotsetError where it cannot be written."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a new file; raises HotsetError where it cannot be written."""
    with whole_file(path) as file:
        file.write(content)
