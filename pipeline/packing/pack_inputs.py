"""The inputs of `pack`: columns/, samples/ and plan/, part by part."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ManifestError
from ..folders.manifest import FileEntry, Manifest
from ..folders.stage_totals import ColumnsTotals, PlanTotals, SamplesTotals
from ..folders.table_info import PlannedTable
from ..formats.arrow_files import values_of
from ..formats.dense_columns import transform_column
from ..formats.opened_parts import OpenedParts
from ..formats.part_ids import PartIds
from ..formats.tables import multi_hot
from ..stage_commands import hint_to_verify
from .row_layout import RowLayout


@dataclass(frozen=True)
class PackInputs:
    """The folders `pack` reads, and what it needs of them."""

    columns: Manifest
    samples: Manifest
    plan: Manifest
    opened: OpenedParts = field(default_factory=OpenedParts)
    """Parts that were read before."""

    @property
    def has_label(self) -> bool:
        """Whether samples have labels."""
        return ColumnsTotals.of(self.columns).has_label

    @property
    def dense(self) -> tuple[str, ...]:
        """Names of dense features."""
        return ColumnsTotals.of(self.columns).dense

    @cached_property
    def tables(self) -> tuple[PlannedTable, ...]:
        """Tables as the plan has them."""
        return PlanTotals.of(self.plan).tables

    @cached_property
    def lists(self) -> list[str]:
        """Names of multi-hot tables."""
        return [table.name for table in multi_hot(self.tables)]

    @property
    def num_one_hot(self) -> int:
        """Tables whose ids stand in the column ``ids``."""
        return len(self.tables) - len(self.lists)

    @cached_property
    def layout(self) -> RowLayout:
        """Where the parts of a packed sample stand in its row."""
        return RowLayout(len(self.dense), len(self.lists), self.num_one_hot)

    @property
    def words_per_sample(self) -> int:
        """Words of a row and, rounded up, of the bags of an average sample."""
        lists = multi_hot(SamplesTotals.of(self.samples).tables)
        num_lookups = sum((table.lookups_train or 0) + (table.lookups_evaluation or 0) for table in lists)
        return self.layout.width + -(-num_lookups // max(1, self.samples.num_samples))

    def open(self, name: str) -> tuple[Any, PartIds]:
        """Read one part: its record batch of columns, and its ids."""
        return self.opened.read(self.columns, self.columns.entry(name)), self.read_ids(name)

    def read_tags(self, entry: FileEntry) -> NDArray[np.uint8]:
        """Read the tags of one part: (num_samples,)."""
        return values_of(self.opened.read(self.plan, entry).column("is_hot"), np.uint8)

    def read_ids(self, name: str) -> PartIds:
        """Read the ids of one part; whether they are inside their tables is for the caller to check."""
        batch = self.opened.read(self.samples, self.samples.entry(name))
        return PartIds.read(batch, SamplesTotals.of(self.samples).tables)

    def refuse_other_parts(self) -> None:
        """Raise ManifestError where the folders are not of the same parts and tables: kernels trust that."""
        # The parts of all three folders go together by name and number of samples.
        wanted = [(entry.path, entry.num_samples) for _, entry in self.plan.parts()]
        for folder in (self.columns, self.samples):
            found = [(entry.path, entry.num_samples) for _, entry in folder.parts()]
            if found != wanted:
                raise ManifestError(
                    f"{folder.folder} and {self.plan.folder} have other parts: "
                    f"{len(found)} and {len(wanted)} files, or of other lengths",
                    hint=hint_to_verify(self.plan.folder),
                )
        # Ids of one vocabulary would point anywhere in the tables of another.
        tables = [
            [(table.name, table.num_rows, table.is_multi_hot) for table in found]
            for found in (SamplesTotals.of(self.samples).tables, self.tables)
        ]
        if tables[0] != tables[1]:
            raise ManifestError(
                f"{self.samples.folder} and {self.plan.folder} have other tables",
                hint=hint_to_verify(self.plan.folder),
            )

    def transform(self, name: str, array: Any, chosen: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """Write the ``chosen`` values of a dense column to ``out`` as shards have them."""
        totals = ColumnsTotals.of(self.columns)
        is_log = name not in totals.untransformed
        transform_column(array, chosen, out, is_float=name in totals.floats, is_log=is_log)
