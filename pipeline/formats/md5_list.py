"""Published checksums: raw logs against a list as ``md5sum`` prints it.

MD5 is what publishers of click logs give. It finds damage and mixed-up files; it is no defence against an
adversary.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError, first_line

_LINE = re.compile(r"([0-9a-fA-F]{32})[ \t]+\*?(.+)")


def read_md5_list(path: Path) -> dict[str, str]:
    """Return the checksum of each file, by its name without folders.

    Raises:
        InputError: the list cannot be read, a line of it is no checksum and file, or files of one name in
            different folders have different checksums.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {first_line(error)}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise InputError(f"{path}, line {number}: want a checksum and a file, got {line[:80]!r}")
        name = Path(match[2]).name
        checksum = match[1].lower()
        if found.setdefault(name, checksum) != checksum:
            raise InputError(f"{path}, line {number}: a second checksum of {name}")
    return found


def md5_faults(raw: Sequence[Path], listed: Path) -> list[str]:
    """Return which raw logs are not those of a list of checksums; each is read once, as it is on disk.

    Raises:
        InputError: a file or the list cannot be read.
    """
    wanted = read_md5_list(listed)
    faults = []
    for path in raw:
        if path.name not in wanted:
            faults.append(f"{listed} has no checksum of {path.name}")
            continue
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        if found != wanted[path.name]:
            faults.append(f"{path} has the md5 {found}, want {wanted[path.name]} of {listed}")
    return faults
