"""What `pack` reads: columns/, samples/ and plan/, part by part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.batches.dense_values import transform_values
from ...stats.batches.sample_shuffle import log1p_table, transform_dense
from ..folders.manifest import FileEntry, Manifest
from ..formats.arrow_files import read_batch, validity_of, values_of
from ..formats.part_ids import PartIds
from ..formats.tables import multi_hot

_LOG1P = log1p_table(1 << 16)


@dataclass(frozen=True)
class PackInputs:
    """The folders `pack` reads, and what it needs of them."""

    columns: Manifest
    samples: Manifest
    plan: Manifest

    @property
    def has_label(self) -> bool:
        """Whether samples have labels."""
        return bool(self.columns.totals["has_label"])

    @property
    def dense(self) -> list[str]:
        """Names of dense features."""
        return list(self.columns.totals["dense"])

    @property
    def tables(self) -> list[dict[str, Any]]:
        """As the plan has them."""
        return list(self.plan.totals["tables"])

    @property
    def lists(self) -> list[str]:
        """Names of multi-hot tables."""
        return [table["name"] for table in multi_hot(self.tables)]

    @property
    def num_one_hot(self) -> int:
        """Tables whose ids stand in the column ``ids``."""
        return len(self.tables) - len(self.lists)

    @property
    def width(self) -> int:
        """int32 words of a row: tag, label, dense, lengths of bags, ids of one-hot tables."""
        return 2 + len(self.dense) + len(self.tables)

    @property
    def words_per_sample(self) -> int:
        """Words of a row and, rounded up, of the bags that a sample has on average."""
        lists = multi_hot(self.samples.totals["tables"])
        num_lookups = sum(int(table["lookups_train"] + table["lookups_evaluation"]) for table in lists)
        return self.width + -(-num_lookups // max(1, self.samples.num_samples))

    def open(self, name: str) -> tuple[Any, PartIds]:
        """One part: its record batch of columns, and its ids."""
        columns, samples = self._entries
        ids = PartIds.read(read_batch(self.samples, samples[name]), self.samples.totals["tables"])
        return read_batch(self.columns, columns[name]), ids

    def read_ids(self, name: str) -> PartIds:
        """The ids of one part."""
        return PartIds.read(read_batch(self.samples, self._entries[1][name]), self.samples.totals["tables"])

    @cached_property
    def _entries(self) -> tuple[dict[str, FileEntry], dict[str, FileEntry]]:
        """Files of columns and of samples by name: a log has thousands of parts."""
        columns, samples = ({e.path: e for e in folder.files} for folder in (self.columns, self.samples))
        return columns, samples

    def transform(self, name: str, array: Any, out: NDArray[np.float32]) -> None:
        """Write a dense column as shards have it."""
        is_integer = name not in self.columns.totals.get("floats", ())
        is_log = name not in self.columns.totals.get("untransformed", ())
        if is_log and is_integer:
            transform_dense(values_of(array, np.int32), validity_of(array), _LOG1P, out)
        else:
            values = values_of(array, np.int32 if is_integer else np.float64)
            transform_values(values, validity_of(array), is_log, out)
