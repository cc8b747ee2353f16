"""Synthetic multi-hot ids from one-hot ids, as MLPerf's DLRM benchmark draws them.

Each row of a table has a list that begins with itself; the other ids are drawn uniformly from the table, once
for all samples. MLPerf writes the lists of all samples to disk, 3.8 TB for the Terabyte log. Here only the
lists of the rows are kept, in memory: 4 bytes for each drawn id, 23 GB for its 40 million rows a table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError
from .batch import EmbeddingTable

MLPERF_SIZES = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Ids per sample of each of the 26 features, 214 in all."""


class MultiHotDraws:
    """The lists of the rows of some tables.

    Args:
        tables: those of a log.
        sizes: ids per sample of each table; 1 leaves its feature as it is.
        seed: of the draws, 0 in MLPerf.

    Raises:
        ConfigError: not one size for each table, one below 1, or a feature that has lists already.

    Source:
        mlcommons/training, torchrec_dlrm/multi_hot.py, distribution "uniform": the draws are equal for equal
        numbers of rows and sizes.
    """

    def __init__(self, tables: Sequence[EmbeddingTable], sizes: Sequence[int], seed: int = 0) -> None:
        if len(sizes) != len(tables):
            raise ConfigError(f"multi_hot has {len(sizes)} sizes, and the log {len(tables)} tables")
        # The generator of that program, whose stream runs through all tables.
        random = np.random.RandomState(seed)
        self._drawn: dict[str, NDArray[np.int32]] = {}
        for table, size in zip(tables, sizes, strict=True):
            if size < 1:
                raise ConfigError(f"multi_hot must be 1 or more for each table, got {size}")
            if size > 1 and table.is_multi_hot:
                raise ConfigError(f"feature {table.name!r} has lists already, so multi_hot must be 1 for it")
            if size > 1:
                drawn_RM = random.randint(0, table.num_rows, size=(table.num_rows, size - 1))
                self._drawn[table.name] = drawn_RM.astype(np.int32)

    def expand(self, name: str, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return ids of all samples, (N,) int32, and offsets, (B + 1,) int64.

        Args:
            name: of a feature; one of size 1 has no offsets.
            ids: (B,) int32.
        """
        if name not in self._drawn:
            return ids, None
        drawn_BM = self._drawn[name][ids.numpy()]
        lists = np.concatenate([ids.numpy()[:, None], drawn_BM], axis=1)
        offsets = torch.arange(0, lists.size + 1, lists.shape[1], dtype=torch.int64)
        return torch.from_numpy(lists.reshape(-1)), offsets
