"""The interface of a dense model: logits from dense features and embeddings.

DLRM and DCN V2 implement it, and a user's module is wrapped to do so. A step runs the model forward and
backward (`dense.dense_step`); nothing else of a run depends on which model it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import nn


class DenseModel(nn.Module):
    """The dense layers of a model; the gradients of its embeddings go to rows."""

    is_per_sample = True
    """Whether each logit depends on its own sample alone, by the same arithmetic in any batch: such a model
    can be computed in tiles on several threads. Not so with batch normalization or dropout."""

    is_plain = False
    """Whether it has linear layers and ReLU alone, which a specialised step computes."""

    @abstractmethod
    def logits(self, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (B,) logits.

        Args:
            dense_BK: (B, K) float32; K is 0 without dense features.
            embeddings: (B, F, d) float32 of each table group, widths in the order of their first table and
                tables of a width in theirs, as `tables_by_dim` lists them.
        """
