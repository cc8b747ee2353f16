"""A folder that appears whole and sealed, or not at all: what is written is beside it until the end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..folders.checksum import hash_file
from ..folders.disk import new_folder, paths_in
from ..folders.manifest import MANIFEST, FileEntry, checksum_of
from ..folders.partial_folder import LOCK
from .whole_file import refuse_target, whole_file


@contextmanager
def whole_folder(
    path: Path, *, stage: str, version: int, inputs: Sequence[Mapping[str, Any]]
) -> Iterator[Path]:
    """Yield an empty folder that gets a manifest and the name ``path`` when the block ends without an error.

    Args:
        stage: stage, version and inputs are those of the manifest.

    Raises:
        HotsetError: ``path`` exists, another process is writing it, or it cannot be written.
    """
    refuse_target(path, overwrite=False)
    with new_folder(path) as folder:
        yield folder
        # The lock is no file of the folder, and goes before the rename.
        names = [file.name for file in paths_in(folder) if file.name != LOCK]
        entries = [FileEntry(name, 0, *hash_file(folder / name)) for name in names]
        parts = {
            "stage": stage,
            "version": version,
            "config": {},
            "inputs": list(inputs),
            "files": [entry.to_json() for entry in entries],
            "totals": {},
        }
        write_json(folder / MANIFEST, parts | {"checksum": checksum_of(parts)})


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
