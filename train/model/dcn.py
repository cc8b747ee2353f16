"""DCN V2 without its tables: cross network and deep network.

Shapes: B samples, K dense features, N numbers of a sample (the widths of its embeddings and dense features
together), R rank.

Source:
    Wang et al., DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank
    Systems, arXiv 2008.13535. The bottom MLP is not in the paper: TorchRec's `DLRM_DCN` has one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ...pipeline.errors import ShardError
from .layers import DenseModel, as_logits, build_linear, build_mlp
from .shapes import DcnShape


class CrossLayer(nn.Module):
    """A cross layer of DCN V2, perhaps of low rank.

    It computes ``x' = x0 * (W x + b) + x``, where W is a full matrix, or ``W = U V'`` of rank R.

    Args:
        num_inputs: N.
        rank: R; None for a full matrix.
        generator: of the initial values: those of DLRM for matrices, zero for b.
    """

    def __init__(self, num_inputs: int, rank: int | None, generator: torch.Generator) -> None:
        super().__init__()
        self.narrow: nn.Linear | None = None
        if rank is not None:
            self.narrow = build_linear(num_inputs, rank, generator, has_bias=False)
        self.cross = build_linear(num_inputs if rank is None else rank, num_inputs, generator)
        nn.init.zeros_(self.cross.bias)

    def forward(self, first_BN: torch.Tensor, inputs_BN: torch.Tensor) -> torch.Tensor:
        """Return (B, N) outputs of the layer; ``first`` is x0, ``inputs`` is x."""
        narrow_BR = inputs_BN if self.narrow is None else self.narrow(inputs_BN)
        outputs_BN: torch.Tensor = first_BN * self.cross(narrow_BR) + inputs_BN
        return outputs_BN


class Dcn(DenseModel):
    """Logits from dense features and embeddings.

    ``x0`` is all numbers of a sample side by side: the output of the bottom MLP or the dense features, then
    the embeddings. With the stacked structure the deep network takes what the cross network gives, and the
    logit is a linear layer of its output; with the parallel one the deep network takes x0, and the logit is
    a linear layer of both outputs.

    Args:
        shape: sizes of the model.
        seed: of the initial values.

    Raises:
        ShardError: there is no number to cross.
    """

    def __init__(self, shape: DcnShape, seed: int) -> None:
        super().__init__()
        if not shape.num_inputs:
            raise ShardError("the shards have neither tables nor dense features")
        self.shape = shape
        self.num_logits = shape.num_logits
        config = shape.config
        # Every layer draws from one generator in a fixed order, so the seed alone decides all initial values.
        num_inputs = shape.num_inputs
        generator = torch.Generator().manual_seed(seed)
        self.is_per_sample = not config.batch_norm
        self.is_plain = not (config.dropout or config.batch_norm)
        norm = {"batch_norm": config.batch_norm}
        self.bottom = build_mlp(shape.bottom, generator, relu_last=True, **norm) if shape.bottom else None
        self.cross_layers = nn.ModuleList(
            CrossLayer(num_inputs, config.cross_rank, generator) for _ in range(config.cross_layers)
        )
        self.deep = build_mlp(shape.deep, generator, relu_last=True, dropout=config.dropout, **norm)
        # Stacked, the deep layers read what the cross layers give; in parallel, both read the inputs.
        self.is_stacked = config.structure == "stacked"
        self.last = build_linear(shape.last_inputs, shape.num_logits, generator)

    def logits(self, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        bottom = dense_BK if self.bottom is None else self.bottom(dense_BK)
        # Dense values and all embeddings side by side are what both kinds of layers read.
        first_BN = torch.cat([bottom, *(emb_BFd.flatten(1) for emb_BFd in embeddings)], dim=1)
        crossed_BN = first_BN
        # Each layer crosses the first inputs with what has been crossed so far.
        for layer in self.cross_layers:
            crossed_BN = layer(first_BN, crossed_BN)
        if self.is_stacked:
            return as_logits(self.last(self.deep(crossed_BN)))
        return as_logits(self.last(torch.cat([crossed_BN, self.deep(first_BN)], dim=1)))
