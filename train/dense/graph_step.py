"""The step of any model by torch's autograd, whole or in tiles.

Torch promises the same bits for the same work in the same number of threads. So each thread runs torch's
operators single-threaded: results depend on the batch and the weights alone, as those of the tiled step of
DLRM do. A model whose samples depend on each other (batch normalization) or that draws random numbers
(dropout) computes a batch as a whole, in one thread; any other runs on all threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from ...pipeline.errors import ConfigError
from ..data.batch import Batch, BatchShares, at_cache_line
from ..model.layers import DenseModel, drawing
from ..threads import WorkThreads, one_torch_thread
from .gradients import BatchTiles, BuildSums, DenseDtype, TileGradients, tile_bounds


class GraphStep:
    """The step on whole shares, on any device; on the host in one thread.

    Args:
        model: the dense layers.
        shares: of a batch; those of this rank are computed.
        seed: that of the run; with the number of the step it decides what the model draws.
        dtype: bf16 passes the model under torch's autocast.

    Raises:
        ConfigError: samples of the model depend on each other, and a batch has several shares.
    """

    def __init__(
        self, model: DenseModel, shares: BatchShares, seed: int = 0, dtype: DenseDtype = "fp32"
    ) -> None:
        if shares.num_shares > 1 and not model.is_per_sample:
            raise ConfigError(
                "a model with batch normalization or dropout computes whole batches, "
                "and --micro-batches cuts them",
                hint="use --micro-batches 1, in one process; or say per_sample = True in a class of your own "
                "whose samples do not depend on each other",
            )
        self.dtype: DenseDtype = dtype
        self._model = model
        self._shares = shares
        self._seed = seed

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        device = embeddings[0].device
        bounds = self._shares.bounds(batch.num_samples)
        if len(bounds) == 1:
            return self._pass(batch, embeddings, step, self._shares.first_sample)
        # Each share leaves its gradients in the same places, where its sums are taken away.
        losses, gradients = [], []
        for emb_BFd in embeddings:
            emb_BFd.grad = torch.empty_like(emb_BFd)
        for first, stop in bounds:
            parts = [emb_BFd.detach()[first:stop] for emb_BFd in embeddings]
            losses.append(self._pass(batch.cut(first, stop), parts, step, self._shares.first_sample + first))
            for emb_BFd, part in zip(embeddings, parts, strict=True):
                assert emb_BFd.grad is not None and part.grad is not None
                emb_BFd.grad[first:stop] = part.grad
            gradients.append([parameter.grad for parameter in self._model.parameters()])
        for parameter, *found in zip(self._model.parameters(), *gradients, strict=True):
            # A parameter that the model does not use has no gradient in any share.
            parameter.grad = add_tree([each for each in found if each is not None])
        loss = add_tree(losses)
        return torch.zeros((), device=device) if loss is None else loss

    def _pass(
        self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int, first_sample: int
    ) -> torch.Tensor:
        """Run samples forward and backward; return their loss, and leave their gradients.

        The samples begin at a given one of the batch.
        """
        device = embeddings[0].device
        # The caller reads the gradients of embeddings from these leaves, so each begins without one.
        for emb_BFd in embeddings:
            emb_BFd.requires_grad_()
            emb_BFd.grad = None
        self._model.zero_grad(set_to_none=True)
        with ExitStack() as block:
            # More threads of torch would add in another order, and the bits would depend on their number.
            if device.type == "cpu":
                block.enter_context(one_torch_thread())
            # Random layers draw by step, so that a resumed run draws what the unbroken one would have.
            if not self._model.is_per_sample:
                block.enter_context(_random_numbers_of(self._seed, step, device))
            set_mode(self._model, is_training=True)
            block.enter_context(drawing(self._seed, step, first_sample))
            logit_B = _logits(self._model, batch.dense_BK.to(device), embeddings, self.dtype)
            loss_sum = binary_cross_entropy_with_logits(logit_B, batch.label_B.to(device), reduction="sum")
            # A tensor, because torch on a GPU multiplies by the reciprocal of a number.
            (loss_sum / torch.full_like(loss_sum, self._shares.batch_size)).backward()  # type: ignore[no-untyped-call]
        for emb_BFd in embeddings:
            # A table that the model does not use has a gradient of zero.
            if emb_BFd.grad is None:
                emb_BFd.grad = torch.zeros_like(emb_BFd)
        return loss_sum.detach()

    @torch.no_grad()
    def predict(self, batch: Batch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        set_mode(self._model, is_training=False)
        with ExitStack() as block:
            if embeddings[0].device.type == "cpu":
                block.enter_context(one_torch_thread())
            return _logits(self._model, batch.dense_BK.to(embeddings[0].device), embeddings, self.dtype)


class GraphTiles:
    """The step on tiles of the batch, on the host.

    Each tile has an autograd graph. The bits of all results depend on the batch and the weights alone: never
    on the number of threads.

    Args:
        model: dense layers that compute each sample independently.
        shares: of a batch; this rank computes those assigned to it.
        threads: run the tiles.
        dtype: bf16 runs the model under torch's autocast.
        seed: that of the run; with the number of the step it decides what dropout drops.
        build_sums: of the gradients of several ranks.
    """

    def __init__(
        self,
        model: DenseModel,
        shares: BatchShares,
        threads: WorkThreads,
        dtype: DenseDtype = "fp32",
        seed: int = 0,
        build_sums: BuildSums | None = None,
    ) -> None:
        assert model.is_per_sample
        self._seed = seed
        self.dtype: DenseDtype = dtype
        self._model = model
        self._threads = threads
        self._shares = shares
        self._scale = 1 / shares.batch_size
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        sizes = [parameter.numel() for parameter in self._parameters]
        self._gradients = TileGradients(sum(sizes), threads, build_sums)
        self._bounds = np.cumsum([0, *sizes]).tolist()
        self._embedding_grads: list[torch.Tensor] = []

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        # Tiles follow from the batch and the shares alone, so any number of threads gives the same bits.
        tiles = BatchTiles(self._shares, batch.num_samples)
        bounds = tiles.bounds
        self._gradients.make_room(len(bounds))
        inputs = [emb_BFd.detach() for emb_BFd in embeddings]
        grads = self._room_for(inputs)
        losses = [0.0] * len(bounds)
        set_mode(self._model, is_training=True)

        def train_tile(tile: int, _: int) -> None:
            samples = slice(*bounds[tile])
            with drawing(self._seed, step, self._shares.first_sample + bounds[tile][0]):
                losses[tile] = self._train_tile(
                    batch.dense_BK[samples],
                    batch.label_B[samples],
                    [emb_BFd[samples] for emb_BFd in inputs],
                    [grad[samples] for grad in grads],
                    self._views(self._gradients.tiles_LN[tile]),
                )

        self._threads.run(train_tile, len(bounds))
        # A single tile is the sum already; several are added by a binary tree of fixed shape.
        summed = self._gradients.sums_N
        if self._gradients.is_first_tile(tiles.counts):
            summed = self._gradients.tiles_LN[0]
        else:
            self._gradients.add(tiles.counts)
        for parameter, gradient in zip(self._parameters, self._views(summed), strict=True):
            parameter.grad = gradient
        for emb_BFd, grad in zip(embeddings, grads, strict=True):
            emb_BFd.grad = grad
        loss = self._gradients.add_ranks(tiles.add_losses(losses))
        return torch.tensor(loss, dtype=torch.float64)

    def _train_tile(
        self,
        dense_TK: torch.Tensor,
        label_T: torch.Tensor,
        embeddings: Sequence[torch.Tensor],
        embedding_grads: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
    ) -> float:
        """Write the gradients of one tile; return its loss in nats."""
        # A helper thread may have been left in another mode by what it ran before.
        with torch.enable_grad():
            leaves = [emb_TFd.detach().requires_grad_() for emb_TFd in embeddings]
            logit_T = _logits(self._model, dense_TK, leaves, self.dtype)
            loss_sum = binary_cross_entropy_with_logits(logit_T, label_T, reduction="sum")
            # Not `backward`, which would add to the same tensors from several threads.
            found = torch.autograd.grad(
                loss_sum * self._scale, [*leaves, *self._parameters], allow_unused=True
            )
        for target, gradient in zip([*embedding_grads, *gradients], found, strict=True):
            if gradient is None:
                target.zero_()
            else:
                target.copy_(gradient)
        return loss_sum.item()

    @torch.no_grad()
    def predict(self, batch: Batch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        bounds = tile_bounds(batch.num_samples)
        logit_B = torch.empty(batch.num_samples)
        set_mode(self._model, is_training=False)

        def predict_tile(tile: int, _: int) -> None:
            samples = slice(*bounds[tile])
            inputs = [emb_BFd[samples] for emb_BFd in embeddings]
            # Grad mode belongs to a thread, so each sets its own.
            with torch.no_grad():
                logit_B[samples] = _logits(self._model, batch.dense_BK[samples], inputs, self.dtype)

        self._threads.run(predict_tile, len(bounds))
        return logit_B

    def _views(self, vector_N: torch.Tensor) -> list[torch.Tensor]:
        """Return the part of each parameter in a vector, in its shape."""
        return [
            vector_N[start:stop].view(parameter.shape)
            for parameter, start, stop in zip(
                self._parameters, self._bounds[:-1], self._bounds[1:], strict=True
            )
        ]

    def _room_for(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return memory for the gradients of these embeddings, used again by the next step."""
        num_samples = inputs[0].shape[0]
        if not self._embedding_grads or self._embedding_grads[0].shape[0] < num_samples:
            self._embedding_grads = [torch.empty_like(emb_BFd) for emb_BFd in inputs]
        return [grad[:num_samples] for grad in self._embedding_grads]


def add_tree(parts: list[torch.Tensor]) -> torch.Tensor | None:
    """Add tensors by the binary tree, adjacent pairs first; None where there is none."""
    while len(parts) > 1:
        sums = [left + right for left, right in zip(parts[::2], parts[1::2], strict=False)]
        parts = sums + parts[2 * len(sums) :]
    return parts[0] if parts else None


def set_mode(model: torch.nn.Module, *, is_training: bool) -> None:
    """Set whether dropout and batch normalization train or predict."""
    if model.training != is_training:  # a call visits every layer
        model.train(is_training)


def _logits(
    model: DenseModel, dense: torch.Tensor, embeddings: Sequence[torch.Tensor], dtype: DenseDtype
) -> torch.Tensor:
    """Return (B,) logits as float32, whatever the model computes in."""
    dense = at_cache_line(dense)
    embeddings = [at_cache_line(emb_BFd) for emb_BFd in embeddings]
    if dtype == "fp32":
        return model.logits(dense, embeddings).float()
    with torch.autocast(dense.device.type, torch.bfloat16):
        logits = model.logits(dense, embeddings)
    return logits.float()


@contextmanager
def _random_numbers_of(seed: int, step: int, device: torch.device) -> Iterator[None]:
    """Make torch's generators draw a step's numbers, and restore them afterwards.

    A step draws the same in every placement, and in a run that was interrupted before it.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0]))
        yield
