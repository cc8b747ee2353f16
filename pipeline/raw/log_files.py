"""The files of a log: which they are, and whether they are still those that columns were made from.

Spark, Hive and others write a log as a folder. Its data files are read in the order of their names; those
that begin with ``_`` or ``.`` and checksums (``.crc``) are none. A folder called ``dt=2026-01-31`` gives all
files below it a column ``dt``, which is read where the schema names it.

Small neighbours are a group, whose files become few parts, see `log_parts`. Groups follow from the sizes
of files alone, from the first one on: a log that grows keeps all groups but the last one, which `ingest` then
reads again, so that an extension leaves the bytes of a run from scratch.

A log is known by its content, not its name: columns record a checksum of each file. A run that goes on with
them reads the log again and compares, at the speed of the disk, without parsing. A note in the user's cache
folder saves the reading where the file has the path, inode, size and times of when it was hashed last.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import xxhash

from ..errors import InputError, ManifestError, MemoryCapError
from ..folders.disk import write_synced
from ..folders.manifest import Manifest, hash_file
from ..folders.totals import ColumnsFacts, ColumnsSettings, ColumnsTotals
from ..runtime.tasks import DEFAULT_RESOURCES, Resources, run_tasks, workers_within
from ..schema.schema import Schema
from .part import Block, PlainBlock, iterate_blocks
from .raw_file import RawFile


def inspect_logs(given: Iterable[Path]) -> list[RawFile]:
    """Return the files that were given, in order, as they are now.

    Raises:
        InputError: one cannot be read, or a folder or pattern has no data file.
    """
    return [RawFile.inspect(path) for path in log_files(given)]


def log_files(given: Iterable[Path]) -> list[Path]:
    """Return paths with the files of folders and of patterns such as ``day=*/*.csv`` in their place.

    Raises:
        InputError: a folder or pattern has no data file, or a folder cannot be read.
    """
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            found += _files_of_folder(path)
        elif glob.has_magic(str(path)) and not path.exists():
            matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
            matches = [match for match in matches if _is_data(match.name)]
            if not matches:
                raise InputError(f"no file matches {path}")
            found += [file for match in matches for file in log_files([match])]
        else:
            found.append(path)
    return found


def refuse_inside(given: Iterable[Path], out: Path) -> None:
    """Raise InputError where ``out`` is inside a folder of the log, whose next run would read its files."""
    for folder in given:
        if folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{out} is inside the log {folder}", hint="give an --out beside the log")


def _files_of_folder(folder: Path) -> list[Path]:
    found: list[Path] = []
    seen: set[str] = set()

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}") from error

    for root, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if os.path.realpath(root) in seen:  # a link may lead to a folder above it
            raise InputError(f"{root} is a link to a folder that {folder} has already")
        seen.add(os.path.realpath(root))
        if "manifest.json" in names:
            raise InputError(f"{root} was written by hotset, want a raw log")
        folders[:] = [name for name in folders if _is_data(name)]
        found += [Path(root, name) for name in names if _is_data(name)]
    if not found:
        raise InputError(
            f"{folder} is a folder without data files", hint="names that begin with _ or . are left out"
        )
    return sorted(found, key=lambda path: path.parts)


def _is_data(name: str) -> bool:
    return not name.startswith(("_", ".")) and not name.endswith(".crc")


def example_file(given: Path) -> RawFile:
    """Return the largest file of a log, which is read to find out what the log is like.

    Raises:
        InputError: as `inspect_logs`.
    """
    return max(inspect_logs([given]), key=lambda file: file.num_bytes)


def names_of(files: Sequence[RawFile], schema: Schema) -> list[str]:
    """Return what each file is called in a manifest: by its partitions, too, where they are columns."""
    wanted = set(schema.columns(has_label=True))
    names = []
    for file in files:
        used = [f"{key}={value}/" for key, value in file.partitions.items() if key in wanted]
        names.append("".join(used) + file.path.name)
    return names


def identity_of(files: Sequence[RawFile], schema: Schema) -> list[dict[str, Any]]:
    """Return the files as inputs of `ingest` in its manifest."""
    names = names_of(files, schema)
    return [{"name": name, "bytes": file.num_bytes} for name, file in zip(names, files, strict=True)]


BLOCK_OVER_GROUP = 4
"""Size of a block over that of a group: its rows are copied when they are joined."""
_FEW_FILES = 16
"""Files up to which each stays a part, as it always was."""
_MOST_FILES = 256
"""Files of a group: several workers share even a log of tiny ones."""


def groups_of(files: Sequence[RawFile], block_bytes: int) -> dict[int, range]:
    """Return the group of each file that is read with others, by its number."""
    firsts = [0]
    num_bytes = 0
    for number, file in enumerate(files):
        num_bytes += file.num_bytes
        if num_bytes > block_bytes // BLOCK_OVER_GROUP or number - firsts[-1] == _MOST_FILES:
            firsts.append(number)
            num_bytes = file.num_bytes
    groups = (range(*ends) for ends in pairwise([*firsts, len(files)]))
    return {number: group for group in groups if len(group) > _FEW_FILES for number in group}


def examples_of(files: Sequence[RawFile], block_bytes: int) -> Iterator[tuple[RawFile, int]]:
    """Yield each file that is read alone and the largest of each group, and the bytes that are held of it.

    Of a group it is the largest of each compression: few bytes of a compressed one may be many.
    """
    groups = groups_of(files, block_bytes)
    for number, file in enumerate(files):
        group = groups.get(number)
        if group is None:
            yield file, file.num_bytes
        elif number == group.start:
            of_group = sorted(files[group.start : group.stop], key=lambda each: each.num_bytes)
            num_bytes = 2 * sum(each.num_bytes for each in of_group)  # what is joined is there twice
            yield from ((each, num_bytes) for each in {each.compression: each for each in of_group}.values())


def file_of(name: str) -> int:
    """Return the number of the file, or of the first one, that a part of this name is of."""
    return int(name.removeprefix("file").partition("-")[0])


def is_of_groups(name: str, groups: Mapping[int, range]) -> bool:
    """Return whether a run with these groups writes a part of this name; that of a group has its end."""
    group = groups.get(file_of(name))
    mark = name.partition("-")[2].partition("-")[0].partition(".")[0]
    return mark == mark_of(group) if group is not None else not is_of_group(name)


def is_of_group(name: str) -> bool:
    """Return whether a part of this name is of a group."""
    return name.partition("-")[2].startswith("before")


def mark_of(group: range) -> str:
    """Return what the names of the parts of a group have in common."""
    return f"before{group.stop:04}"


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
