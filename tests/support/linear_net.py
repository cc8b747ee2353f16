"""A user's model as small as it gets."""

from __future__ import annotations

import torch
from torch import nn

from hotset.train.model.shapes import ModelInputs


class LinearNet(nn.Module):
    """A linear layer of everything; its samples are not said to be independent."""

    def __init__(self, inputs: ModelInputs, scale: float = 1.0) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs.num_dense + inputs.total_dim, 1)
        self.scale = scale

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.layer(torch.cat([dense, *embeddings.values()], dim=1))
        return self.scale * logits.squeeze(1)
