"""What `preprocess` checks before it begins: is there enough disk, and can the memory cap be kept?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import ConfigError
from ..folders.manifest import MANIFEST, Manifest
from ..raw.raw_blocks import RawFile
from ..sizes import MIB, format_byte_size

DISK_FACTORS = {
    "columns": 0.70,
    "counts": 0.10,
    "vocabulary": 0.17,
    "samples": 0.45,
    "plan": 0.01,
    "shards": 0.70,
}
"""Bytes of each folder for a byte of plain Criteo text, measured on generated logs of 0.2 to 4 M samples
(0.66, 0.09, 0.16, 0.43, 0.004 and 0.66 at the most: 2.0 together) and rounded up. What `count` and `encode`
spill where memory is short goes before the folders behind theirs are written, which are larger: the sum at
the end is the most there is at any moment (measured at a cap that spills)."""
COMPRESSION = 3.0
"""Bytes of text for a byte of a compressed log; gzip makes 2.5 of Criteo's."""
_TYPICAL_LINE_BYTES = 160


def disk_needed(
    raw: Sequence[Path], out: Path, *, is_columnar: bool = False, extend: bool = False
) -> dict[str, int]:
    """Estimated bytes that each folder inside ``out`` still wants; sealed ones want none.

    Args:
        raw: logs that are there.
        out: the folder that is DIR elsewhere.
        is_columnar: the logs are Parquet, compressed inside.
        extend: sealed folders of fewer logs grow, too.
    """
    text_bytes = 0.0
    for path in raw:
        file = RawFile.look_at(path)
        text_bytes += file.num_bytes * (COMPRESSION if file.compression or is_columnar else 1)
    columns = out / "columns"
    grows = extend and (columns / MANIFEST).exists() and len(Manifest.read(columns).inputs) < len(raw)
    return {
        name: 0
        if (out / name / MANIFEST).exists() and not grows
        else max(0, int(factor * text_bytes) - bytes_in(out / name))
        for name, factor in DISK_FACTORS.items()
    }


def bytes_in(folder: Path) -> int:
    """Bytes of the files of a folder; 0 where there is none."""
    if not folder.is_dir():
        return 0
    with os.scandir(folder) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())


def refuse_full_disk(needed: Mapping[str, int], out: Path) -> None:
    """Raise ConfigError where ``needed`` is more than the file system of ``out`` has free."""
    total, free = sum(needed.values()), shutil.disk_usage(existing_folder(out)).free
    if total <= free:
        return
    parts = ", ".join(f"{name} {format_byte_size(size)}" for name, size in needed.items() if size >= MIB)
    raise ConfigError(
        f"{out} needs about {format_byte_size(total)} of disk ({parts}), {format_byte_size(free)} are free",
        hint=f"make room for {format_byte_size(total - free)} more there, or give another --out",
    )


def existing_folder(path: Path) -> Path:
    """``path``, or the first folder above it that is there."""
    return next(above for above in (path.absolute(), *path.absolute().parents) if above.exists())


def samples_of_block(block_bytes: int) -> int:
    """Samples that a block of raw text may hold, for estimates before it is read."""
    return block_bytes // _TYPICAL_LINE_BYTES
