"""A preprocessed folder opened to be looked into: its manifests, and what several series read of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import ManifestError
from ..folders.discard import is_discarded, refuse_discarded
from ..folders.manifest import Manifest
from ..folders.stage_totals import PlanTotals, SamplesTotals, VocabularyTotals
from ..folders.table_info import TableInfo, VocabularyTable
from ..formats.stage_settings import ShardSettings
from ..hot_rows.hot_order import HotOrder
from ..ranking.vocabulary_files import read_tables
from ..runtime.resources import DEFAULT_RESOURCES, Resources
from ..stage_commands import hint_to_rewrite


@dataclass(frozen=True)
class Inspected:
    """A folder that was preprocessed as far as its plan."""

    folder: Path
    vocabulary: Manifest
    samples: Manifest
    plan: Manifest
    num_parts: int | None
    """Parts of the log whose hot sets are compared; see `drift_series.parts_of_log`."""
    resources: Resources
    left_out: list[str]
    """A line for each thing that could not be found out, with the reason."""

    @classmethod
    def open(
        cls, folder: Path, resources: Resources = DEFAULT_RESOURCES, *, num_parts: int | None = None
    ) -> Inspected:
        """Open ``folder``; raise ManifestError where a part is missing, unfinished or was discarded."""
        vocabulary, samples, plan = (
            Manifest.read(folder / name) for name in ("vocabulary", "samples", "plan")
        )
        # Samples are encoded again from columns/, or from the raw log where these were discarded, too.
        redo = "ingest" if is_discarded(folder / "columns") else "encode"
        refuse_discarded(folder / "samples", "stats", redo)
        # Parts of the folder may come from different runs, and ids of one index arrays of another.
        refuse_other_rows(SamplesTotals.of(samples).tables, samples, vocabulary)
        refuse_other_rows(PlanTotals.of(plan).tables, plan, vocabulary)
        return cls(folder, vocabulary, samples, plan, num_parts, resources, [])

    @property
    def tables(self) -> tuple[VocabularyTable, ...]:
        """Tables as the vocabulary describes them."""
        return VocabularyTotals.of(self.vocabulary).tables

    @property
    def num_train(self) -> int:
        """Training samples."""
        return VocabularyTotals.of(self.vocabulary).num_train_samples

    @cached_property
    def counts(self) -> list[NDArray[np.int64]]:
        """Per table (num_rows,), lookups of each row in the training part, in the order of ids."""
        return read_row_counts(self.vocabulary)

    @cached_property
    def num_lookups(self) -> int:
        """Lookups of the training part; of the model's where ids were adopted."""
        return sum(int(count.sum()) for count in self.counts)

    @cached_property
    def hot_order(self) -> HotOrder:
        """The order in which rows get fast memory."""
        return HotOrder(self.vocabulary, PlanTotals.of(self.plan).bytes_of_rows)


def refuse_other_rows(tables: Sequence[TableInfo], manifest: Manifest, vocabulary: Manifest) -> None:
    """Raise ManifestError unless ``tables``, those of ``manifest``, are of the vocabulary's sizes.

    Kernels take ids that one of the folders bounds as indexes of arrays that are as long as the other says.
    """
    wanted = [(table.name, table.num_rows) for table in VocabularyTotals.of(vocabulary).tables]
    if [(table.name, table.num_rows) for table in tables] != wanted:
        raise ManifestError(
            f"{manifest.folder} has tables of other rows than {vocabulary.folder}",
            hint=hint_to_rewrite(manifest.folder),
        )


def read_shards(folder: Path) -> Manifest | None:
    """Return the manifest of the shards of ``folder``; None where they are not written yet."""
    # Unpacked shards are no fault; damaged ones are.
    return Manifest.read_sealed(folder / "shards")


def packed_batch_size(folder: Path) -> int | None:
    """Return the batch size of the shards of ``folder``; None where they are not written yet."""
    shards = read_shards(folder)
    return None if shards is None else ShardSettings.of(shards).batch_size


def read_row_counts(vocabulary: Manifest) -> list[NDArray[np.int64]]:
    """Per table (num_rows,), lookups of each row in the training part, in the order of ids; mapped."""
    return read_tables(vocabulary, "count")
