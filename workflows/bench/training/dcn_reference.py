"""A DCN V2 in plain torch as its users write it, with tables of its own: what a step of hotset's is measured
against. Its tables, its optimizer and its training loop are those of the reference DLRM.

Source:
    Wang et al., arXiv 2008.13535; the layout of TorchRec's `LowRankCrossNet`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from ....train.model.dcn_shape import DcnShape
from .dlrm_reference import ReferenceBatch


class ReferenceDcn(nn.Module):
    """DCN V2 with an ``EmbeddingBag`` for each table.

    Args:
        shape: sizes of the dense layers; the stacked structure without a bottom MLP.
        num_rows: rows of each table.
    """

    def __init__(self, shape: DcnShape, num_rows: Sequence[int]) -> None:
        super().__init__()
        assert shape.config.structure == "stacked" and not shape.bottom
        num_inputs = shape.num_inputs
        rank = shape.config.cross_rank
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, dim, mode="sum", sparse=True)
            for rows, dim in zip(num_rows, shape.table_dims, strict=True)
        )

        def cross() -> nn.Module:
            # A full matrix, or its two factors where the rank is limited.
            if rank is None:
                return nn.Linear(num_inputs, num_inputs)
            return nn.Sequential(nn.Linear(num_inputs, rank, bias=False), nn.Linear(rank, num_inputs))

        self.cross = nn.ModuleList(cross() for _ in range(shape.config.cross_layers))
        deep: list[nn.Module] = []
        widths = (num_inputs, *shape.config.top_widths)
        for inputs, outputs in pairwise(widths):
            deep += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.deep = nn.Sequential(*deep, nn.Linear(widths[-1], 1), nn.Sigmoid())

    def forward(self, batch: ReferenceBatch) -> torch.Tensor:
        """Return (B, 1) probabilities of a click."""
        rows = [table(ids, batch.offsets_B) for table, ids in zip(self.tables, batch.ids, strict=True)]
        first_BN = torch.cat([batch.dense_BK, *rows], dim=1)
        crossed_BN = first_BN
        # A cross layer multiplies the first vector by a linear map of the last one, and adds the last one.
        for layer in self.cross:
            crossed_BN = first_BN * layer(crossed_BN) + crossed_BN
        probability_B1: torch.Tensor = self.deep(crossed_BN)
        return probability_B1
