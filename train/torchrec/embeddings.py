"""Embeddings whose hot rows every rank holds, and whose cold rows TorchRec shards.

The first rows of each table are a parameter that is trained as dense layers are: every rank has all of it,
and its gradients are averaged over the ranks. The others are an ``EmbeddingCollection`` of TorchRec, which is
given the distinct cold rows of a rank. Both are pooled here: a bag is the sum of its hot and of its cold
vectors, divided by its whole length where it is averaged. A hot-only batch does not call the collection, and
so exchanges nothing for it.

Both parts follow one rule: rows that a step does not look up take no step. TorchRec's collections do so by
themselves, with an optimizer that runs in the backward pass. Replicated rows have `ReplicatedOptimizer`,
which leaves a row without a gradient as it is. With Adam a gradient of zero is a step, too, and so batches
name the rows that any rank looks up.

Shapes: B samples, F features and T tables of one embedding dimension D, P = F * B bags, R rows, W floats of a
row's state.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn.functional import embedding_bag

from ...pipeline.errors import MissingExtraError
from ..build_embeddings import TORCHREC_OPTIMIZERS
from ..rows.backends import RowOptimizer, step_with_torch
from .batches import GroupLookups, RankBatch, ReplicatedRows

# TorchRec logs by functions that would give the root logger a handler of their own.
if not logging.root.handlers:
    logging.root.addHandler(logging.NullHandler())
try:
    from torchrec import EmbeddingCollection, EmbeddingConfig
    from torchrec.streamable import Pipelineable
except ImportError as error:
    raise MissingExtraError(
        "--engine torchrec needs TorchRec, which is not installed",
        hint="scripts/install-torchrec installs it",
    ) from error


# Torch warns each rank of how the library asks whether it is traced.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
# An abstract class: without this TorchRec's pipelines take no batch, whatever methods it has.
Pipelineable.register(RankBatch)


class HotColdEmbeddings(nn.Module):
    """The embeddings of all tables.

    Args:
        rows: how many rows of each table are replicated.
        device: of the replicated rows, which begin as zeros; the others are allocated where they are sharded.
    """

    def __init__(self, rows: ReplicatedRows, device: torch.device | None = None) -> None:
        super().__init__()
        self.rows = rows
        self.hot = nn.ParameterDict()
        """Replicated rows, (R, D), of each embedding dimension that has any."""
        self.cold = nn.ModuleDict()
        """Collection of the sharded rows of each embedding dimension that has any."""
        for group in rows.groups:
            if group.num_hot:
                shape = (group.num_hot, group.embedding_dim)
                self.hot[str(group.embedding_dim)] = nn.Parameter(
                    torch.zeros(shape, dtype=torch.float32, device=device or torch.device("cpu"))
                )
            if group.cold_tables:
                self.cold[str(group.embedding_dim)] = _collection(rows, group.embedding_dim)

    def forward(self, batch: RankBatch) -> list[torch.Tensor]:
        """Return the embeddings of each embedding dimension, (B, F, D), as `DenseModel.logits` takes them."""
        found = []
        for of_dim, group in zip(self.rows.groups, batch.groups, strict=True):
            dim = str(group.embedding_dim)
            hot = self.hot[dim] if dim in self.hot else None
            cold = None
            # All ranks know the kind of the batch, so all of them call the collection, or none.
            if dim in self.cold and not batch.is_hot_only:
                vectors = self.cold[dim](group.keyed_jagged)
                cold = torch.cat([vectors[name].values() for name in group.cold_tables])
            found.append(_pool(group, (len(of_dim.features), batch.num_samples), hot, cold))
        return found


def table_name(number: int) -> str:
    """Return what TorchRec calls a table of the shards: its name there may be no name of a module."""
    return f"table_{number}"


def _collection(rows: ReplicatedRows, embedding_dim: int) -> EmbeddingCollection:
    """Build the collection of the sharded rows, without memory for them."""
    configs = [
        EmbeddingConfig(
            name=table_name(number),
            num_embeddings=table.num_rows - num_hot,
            embedding_dim=embedding_dim,
            feature_names=[table.name],
        )
        for number, (table, num_hot) in enumerate(zip(rows.tables, rows.num_replicated, strict=True))
        if table.embedding_dim == embedding_dim and table.num_rows > num_hot
    ]
    return EmbeddingCollection(tables=configs, device=torch.device("meta"))


def _pool(
    group: GroupLookups, shape: tuple[int, int], hot: torch.Tensor | None, cold: torch.Tensor | None
) -> torch.Tensor:
    """Return the (B, F, D) sums, or means, of the bags.

    Args:
        shape: F and B.
    """
    dim = group.embedding_dim
    parts = [
        embedding_bag(places, vectors, offsets, mode="sum", include_last_offset=True)
        for vectors, places, offsets in (
            (hot, group.hot_ids_N, group.hot_offsets_P1),
            (cold, group.cold_places_M, group.cold_offsets_P1),
        )
        if vectors is not None
    ]
    if not parts:  # all bags are empty
        parts = [torch.zeros(shape[0] * shape[1], dim, dtype=torch.float32, device=group.hot_ids_N.device)]
    pooled_FBD = sum(parts[1:], parts[0]).view(*shape, dim)
    if group.mean_lengths_FB is not None:
        pooled_FBD = pooled_FBD / group.mean_lengths_FB.unsqueeze(2)
    return pooled_FBD.transpose(0, 1)


class ReplicatedOptimizer:
    """Steps the replicated rows of a model once their gradients are averaged.

    But for Adam the whole matrix takes the step, as its gradient crosses as a whole: a row without a gradient
    keeps its weights and state to the bit. Adam steps the rows that any rank looked up, by hotset's own rule,
    which corrects for bias by the steps of a row.

    Args:
        hot: `HotColdEmbeddings.hot`.
        optimizer: SGD, Adagrad, row-wise Adagrad or Adam without decay.
    """

    def __init__(self, hot: Mapping[str, nn.Parameter], optimizer: RowOptimizer) -> None:
        assert optimizer.name in (*TORCHREC_OPTIMIZERS, "adam") and not optimizer.decay
        self._optimizer = optimizer
        self._hot = dict(hot)
        self.states = {
            dim: torch.zeros(
                rows.shape[0], optimizer.state_width(rows.shape[1]), dtype=torch.float32, device=rows.device
            )
            for dim, rows in hot.items()
        }
        """(R, W) of each embedding dimension."""
        self._numbers: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
        """Adam's step rates at a learning rate of 1 and its root scales, on each device."""

    @torch.no_grad()
    def step(self, rate: float, groups: Sequence[GroupLookups] = ()) -> None:
        """Take a step at this learning rate.

        Args:
            groups: lookups of the step, which name the rows that Adam steps.
        """
        used = {str(group.embedding_dim): group.used_hot_U for group in groups}
        for dim, rows in self._hot.items():
            grad = rows.grad
            # A user's module may leave out all tables of a dimension.
            if grad is None:
                continue
            if self._optimizer.name == "sgd":
                rows.sub_(grad, alpha=rate)
                continue
            state = self.states[dim]
            if self._optimizer.name == "adam":
                used_U = used[dim]
                assert used_U is not None, "the batch names its rows"
                self._step_by_adam(rows, state, used_U, grad, rate)
                continue
            squares = grad * grad
            if self._optimizer.name == "rowwise-adagrad":
                squares = squares.mean(dim=1, keepdim=True)
            state.add_(squares)
            rows.sub_(grad / (state.sqrt() + self._optimizer.eps), alpha=rate)

    def _step_by_adam(
        self, rows: torch.Tensor, state: torch.Tensor, used_U: torch.Tensor, grad: torch.Tensor, rate: float
    ) -> None:
        if rows.device not in self._numbers:
            numbers = self._optimizer.step_rates(1.0), self._optimizer.root_scales
            rates_T, roots_T = (torch.from_numpy(each).to(rows.device) for each in numbers)
            self._numbers[rows.device] = rates_T, roots_T
        rates_T, roots_T = self._numbers[rows.device]
        grad_UD = grad.index_select(0, used_U)
        step_with_torch(self._optimizer, rows, state, used_U, grad_UD, rates_T * rate, roots_T)

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        for rows in self._hot.values():
            rows.grad = None
