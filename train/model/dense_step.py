"""The dense part of a training step and of predictions: the form it has, and DLRM's, on tiles of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ..data.batch import Batch
from ..data.batch_shares import BatchShares
from ..work_threads import WorkThreads, one_torch_thread
from .dense_dtype import DenseDtype
from .dense_model import DenseModel
from .dense_tile import DenseTile
from .dlrm import Dlrm
from .flat_parameters import FlatParameters
from .graph_step import GraphStep, GraphTiles
from .mlp_tiles import Bf16Mlp, Fp32Mlp, Layer, MlpTiles
from .sample_tree import MOST_TILE_SAMPLES, tile_bounds
from .tile_gradients import BatchTiles, BuildSums, TileGradients


class DenseStep(Protocol):
    """Everything between the embeddings of a batch and the gradients."""

    dtype: DenseDtype
    """Type of the products of the hidden layers."""

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        """Pass a batch forward and backward; return its loss in nats, summed over its samples.

        The gradients of the loss over the nominal batch size are left in the parameters of the model and in
        the embeddings, each in the ``grad`` of its tensor.

        Args:
            embeddings: (B, F, d) of each row width.
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
        if isinstance(model, Dlrm) and model.is_plain:
            return TiledStep(model, shares, threads, dtype, build_sums)
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
    """

    def __init__(
        self,
        model: Dlrm,
        shares: BatchShares,
        threads: WorkThreads,
        dtype: DenseDtype = "fp32",
        build_sums: BuildSums | None = None,
    ) -> None:
        self.dtype: DenseDtype = dtype
        self._threads = threads
        self._shares = shares
        self._scale = 1 / shares.batch_size
        self._shape = model.shape
        # All parameters lie in one vector, so that one call adds, rounds or steps them all.
        self._parameters = FlatParameters(model)
        self._weights = self._parameters.views(self._parameters.vector)

        # Products in bf16 read a rounded copy of the vector; the parameters themselves stay float32.
        is_rounded = dtype == "bf16"
        self._rounded_vector = torch.zeros(self._parameters.size if is_rounded else 0, dtype=torch.bfloat16)
        rounded = self._parameters.views(self._rounded_vector) if is_rounded else {}

        def build_mlp(layers: Sequence[Layer]) -> MlpTiles:
            if is_rounded:
                return Bf16Mlp(layers, self._weights, rounded, MOST_TILE_SAMPLES)
            return Fp32Mlp(layers, self._weights, MOST_TILE_SAMPLES)

        self._build_mlp = build_mlp
        # A workspace for each worker, and gradients for each tile: tiles run in any order and are added in
        # one.
        self._tiles: dict[int, DenseTile] = {}
        self._gradients = TileGradients(self._parameters.size, threads, build_sums)
        self._sum_views = self._parameters.views(self._gradients.sums_N)
        self._tile_views: list[dict[str, torch.Tensor]] = []
        self._embedding_grads: list[torch.Tensor] = []

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
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
        self._parameters.set_gradients(self.add_gradients(tiles.counts))
        for emb_BFd, grad in zip(embeddings, grads, strict=True):
            emb_BFd.grad = grad
        loss = self._gradients.add_ranks(tiles.add_losses(losses))
        return torch.tensor(loss, dtype=torch.float64)

    def predict(self, batch: Batch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
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

    def tile_of(self, worker: int) -> DenseTile:
        """Return the memory of the tile that a worker has; made when it has its first one."""
        if worker not in self._tiles:
            self._tiles[worker] = DenseTile(self._shape, self._weights, self._build_mlp, MOST_TILE_SAMPLES)
        return self._tiles[worker]

    def _round_weights(self) -> None:
        """Round the weights for the products of this pass, where those are not in float32."""
        if self._rounded_vector.numel():
            with one_torch_thread():
                self._rounded_vector.copy_(self._parameters.vector)

    def add_gradients(self, counts: Sequence[int]) -> dict[str, torch.Tensor]:
        """Add the gradients of all tiles by the binary tree, pieces of the vector in parallel.

        Args:
            counts: tiles of each share.
        """
        if self._gradients.is_first_tile(counts):
            return self._tile_views[0]
        self._gradients.add(counts)
        return self._sum_views

    def _make_room(self, num_tiles: int, embeddings: Sequence[torch.Tensor]) -> None:
        """Keep memory for the gradients of so many tiles and of these embeddings."""
        if self._gradients.make_room(num_tiles):
            # Zero once: what lies between parameters is added, too.
            self._tile_views = [self._parameters.views(gradient) for gradient in self._gradients.tiles_LN]
        is_large_enough = self._embedding_grads and (
            self._embedding_grads[0].shape[0] >= embeddings[0].shape[0]
        )
        if not is_large_enough:
            self._embedding_grads = [torch.empty_like(emb_BFd) for emb_BFd in embeddings]
