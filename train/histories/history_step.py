"""The step of a model of histories: tells it how many elements each sample has.

Where rows live nothing is known of histories but that each element is a bag of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError
from ..data.batch import Batch, EmbeddingTable
from ..model.dense_dtype import DenseDtype
from ..model.dense_step import DenseStep


class HistoryStep:
    """A step whose model sees one more dense feature, the elements of each sample.

    Args:
        step: that of the model.
        tables: all tables of the shards.
    """

    def __init__(self, step: DenseStep, tables: Sequence[EmbeddingTable]) -> None:
        self.dtype: DenseDtype = step.dtype
        self._step = step
        self._names = [table.name for table in tables if table.is_multi_hot]

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        return self._step.train(self._with_lengths(batch), embeddings, step)

    def predict(self, batch: Batch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        return self._step.predict(self._with_lengths(batch), embeddings)

    def _with_lengths(self, batch: Batch) -> Batch:
        lengths_B1 = torch.from_numpy(self._lengths(batch)).to(batch.dense_BK).unsqueeze(1)
        return replace(batch, dense_BK=torch.cat([batch.dense_BK, lengths_B1], dim=1))

    def _lengths(self, batch: Batch) -> NDArray[np.int32]:
        """(B,); raises HotsetError where the histories of a sample have different lengths."""
        first, *others = (np.diff(bags.offsets_B1) for bags in batch.bags)
        for name, lengths_B in zip(self._names[1:], others, strict=True):
            differing = np.flatnonzero(lengths_B != first)
            if differing.size:
                sample = differing[0]
                raise HotsetError(
                    f"a sample has {first[sample]} elements in {self._names[0]} and {lengths_B[sample]} in "
                    f"{name}: the histories of a sample are of one length, element by element",
                    hint="mend the lists of the log, empty elements for missing values included",
                )
        return first
