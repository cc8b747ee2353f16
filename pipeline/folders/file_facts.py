"""The facts that a manifest holds about each file of a stage, beside its samples, bytes and checksum.

``ShardFacts.of(shards, entry)`` reads and checks those of a file of shards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Self

from .json_record import JsonRecord, RecordError, require_range, stored_as
from .manifest import FileEntry, Manifest


class FileFacts(JsonRecord):
    """Base of the facts of all stages' files."""

    __slots__ = ()

    @classmethod
    def of(cls, manifest: Manifest, entry: FileEntry) -> Self:
        """The facts of ``entry``; raises ManifestError where they are not those of such a file."""
        return manifest.read_facts(entry, cls)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextsFacts(FileFacts):
    """A file of texts."""

    num_texts: int = stored_as("texts")


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnsFacts(FileFacts):
    """A part of columns/."""

    num_lines: int = stored_as("lines")
    """Lines read, bad ones included."""
    num_raw_bytes: int = stored_as("raw_bytes")
    raw_xxh3_128: str = ""
    """Checksum of the raw block, hex; empty where the file is no text."""
    lookups: dict[str, int] = field(default_factory=dict)
    """Elements of each list-valued feature."""
    bad: dict[str, int] = field(default_factory=dict)
    """Skipped lines by reason."""
    first_time: int | None = None
    """Time of the first sample, seconds since 1970; None without times or samples."""
    last_time: int | None = None
    """Time of the last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CountsFacts(FileFacts):
    """The counts of one table, in all spans or in one."""

    num_missing: int
    """Lookups without a value."""
    num_lookups: int | None = None
    """Lookups counted; None where every sample has one."""
    file: int | None = None
    """Number of the raw file whose counts these are; None for those of all spans."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplesFacts(FileFacts):
    """A part of samples/."""

    oov_train: tuple[int, ...]
    """Lookups of the out-of-vocabulary row of each table in training samples."""
    oov_evaluation: tuple[int, ...]
    """The same in evaluation samples."""
    lookups: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Lookups of each multi-hot table, in training and in evaluation samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TagsFacts(FileFacts):
    """A part of plan/."""

    hot_train: int
    """Fully hot training samples."""
    hot_evaluation: int
    """Fully hot evaluation samples."""


ShardKind = Literal["hot_only", "mixed", "evaluation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFacts(FileFacts):
    """A file of shards/."""

    kind: ShardKind
    num_batches: int = stored_as("batches")
    hot_only_batches: tuple[int, ...] | None = None
    """Numbers of the hot-only batches in a mixed file whose samples were not regrouped; None elsewhere."""
    lookups: dict[str, int] = field(default_factory=dict)
    """Lookups of each multi-hot table."""

    def refuse_nonsense(self, where: str) -> None:
        require_range(f"{where}batches", self.num_batches, 0)
        hot_only = self.hot_only_batches or ()
        if any(not 0 <= number < self.num_batches for number in hot_only):
            raise RecordError(f"{where}hot_only_batches is not among its {self.num_batches} batches")


@dataclass(frozen=True, kw_only=True, slots=True)
class IdMapFacts(FileFacts):
    """One table of an id map."""

    num_kept: int
    """Old rows that have a new id."""
    kept_lookups: int
    """Lookups of the new log in rows that are kept."""
    new_lookups: int
    """Lookups of the new log in all rows."""
