"""The steps of a rank on TorchRec: hot-only ones by themselves, mixed ones through TorchRec's pipeline.

In a step of a run of mixed batches, ``TrainPipelineSparseDist`` already exchanges the ids of the next batch,
and copies the one after it to the device. All ranks know where such a run ends: before a hot-only batch,
and before an evaluation after a number of steps. There the pipeline is drained, so that nothing but gradients
is exchanged in hot-only steps. Results are to the bit those of the same steps by themselves. What comes
between two steps without notice, such as an evaluation by the clock, takes the next batches out of the
pipeline, and their steps put them in again.

Rows in FBGEMM's caches over host memory go through ``PrefetchTrainPipelineSparseDist``, which is a batch
further ahead: between the forward and the backward pass of a step it fetches the rows of the next one, and
locks them in the cache. Where that batch has to wait, its rows are unlocked and may be evicted. This was
never run on a GPU.
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
from .batches import GroupLookups, RankBatch
from .embeddings import HotColdEmbeddings, ReplicatedOptimizer
from .rank_rows import tables_in

_log = logging.getLogger(__name__)
EXCHANGES = "input_dist_tensors_requests"
"""Exchanges of ids under way, in a context of TorchRec's pipeline."""
_OF_PIPELINE = ("attach", "detach", "reset", "wait_sparse_data_dist")
_PREFETCHED = ("timesteps_prefetched", "lxu_cache_locations_list")
"""What FBGEMM's tables know of prefetched rows, besides the counter of their locks."""


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
    groups: Sequence[GroupLookups] = ()
    """Its lookups."""

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
        self._hot.step(self.rates.rows, self.groups)


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


def pipeline_class(*, is_prefetched: bool) -> Any:
    """Return TorchRec's pipeline of mixed steps; None where it has not what `TorchRecSteps.pause` reads."""
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
    from torchrec.distributed import train_pipeline

    kind = "PrefetchTrainPipelineSparseDist" if is_prefetched else "TrainPipelineSparseDist"
    found = getattr(train_pipeline, kind, None)
    of_context = getattr(getattr(train_pipeline, "TrainPipelineContext", None), "__dataclass_fields__", {})
    has_all = EXCHANGES in of_context and all(hasattr(found, name) for name in _OF_PIPELINE)
    if is_prefetched:
        of_tables = SplitTableBatchedEmbeddingBagsCodegen.__annotations__
        has_all = has_all and all(name in of_tables for name in _PREFETCHED)
    return found if has_all else None


def build_pipeline(
    model: Any, optimizers: StepOptimizers, device: torch.device, losses: Any, *, is_prefetched: bool = False
) -> Any:
    """Return TorchRec's pipeline of mixed steps; None where its version cannot be stopped."""
    made_by = pipeline_class(is_prefetched=is_prefetched)
    if made_by is not None:
        pipeline = made_by(model, optimizers, device, custom_model_fwd=losses, pipeline_postproc=False)
        if all(hasattr(pipeline, name) for name in ("batches", "contexts")):
            return pipeline
    _log.warning("this version of TorchRec cannot stop its pipeline: mixed steps run one after the other")
    return None


class Caches:
    """FBGEMM's caches of the sharded rows of a rank.

    Args:
        embeddings: of a sharded model.
    """

    def __init__(self, embeddings: HotColdEmbeddings, device: torch.device) -> None:
        self._device = device
        lookups = [each for cold in embeddings.cold.values() for each in getattr(cold, "_lookups", ())]
        modules = [module for lookup in lookups for module in lookup.modules()]
        self.prefetched = [each for each in modules if getattr(each, "prefetch_pipeline", False)]
        """Tables into whose cache a pipeline may prefetch."""
        if not self.prefetched and any(_has_cache(each) for each in modules):
            _log.warning(
                "this version of TorchRec cannot take rows back: each step fetches its own into the cache"
            )
        # TorchRec reports each table without a cache in each step, by a function that adds a handler.
        if self.prefetched:
            logging.root.addFilter(lambda record: "prefetch_pipeline must be set" not in record.getMessage())

    def release(self) -> None:
        """Forget what was prefetched, and unlock all rows; what they are worth stays in the cache."""
        # Prefetches run in a stream of their own. A pass without a backward one, too, leaves rows locked.
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        for each in self.prefetched:
            each.timesteps_prefetched.clear()
            each.lxu_cache_locations_list.clear()
            each.lxu_cache_locking_counter.zero_()


def _has_cache(module: nn.Module) -> bool:
    cache = getattr(module, "lxu_cache_weights", None)
    return isinstance(cache, torch.Tensor) and cache.numel() > 0


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
        embeddings = tables_in(model)[1]
        self._caches = Caches(embeddings, device)
        self._is_paused = False
        """Whether the tables were used outside steps since the last one through the pipeline."""
        is_prefetched = bool(self._caches.prefetched)
        self.num_agreed = 3 if is_prefetched else min(ranks.num_ranks, 2)
        """Next steps that all ranks must be able to read: a step exchanges ids of the last of them."""
        # One rank has nothing to exchange ahead.
        if ranks.num_ranks > 1 or is_prefetched:
            lookups = _ColdLookups(embeddings)
            self._pipeline = build_pipeline(
                lookups, optimizers, device, self._losses, is_prefetched=is_prefetched
            )

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
                    if self._is_paused:
                        self._caches.release()
                        self._is_paused = False
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
        self._optimizers.groups = batch.groups
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
                # Of the last batch the sizes alone may be known.
                self._pipeline.wait_sparse_data_dist(context)
                for exchange in getattr(context, EXCHANGES).values():
                    exchange.wait()
        self._pipeline.detach()
        self._pipeline.reset()
        # Without batches it only notes that the tables want its hooks again.
        self._pipeline.attach()
        self._caches.release()
        self._is_paused = True

    def synchronize(self) -> None:
        """Return once all steps are done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
