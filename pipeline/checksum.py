"""The checksum of a file: xxh3-128, as manifests have it."""

from __future__ import annotations

from pathlib import Path

import xxhash

_HASH_BLOCK_BYTES = 1 << 20


def hash_file(path: Path) -> tuple[int, str]:
    """Bytes and xxh3-128 (hex) of a file, read through one reused block."""
    digest, block, num_bytes = xxhash.xxh3_128(), bytearray(_HASH_BLOCK_BYTES), 0
    view = memoryview(block)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(view[:count])
            num_bytes += count
    return num_bytes, str(digest.hexdigest())
