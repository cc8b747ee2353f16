"""The rows of a finished run that is larger than memory.

The evaluation part is read as many batches at a time as the memory has room for their distinct rows. For each
such group the file of weights is read once from its start to its end, a few megabytes at a time, without
those that have no wanted row. So the larger the memory, the fewer times the file is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import MIB
from ..data.batch import EmbeddingTable
from ..rows.tiers import FileTier, Layout
from .weights import Weights

_MOST_PART_BYTES = 8 * MIB
"""Bytes of the weights that are read at a time."""
_BYTES_OF_NUMBERS = 40
"""Bytes per row that finding the rows of a group takes besides the weights: numbers, sorted and joined."""


class SavedTier(FileTier):
    """The rows of one width, all of them in the file of weights.

    Args:
        tables: those of the width.
        embedding_dim: its floats.
        weights: all tensors of the run.
        memory_bytes: memory that rows may take."""

    def __init__(
        self, tables: Sequence[EmbeddingTable], embedding_dim: int, weights: Weights, memory_bytes: int
    ) -> None:
        layout = Layout.of([0] * len(tables), [table.num_rows for table in tables])
        super().__init__(layout, embedding_dim, 0)
        self._names = [table.name for table in tables]
        self._weights = weights
        row_bytes = 4 * embedding_dim
        # An eighth for the part of the file that is read, the rest for rows.
        self._part_rows = max(min(memory_bytes // 8, _MOST_PART_BYTES) // row_bytes, 1)
        left = memory_bytes - self._part_rows * row_bytes
        self._most_read = left // (row_bytes + _BYTES_OF_NUMBERS)

    @property
    def most_read(self) -> int:
        return self._most_read

    def fill(self, wanted_U: NDArray[np.int64], weights_UD: NDArray[np.float32]) -> None:
        """Read the rows from the file, table by table."""
        for table, name in enumerate(self._names):
            own = self.layout.slots_of_table(table)
            for first in range(own.start, own.stop, self._part_rows):
                stop = min(first + self._part_rows, own.stop)
                # The wanted rows ascend, so those of this part of the file are a range of them.
                start, end = np.searchsorted(wanted_U, [first, stop])
                if start == end:
                    continue
                part = self._weights.rows(name, first - own.start, stop - own.start)
                weights_UD[start:end] = part.numpy()[wanted_U[start:end] - first]
