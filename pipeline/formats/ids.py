"""The ids of one part of samples/: a matrix and list columns.

The matrix holds the one-hot tables; each multi-hot table has a list column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.id_tables import settle_unknown
from ...stats.ranking.ranking import largest_ids, tag_hot_samples
from ...stats.shuffle import tag_cold_bags
from ..errors import ManifestError, hint_to_rewrite
from ..folders.manifest import ColumnsFacts, FileEntry, Manifest, SamplesFacts
from ..folders.totals import SamplesTotals, TableInfo, multi_hot, one_hot
from ..runtime.tasks import thread_buffer
from .arrow_files import as_fixed_lists, as_lists, fixed_lists, offsets_of, read_batch, values_of

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
    lookups = (sum(ColumnsFacts.of(columns, entry).lookups.values()) for entry in entries)
    return PartSize(max((entry.num_samples for entry in entries), default=0), max(lookups, default=0))


@dataclass(frozen=True, slots=True)
class PartIds:
    """Ids of every table."""

    tables: Sequence[TableInfo]
    """The tables in the order of manifests."""
    matrix: NDArray[np.int32]
    """(num_samples, one-hot tables)."""
    lists: dict[str, BagArrays]
    """Bags of each multi-hot table, by name."""

    @classmethod
    def read(cls, batch: Any, tables: Sequence[TableInfo]) -> PartIds:
        """Read the ids of a record batch of samples or shards; raise ManifestError where they are damaged."""
        matrix = fixed_lists(batch.column("ids"), len(one_hot(tables)), np.int32)
        arrays = {table.name: batch.column(table.name) for table in multi_hot(tables)}
        lists = {
            name: (offsets_of(array), values_of(array.values, np.int32)) for name, array in arrays.items()
        }
        return cls(tables, matrix, lists)

    def refuse_strays(self, path: Path, largest: NDArray[np.uint32] | None = None) -> None:
        """Raise ManifestError where an id read from ``path`` is outside its table.

        ``largest``: (one-hot tables,), the largest id of each among the samples in use, as an unsigned
        number, by which a negative id is larger than any table; of all samples if it is not given.
        """
        # As unsigned numbers, so that one comparison finds negative ids too.
        if largest is None:
            largest = np.zeros(self.matrix.shape[1], np.uint32)
            largest_ids(self.matrix, largest)
        found_of = dict(zip((table.name for table in one_hot(self.tables)), largest, strict=True))
        found_of |= {name: ids.view(np.uint32).max(initial=0) for name, (_, ids) in self.lists.items()}
        has_samples = self.matrix.shape[0] > 0
        for table in self.tables:
            if has_samples and found_of[table.name] >= table.num_rows:
                found = int(found_of[table.name].astype(np.int32))
                raise ManifestError(
                    f"{path} is damaged: id {found} in table {table.name} of {table.num_rows} rows",
                    hint=hint_to_rewrite(path.parent),
                )

    @property
    def ids(self) -> list[NDArray[np.int32]]:
        """Per table (num_lookups,): a column of the matrix, or the elements of all its lists."""
        columns = iter(self.matrix.T)
        names = [table.name for table in self.tables]
        return [self.lists[name][1] if name in self.lists else next(columns) for name in names]

    def tags(self, num_hot: Sequence[int]) -> NDArray[np.uint8]:
        """Return 1 for each sample whose ids are all below ``num_hot`` of their tables: (num_samples,)."""
        is_hot = np.empty(self.matrix.shape[0], np.uint8)
        pairs = list(zip(self.tables, num_hot, strict=True))
        of_matrix = [hot for table, hot in pairs if table.name not in self.lists]
        # The one-hot lookups give every sample its first tag; bags can only clear it.
        tag_hot_samples(self.matrix, np.array(of_matrix, np.int64), is_hot)
        for table, hot in pairs:
            if table.name in self.lists:
                tag_cold_bags(*self.lists[table.name], int(hot), is_hot)
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
    """(one-hot tables, num_samples)."""
    lists: dict[str, BagArrays]
    """Bags of each multi-hot table, by name."""

    @classmethod
    def unset(cls, batch: Any, tables: Sequence[TableInfo]) -> FoundIds:
        """Allocate ids for a part of columns/; those of one-hot tables are a thread buffer."""
        of_one_hot = thread_buffer("found ids", (len(one_hot(tables)), batch.num_rows), np.int32)
        offsets = {table.name: offsets_of(batch.column(table.name)) for table in multi_hot(tables)}
        # A bag in samples/ is as long as in columns/, so the offsets are shared and only ids are new.
        lists = {name: (found, np.empty(found[-1], np.int32)) for name, found in offsets.items()}
        return cls(tables, of_one_hot, lists)

    @property
    def ids(self) -> list[NDArray[np.int32]]:
        """Per table (num_lookups,): of each sample, or the elements of all its lists."""
        rows = iter(self.of_one_hot)
        names = [table.name for table in self.tables]
        return [self.lists[name][1] if name in self.lists else next(rows) for name in names]

    def settle(self, num_train: int, matrix: NDArray[np.int32]) -> tuple[PartIds, SamplesFacts]:
        """Assign the oov row to unknown categories; count its lookups, and those of lists.

        Args:
            num_train: samples that are for training, the first ones.
            matrix: (num_samples, one-hot tables) out, the matrix of the result.
        """
        oov = {table.name: table.oov_id for table in self.tables}
        names = [table.name for table in one_hot(self.tables)]
        # All one-hot tables together, the training samples first; then list by list.
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
        train, evaluation = (
            tuple(int(num_oov[table.name][half]) for table in self.tables) for half in range(2)
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


def read_lookups(samples: Manifest, entry: FileEntry, start: int, stop: int) -> list[TableLookups]:
    """Map the lookups of samples ``start`` up to ``stop`` of one file, table by table."""
    part = PartIds.read(read_batch(samples, entry), SamplesTotals.of(samples).tables)
    part.refuse_strays(samples.folder / entry.path)
    names = [table.name for table in part.tables]
    offsets = [part.lists[name][0] if name in part.lists else ONE_EACH for name in names]
    return [TableLookups(*found).of_samples(start, stop) for found in zip(part.ids, offsets, strict=True)]
