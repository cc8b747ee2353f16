"""The lookups of samples/, table by table, one-hot and multi-hot alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import ManifestError
from ..folders.manifest import FileEntry, Manifest
from ..folders.stage_totals import SamplesTotals
from ..folders.table_info import TableInfo
from ..stage_commands import hint_to_rewrite
from .arrow_files import fixed_lists, read_batch, values_of
from .tables import offsets_of, one_hot

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
    tables = SamplesTotals.of(samples).tables
    batch = read_batch(samples, entry)
    ids = fixed_lists(batch.column("ids"), len(one_hot(tables)), np.int32)
    found = []
    column = 0
    # One-hot tables share a matrix; each list column has values and offsets of its own.
    for table in tables:
        if table.is_multi_hot:
            array = batch.column(table.name)
            lookups = TableLookups(values_of(array.values, np.int32), offsets_of(array))
        else:
            lookups = TableLookups(ids[:, column], ONE_EACH)
            column += 1
        _refuse_stray(lookups.ids, table, samples.folder / entry.path)
        found.append(lookups.of_samples(start, stop))
    return found


def _refuse_stray(ids: NDArray[np.int32], table: TableInfo, path: Path) -> None:
    """Raise ManifestError where an id is outside its table: kernels take ids as indexes."""
    if ids.shape[0] and not 0 <= int(ids.min()) <= int(ids.max()) < table.num_rows:
        raise ManifestError(
            f"{path} is damaged: an id of {table.name} is outside its {table.num_rows} rows",
            hint=hint_to_rewrite(path.parent),
        )
