"""The check that `preprocess` begins with: is there enough disk?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import ConfigError
from ..folders.disk import bytes_in, free_bytes
from ..folders.manifest import Manifest, is_sealed
from ..raw.raw_file import RawFile
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
spill where memory is short is removed before the next folders are written, which are larger: the sum at the
end is the most there is at any moment (measured at a cap that spills)."""
COMPRESSION = 3.0
"""Bytes of text for a byte of a compressed log; gzip makes 2.5 of Criteo's."""


def disk_needed(
    raw: Sequence[Path], out: Path, *, is_columnar: bool = False, extend: bool = False
) -> dict[str, int]:
    """Return the estimated bytes that each folder inside ``out`` still needs; sealed ones need none.

    Args:
        raw: existing logs.
        out: the folder called DIR in help texts.
        is_columnar: the logs are Parquet, compressed inside.
        extend: sealed folders of fewer logs grow too.
    """
    text_bytes = 0.0
    for path in raw:
        file = RawFile.inspect(path)
        text_bytes += file.num_bytes * (COMPRESSION if file.compression or is_columnar else 1)
    columns = out / "columns"
    # With more logs than before, sealed folders grow or are rebuilt, so none of them counts as done.
    grows = extend and is_sealed(columns) and len(Manifest.read(columns).inputs) < len(raw)
    return {
        name: 0
        if is_sealed(out / name) and not grows
        else max(0, int(factor * text_bytes) - bytes_in(out / name))
        for name, factor in DISK_FACTORS.items()
    }


def refuse_full_disk(needed: Mapping[str, int], out: Path, option: str = "--out") -> None:
    """Raise ConfigError if ``needed`` is more than the file system of ``out`` has free."""
    total = sum(needed.values())
    free = free_bytes(out)
    if total <= free:
        return
    parts = ", ".join(f"{name} {format_byte_size(size)}" for name, size in needed.items() if size >= MIB)
    raise ConfigError(
        f"{out} needs about {format_byte_size(total)} of disk ({parts}), {format_byte_size(free)} are free",
        hint=f"free {format_byte_size(total - free)} more there, or give another {option}",
    )
