"""The dense part of a training step and of predictions, for every model.

DLRM and DCN V2 run on tiles, and so does any other model whose samples do not depend on each other, by
torch's autograd. Torch promises the same bits for the same work in the same number of threads. So each thread
runs torch's operators single-threaded: results depend on the batch and the weights alone. A model whose
samples depend on each other (batch normalization) or that draws torch's random numbers computes a batch as a
whole, in one thread.

Mean pooling works around the step of any model: rows are pooled by their sum wherever they live, so that
placements need not know of it, and the sum of a bag and the gradient that comes back are both divided by its
number of lookups. A model of histories also gets how many elements each sample has; placements only see that
each element is a separate bag.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from ...pipeline.errors import ConfigError, HotsetError
from ...pipeline.folders.totals import by_feature, multi_hot
from ...stats.batch_rows import MOST_TILE_SAMPLES
from ..data.batch import Batch, EmbeddingTable, MicroBatches, at_cache_line
from ..threads import WorkThreads, one_torch_thread
from .dlrm import DenseModel, Dlrm, drawing
from .gradients import (
    BuildSums,
    DenseDtype,
    FlatParameters,
    ParameterViews,
    TileGradients,
    add_losses,
    add_tree,
    cpu_features,
    tile_bounds,
    tiles_of_micro_batches,
)
from .kernels import StepWeights, choose_library, keep_freed_memory
from .shapes import tables_by_dim
from .tiles import DenseTile

if TYPE_CHECKING:
    from .dcn import Dcn, DcnTile
    from .kernels import Objective, Targets


class DenseStep(Protocol):
    """Everything between the embeddings of a batch and the gradients."""

    dtype: DenseDtype
    """Type of the products of the hidden layers."""
    objective: Objective | None
    """Loss of the run, which takes more of a batch than its labels; None: the log loss of these."""

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        """Run a batch forward and backward; return its summed loss in nats.

        The gradients of the loss over the nominal batch size are left in the parameters of the model and in
        the embeddings, each in the ``grad`` of its tensor.

        Args:
            embeddings: (B, F, d) of each table group.
            step: number of the step in the run; decides what a model with dropout draws.
        """

    def predict(self, batch: Batch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (B,) logits, or (B, L) for several labels."""


def build_dense_step(
    model: DenseModel,
    micro_batches: MicroBatches,
    threads: WorkThreads,
    dtype: DenseDtype = "fp32",
    seed: int = 0,
    build_sums: BuildSums | None = None,
    objective: Objective | None = None,
) -> DenseStep:
    """Build the step that suits the model and its device.

    Args:
        micro_batches: of a batch.
        threads: those of the dense layers on the host.
        dtype: type of the products there.
        seed: that of the run, for models that draw random numbers.
        build_sums: of the gradients of several ranks, which are on the host.
        objective: loss of the run; None: the log loss of one label that all samples have.
    """
    if next(model.parameters()).device.type == "cpu" and model.is_per_sample:
        if model.is_plain:
            plain = cast("Dlrm | Dcn", model)
            return TiledStep(plain, micro_batches, threads, dtype, build_sums, objective=objective)
        return GraphTiles(model, micro_batches, threads, dtype, build_sums, seed, objective)
    assert build_sums is None, "several ranks compute samples by themselves, on the host"
    return GraphStep(model, micro_batches, seed, dtype, objective)


class _TileStep(ABC):
    """A step on tiles of the batch that any thread takes, on the host.

    The bits of all results depend on the batch and the weights alone: never on the number of threads.

    Args:
        model: dense layers that compute each sample independently.
        micro_batches: of a batch; this rank computes those assigned to it.
        threads: run the tiles.
        dtype: type of the products of the layers, whose weights are float32 in any case.
        build_sums: of the gradients of several ranks.
        seed: that of the run; with the number of the step it decides what dropout drops.
        objective: loss of the run; None: the log loss of one label that all samples have.
    """

    is_moved = False
    """Whether the parameters become parts of one vector."""

    def __init__(
        self,
        model: DenseModel,
        micro_batches: MicroBatches,
        threads: WorkThreads,
        dtype: DenseDtype = "fp32",
        build_sums: BuildSums | None = None,
        seed: int = 0,
        objective: Objective | None = None,
    ) -> None:
        assert model.is_per_sample
        keep_freed_memory()
        self.dtype: DenseDtype = dtype
        self.objective = objective
        self._model = model
        self._seed = seed
        self._parameters = parameters = FlatParameters(model, is_moved=self.is_moved)
        self._micro_batches = micro_batches
        self._threads = threads
        self._scale = 1 / micro_batches.batch_size
        # A workspace for each worker, and gradients for each tile: tiles run in any order and are added in
        # one.
        self._tiles: dict[int, DenseTile | DcnTile | _GraphTile] = {}
        self._gradients = TileGradients(parameters.size, threads, build_sums)
        self._sum_views = parameters.views(self._gradients.sums_N)
        self._tile_views: list[ParameterViews] = []
        self._embedding_grads: list[torch.Tensor] = []

    @abstractmethod
    def _build_tile(self) -> DenseTile | DcnTile | _GraphTile:
        """Allocate the memory of a tile."""

    @abstractmethod
    def _begin(self, step: int | None) -> Callable[[int], AbstractContextManager[None]] | None:
        """Prepare the model for a batch, of a training step or of an evaluation.

        Returns:
            What sets the layers' random numbers from a given sample of the batch on; None where none draws.
        """

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        draws = self._begin(step)
        # Tiles depend on the samples and micro-batches alone, so no bit depends on the number of threads.
        bounds, counts = tiles_of_micro_batches(self._micro_batches, batch.num_samples)
        self._make_room(len(bounds), embeddings)
        inputs = [emb_BFd.detach() for emb_BFd in embeddings]
        grads = [grad[: batch.num_samples] for grad in self._embedding_grads]
        # A list of floats, because each tile writes its own element from its own thread.
        losses = [0.0] * len(bounds)
        targets = batch.label_B if self.objective is None else self.objective.targets(batch)

        def train_tile(number: int, worker: int) -> None:
            samples = slice(*bounds[number])
            tile = self.tile_of(worker)
            with nullcontext() if draws is None else draws(samples.start):
                tile.forward(batch.dense_BK[samples], [emb_BFd[samples] for emb_BFd in inputs])
            losses[number] = tile.backward(
                targets[samples],
                self._scale,
                [grad[samples] for grad in grads],
                self._tile_views[number],
            )

        self._threads.run(train_tile, len(bounds))
        # A single tile is the sum already; several are added by a binary tree of fixed shape.
        if self._gradients.is_first_tile(counts):
            self._parameters.set_gradients(self._tile_views[0])
        else:
            self._gradients.add(counts)
            self._parameters.set_gradients(self._sum_views)
        for emb_BFd, grad in zip(embeddings, grads, strict=True):
            emb_BFd.grad = grad
        loss = self._gradients.add_ranks(add_losses(losses, counts))
        return torch.tensor(loss, dtype=torch.float64, device="cpu")

    def predict(self, batch: Batch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        self._begin(None)
        # The same tiles as in training, so that a batch has the same logits in both.
        bounds = tile_bounds(batch.num_samples)
        num_logits = self._model.num_logits
        shape = (batch.num_samples,) if num_logits == 1 else (batch.num_samples, num_logits)
        logit_B = torch.empty(shape, dtype=torch.float32, device="cpu")

        def predict_tile(number: int, worker: int) -> None:
            samples = slice(*bounds[number])
            logit_B[samples] = self.tile_of(worker).forward(
                batch.dense_BK[samples], [emb_BFd[samples] for emb_BFd in embeddings]
            )

        self._threads.run(predict_tile, len(bounds))
        return logit_B

    def tile_of(self, worker: int) -> DenseTile | DcnTile | _GraphTile:
        """Return the tile memory of a worker, allocated on first use."""
        if worker not in self._tiles:
            self._tiles[worker] = self._build_tile()
        return self._tiles[worker]

    def _make_room(self, num_tiles: int, embeddings: Sequence[torch.Tensor]) -> None:
        """Keep memory for the gradients of so many tiles and of these embeddings."""
        if self._gradients.make_room(num_tiles):
            # Zero once: what lies between parameters is added, too.
            self._tile_views = [self._parameters.views(gradient) for gradient in self._gradients.tiles_LN]
        # A model without tables has none.
        kept = zip(self._embedding_grads, embeddings, strict=False)
        if not self._embedding_grads or any(grad.shape[0] < emb.shape[0] for grad, emb in kept):
            self._embedding_grads = [torch.empty_like(emb_BFd) for emb_BFd in embeddings]


class TiledStep(_TileStep):
    """The step of a DLRM or DCN V2 by its own passes; for bf16 the weights are rounded once a step.

    Args:
        features: names of the CPU's vendor and instruction sets, which decide who multiplies; None: those
            of this machine.
    """

    is_moved = True
    _model: Dlrm | Dcn

    def __init__(
        self,
        model: Dlrm | Dcn,
        micro_batches: MicroBatches,
        threads: WorkThreads,
        dtype: DenseDtype = "fp32",
        build_sums: BuildSums | None = None,
        *,
        features: frozenset[str] | None = None,
        objective: Objective | None = None,
    ) -> None:
        # All parameters are in one vector, so that one call adds, rounds or steps them all.
        super().__init__(model, micro_batches, threads, dtype, build_sums, objective=objective)
        # Products in bf16 read a rounded copy of the vector; the parameters themselves stay float32.
        is_rounded = dtype == "bf16"
        self._rounded_vector = torch.zeros(
            self._parameters.size if is_rounded else 0, dtype=torch.bfloat16, device="cpu"
        )
        self._weights = StepWeights(
            self._parameters.views(self._parameters.vector),
            self._parameters.views(self._rounded_vector) if is_rounded else None,
            choose_library(cpu_features() if features is None else features, dtype),
            MOST_TILE_SAMPLES,
        )
        self.tile_of(0)

    def _build_tile(self) -> DenseTile | DcnTile:
        if isinstance(self._model, Dlrm):
            return DenseTile(self._model.shape, self._weights)
        from .dcn import DcnTile

        return DcnTile(self._model.shape, self._weights)

    def _begin(self, step: int | None) -> None:
        if self._rounded_vector.numel():
            with one_torch_thread():
                self._rounded_vector.copy_(self._parameters.vector)


class GraphTiles(_TileStep):
    """The step of any model by an autograd graph for each tile; bf16 is torch's autocast."""

    def _build_tile(self) -> _GraphTile:
        return _GraphTile(self._model, self.dtype)

    def _begin(self, step: int | None) -> Callable[[int], AbstractContextManager[None]]:
        set_mode(self._model, is_training=step is not None)
        return lambda first_sample: drawing(
            self._seed, step or 0, self._micro_batches.first_sample + first_sample
        )


class _GraphTile:
    """The autograd graph of one tile, used as a `DenseTile` is."""

    def __init__(self, model: DenseModel, dtype: DenseDtype) -> None:
        self._model = model
        self._dtype: DenseDtype = dtype
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def forward(self, dense_TK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        is_training = self._model.training
        # A helper thread may have been left in another mode by what it ran before.
        with torch.set_grad_enabled(is_training):
            self._leaves = [emb_TFd.detach().requires_grad_(is_training) for emb_TFd in embeddings]
            self._logit_T = logits_of(self._model, dense_TK, self._leaves, self._dtype)
        return self._logit_T

    def backward(
        self,
        target: torch.Tensor | Targets,
        scale: float,
        embedding_grads: Sequence[torch.Tensor],
        gradients: ParameterViews,
    ) -> float:
        with torch.enable_grad():
            loss_sum = loss_sum_of(self._logit_T, target)
            # Not `backward`, which would add to the same tensors from several threads.
            found = torch.autograd.grad(
                loss_sum * scale, [*self._leaves, *self._parameters], allow_unused=True
            )
        for target, gradient in zip([*embedding_grads, *gradients.values()], found, strict=True):
            if gradient is None:
                target.zero_()
            else:
                target.copy_(gradient)
        return loss_sum.item()


class GraphStep:
    """The step on whole micro-batches, on any device; on the host in one thread.

    Args:
        model: the dense layers.
        micro_batches: of a batch; those of this rank are computed.
        seed: that of the run; with the number of the step it decides what the model draws.
        dtype: bf16 passes the model under torch's autocast.
        objective: loss of the run; None: the log loss of one label that all samples have.

    Raises:
        ConfigError: samples of the model depend on each other, and a batch has several micro-batches.
    """

    def __init__(
        self,
        model: DenseModel,
        micro_batches: MicroBatches,
        seed: int = 0,
        dtype: DenseDtype = "fp32",
        objective: Objective | None = None,
    ) -> None:
        if micro_batches.num_micro_batches > 1 and not model.is_per_sample:
            raise ConfigError(
                "a model with batch normalization or dropout computes whole batches, "
                "and --micro-batches cuts them",
                hint="use --micro-batches 1, in one process; or say per_sample = True in a class of your own "
                "whose samples do not depend on each other",
            )
        self.dtype: DenseDtype = dtype
        self._model = model
        self._micro_batches = micro_batches
        self._seed = seed
        self.objective = objective

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        device = embeddings[0].device
        bounds = self._micro_batches.bounds(batch.num_samples)
        if len(bounds) == 1:
            return self._pass(batch, embeddings, step, self._micro_batches.first_sample)
        # Each micro-batch leaves its gradients in the same places, where its sums are taken away.
        losses, gradients = [], []
        for emb_BFd in embeddings:
            emb_BFd.grad = torch.empty_like(emb_BFd)
        for first, stop in bounds:
            parts = [emb_BFd.detach()[first:stop] for emb_BFd in embeddings]
            losses.append(
                self._pass(batch.cut(first, stop), parts, step, self._micro_batches.first_sample + first)
            )
            for emb_BFd, part in zip(embeddings, parts, strict=True):
                assert emb_BFd.grad is not None and part.grad is not None
                emb_BFd.grad[first:stop] = part.grad
            gradients.append([parameter.grad for parameter in self._model.parameters()])
        for parameter, *found in zip(self._model.parameters(), *gradients, strict=True):
            # A parameter that the model does not use has no gradient in any micro-batch.
            known = [each for each in found if each is not None]
            parameter.grad = add_tree(known) if known else None
        return add_tree(losses) if losses else torch.zeros((), device=device, dtype=torch.float32)

    def _pass(
        self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int, first_sample: int
    ) -> torch.Tensor:
        """Run samples from ``first_sample`` on; return their loss, leave their gradients."""
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
                block.enter_context(random_numbers_of(self._seed, step, device))
            set_mode(self._model, is_training=True)
            block.enter_context(drawing(self._seed, step, first_sample))
            logit_B = logits_of(self._model, batch.dense_BK.to(device), embeddings, self.dtype)
            target = batch.label_B if self.objective is None else self.objective.targets(batch)
            loss_sum = loss_sum_of(logit_B, target.to(device))
            # A tensor, because torch on a GPU multiplies by the reciprocal of a number.
            (loss_sum / torch.full_like(loss_sum, self._micro_batches.batch_size)).backward()  # type: ignore[no-untyped-call]
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
            return logits_of(self._model, batch.dense_BK.to(embeddings[0].device), embeddings, self.dtype)


def set_mode(model: torch.nn.Module, *, is_training: bool) -> None:
    """Set whether dropout and batch normalization train or predict."""
    if model.training != is_training:  # a call visits every layer
        model.train(is_training)


def logits_of(
    model: DenseModel, dense: torch.Tensor, embeddings: Sequence[torch.Tensor], dtype: DenseDtype
) -> torch.Tensor:
    """Return (B,) or (B, L) logits as float32, whatever the model computes in."""
    dense = at_cache_line(dense)
    embeddings = [at_cache_line(emb_BFd) for emb_BFd in embeddings]
    if dtype == "fp32":
        return model.logits(dense, embeddings).float()
    with torch.autocast(dense.device.type, torch.bfloat16):
        logits = model.logits(dense, embeddings)
    return logits.float()


def loss_sum_of(logits: torch.Tensor, target: torch.Tensor | Targets) -> torch.Tensor:
    """Return the summed loss in nats, with a graph; a tensor has the labels, one of each sample."""
    if isinstance(target, torch.Tensor):
        return binary_cross_entropy_with_logits(logits, target, reduction="sum")
    return target.loss_sum(logits)


@contextmanager
def random_numbers_of(seed: int, step: int, device: torch.device, rank: int = 0) -> Iterator[None]:
    """Make torch's generators draw a step's numbers, and restore them afterwards.

    A step draws the same in every placement, and in a run that was interrupted before it. Ranks draw apart.
    """
    devices = [device] if device.type == "cuda" else []
    entropy = [seed, step, rank] if rank else [seed, step]
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]))
        yield


class MeanPooling:
    """A step whose model sees means.

    Args:
        step: that of the model.
        tables: all tables of the shards.
    """

    def __init__(self, step: DenseStep, tables: Sequence[EmbeddingTable]) -> None:
        self.dtype: DenseDtype = step.dtype
        self.objective = step.objective
        self._step = step
        features = by_feature(tables)
        lists = [number for number, feature in enumerate(features) if feature.is_multi_hot]
        widths = tables_by_dim([feature.embedding_dim for feature in features])
        # Where each feature with bags is: its width, its position there, and that of its bags in a batch.
        self._places: list[tuple[int, int, int]] = []
        for width, numbers in enumerate(widths.values()):
            position = 0
            for number in numbers:
                if number in lists and features[number].history_length is None:
                    self._places.append((width, position, lists.index(number)))
                position += features[number].num_embeddings_of_sample

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
        """Divide bags' numbers by their lookups, in place; empty bags are zero."""
        for width, position, feature in self._places:
            lengths_B = np.maximum(np.diff(batch.bags[feature].offsets_B1), 1).astype(np.float32)
            tensor = tensors[width]
            tensor[:, position] /= torch.from_numpy(lengths_B).to(tensor.device).unsqueeze(1)
        return tensors


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


class HistoryStep:
    """A step whose model sees how many elements the histories of each sample have, as dense features.

    Args:
        step: that of the model.
        tables: all tables of the shards.
        are_equal: whether those of a sample have one length, which is a single feature then.
    """

    def __init__(self, step: DenseStep, tables: Sequence[EmbeddingTable], *, are_equal: bool) -> None:
        self.dtype: DenseDtype = step.dtype
        self.objective = step.objective
        self._step = step
        # Lists of a batch that are histories, and their names.
        lists = [(number, feature) for number, feature in enumerate(multi_hot(tables))]
        self._histories = [(number, each.name) for number, each in lists if each.history_length is not None]
        self._are_equal = are_equal

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        return self._step.train(self._with_lengths(batch), embeddings, step)

    def predict(self, batch: Batch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        return self._step.predict(self._with_lengths(batch), embeddings)

    def _with_lengths(self, batch: Batch) -> Batch:
        lengths_BH = np.stack([np.diff(batch.bags[bag].offsets_B1) for bag, _ in self._histories], axis=1)
        if self._are_equal:
            self._refuse_differing(lengths_BH)
            lengths_BH = lengths_BH[:, :1]
        lengths = torch.from_numpy(lengths_BH).to(batch.dense_BK)
        return replace(batch, dense_BK=torch.cat([batch.dense_BK, lengths], dim=1))

    def _refuse_differing(self, lengths_BH: NDArray[np.int32]) -> None:
        """Raise HotsetError where the histories of a sample have different lengths."""
        differing = np.argwhere(lengths_BH != lengths_BH[:, :1])
        if differing.size:
            sample, number = differing[0]
            names = [name for _, name in self._histories]
            found = lengths_BH[sample]
            raise HotsetError(
                f"a sample has {found[0]} elements in {names[0]} and {found[number]} in {names[number]}: "
                "the histories of a sample are of one length, element by element",
                hint="mend the lists of the log, empty elements for missing values included",
            )
