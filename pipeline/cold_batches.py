"""The distinct cold rows of every mixed batch, in unnamed temporary files.

A batch has the same rows in every order of training, so the shards are read once for all epochs. While a
schedule is made, the files take eight bytes per distinct row and batch on disk and in the page cache. Memory
holds only what the running tasks have found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..stats.batch_rows import find_distinct
from ..stats.lookahead.planner import WidthSizes
from ..stats.lookahead.step_plans import in_order
from ..stats.ranking.row_bytes import row_bytes
from .errors import HotsetError, ManifestError, ShardError, first_line, hint_to_rewrite, refuse_system_fault
from .folders.manifest import MANIFEST, FileEntry, Manifest, ShardFacts
from .folders.totals import ShardSettings, ShardsTotals
from .formats.arrow_files import DAMAGE, open_hashed, open_mapped
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

    Args:
        shards: their manifest.
        num_hot: hot rows of each table; None: those the shards were packed for.
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


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The distinct cold rows of one file's batches in one width, batch after batch."""

    sizes: NDArray[np.int64]
    """(num_batches,), distinct rows of each."""
    rows: NDArray[np.int32]
    """(num_entries,), keys, ascending."""
    lookups: NDArray[np.int32]
    """(num_entries,), lookups of each."""


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
    pairs = (
        (
            "batches of training",
            totals.batches.hot_only + totals.batches.mixed,
            batches,
            ("hot_only", "mixed"),
        ),
        ("batches of evaluation", totals.batches.evaluation, batches, ("evaluation",)),
        (
            "samples of training",
            totals.samples.hot_only + totals.samples.mixed,
            samples,
            ("hot_only", "mixed"),
        ),
        ("samples of evaluation", totals.samples.evaluation, samples, ("evaluation",)),
    )
    for name, number, found, kinds in pairs:
        wanted = sum(found[kind] for kind in kinds)
        if number != wanted:
            raise ManifestError(
                f"{where} is damaged: totals has {number} {name}, its files have {wanted}",
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
        _, found_of_widths = _read_file(entry, [number], shards, widths)
        for width, found in enumerate(found_of_widths):
            largest[width] = max(largest[width], int(found.sizes.max(initial=0)))
    return largest


def read_batches(
    entry: FileEntry, batches: Sequence[int], shards: Manifest, widths: Sequence[ColdWidth]
) -> tuple[int, list[FoundRows]]:
    """Hash a file and read these of its batches: a flipped bit may well be the id of another row.

    Returns:
        Samples of the batches, and the distinct cold rows of each width.
    """
    return _read_file(entry, batches, shards, widths, is_hashed=True)


def _read_file(
    entry: FileEntry,
    batches: Sequence[int],
    shards: Manifest,
    widths: Sequence[ColdWidth],
    *,
    is_hashed: bool = False,
) -> tuple[int, list[FoundRows]]:
    path = shards.checked_path(entry)
    num_samples = 0
    parts: list[list[_Batch]] = [[] for _ in widths]
    try:
        # Each batch is read once for all widths.
        reader = open_hashed(shards, entry) if is_hashed else open_mapped(path)
        for number in batches:
            batch = reader.get_batch(number)
            ids = PartIds.read(batch, ShardsTotals.of(shards).tables)
            num_samples += batch.num_rows
            for width, found in zip(widths, parts, strict=True):
                found.append(distinct_cold_rows(ids, width))
    except StrayLookupError as error:
        raise ShardError(f"{path}: batch {number}: {error}", hint=hint_to_rewrite(path.parent)) from error
    except DAMAGE as error:
        # An error of our own that names the file already stays as it is.
        if isinstance(error, HotsetError) and str(path) in str(error):
            raise
        refuse_system_fault(path, error)
        raise ShardError(
            f"{path} cannot be read: {first_line(error)}", hint=hint_to_rewrite(path.parent)
        ) from error
    return num_samples, [_joined(found) for found in parts]


_Batch = tuple[NDArray[np.int32], NDArray[np.int32]]


def _joined(batches: Sequence[_Batch]) -> FoundRows:
    nothing = np.empty(0, np.int32)
    rows, lookups = (np.concatenate([nothing, *(batch[i] for batch in batches)]) for i in range(2))
    return FoundRows(np.array([batch[0].size for batch in batches], np.int64), rows, lookups)


class StrayLookupError(Exception):
    """An id is outside its table."""


def distinct_cold_rows(ids: PartIds, width: ColdWidth) -> _Batch:
    """Return the distinct cold rows of a batch by table and id, and their lookups; raise StrayLookupError."""
    keys = []
    bounds = zip(width.tables, width.first.tolist(), width.last.tolist(), width.base.tolist(), strict=True)
    by_table = ids.ids
    for table, first, last, base in bounds:
        found = by_table[table]
        if found.size and not 0 <= int(found.min()) <= int(found.max()) < last:
            stray = found[(found < 0) | (found >= last)][0]
            raise StrayLookupError(f"id {stray} in table {ids.tables[table].name} of {last} rows")
        keys.append(found[found >= first].astype(np.int64) + (base - first))
    rows, places = find_distinct(np.concatenate(keys))
    rows, lookups = in_order(rows, np.bincount(places, minlength=rows.size))
    return rows.astype(np.int32), lookups.astype(np.int32)
