"""DLRM and DCN V2 in plain torch: the baselines of `train_step` and `quality`.

One ``nn.EmbeddingBag`` with sparse gradients for each table, the interaction by ``bmm`` and an index of the
lower triangle, a sigmoid and ``BCELoss`` at the end, one SGD for everything. With FBGEMM all tables are one
module that looks up and updates in fused kernels; the rest stays.

Source:
    Naumov et al., arXiv 1906.00091; facebookresearch/dlrm, ``dlrm_s_pytorch.py``; for DCN V2 Wang et al.,
    arXiv 2008.13535, in the layout of TorchRec's `LowRankCrossNet`.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from ...train.data.batch import Batch
from ...train.model.shapes import DcnShape, DlrmShape

LEARNING_RATE = 0.1
_FBGEMM = "fbgemm_gpu"


def has_fbgemm() -> bool:
    """Return whether FBGEMM's table-batched embeddings are installed."""
    return importlib.util.find_spec(_FBGEMM) is not None


@dataclass(frozen=True, slots=True)
class ReferenceBatch:
    """One batch as the reference wants it, made before the clock starts."""

    dense_BK: torch.Tensor
    label_B1: torch.Tensor
    ids: tuple[torch.Tensor, ...]
    """(B,) int64 ids of each table."""
    offsets_B: torch.Tensor
    """(B,) int64; each bag has one id."""

    @classmethod
    def of(cls, batch: Batch) -> ReferenceBatch:
        """Copy a batch of one-hot features."""
        ids_FB = torch.from_numpy(batch.ids_BF.T.copy()).long()
        offsets_B = torch.arange(batch.num_samples)
        return cls(batch.dense_BK.clone(), batch.label_B.clone().unsqueeze(1), tuple(ids_FB), offsets_B)


class ReferenceDlrm(nn.Module):
    """DLRM_Net with tables of torch or of FBGEMM.

    Args:
        shape: sizes of the dense layers.
        num_rows: rows of each table.
        fbgemm: whether the tables are FBGEMM's.
    """

    def __init__(self, shape: DlrmShape, num_rows: Sequence[int], *, fbgemm: bool = False) -> None:
        super().__init__()
        self.bottom = _mlp(shape.bottom, sigmoid_last=False)
        self.top = _mlp(shape.top, sigmoid_last=True)
        # Either one table after another, or all tables in one operator.
        self.tables: Any = (
            _fbgemm_tables(num_rows, shape.embedding_dim)
            if fbgemm
            else nn.ModuleList(
                nn.EmbeddingBag(rows, shape.embedding_dim, mode="sum", sparse=True) for rows in num_rows
            )
        )
        self._is_fbgemm = fbgemm

    def forward(self, batch: ReferenceBatch) -> torch.Tensor:
        """Return (B, 1) probabilities of a click."""
        probability_B1: torch.Tensor = self.top(self._top_inputs(batch))
        return probability_B1

    def logits(self, batch: ReferenceBatch) -> torch.Tensor:
        """Return (B, 1) logits: what is before the last sigmoid."""
        logit_B1: torch.Tensor = self.top[:-1](self._top_inputs(batch))
        return logit_B1

    def _top_inputs(self, batch: ReferenceBatch) -> torch.Tensor:
        return self._interact(self.bottom(batch.dense_BK), self._look_up(batch))

    def _look_up(self, batch: ReferenceBatch) -> list[torch.Tensor]:
        if self._is_fbgemm:
            offsets = torch.arange(len(batch.ids) * batch.offsets_B.numel() + 1)
            emb_BFD = self.tables(torch.cat(batch.ids), offsets)
            return list(emb_BFD.float().split(emb_BFD.shape[1] // len(batch.ids), dim=1))
        return [table(ids, batch.offsets_B) for table, ids in zip(self.tables, batch.ids, strict=True)]

    @staticmethod
    def _interact(bottom_BD: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        num_samples, dim = bottom_BD.shape
        vectors_BVD = torch.cat([bottom_BD, *embeddings], dim=1).view((num_samples, -1, dim))
        dots_BVV = torch.bmm(vectors_BVD, torch.transpose(vectors_BVD, 1, 2))
        num_vectors = dots_BVV.shape[1]
        # Each pair of different vectors counts once: the products below the diagonal.
        rows = torch.tensor([i for i in range(num_vectors) for _ in range(i)])
        columns = torch.tensor([j for i in range(num_vectors) for j in range(i)])
        return torch.cat([bottom_BD, dots_BVV[:, rows, columns]], dim=1)


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


class ReferenceTraining:
    """The reference with its optimizers, one step at a time.

    Args:
        model: the network, from a `ReferenceBatch` to (B, 1) probabilities.
        autocast: whether the forward pass runs under bf16 autocast.
        optimizers: those of its parameters; None: SGD with `LEARNING_RATE` for all.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        autocast: bool = False,
        optimizers: Sequence[torch.optim.Optimizer] | None = None,
    ) -> None:
        self.model = model
        self._autocast = autocast
        self._optimizers = optimizers or [torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)]
        self._loss = nn.BCELoss(reduction="mean")

    def step(self, batch: ReferenceBatch) -> torch.Tensor:
        """Train on one batch; return its mean loss."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            probability_B1 = self.model(batch)
        # The loss is computed in fp32 whatever the model computed in.
        loss: torch.Tensor = self._loss(probability_B1.float(), batch.label_B1)
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self._optimizers:
            optimizer.step()
        return loss.detach()


def _mlp(widths: Sequence[int], *, sigmoid_last: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for layer in range(len(widths) - 1):
        layers.append(nn.Linear(widths[layer], widths[layer + 1]))
        is_last = layer == len(widths) - 2
        layers.append(nn.Sigmoid() if is_last and sigmoid_last else nn.ReLU())
    return nn.Sequential(*layers)


def _fbgemm_tables(num_rows: Sequence[int], embedding_dim: int) -> Any:
    # Its build for the CPU warns of optimizers that it lacks.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        training = importlib.import_module(f"{_FBGEMM}.split_table_batched_embeddings_ops_training")
        common = importlib.import_module(f"{_FBGEMM}.split_table_batched_embeddings_ops_common")
        config = importlib.import_module(f"{_FBGEMM}.split_embedding_configs")
    # Tables in host memory with their update fused into the backward pass, as FBGEMM does best on a CPU.
    place = (common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)
    return training.SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, embedding_dim, *place) for rows in num_rows],
        optimizer=config.EmbOptimType.EXACT_SGD,
        learning_rate=LEARNING_RATE,
    )
