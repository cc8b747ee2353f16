"""The tables of a run by category: whatever its ids are, a category finds its row.

Categories are 64-bit numbers, compared as signed ones: integers as they are (unsigned ones above 2**63 as
negative), 8 hex digits by their value, texts by xxh3-64.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.totals import VocabularyTable, VocabularyTotals
from ...pipeline.formats.arrow_files import read_batch, values_of
from ...pipeline.runtime.tasks import ProgressCallback, silent
from ...pipeline.schema.schema import Schema
from ..data.batch import EmbeddingTable
from ..run_config import RunConfig
from ..run_folder.run_files import CONFIG, WEIGHTS
from ..run_folder.run_reader import read_config, read_manifest, read_weights, refuse_changed_files
from ..run_folder.weights_file import Weights
from ..scoring.run_vocabulary import RunVocabulary


@dataclass(frozen=True, slots=True)
class TableCategories:
    """The categories of one table that have a row of their own."""

    table: EmbeddingTable
    oov_id: int
    """Row of all other categories."""
    missing_id: int
    """Row of a missing one."""
    categories_N: NDArray[np.int64]
    """Ascending, distinct."""
    ids_N: NDArray[np.int32]
    """The row of each."""


@dataclass(frozen=True, slots=True)
class RunTables:
    """The parts of a run that an export reads."""

    run: Path
    config: RunConfig
    weights: Weights
    schema: Schema
    vocabulary: Manifest
    tables: tuple[EmbeddingTable, ...]
    fingerprint: str | None
    """That of the run; None where an earlier version of hotset wrote it."""
    schema_text: str
    """The schema as a setting."""

    @classmethod
    def open(cls, run: Path, vocabulary: Path | None = None) -> RunTables:
        """Open a finished run, its files hashed.

        Args:
            vocabulary: folder that `preprocess` wrote, for a run that keeps no vocabulary.

        Raises:
            HotsetError: the run is unfinished or damaged, or has no vocabulary.
        """
        config = read_config(run)
        weights = read_weights(run)
        origin = RunVocabulary.open(run, config, vocabulary)
        manifest = read_manifest(run)
        if manifest is not None:
            refuse_changed_files(manifest, (CONFIG, WEIGHTS))
        fingerprint = manifest.fingerprint if manifest is not None else None
        parts = (origin.schema, origin.folder, origin.tables, fingerprint, origin.schema_text)
        return cls(run, config, weights, *parts)

    def categories(self, progress: ProgressCallback = silent) -> Iterator[TableCategories]:
        """Yield the categories of each table, in the order of the features.

        Args:
            progress: told, in rows, how far the caller is with them.
        """
        infos = VocabularyTotals.of(self.vocabulary).tables
        done = 0
        total = sum(table.num_rows for table in self.tables)
        progress("rows", done, total)
        for table, info in zip(self.tables, infos, strict=True):
            yield self._categories_of(table, info)
            done += table.num_rows
            progress("rows", done, total)

    def _categories_of(self, table: EmbeddingTable, info: VocabularyTable) -> TableCategories:
        batch = read_batch(self.vocabulary, self.vocabulary.entry(f"{table.name}.arrow"))
        array = batch.column("category")
        found = values_of(array, array.type.to_pandas_dtype()).astype(np.uint64).view(np.int64)
        if found.shape[0] != table.num_rows:
            raise HotsetError(
                f"{self.vocabulary.folder} has {found.shape[0]} rows of {table.name}, want {table.num_rows}"
            )
        # The rows of oov and of missing values stand among the others, without a category.
        ids = np.arange(table.num_rows, dtype=np.int32)
        own = (ids != info.oov_id) & (ids != info.missing_id)
        order = np.argsort(found[own], kind="stable")
        return TableCategories(table, info.oov_id, info.missing_id, found[own][order], ids[own][order])
