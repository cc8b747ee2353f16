"""The ids of one part of samples/, a matrix and list columns; and the cold rows of a batch of shards.

The matrix holds the one-hot features; each multi-hot feature has a list column. A table has one feature, or
several that share it. Batches of shards have their ids in the same form; their distinct cold rows are the
same in every order of training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...stats.id_tables import settle_unknown
from ...stats.ranking import largest_ids, tag_hot_samples
from ...stats.row_bytes import row_bytes
from ...stats.shuffle import copy_bags, tag_cold_bags
from ..errors import ConfigError, ManifestError, ShardError, hint_to_rewrite
from ..folders.manifest import MANIFEST, FileEntry, Manifest
from ..folders.totals import (
    ColumnsFacts,
    SamplesFacts,
    SamplesTotals,
    ShardFacts,
    ShardSettings,
    ShardsTotals,
    TableInfo,
    by_feature,
    for_features,
    multi_hot,
    one_hot,
)
from ..runtime.tasks import thread_buffer
from .arrow_files import (
    as_fixed_lists,
    as_lists,
    damage_named,
    fixed_lists,
    offsets_of,
    open_mapped,
    read_batch,
    values_of,
)

if TYPE_CHECKING:
    from ...stats.lookahead.planner import WidthSizes

BagArrays = tuple[NDArray[np.int32], NDArray[np.int32]]
"""(num_samples + 1,), where the lookups of each sample begin; and their ids, those of all samples."""


@dataclass(frozen=True, slots=True)
class PartSize:
    """The numbers that the memory of a part depends on."""

    num_samples: int
    num_list_lookups: int = 0
    """Lookups of all multi-hot tables together."""


def largest_part(columns: Manifest, entries: Sequence[FileEntry]) -> PartSize:
    """Return the most samples, and the most elements in lists, that one of these parts has."""
    lookups = (sum(columns.facts_of(ColumnsFacts, entry).lookups.values()) for entry in entries)
    return PartSize(max((entry.num_samples for entry in entries), default=0), max(lookups, default=0))


def _of_features(
    tables: Sequence[TableInfo], one_hot_rows: NDArray[np.int32], lists: dict[str, BagArrays]
) -> list[NDArray[np.int32]]:
    rows = iter(one_hot_rows)
    return [lists[feature.name][1] if feature.name in lists else next(rows) for feature in by_feature(tables)]


@dataclass(frozen=True, slots=True)
class PartIds:
    """Ids of every feature."""

    tables: Sequence[TableInfo]
    """The tables in the order of manifests."""
    matrix: NDArray[np.int32]
    """(num_samples, one-hot features)."""
    lists: dict[str, BagArrays]
    """Bags of each multi-hot feature, by name."""

    @classmethod
    def read(cls, batch: Any, tables: Sequence[TableInfo]) -> PartIds:
        """Read the ids of a record batch of samples or shards; raise ManifestError where they are damaged."""
        matrix = fixed_lists(batch.column("ids"), len(one_hot(tables)), np.int32)
        arrays = {table.name: batch.column(table.name) for table in multi_hot(tables)}
        lists = {
            name: (offsets_of(array), values_of(array.values, np.int32)) for name, array in arrays.items()
        }
        return cls(tables, matrix, lists)

    def check_ids(self, path: Path, largest: NDArray[np.uint32] | None = None) -> None:
        """Raise ManifestError where an id read from ``path`` is outside its table.

        ``largest``: (one-hot features,), the largest id of each among the samples in use, as an unsigned
        number, by which a negative id is larger than any table; of all samples if it is not given.
        """
        # As unsigned numbers, so that one comparison finds negative ids too.
        if largest is None:
            largest = np.zeros(self.matrix.shape[1], np.uint32)
            largest_ids(self.matrix, largest)
        found_of = dict(zip((feature.name for feature in one_hot(self.tables)), largest, strict=True))
        found_of |= {name: ids.view(np.uint32).max(initial=0) for name, (_, ids) in self.lists.items()}
        has_samples = self.matrix.shape[0] > 0
        for feature in by_feature(self.tables):
            if has_samples and found_of[feature.name] >= feature.num_rows:
                found = int(found_of[feature.name].astype(np.int32))
                raise ManifestError(
                    f"{path} is damaged: id {found} in table {feature.name} of {feature.num_rows} rows",
                    hint=hint_to_rewrite(path.parent),
                )

    @property
    def ids(self) -> list[NDArray[np.int32]]:
        """Per feature (num_lookups,): a column of the matrix, or the elements of all its lists."""
        return _of_features(self.tables, self.matrix.T, self.lists)

    @property
    def by_table(self) -> list[TableLookups]:
        """The lookups of each table; in one of several features, those of a sample are next to each other."""
        names = [feature.name for feature in by_feature(self.tables)]
        offsets = [self.lists[name][0] if name in self.lists else ONE_EACH for name in names]
        found = iter(map(TableLookups, self.ids, offsets))
        return [
            join_lookups([next(found) for _ in range(max(1, len(table.features)))]) for table in self.tables
        ]

    def tags(self, num_hot: Sequence[int]) -> NDArray[np.uint8]:
        """Return 1 for each sample whose ids are all below ``num_hot`` of their tables: (num_samples,)."""
        is_hot = np.empty(self.matrix.shape[0], np.uint8)
        pairs = list(zip(by_feature(self.tables), for_features(self.tables, num_hot), strict=True))
        of_matrix = [hot for feature, hot in pairs if feature.name not in self.lists]
        # The one-hot lookups give every sample its first tag; bags can only clear it.
        tag_hot_samples(self.matrix, np.array(of_matrix, np.int64), is_hot)
        for feature, hot in pairs:
            if feature.name in self.lists:
                tag_cold_bags(*self.lists[feature.name], int(hot), is_hot)
        return is_hot

    def columns(self) -> dict[str, Any]:
        """Return the ids as columns of samples/."""
        lists = {name: as_lists(offsets, ids) for name, (offsets, ids) in self.lists.items()}
        return {"ids": as_fixed_lists(self.matrix)} | lists


@dataclass(frozen=True, slots=True)
class FoundIds:
    """Ids of one part while its tables are looked up one after another: -1 where a category has none."""

    tables: Sequence[TableInfo]
    of_one_hot: NDArray[np.int32]
    """(one-hot features, num_samples)."""
    lists: dict[str, BagArrays]
    """Bags of each multi-hot feature, by name."""

    @classmethod
    def unset(cls, batch: Any, tables: Sequence[TableInfo]) -> FoundIds:
        """Allocate ids for a part of columns/; those of one-hot features are a thread buffer."""
        of_one_hot = thread_buffer("found ids", (len(one_hot(tables)), batch.num_rows), np.int32)
        offsets = {feature.name: offsets_of(batch.column(feature.name)) for feature in multi_hot(tables)}
        # A bag in samples/ is as long as in columns/, so the offsets are shared and only ids are new.
        lists = {name: (found, np.empty(found[-1], np.int32)) for name, found in offsets.items()}
        return cls(tables, of_one_hot, lists)

    @property
    def ids(self) -> list[NDArray[np.int32]]:
        """Per feature (num_lookups,): of each sample, or the elements of all its lists."""
        return _of_features(self.tables, self.of_one_hot, self.lists)

    def settle(self, num_train: int, matrix: NDArray[np.int32]) -> tuple[PartIds, SamplesFacts]:
        """Assign the oov row to unknown categories; count its lookups, and those of lists.

        Args:
            num_train: samples that are for training, the first ones.
            matrix: (num_samples, one-hot features) out, the matrix of the result.
        """
        oov = {feature.name: feature.oov_id for feature in by_feature(self.tables)}
        names = [feature.name for feature in one_hot(self.tables)]
        # All one-hot features together, the training samples first; then list by list.
        of_one_hot = np.array([oov[name] for name in names], np.int32)
        counted = np.zeros((2, len(names)), np.int64)
        for half, samples in enumerate((slice(None, num_train), slice(num_train, None))):
            settle_unknown(self.of_one_hot[:, samples], of_one_hot, counted[half], matrix[samples])
        num_oov = dict(zip(names, counted.T, strict=True))
        lookups: dict[str, tuple[int, int]] = {}
        for name, (offsets, ids) in self.lists.items():
            # The lookups of the training samples are the elements before the first evaluation bag.
            first = int(offsets[num_train])
            of_list = np.array([oov[name]], np.int32)
            num_oov[name] = np.zeros(2, np.int64)
            lookups[name] = (first, ids.shape[0] - first)
            for half, elements in enumerate((ids[:first], ids[first:])):
                settle_unknown(elements[None], of_list, num_oov[name][half:], elements[:, None])
        features = [[feature.name for feature in by_feature([table])] for table in self.tables]
        train, evaluation = (
            tuple(sum(int(num_oov[name][half]) for name in names) for names in features) for half in range(2)
        )
        facts = SamplesFacts(oov_train=train, oov_evaluation=evaluation, lookups=lookups)
        return PartIds(self.tables, matrix, self.lists), facts


ONE_EACH = np.zeros(0, np.int32)
"""The offsets of a table that every sample looks up once."""


@dataclass(frozen=True, slots=True)
class TableLookups:
    """The lookups of some samples in one table, ``ids[offsets[i]:offsets[i + 1]]`` for sample i."""

    ids: NDArray[np.int32]
    """(num_lookups,), perhaps with a stride."""
    offsets: NDArray[np.int32]
    """(num_samples + 1,), or ONE_EACH."""

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return int(self.ids.shape[0] if self.offsets is ONE_EACH else self.offsets.shape[0] - 1)

    def of_samples(self, start: int, stop: int) -> TableLookups:
        """Return the lookups of the samples from ``start`` up to ``stop``."""
        if self.offsets is ONE_EACH:
            return TableLookups(self.ids[start:stop], ONE_EACH)
        offsets = self.offsets[start : stop + 1]
        return TableLookups(self.ids[offsets[0] : offsets[-1]], offsets - offsets[0])

    @property
    def all_offsets(self) -> NDArray[np.int32]:
        """(num_samples + 1,), also of one lookup each."""
        is_one_each = self.offsets is ONE_EACH
        return np.arange(self.num_samples + 1, dtype=np.int32) if is_one_each else self.offsets


def join_lookups(features: Sequence[TableLookups]) -> TableLookups:
    """Return the lookups of a table: sample after sample, in each those of one feature after another."""
    if len(features) == 1:
        return features[0]
    lengths = [np.diff(feature.all_offsets) for feature in features]
    ends = np.cumsum(sum(lengths), dtype=np.int64)
    num_lookups = int(ends[-1]) if ends.size else 0
    if num_lookups >= 2**31:
        raise ConfigError("a part has 2**31 lookups in one table: ingest the log with a lower --block-bytes")
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    ids = np.empty(num_lookups, np.int32)
    # Each feature's lookups of a sample follow those of the features before it.
    places = offsets[:-1].copy()
    for feature, own in zip(features, lengths, strict=True):
        copy_bags(np.ascontiguousarray(feature.ids), feature.all_offsets[:-1], own, ids, places)
        places += own
    return TableLookups(ids, offsets)


def read_lookups(samples: Manifest, entry: FileEntry, start: int, stop: int) -> list[TableLookups]:
    """Map the lookups of samples ``start`` up to ``stop`` of one file, table by table."""
    part = PartIds.read(read_batch(samples, entry), SamplesTotals.of(samples).tables)
    part.check_ids(samples.folder / entry.path)
    return [lookups.of_samples(start, stop) for lookups in part.by_table]


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


def check_shards(shards: Manifest) -> None:
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
    for _, entry in shards.parts():
        facts = shards.facts_of(ShardFacts, entry)
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
    for _, entry in shards.parts():
        facts = shards.facts_of(ShardFacts, entry)
        if facts.kind == "mixed":
            hot_only = set(facts.hot_only_batches or ())
            yield entry, [number for number in range(facts.num_batches) if number not in hot_only]


def staged_sizes(shards: Manifest, widths: Sequence[ColdWidth], optimizer: str) -> list[WidthSizes]:
    """Return what the size of a staging area depends on, for rows with the state of ``optimizer``."""
    from ...stats.lookahead.planner import WidthSizes  # here, as stages that read ids plan nothing

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
    path = shards.hashed_path(entry)
    with damage_named(path, ShardError, "cannot be read"):
        reader = open_mapped(path)
        return [_rows_of(reader.get_batch(number), path, shards, widths) for number in batches]


def _ids_of(batch: Any, path: Path, shards: Manifest) -> PartIds:
    ids = PartIds.read(batch, ShardsTotals.of(shards).tables)
    ids.check_ids(path)
    return ids


def _rows_of(batch: Any, path: Path, shards: Manifest, widths: Sequence[ColdWidth]) -> list[BatchRows]:
    ids = _ids_of(batch, path, shards)
    return [distinct_cold_rows(ids, width) for width in widths]


def distinct_cold_rows(ids: PartIds, width: ColdWidth) -> BatchRows:
    """Return the distinct cold rows of some samples in the tables of one width."""
    by_table = ids.by_table
    keys = [np.zeros(0, np.int64)]
    for table, first, base in zip(width.tables, width.first, width.base, strict=True):
        found = by_table[table].ids
        # Hot rows are first in their table; cold ones are numbered table by table.
        keys.append(found[found >= first] - first + base)
    rows, lookups = np.unique(np.concatenate(keys), return_counts=True)
    return rows, lookups
