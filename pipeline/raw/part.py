"""The parts of a log: what one holds when it is parsed, and how one is read.

A part is one block of lines or one batch of Parquet rows; its samples become one file of ``columns/``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..folders.manifest import FileEntry
from .hash_text import DistinctTexts


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that does not match the schema."""

    reason: str
    """Reason under which such lines are counted, ``bad_label`` for one."""
    line_in_block: int
    """Lines before it in the part."""
    text: str
    """Which column, what was found and what was wanted, to follow "line 7"."""
    is_label_off: bool = False
    """The line has one field too few or too many, as one read with the wrong idea of its label would."""
    remedy: str | None = None
    """The change that would make the value good, as the beginning of a hint."""


@dataclass(frozen=True, slots=True)
class Part:
    """The good samples of one part of a raw file, and what is wrong with the others."""

    columns: dict[str, Any]
    """Arrow array of each column."""
    num_samples: int
    bad: Counter[str]
    """Bad lines by reason; may be empty where ``fault`` stands for them."""
    fault: Fault | None
    """The first bad line."""
    num_raw_bytes: int = 0
    """Bytes of the raw file that it was parsed from; of Parquet, its share of them."""
    raw_xxh3_128: str = ""
    """Checksum of these bytes; empty of Parquet, whose file is hashed when all parts are read."""
    disorder: Fault | None = None
    """The first good line whose time is before that of the good one above it."""
    texts: dict[str, DistinctTexts] = field(default_factory=dict)
    """Distinct texts of each text column, bad lines included."""


class UnreadPart(Protocol):
    """A part that any worker can read and parse alone."""

    @property
    def name(self) -> str:
        """Name of its file in ``columns/``."""
        ...

    def read(self) -> Part | None:
        """Read and parse the part; None where it has no line."""
        ...


class RawParts(Protocol):
    """The parts of one raw file."""

    unit: str
    """Word for a row in messages: line or row."""
    num_header_lines: int
    min_line_bytes: int
    """Length that no line is shorter than; 0 where that is not known."""

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[UnreadPart]:
        """Yield each part in order; those among the files ``finished`` may be left unread."""
        ...

    def finish(self, digest: Any) -> None:
        """Add to the file's digest what its parts did not."""
        ...
