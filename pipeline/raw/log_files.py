"""The files of a log: folders and patterns as the files they stand for, and what their paths say.

Spark, Hive and others write a log as a folder. Its data files are read in the order of their names; those
that begin with ``_`` or ``.`` and checksums (``.crc``) are none. A folder called ``dt=2026-01-31`` gives all
files below it a column ``dt``, which is read where the schema names it.

Small neighbours are a group, whose files become few parts, see `log_parts`. Groups follow from the sizes
of files alone, from the first one on: a log that grows keeps all groups but the last one, which `ingest` then
reads again, so that an extension leaves the bytes of a run from scratch.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..schema.schema import Schema
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
