"""The dense part of a training step and of predictions, for every model.

DLRM and DCN V2 run on tiles. Mean pooling works around the step of any model: rows are pooled by their sum
wherever they live, so that placements need not know of it, and the sum of a bag and the gradient that comes
back are both divided by its number of lookups. A model of histories also gets how many elements each sample
has; placements only see that each element is a separate bag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError
from ...stats.batch_rows import MOST_TILE_SAMPLES
from ..data.batch import Batch, BatchShares, EmbeddingTable
from ..model.dlrm import Dlrm
from ..model.layers import DenseModel
from ..model.shapes import tables_by_dim
from ..threads import WorkThreads, one_torch_thread
from .gradients import (
    BatchTiles,
    BuildSums,
    DenseDtype,
    FlatParameters,
    ParameterViews,
    TileGradients,
    cpu_features,
    tile_bounds,
)
from .graph_step import GraphStep, GraphTiles
from .linear import StepWeights, choose_library
from .tiles import DenseTile

if TYPE_CHECKING:
    from ..model.dcn import Dcn
    from .dcn_tile import DcnTile


class DenseStep(Protocol):
    """Everything between the embeddings of a batch and the gradients."""

    dtype: DenseDtype
    """Type of the products of the hidden layers."""

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        """Run a batch forward and backward; return its summed loss in nats.

        The gradients of the loss over the nominal batch size are left in the parameters of the model and in
        the embeddings, each in the ``grad`` of its tensor.

        Args:
            embeddings: (B, F, d) of each table group.
            step: number of the step in the run; decides what a model with dropout draws.
        """

    def predict(self, batch: Batch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (B,) logits."""


def build_dense_step(
    model: DenseModel,
    shares: BatchShares,
    threads: WorkThreads,
    dtype: DenseDtype = "fp32",
    seed: int = 0,
    build_sums: BuildSums | None = None,
) -> DenseStep:
    """Build the step that suits the model and its device.

    Args:
        shares: of a batch.
        threads: those of the dense layers on the host.
        dtype: type of the products there.
        seed: that of the run, for models that draw random numbers.
        build_sums: of the gradients of several ranks, which are on the host.
    """
    if next(model.parameters()).device.type == "cpu" and model.is_per_sample:
        if model.is_plain:
            return TiledStep(cast("Dlrm | Dcn", model), shares, threads, dtype, build_sums)
        return GraphTiles(model, shares, threads, dtype, seed, build_sums)
    assert build_sums is None, "several ranks compute samples by themselves, on the host"
    return GraphStep(model, shares, seed, dtype)


class TiledStep:
    """The step on tiles of the batch that any thread takes, on the host.

    The bits of all results depend on the batch and the weights alone: never on the number of threads.

    Args:
        model: the dense layers, whose parameters become parts of one vector.
        shares: of a batch; those of this rank are computed.
        threads: run the tiles.
        dtype: type of the products of the hidden layers. The weights are float32 in any case; for bf16 they
            are rounded once a step.
        build_sums: of the gradients of several ranks.
        features: names of the CPU's vendor and instruction sets, which decide who multiplies; None: those
            of this machine.
    """

    def __init__(
        self,
        model: Dlrm | Dcn,
        shares: BatchShares,
        threads: WorkThreads,
        dtype: DenseDtype = "fp32",
        build_sums: BuildSums | None = None,
        *,
        features: frozenset[str] | None = None,
    ) -> None:
        self.dtype: DenseDtype = dtype
        self._threads = threads
        self._shares = shares
        self._scale = 1 / shares.batch_size
        # All parameters are in one vector, so that one call adds, rounds or steps them all.
        self._parameters = FlatParameters(model)
        # Products in bf16 read a rounded copy of the vector; the parameters themselves stay float32.
        is_rounded = dtype == "bf16"
        self._rounded_vector = torch.zeros(self._parameters.size if is_rounded else 0, dtype=torch.bfloat16)
        weights = StepWeights(
            self._parameters.views(self._parameters.vector),
            self._parameters.views(self._rounded_vector) if is_rounded else None,
            choose_library(cpu_features() if features is None else features, dtype),
            MOST_TILE_SAMPLES,
        )

        def build_tile() -> DenseTile | DcnTile:
            if isinstance(model, Dlrm):
                return DenseTile(model.shape, weights)
            from .dcn_tile import DcnTile

            return DcnTile(model.shape, weights)

        self._build_tile = build_tile
        # A workspace for each worker, and gradients for each tile: tiles run in any order and are added in
        # one.
        self._tiles: dict[int, DenseTile | DcnTile] = {0: build_tile()}
        self._gradients = TileGradients(self._parameters.size, threads, build_sums)
        self._sum_views = self._parameters.views(self._gradients.sums_N)
        self._tile_views: list[ParameterViews] = []
        self._embedding_grads: list[torch.Tensor] = []

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        if self._rounded_vector.numel():
            self._round_weights()
        # Tiles depend on the samples and shares alone, so the bits do not depend on the number of threads.
        tiles = BatchTiles(self._shares, batch.num_samples)
        bounds = tiles.bounds
        self._make_room(len(bounds), embeddings)
        inputs = [emb_BFd.detach() for emb_BFd in embeddings]
        grads = [grad[: batch.num_samples] for grad in self._embedding_grads]
        # A list of floats, because each tile writes its own element from its own thread.
        losses = [0.0] * len(bounds)

        def train_tile(tile: int, worker: int) -> None:
            samples = slice(*bounds[tile])
            self.tile_of(worker).forward(batch.dense_BK[samples], [emb_BFd[samples] for emb_BFd in inputs])
            losses[tile] = self.tile_of(worker).backward(
                batch.label_B[samples],
                self._scale,
                [grad[samples] for grad in grads],
                self._tile_views[tile],
            )

        self._threads.run(train_tile, len(bounds))
        if self._gradients.is_first_tile(tiles.counts):
            self._parameters.set_gradients(self._tile_views[0])
        else:
            self._gradients.add(tiles.counts)
            self._parameters.set_gradients(self._sum_views)
        for emb_BFd, grad in zip(embeddings, grads, strict=True):
            emb_BFd.grad = grad
        loss = self._gradients.add_ranks(tiles.add_losses(losses))
        return torch.tensor(loss, dtype=torch.float64)

    def predict(self, batch: Batch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        if self._rounded_vector.numel():
            self._round_weights()
        # The same tiles as in training, so that a batch has the same logits in both.
        bounds = tile_bounds(batch.num_samples)
        logit_B = torch.empty(batch.num_samples)

        def predict_tile(tile: int, worker: int) -> None:
            samples = slice(*bounds[tile])
            logit_B[samples] = self.tile_of(worker).forward(
                batch.dense_BK[samples], [emb_BFd[samples] for emb_BFd in embeddings]
            )

        self._threads.run(predict_tile, len(bounds))
        return logit_B

    def tile_of(self, worker: int) -> DenseTile | DcnTile:
        """Return the tile memory of a worker, allocated on first use."""
        if worker not in self._tiles:
            self._tiles[worker] = self._build_tile()
        return self._tiles[worker]

    def _round_weights(self) -> None:
        """Round the weights for products in bf16."""
        with one_torch_thread():
            self._rounded_vector.copy_(self._parameters.vector)

    def _make_room(self, num_tiles: int, embeddings: Sequence[torch.Tensor]) -> None:
        """Keep memory for the gradients of so many tiles and of these embeddings."""
        if self._gradients.make_room(num_tiles):
            # Zero once: what lies between parameters is added, too.
            self._tile_views = [self._parameters.views(gradient) for gradient in self._gradients.tiles_LN]
        # A model without tables has none.
        kept = zip(self._embedding_grads, embeddings, strict=False)
        if not self._embedding_grads or any(grad.shape[0] < emb.shape[0] for grad, emb in kept):
            self._embedding_grads = [torch.empty_like(emb_BFd) for emb_BFd in embeddings]


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
        widths = tables_by_dim([table.embedding_dim for table in tables])
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
        """Divide the numbers of each bag by its lookups, in place.

        Those of an empty bag are zero.
        """
        for width, position, feature in self._places:
            lengths_B = np.maximum(np.diff(batch.bags[feature].offsets_B1), 1).astype(np.float32)
            tensor = tensors[width]
            tensor[:, position] /= torch.from_numpy(lengths_B).to(tensor.device).unsqueeze(1)
        return tensors


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


class HistoryStep:
    """A step whose model sees one more dense feature, the elements of each sample.

    Args:
        step: that of the model.
        tables: all tables of the shards.
    """

    def __init__(self, step: DenseStep, tables: Sequence[EmbeddingTable]) -> None:
        self.dtype: DenseDtype = step.dtype
        self._step = step
        self._names = [table.name for table in tables if table.is_multi_hot]

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        return self._step.train(self._with_lengths(batch), embeddings, step)

    def predict(self, batch: Batch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        return self._step.predict(self._with_lengths(batch), embeddings)

    def _with_lengths(self, batch: Batch) -> Batch:
        lengths_B1 = torch.from_numpy(self._lengths(batch)).to(batch.dense_BK).unsqueeze(1)
        return replace(batch, dense_BK=torch.cat([batch.dense_BK, lengths_B1], dim=1))

    def _lengths(self, batch: Batch) -> NDArray[np.int32]:
        """(B,); raises HotsetError where the histories of a sample have different lengths."""
        first, *others = (np.diff(bags.offsets_B1) for bags in batch.bags)
        for name, lengths_B in zip(self._names[1:], others, strict=True):
            differing = np.flatnonzero(lengths_B != first)
            if differing.size:
                sample = differing[0]
                raise HotsetError(
                    f"a sample has {first[sample]} elements in {self._names[0]} and {lengths_B[sample]} in "
                    f"{name}: the histories of a sample are of one length, element by element",
                    hint="mend the lists of the log, empty elements for missing values included",
                )
        return first
