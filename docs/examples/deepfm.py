"""DeepFM: a factorization machine and an MLP on the same embeddings.

    hotset train DIR --model deepfm:DeepFM --model-args '{"hidden": [200, 200]}' --out RUN

The first number of a row is its weight w, the others are its vector v. A dense feature x has a weight and a
vector, too, both multiplied by x. Over all features,

    logit = b + Σ_i w_i + Σ_{i<j} v_i · v_j + MLP([v_1, v_2, …])

A list feature counts as one, with the sum of its rows. Source: Guo et al., IJCAI 2017.

Shapes: B samples, K dense features, F sparse ones, N = K + F, D numbers of a row, d = D - 1.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

import hotset


class DeepFM(nn.Module):
    """One logit of each sample; all tables have one width, and the log has one label."""

    per_sample = True

    def __init__(self, inputs: hotset.ModelInputs, hidden: Sequence[int] = (64, 64)) -> None:
        super().__init__()
        row_width = inputs.table_dims[0]
        if set(inputs.table_dims) != {row_width} or row_width < 2:
            raise ValueError(f"the widths of tables are {inputs.table_dims}, want one of 2 or more")
        width = row_width - 1
        self.bias = nn.Parameter(torch.zeros(1))
        self.dense_weights = nn.Parameter(torch.zeros(inputs.num_dense))
        self.dense_vectors = nn.Parameter(0.01 * torch.randn(inputs.num_dense, width))
        widths = [(inputs.num_dense + len(inputs.tables)) * width, *hidden]
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        self.deep = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        rows_BFD = torch.stack(list(embeddings.values()), dim=1)
        vectors_BNd = torch.cat([dense.unsqueeze(2) * self.dense_vectors, rows_BFD[:, :, 1:]], dim=1)
        first_B = self.bias + (dense * self.dense_weights).sum(1) + rows_BFD[:, :, 0].sum(1)
        # Σ_{i<j} v_i · v_j in linear time: equation 3 of Rendle, ICDM 2010.
        pairs_B = 0.5 * (vectors_BNd.sum(1) ** 2 - (vectors_BNd**2).sum(1)).sum(1)
        return first_B + pairs_B + self.deep(vectors_BNd.flatten(1)).squeeze(1)
