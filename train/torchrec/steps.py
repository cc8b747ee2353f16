"""The steps of a rank on TorchRec: hot-only ones by themselves, mixed ones through TorchRec's pipeline.

In a step of a run of mixed batches, ``TrainPipelineSparseDist`` already exchanges the ids of the next batch,
and copies the one after it to the device. All ranks know where such a run ends: before a hot-only batch,
and before an evaluation after a number of steps. There the pipeline is drained, so that nothing but gradients
is exchanged in hot-only steps. Results are to the bit those of the same steps by themselves. What comes
between two steps without notice, such as an evaluation by the clock, takes the next batches out of the
pipeline, and their steps put them in again.

Rows in FBGEMM's caches are fetched in their own step. ``PrefetchTrainPipelineSparseDist`` locks those of the
next batch in the cache, and has no way to give them back where that batch must wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..ranks.ranks import TorchRanks
from ..rows.step_plan import PlannedStep
from ..step import DenseUpdate, StepRates
from .batches import RankBatch
from .embeddings import HotColdEmbeddings, ReplicatedOptimizer
from .rank_rows import tables_in

_log = logging.getLogger(__name__)
EXCHANGES = "input_dist_tensors_requests"
"""Exchanges of ids under way, in a context of TorchRec's pipeline."""
STEPS_AGREED_ON = 2
"""A step exchanges ids of the next one, so all ranks must be able to read both."""


class StepOptimizers:
    """All optimizers of a rank, as TorchRec's pipeline calls them.

    Args:
        model: sharded.
        hot: of replicated rows.
        dense: of dense layers.
        update: prepares the steps of ``dense``.
    """

    rates: StepRates
    """Of the current step."""

    def __init__(
        self,
        model: Any,
        hot: ReplicatedOptimizer,
        dense: Sequence[torch.optim.Optimizer],
        update: DenseUpdate,
    ) -> None:
        self._model = model
        self._hot = hot
        self._dense = tuple(dense)
        self._update = update

    def zero_grad(self) -> None:
        """Prepare the backward pass, which steps the sharded rows."""
        for group in self._model.fused_optimizer.param_groups:
            group["lr"] = self.rates.rows
        # Takes the rate over.
        self._model.fused_optimizer.zero_grad()
        self._hot.zero_grad()
        for optimizer in self._dense:
            optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Step the dense layers and replicated rows, whose gradients are averaged over the ranks."""
        self._update.prepare(self.rates.dense)
        for optimizer in self._dense:
            optimizer.step()
        self._hot.step(self.rates.rows)


class _ColdLookups(nn.Module):
    """The lookups of a step in sharded tables: all that the pipeline must find, which traces it once."""

    def __init__(self, embeddings: HotColdEmbeddings) -> None:
        super().__init__()
        self.cold = embeddings.cold
        self._places = [
            (place, dim)
            for place, dim in enumerate(str(group.embedding_dim) for group in embeddings.rows.groups)
            if dim in self.cold
        ]

    def forward(self, batch: RankBatch) -> list[Any]:
        """Return what each collection finds."""
        return [self.cold[dim](batch.groups[place].keyed_jagged) for place, dim in self._places]


def build_pipeline(model: Any, optimizers: StepOptimizers, device: torch.device, losses: Any) -> Any:
    """Return TorchRec's pipeline of mixed steps; None where its version has not what `pause` reads."""
    from torchrec.distributed import train_pipeline

    pipeline = train_pipeline.TrainPipelineSparseDist(model, optimizers, device, custom_model_fwd=losses)
    of_context = getattr(getattr(train_pipeline, "TrainPipelineContext", None), "__dataclass_fields__", {})
    if all(hasattr(pipeline, name) for name in ("batches", "contexts")) and EXCHANGES in of_context:
        return pipeline
    _log.warning("this version of TorchRec cannot stop its pipeline: mixed steps run one after the other")
    return None


class TorchRecSteps:
    """Runs the steps of one rank.

    Args:
        model: `RankModel`, sharded.
        optimizers: of all its parts.
        batch_size: nominal samples of a batch of all ranks.
        is_last: whether something else comes after the step of a number, counted from 1.
    """

    prepare = moves = None

    def __init__(
        self,
        model: Any,
        optimizers: StepOptimizers,
        ranks: TorchRanks,
        device: torch.device,
        batch_size: int,
        is_last: Callable[[int], bool],
    ) -> None:
        self.is_synchronous = device.type == "cpu"
        self.peek: Callable[[int], PlannedStep | None] = lambda place: None
        """Returns a step after the current one, 0 for the next."""
        self._model = model
        self._optimizers = optimizers
        self._ranks = ranks
        self._device = device
        self._scale = ranks.num_ranks / batch_size
        self._is_last = is_last
        self._number = 0
        """Of the current step."""
        self._has_agreed = False
        """Whether all ranks know that each can read the next batch."""
        self._run: Iterator[RankBatch] = iter(())
        self._pipeline: Any = None
        # One rank has nothing to exchange ahead.
        if ranks.num_ranks > 1:
            lookups = _ColdLookups(tables_in(model)[1])
            self._pipeline = build_pipeline(lookups, optimizers, device, self._losses)

    def train(self, step: PlannedStep, number: int, rates: StepRates) -> torch.Tensor:
        """Run a step; return the loss of this rank's samples, summed."""
        batch: Any = step.batch
        self._number, self._optimizers.rates = number, rates
        with self._ranks.lost_ranks():
            if batch.is_hot_only or self._pipeline is None:
                self._optimizers.zero_grad()
                scaled, loss_sum = self._losses(batch.to(self._device, non_blocking=True))
                scaled.backward()  # type: ignore[no-untyped-call]
                self._optimizers.step()
            else:
                if not self._pipeline.batches:
                    self._run = self._mixed_from(batch)
                loss_sum = self._pipeline.progress(self._run)
        self._has_agreed = True
        return loss_sum

    def _mixed_from(self, batch: RankBatch) -> Iterator[RankBatch]:
        """Yield the batches of a run, each when the pipeline has room for it."""
        yield batch
        while self._has_agreed:
            # Those in the pipeline are the current one and the next ones.
            place = len(self._pipeline.batches)
            if self._is_last(self._number + place):
                return
            step = self.peek(place - 1)
            if step is None or step.batch.is_hot_only:
                return
            following: Any = step.batch
            yield following

    def _losses(self, batch: RankBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss whose gradients the ranks average, and that of this rank's samples, summed."""
        loss_sum = self._model(batch, self._number, self._ranks.rank, self._ranks.num_ranks)
        return loss_sum * self._scale, loss_sum.detach().double()

    def whole_losses(self, losses: torch.Tensor) -> torch.Tensor:
        """Return losses of all ranks, from those of each rank's samples."""
        whole = losses.clone()
        with self._ranks.lost_ranks():
            dist.all_reduce(whole)
        return whole

    def pause(self) -> None:
        """Take batches out of the pipeline, and its hooks off the tables; the next step puts both back."""
        if self._pipeline is None:
            return
        with self._ranks.lost_ranks():
            for context in self._pipeline.contexts:
                for exchange in getattr(context, EXCHANGES).values():
                    exchange.wait()
        self._pipeline.detach()
        self._pipeline.reset()

    def synchronize(self) -> None:
        """Return once all steps are done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
