"""The distinct cold rows of batches, which are the same in every order of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..stats.batch_rows import find_distinct
from ..stats.lookahead.planner import WidthSizes
from ..stats.lookahead.step_plans import in_order
from ..stats.ranking.row_bytes import row_bytes
from .errors import ManifestError, ShardError, hint_to_rewrite
from .folders.manifest import MANIFEST, FileEntry, Manifest, ShardFacts
from .folders.totals import ShardSettings, ShardsTotals
from .formats.arrow_files import damage_named, open_hashed, open_mapped
from .formats.ids import PartIds

_BATCHES_LOOKED_AT = 32


@dataclass(frozen=True, slots=True)
class ColdWidth:
    """The tables of one row width, and how their cold rows are numbered."""

    embedding_dim: int
    tables: tuple[int, ...]
    """Their positions among all tables, ascending."""
    first: NDArray[np.int64]
    """(num_tables,), first cold id of each."""
    last: NDArray[np.int64]
    """(num_tables,), one past its last id."""
    base: NDArray[np.int64]
    """(num_tables,), key of the row ``first``."""

    @property
    def num_rows(self) -> int:
        """Cold rows of all these tables; keys are below it."""
        return int((self.last - self.first).sum())


def cold_widths(shards: Manifest, num_hot: Sequence[int] | None = None) -> list[ColdWidth]:
    """Return the row widths of shards, in the order of the tables.

    ``num_hot``: hot rows of each table; None: those the shards were packed for.
    """
    totals = ShardsTotals.of(shards)
    hot = [table.num_hot for table in totals.tables] if num_hot is None else num_hot
    tables = totals.tables
    dims = totals.embedding_dims
    widths = []
    for dim in dict.fromkeys(dims):
        chosen = tuple(number for number, found in enumerate(dims) if found == dim)
        first = np.array([hot[number] for number in chosen], np.int64)
        last = np.array([tables[number].num_rows for number in chosen], np.int64)
        # Cold rows of all tables are numbered through, so that a planner needs one array for all of them.
        base = np.cumsum(last - first) - (last - first)
        widths.append(ColdWidth(dim, chosen, first, last, base))
    return widths


BatchRows = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Keys of the distinct cold rows of a batch, ascending, and the lookups of each."""


def refuse_other_shards(shards: Manifest) -> None:
    """Raise ManifestError unless the manifest is one that `pack` writes, and its numbers fit together."""
    where = shards.folder / MANIFEST
    if (shards.stage, shards.version) != ("pack", 1):
        raise ManifestError(
            f"{where} is of {shards.stage!r}, version {shards.version}, want 'pack', 1",
            hint=hint_to_rewrite(shards.folder),
        )
    size = ShardSettings.of(shards).batch_size
    totals = ShardsTotals.of(shards)
    batches = dict.fromkeys(("hot_only", "mixed", "evaluation"), 0)
    samples = dict(batches)
    for entry in shards.files:
        facts = ShardFacts.of(shards, entry)
        wanted = -(-entry.num_samples // size)
        if facts.num_batches != wanted:
            raise ManifestError(
                f"{where} is damaged: files.{entry.path}.batches is {facts.num_batches}, want {wanted}",
                hint=hint_to_rewrite(shards.folder),
            )
        batches[facts.kind] += facts.num_batches
        samples[facts.kind] += entry.num_samples
    # Mixed files of order original may hold batches that are counted as hot-only.
    training = ("hot_only", "mixed")
    for unit, counted, found in (("batches", totals.batches, batches), ("samples", totals.samples, samples)):
        for part, kinds in (("training", training), ("evaluation", ("evaluation",))):
            number = sum(getattr(counted, kind) for kind in kinds)
            wanted = sum(found[kind] for kind in kinds)
            if number != wanted:
                raise ManifestError(
                    f"{where} is damaged: totals has {number} {unit} of {part}, its files have {wanted}",
                    hint=hint_to_rewrite(shards.folder),
                )


def mixed_files(shards: Manifest) -> Iterator[tuple[FileEntry, list[int]]]:
    """Yield the files with mixed batches, and which of their batches these are."""
    for entry in shards.files:
        facts = ShardFacts.of(shards, entry)
        if facts.kind == "mixed":
            hot_only = set(facts.hot_only_batches or ())
            yield entry, [number for number in range(facts.num_batches) if number not in hot_only]


def staged_sizes(shards: Manifest, widths: Sequence[ColdWidth], optimizer: str) -> list[WidthSizes]:
    """Return what the size of a staging area depends on, for rows with the state of ``optimizer``."""
    return [
        WidthSizes(int(width.first.sum()), width.num_rows, row_bytes(width.embedding_dim, optimizer), largest)
        for width, largest in zip(widths, largest_batches(shards, widths), strict=True)
    ]


def largest_batches(shards: Manifest, widths: Sequence[ColdWidth]) -> list[int]:
    """Return the most distinct cold rows of a mixed batch, by width, from some batches.

    Batches are shuffled, so all of them are of nearly one size: the largest of 146 has 1,980 rows, their mean
    is 1,809.
    """
    batches = [(entry, number) for entry, numbers in mixed_files(shards) for number in numbers]
    largest = [0] * len(widths)
    for entry, number in batches[:: -(-len(batches) // _BATCHES_LOOKED_AT) or 1]:
        path = shards.checked_path(entry)
        with damage_named(path, ShardError, "cannot be read"):
            of_widths = _rows_of(open_mapped(path).get_batch(number), path, shards, widths)
        largest = [max(most, rows.size) for most, (rows, _) in zip(largest, of_widths, strict=True)]
    return largest


def read_batches(
    entry: FileEntry, batches: Sequence[int], shards: Manifest, widths: Sequence[ColdWidth]
) -> list[list[BatchRows]]:
    """Hash a file and read these of its batches: a flipped bit may well be the id of another row.

    Returns:
        For each batch the distinct cold rows of each width.
    """
    path = shards.checked_path(entry)
    with damage_named(path, ShardError, "cannot be read"):
        reader = open_hashed(shards, entry)
        return [_rows_of(reader.get_batch(number), path, shards, widths) for number in batches]


def _rows_of(batch: Any, path: Path, shards: Manifest, widths: Sequence[ColdWidth]) -> list[BatchRows]:
    ids = PartIds.read(batch, ShardsTotals.of(shards).tables)
    ids.refuse_strays(path)
    return [distinct_cold_rows(ids, width) for width in widths]


def distinct_cold_rows(ids: PartIds, width: ColdWidth) -> BatchRows:
    """Return the distinct cold rows of some samples in the tables of one width."""
    by_table = ids.ids
    keys = [np.zeros(0, np.int64)]
    for table, first, base in zip(width.tables, width.first, width.base, strict=True):
        found = by_table[table]
        # Hot rows are first in their table; cold ones are numbered table by table.
        keys.append(found[found >= first] - first + base)
    rows, places = find_distinct(np.concatenate(keys))
    return in_order(rows, np.bincount(places, minlength=rows.size))
