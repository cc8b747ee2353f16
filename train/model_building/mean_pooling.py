"""Mean pooling of multi-hot features, around the step of any model.

Rows are pooled by their sum wherever they live, so that placements need to know of nothing else; the sum of a
bag and the gradient that comes back are both divided by its number of lookups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..data.batch import Batch, EmbeddingTable
from ..model.dense_dtype import DenseDtype
from ..model.dense_step import DenseStep
from ..model.dlrm_shape import tables_by_width


class MeanPooling:
    """A step whose model sees means.

    Args:
        step: that of the model.
        tables: all tables of the shards.
    """

    def __init__(self, step: DenseStep, tables: Sequence[EmbeddingTable]) -> None:
        self.dtype: DenseDtype = step.dtype
        self._step = step
        multi_hot = [number for number, table in enumerate(tables) if table.is_multi_hot]
        widths = tables_by_width([table.embedding_dim for table in tables])
        # Where each multi-hot table is: its width, its position there, and that of its bags in a batch.
        self._places = [
            (width, position, multi_hot.index(table))
            for width, numbers in enumerate(widths.values())
            for position, table in enumerate(numbers)
            if table in multi_hot
        ]

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        means = self._divided([emb_BFd.detach().clone() for emb_BFd in embeddings], batch)
        loss_sum = self._step.train(batch, means, step)
        grads = [_gradient(mean_BFd) for mean_BFd in means]
        for emb_BFd, grad_BFd in zip(embeddings, self._divided(grads, batch), strict=True):
            emb_BFd.grad = grad_BFd
        return loss_sum

    def predict(self, batch: Batch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        means = self._divided([emb_BFd.detach().clone() for emb_BFd in embeddings], batch)
        return self._step.predict(batch, means)

    def _divided(self, tensors: list[torch.Tensor], batch: Batch) -> list[torch.Tensor]:
        """Divide the numbers of each bag by its lookups, in place; those of an empty bag are zero."""
        for width, position, feature in self._places:
            lengths_B = np.maximum(np.diff(batch.bags[feature].offsets_B1), 1).astype(np.float32)
            tensor = tensors[width]
            tensor[:, position] /= torch.from_numpy(lengths_B).to(tensor.device).unsqueeze(1)
        return tensors


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad
