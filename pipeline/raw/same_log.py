"""Tells whether a raw log is still the one that columns were made from: by its content, not its name.

Columns record a checksum of each log. A run that goes on with them reads the log again and compares, at the
speed of the disk, without parsing. A note in the user's cache folder saves the reading where the file has
the path, inode, size and times of when it was hashed last; any difference means that it is read.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import xxhash

from ..errors import InputError, ManifestError, MemoryCapError
from ..folders.disk import write_synced
from ..folders.manifest import Manifest, hash_file
from ..folders.totals import ColumnsFacts, ColumnsSettings, ColumnsTotals
from ..runtime.memory import workers_within
from ..runtime.tasks import DEFAULT_RESOURCES, Resources, run_tasks
from .part import Block, PlainBlock, iterate_blocks
from .raw_file import RawFile

REMEDY = "--redo ingest reads it from its start; --trust-names compares names and sizes only"
_SETTLED_NS = 2_000_000_000
"""Age of a file's times, when it is inspected, below which no note is taken: one more write may leave them as
they are."""
_LEAST_NOTED_BYTES = 1 << 20
"""Size below which a file is hashed again: a note would cost more than it saves."""
_BLOCKS_OF_WORKER = 3
"""Blocks of text that a worker holds: the one that it hashes, and decompressed ones that wait."""


def check_log(file: RawFile, number: int, columns: Manifest, resources: Resources) -> None:
    """Check that a log is what columns were made from.

    Args:
        file: the log.
        number: its position among the logs of ``columns``.
        columns: a folder that was sealed.
        resources: workers that hash, and progress.

    Raises:
        ManifestError: its bytes differ; names the first block that does.
    """
    block_bytes = ColumnsSettings.of(columns).block_bytes
    wanted = ColumnsTotals.of(columns).raw[number].xxh3_128_of_blocks
    if noted_checksum(file, block_bytes) == wanted:
        return
    # A folder that is finished is refused for no cap: one worker compares at least.
    workers = 1
    with suppress(MemoryCapError):
        workers = workers_within("ingest", resources, _BLOCKS_OF_WORKER * block_bytes)
    blocks: list[str | None] = []
    if checksum_of_log(file, block_bytes, replace(resources, workers=workers), blocks) == wanted:
        return note_log(file, block_bytes, wanted)
    # Parts of text have the checksums of their blocks; Parquet has one for all.
    facts = {entry.path: columns.facts_of(ColumnsFacts, entry) for _, entry in columns.parts()}
    known = {block: facts.get(block_name(number, block)) for block in range(len(blocks))}
    changed = [block for block, part in known.items() if part and part.raw_xxh3_128 != blocks[block]]
    where = ""
    if changed:
        first = changed[0] * block_bytes
        where = f": first a line that begins in bytes {first:,} to {first + block_bytes:,}"
    raise ManifestError(
        f"{file.path} has changed since {columns.folder} was made from it{where}", hint=REMEDY
    )


def block_name(number: int, block: int) -> str:
    """Return the name of the columns of a block of text of the ``number``-th log."""
    return f"file{number:04}-block{block:07}.arrow"


def checksum_of_log(
    file: RawFile,
    block_bytes: int,
    resources: Resources = DEFAULT_RESOURCES,
    blocks: list[str | None] | None = None,
) -> str:
    """Return a checksum of a log: xxh3-128, hex, of those of its blocks, since they are hashed in parallel.

    Where no line ends cut the file, as in Parquet, what is left is hashed whole.

    Args:
        file: the log.
        block_bytes: of the blocks.
        resources: workers, and progress in bytes of a file that is not compressed.
        blocks: gets the checksum of each block; None of one in which no line begins.
    """
    blocks = [] if blocks is None else blocks
    total = 0 if file.compression else file.num_bytes
    unread = ((block,) for block in iterate_blocks(file, block_bytes, in_thread_buffer=True))
    digest = xxhash.xxh3_128()
    workers = 1 if file.num_bytes <= block_bytes else resources.workers  # threads cost more than one block
    try:
        # What is decompressed here stays here.
        here = file.compression is not None
        for found in run_tasks(checksum_of_block, unread, workers=workers, shares_memory=here):
            blocks.append(found)
            digest.update(bytes.fromhex(found or ""))
            resources.progress("ingest", min(len(blocks) * block_bytes, file.num_bytes), total)
    except InputError:
        if file.read_format() in ("text", "json"):
            raise
        digest.update(bytes.fromhex(hash_file(file.path)[1]))
    return str(digest.hexdigest())


def checksum_of_block(unread: PlainBlock | Block) -> str | None:
    """Return the checksum of a block, hex; None where no line begins in it."""
    block = unread.read()
    tally = block.tallied().tally
    return tally.xxh3_128 if tally is not None and block.num_bytes else None


def noted_checksum(file: RawFile, block_bytes: int) -> str | None:
    """Return the checksum of a log as noted, where the file is as it was then; else None."""
    # A note that is missing or damaged in any way only costs the reading.
    with suppress(OSError, ValueError, KeyError, TypeError, RuntimeError):
        note = json.loads(_note_of(file.path).read_bytes())
        if note["state"] == _state_of(file, block_bytes):
            return str(note["checksum"])
    return None


def note_log(file: RawFile, block_bytes: int, checksum: str) -> None:
    """Note the checksum of a log for later runs, if the cache folder can be written.

    Args:
        file: the log, inspected before it was hashed.
        block_bytes: of the blocks in the checksum.
        checksum: that of `checksum_of_log`.
    """
    is_young = max(file.state[3:5]) > file.seen_ns - _SETTLED_NS
    if is_young or file.num_bytes < _LEAST_NOTED_BYTES:
        return
    with suppress(OSError, RuntimeError):
        note = _note_of(file.path)
        note.parent.mkdir(parents=True, exist_ok=True)
        content = {"state": _state_of(file, block_bytes), "checksum": checksum}
        write_synced(note, json.dumps(content).encode(), sync=False)


def _state_of(file: RawFile, block_bytes: int) -> list[int | str]:
    return [str(file.path.resolve()), *file.state[1:], block_bytes]


def _note_of(path: Path) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "hotset", "logs", f"{xxhash.xxh3_128_hexdigest(str(path.resolve()).encode())}.json")
