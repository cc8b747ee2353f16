"""DLRM, DCN V2 and the examples in plain torch, as programs are that hotset is compared with.

Tables are modules of torch, gradients and steps those of autograd and torch's optimizers.

Source:
    Naumov et al., arXiv 1906.00091; facebookresearch/dlrm, ``dlrm_s_pytorch.py``; for DCN V2 Wang et al.,
    arXiv 2008.13535, in the layout of TorchRec's `CrossNet`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import embedding_bag

from ...pipeline.folders.totals import for_features
from ...train.config import Optimizers, TrainConfig
from ...train.data.batch import Batch, SeededOrder
from ...train.data.shards import ShardSet

Logits = NDArray[np.float64]
Widths = Sequence[int]
Shape = tuple[int, int, int]
"""Dense features, which may be none; tables, and the width of their rows."""
CROSS_LAYERS = 3


def bags(rows: Sequence[int], dim: int, is_sparse: bool = True) -> nn.ModuleList:
    """Return a table for each number of rows, whose gradients may be sparse tensors."""
    return nn.ModuleList(nn.EmbeddingBag(count, dim, mode="sum", sparse=is_sparse) for count in rows)


class PlainNet(nn.Module):
    """The tables of a model; its other layers follow."""

    def __init__(self, tables: nn.Module) -> None:
        super().__init__()
        self.tables: Any = tables

    def forward(self, dense_BK: torch.Tensor, ids_FB: torch.Tensor) -> torch.Tensor:
        """Return (B,) logits; each feature has one id."""
        return self._logits(dense_BK, self._look_up(ids_FB)).squeeze(1)

    def layers(self) -> list[nn.Parameter]:
        """Return the parameters of all layers after the tables."""
        return [value for name, value in self.named_parameters() if not name.startswith("tables")]

    def _look_up(self, ids_FB: torch.Tensor) -> list[torch.Tensor]:
        """Return the (B, D) rows of each table."""
        offsets_B = torch.arange(ids_FB.shape[1])
        return [table(ids_B, offsets_B) for table, ids_B in zip(self.tables, ids_FB, strict=True)]

    def _logits(self, dense_BK: torch.Tensor, rows: list[torch.Tensor]) -> torch.Tensor:
        raise NotImplementedError


class PlainDlrm(PlainNet):
    """DLRM_Net: the products of all pairs of embeddings and the output of a bottom MLP, if any is dense."""

    def __init__(self, tables: nn.Module, shape: Shape, bottom: Widths, top: Widths) -> None:
        super().__init__(tables)
        num_dense, num_tables, dim = shape
        num_vectors = num_tables + bool(num_dense)
        num_inputs = num_vectors * (num_vectors - 1) // 2 + dim * bool(num_dense)
        self.bottom = _mlp([num_dense, *bottom, dim]) if num_dense else None
        self.top = _mlp([num_inputs, *top, 1])[:-1]

    def _logits(self, dense_BK: torch.Tensor, rows: list[torch.Tensor]) -> torch.Tensor:
        bottom = [] if self.bottom is None else [self.bottom(dense_BK)]
        num_samples, dim = rows[0].shape
        vectors_BVD = torch.cat([*bottom, *rows], dim=1).view((num_samples, -1, dim))
        dots_BVV = torch.bmm(vectors_BVD, torch.transpose(vectors_BVD, 1, 2))
        # Each pair of different vectors counts once: the products below the diagonal.
        num_vectors = dots_BVV.shape[1]
        above = torch.tensor([i for i in range(num_vectors) for _ in range(i)])
        below = torch.tensor([j for i in range(num_vectors) for j in range(i)])
        logit_B1: torch.Tensor = self.top(torch.cat([*bottom, dots_BVV[:, above, below]], dim=1))
        return logit_B1


class PlainDcn(PlainNet):
    """DCN V2, stacked: cross layers, of full matrices without a rank, a deep network, a linear layer."""

    def __init__(self, tables: nn.Module, shape: Shape, top: Widths, rank: int | None) -> None:
        super().__init__(tables)
        num_dense, num_tables, dim = shape
        width = num_dense + dim * num_tables
        self.cross = nn.ModuleList(
            nn.Linear(width, width)
            if rank is None
            else nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))
            for _ in range(CROSS_LAYERS)
        )
        self.deep = _mlp([width, *top, 1])[:-1]

    def _logits(self, dense_BK: torch.Tensor, rows: list[torch.Tensor]) -> torch.Tensor:
        first_BN = torch.cat([dense_BK, *rows], dim=1)
        crossed_BN = first_BN
        # A cross layer multiplies the first vector by a linear map of the last one, and adds the last one.
        for layer in self.cross:
            crossed_BN = first_BN * layer(crossed_BN) + crossed_BN
        logit_B1: torch.Tensor = self.deep(crossed_BN)
        return logit_B1


def _mlp(widths: Sequence[int]) -> nn.Sequential:
    """Return linear layers with a ReLU after each."""
    layers = ((nn.Linear(inputs, outputs), nn.ReLU()) for inputs, outputs in pairwise(widths))
    return nn.Sequential(*chain.from_iterable(layers))


class PlainExample(nn.Module):
    """The layers of an example on embedding tables of torch, with initial rows by the name of their table."""

    def __init__(self, shards: ShardSet, layers: nn.Module, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.layers = layers
        self.tables = nn.ModuleList(
            nn.Embedding(table.num_rows, table.embedding_dim, _weight=weights[table.name].clone())
            for table in shards.tables
        )
        self._shards = shards
        self._numbers = for_features(shards.tables, range(len(shards.tables)))
        self._histories: dict[str, int] = getattr(layers, "histories", {})

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return (B, L) logits."""
        rows, lengths = {}, {}
        features = zip(self._numbers, batch.features(self._shards.tables), strict=True)
        for number, (name, ids, offsets) in features:
            table: Any = self.tables[number]
            ids_N = torch.from_numpy(np.ascontiguousarray(ids)).long()
            if offsets is None:
                rows[name] = table(ids_N)
                continue
            offsets_B1 = torch.from_numpy(offsets).long()
            if name not in self._histories:
                rows[name] = embedding_bag(ids_N, table.weight, offsets_B1[:-1], mode="sum")
                continue
            # A list ends with the last place, and what is before it is zero.
            place_BT = offsets_B1[1:, None] - self._histories[name] + torch.arange(self._histories[name])
            is_there_BT1 = (place_BT >= offsets_B1[:-1, None]).unsqueeze(2)
            rows[name] = table(ids_N[place_BT.clamp(min=0)]) * is_there_BT1
            lengths[name] = offsets_B1.diff()
        logits: torch.Tensor = self.layers(batch.dense_BK, rows, *([lengths] if lengths else []))
        return logits.reshape(batch.num_samples, -1)


class TorchOptimizers:
    """The optimizers of a run of hotset in torch, with constant rates.

    If Adam is lazy, it leaves rows without lookups as they are; otherwise their averages move them on.
    """

    def __init__(self, chosen: Optimizers, tables: Any, layers: Any, *, has_lazy_adam: bool = False) -> None:
        kinds: Any = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
        lazy: Any = {"adam": torch.optim.SparseAdam} if has_lazy_adam else {}
        self._own = [
            (kinds | lazy)[chosen.embedding_optimizer](tables, lr=chosen.embedding_lr),
            kinds[chosen.dense_optimizer](layers, lr=chosen.dense_lr),
        ]

    def step(self, loss: torch.Tensor) -> None:
        """Take a step from the gradients of a loss alone."""
        for each in self._own:
            each.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for each in self._own:
            each.step()


def batches_of(shards: ShardSet, config: TrainConfig) -> Iterator[int]:
    """Yield the numbers of the training batches of all epochs, in the order of hotset."""
    order = SeededOrder(shards.is_hot_only, config.seed, config.epochs, is_grouped=shards.is_grouped)
    for numbers in order.epochs():
        yield from numbers


def scores_of(logit_N: Logits, label_N: Logits) -> dict[str, float]:
    """Return AUC, a tie counting one half, and mean log loss in nats; missing labels, NaN, do not count."""
    logit_N, label_N = logit_N[~np.isnan(label_N)], label_N[~np.isnan(label_N)]
    _, distinct_N, counts = np.unique(logit_N, return_inverse=True, return_counts=True)
    rank_N = (np.cumsum(counts) - (counts - 1) / 2)[distinct_N]
    num_clicks = label_N.sum()
    above = rank_N[label_N == 1].sum() - num_clicks * (num_clicks + 1) / 2
    return {
        "auc": float(above / (num_clicks * (label_N.size - num_clicks))),
        "log_loss": float(np.mean(np.logaddexp(0, logit_N) - label_N * logit_N)),
    }
