"""DLRM without its tables: bottom MLP, dot interaction, top MLP.

The embeddings are given as one tensor, so the model knows nothing of tiers and placements. Shapes:
B samples, F tables, K dense features, D embedding_dim, V = F + 1 vectors that interact (F where K = 0),
P = V (V - 1) / 2 pairs.

Source:
    Naumov et al., Deep Learning Recommendation Model, arXiv 1906.00091; its initial values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .layers import DenseModel, as_logits, build_mlp
from .shapes import DlrmShape, tables_by_dim


class PairwiseDots(torch.autograd.Function):
    """Dot products of all pairs of vectors.

    They are the lower triangle of the Gram matrix, without its diagonal. Written out because the backward
    pass of indexing is a scatter with accumulation, slow on the CPU and in no fixed order on the GPU. Here
    both directions are one gather and one product.
    """

    @staticmethod
    def forward(
        ctx: Any, vectors_BVD: torch.Tensor, pairs_P: torch.Tensor, mirror_VV: torch.Tensor
    ) -> torch.Tensor:
        """Map (B, V, D) to (B, P); ``pairs_P`` and ``mirror_VV`` are those of ``pair_positions``."""
        ctx.save_for_backward(vectors_BVD, mirror_VV)
        gram_BVV = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))
        return gram_BVV.flatten(1).index_select(1, pairs_P)

    @staticmethod
    def backward(ctx: Any, grad_BP: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the vectors' gradients: a symmetric matrix times the vectors.

        d(u.v) is v for u and u for v.
        """
        vectors_BVD, mirror_VV = ctx.saved_tensors
        # Each entry of the matrix gathers the gradient of its pair; those of the diagonal gather the zero
        # appended.
        padded = torch.nn.functional.pad(grad_BP, (0, 1))
        num_samples, num_vectors, _ = vectors_BVD.shape
        grad_BVV = padded.index_select(1, mirror_VV).view(num_samples, num_vectors, num_vectors)
        # Under autocast the gradient may be of bfloat16 and the vectors of float32; autocast is off here.
        return torch.bmm(grad_BVV, vectors_BVD.to(grad_BVV.dtype)), None, None


def pair_positions(num_vectors: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the positions of pairs in a flat (V, V) matrix, and back.

    The second array has the pair of each entry.

    Returns:
        (P,) int64, the lower triangle row by row, and (V * V,) int64 in [0, P], P on the diagonal.
    """
    rows, columns = torch.tril_indices(num_vectors, num_vectors, offset=-1, dtype=torch.int64, device="cpu")
    num_pairs = rows.numel()
    mirror_VV = torch.full((num_vectors, num_vectors), num_pairs, dtype=torch.int64, device="cpu")
    mirror_VV[rows, columns] = torch.arange(num_pairs, dtype=torch.int64, device="cpu")
    mirror_VV[columns, rows] = torch.arange(num_pairs, dtype=torch.int64, device="cpu")
    return rows * num_vectors + columns, mirror_VV.flatten()


class Dlrm(DenseModel):
    """Logits from dense features and embeddings."""

    def __init__(self, shape: DlrmShape, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.num_logits = shape.num_logits
        self.is_plain = not (shape.dropout or shape.batch_norm)
        # One generator in a fixed order: with a seed the shape alone decides every initial value.
        generator = torch.Generator().manual_seed(seed)
        self.is_per_sample = not shape.batch_norm
        norm = {"batch_norm": shape.batch_norm}
        self.bottom = build_mlp(shape.bottom, generator, relu_last=True, **norm) if shape.bottom else None
        self.top = build_mlp(shape.top, generator, relu_last=False, dropout=shape.dropout, **norm)
        self.projections = Projections(shape, generator) if shape.table_dims else None
        pairs_P, mirror_VV = pair_positions(shape.num_vectors)
        self.pairs_P: torch.Tensor
        self.mirror_VV: torch.Tensor
        self.register_buffer("pairs_P", pairs_P, persistent=False)
        self.register_buffer("mirror_VV", mirror_VV, persistent=False)

    def logits(self, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        logit_B: torch.Tensor = self(dense_BK, self.join(embeddings))
        return logit_B

    def join(self, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the (B, F, D) embeddings of all tables from the groups'."""
        if self.projections is None:
            (emb_BFD,) = embeddings
            return emb_BFD
        joined_BFD: torch.Tensor = self.projections(embeddings)
        return joined_BFD

    def forward(self, dense_BK: torch.Tensor, emb_BFD: torch.Tensor) -> torch.Tensor:
        """Map (B, K) dense features and (B, F, D) embeddings to (B,) or (B, L) logits."""
        if self.bottom is None:
            return self._logit(self._dots(emb_BFD))
        bottom_BD = self.bottom(dense_BK)
        vectors_BVD = torch.cat([bottom_BD.unsqueeze(1), emb_BFD], dim=1)
        return self._logit(torch.cat([bottom_BD, self._dots(vectors_BVD)], dim=1))

    def _dots(self, vectors_BVD: torch.Tensor) -> torch.Tensor:
        dots_BP: torch.Tensor = PairwiseDots.apply(vectors_BVD, self.pairs_P, self.mirror_VV)  # type: ignore[no-untyped-call]
        return dots_BP

    def _logit(self, inputs: torch.Tensor) -> torch.Tensor:
        return as_logits(self.top(inputs))


class Projections(nn.Module):
    """Learned linear maps without bias from other row widths to the common one."""

    def __init__(self, shape: DlrmShape, generator: torch.Generator) -> None:
        super().__init__()
        self._widths = tables_by_dim(shape.table_dims)
        self._num_tables = shape.num_tables
        self.maps = nn.ParameterDict()
        # A projection for each width but the common one, drawn so that variances stay as they are.
        for dim, tables in self._widths.items():
            if dim != shape.embedding_dim:
                weight_FdD = torch.empty(
                    len(tables), dim, shape.embedding_dim, dtype=torch.float32, device="cpu"
                )
                weight_FdD.normal_(0.0, math.sqrt(2 / (dim + shape.embedding_dim)), generator=generator)
                self.maps[str(dim)] = nn.Parameter(weight_FdD)

    def forward(self, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Map (B, F, d) per group to (B, F, D), tables in order."""
        columns: dict[int, torch.Tensor] = {}
        for (dim, tables), emb_BFd in zip(self._widths.items(), embeddings, strict=True):
            emb_BFD = emb_BFd
            if str(dim) in self.maps:
                emb_BFD = torch.bmm(emb_BFd.transpose(0, 1), self.maps[str(dim)]).transpose(0, 1)
            for table, emb_BD in zip(tables, emb_BFD.unbind(1), strict=True):
                columns[table] = emb_BD
        return torch.stack([columns[table] for table in range(self._num_tables)], dim=1)
