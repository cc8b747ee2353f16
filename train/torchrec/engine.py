"""The engine of ``--engine torchrec``: TorchRec's sharded tables and data-parallel layers behind a trainer.

The loop, the order of batches, evaluations, logs and the run folder are those of every run; a step is run by
TorchRec. All ranks take their part of the same batch. In a hot-only one nobody calls the sharded tables, so
that nothing is exchanged but the gradients of dense layers and replicated rows, which torch's
DistributedDataParallel averages. In a mixed one each rank sends its distinct cold ids, and receives their
vectors.

A rank's loss is the sum over its samples times ``world_size / batch_size``: averaged over the ranks, the
gradients are those of the loss of all samples over the nominal batch size, however unequal the parts are.
Results do not depend on the ranks but in their last digits: additions are in other orders.

Hot-only steps run by themselves, mixed ones through TorchRec's pipeline. In a step of a run of mixed batches,
``TrainPipelineSparseDist`` already exchanges the ids of the next batch, and copies the one after it to the
device. All ranks know where such a run ends: before a hot-only batch, and before an evaluation after a number
of steps. There the pipeline is drained, so that nothing but gradients is exchanged in hot-only steps. Results
are to the bit those of the same steps by themselves. What comes between two steps without notice, such as an
evaluation by the clock, takes the next batches out of the pipeline, and their steps put them in again.

Rows in FBGEMM's caches over host memory go through ``PrefetchTrainPipelineSparseDist``, which is a batch
further ahead: between the forward and the backward pass of a step it fetches the rows of the next one, and
locks them in the cache. Where that batch has to wait, its rows are unlocked and may be evicted. This was
never run on a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...pipeline.errors import ConfigError
from ...stats.batch_rows import part_of_rank
from ..build import answers_of_run, build_dense_optimizers, build_objective, build_order, build_rates
from ..build_embeddings import RunStart, num_threads, open_device
from ..build_model import LossSource, ModelSource, UserModel, build_model, warn_of_probabilities
from ..config import TrainConfig
from ..config_parts import EXACT_CODEC
from ..data.batch import BatchOrder, MicroBatches
from ..data.shards import ShardSet
from ..evaluate import Predictor
from ..loop import Trainer
from ..metrics import Answers, Meter
from ..model.dense_step import GraphStep, logits_of, loss_sum_of, random_numbers_of, set_mode
from ..model.dlrm import DenseModel, drawing
from ..model.shapes import ModelInputs, choose_model
from ..placements.placements import StepSource
from ..ranks.ranks import Ranks, TorchRanks, check_equal_settings
from ..rows.backends import RowOptimizer
from ..rows.step_plan import PlannedStep
from ..step import DenseUpdate, StepRates, Stopping
from ..threads import WorkThreads
from .batches import GroupLookups, RankBatch, ReplicatedRows, rank_batch
from .embeddings import HotColdEmbeddings, ReplicatedOptimizer
from .rank_rows import RankRows, tables_in
from .sharding import choose_num_replicated, codecs_of, count_uses, shard

if TYPE_CHECKING:
    from ...stats.replication import Network, RowUses
    from ..model.kernels import Objective

_log = logging.getLogger(__name__)
EXCHANGES = "input_dist_tensors_requests"
"""Exchanges of ids under way, in a context of TorchRec's pipeline."""
_OF_PIPELINE = ("attach", "detach", "reset", "wait_sparse_data_dist")
_PREFETCHED = ("timesteps_prefetched", "lxu_cache_locations_list")
"""What FBGEMM's tables know of prefetched rows, besides the counter of their locks."""
_NO_EQUAL_BITS = (
    "--engine torchrec does not promise equal bits: the last digits of weights depend on the number of ranks "
    "and of replicated rows"
)


class RankModel(nn.Module):
    """Embeddings, dense layers and loss of a rank: what TorchRec shards and makes data-parallel."""

    def __init__(
        self,
        embeddings: HotColdEmbeddings,
        dense: DenseModel,
        config: TrainConfig,
        objective: Objective | None,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.dense = dense
        self._config = config
        self._objective = objective

    def forward(self, batch: RankBatch, step: int, rank: int, world_size: int) -> torch.Tensor:
        """Return the loss of this rank's samples, summed, in nats.

        Args:
            step: of the run; with the samples' places in the batch it decides what dropout drops.
        """
        dtype = self._config.dense_dtype
        assert dtype != "auto", "resolve chooses it"
        first_sample, _ = part_of_rank(batch.global_samples, rank, world_size)
        dense_BK, embeddings = batch.dense_BK, self.embeddings(batch)
        # A short batch may leave a rank without samples. All ranks wait for its gradients, which are zeros,
        # and a user's module need not take an empty batch.
        if not batch.num_samples:
            dense_BK, *embeddings = map(_with_sample, (dense_BK, *embeddings))
        # An evaluation may have come before this step.
        set_mode(self.dense, is_training=True)
        seed = self._config.seed
        with ExitStack() as block:
            if not self.dense.is_per_sample:
                block.enter_context(random_numbers_of(seed, step, dense_BK.device, rank))
            block.enter_context(drawing(seed, step, first_sample))
            logits = logits_of(self.dense, dense_BK, embeddings, dtype)[: batch.num_samples]
        target = batch.label_B if self._objective is None else self._objective.targets(batch)  # type: ignore[arg-type]
        return loss_sum_of(logits, target.to(logits.device))


def _with_sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with one more sample, of ones: a module that divides by a norm finds none of zero."""
    return torch.cat([tensor, tensor.new_ones(1, *tensor.shape[1:])])


def build_torchrec_trainer(
    shards: ShardSet,
    config: TrainConfig,
    order: BatchOrder | None,
    ranks: Ranks,
    model_source: ModelSource | None = None,
    loss_source: LossSource | None = None,
    *,
    start: RunStart | None = None,
    exchange: str = EXACT_CODEC,
    network: Network | None = None,
) -> Trainer:
    """Build a trainer whose steps TorchRec runs.

    Args:
        shards: with the options of the run.
        config: resolved.
        order: order of batches to use instead of the shards' own.
        start: rows to start with, and the steps that are done.
        exchange: codec of the vectors and gradients of sharded rows.
        network: speeds between the devices, by which replicated rows are chosen; None: by bytes.

    Raises:
        ConfigError: a model that does not fit the shards, or a codec that TorchRec has not.
    """
    assert isinstance(ranks, TorchRanks), "one process has a group, too"
    if ranks.rank == 0:
        _log.warning(_NO_EQUAL_BITS)
    device = open_device(config.device)
    answers = answers_of_run(shards, config, loss_source)
    objective = build_objective(shards, config, answers, loss_source)
    chosen = config.optimizers(shards.embedding_optimizer)
    optimizer = RowOptimizer(chosen.embedding_optimizer, chosen.embedding_lr)
    dense = _build_layers(shards, config, answers, model_source, ranks.num_ranks).to(device)
    model, rows, hot = _shard_layers(shards, config, dense, objective, optimizer, ranks, exchange, network)
    embeddings = RankRows(model, rows, hot, optimizer, ranks, device)
    embeddings.initialize_rows(config.seed)
    if start is not None:
        embeddings.restore(start.rows)

    decay = config.recipe.dense_decay
    dense_optimizers = build_dense_optimizers(dense, chosen, 1, decay, is_tiled=False)
    update = DenseUpdate(dense.parameters(), dense_optimizers, config.recipe.clip_gradient)
    meter = Meter(device)
    predictor = _build_predictor(shards, config, dense, embeddings, meter, answers, objective, ranks)
    stopping = Stopping(config.recipe)
    optimizers = StepOptimizers(model, hot, dense_optimizers, update)
    steps = TorchRecSteps(model, optimizers, ranks, device, shards.batch_size, partial(_is_last, config))
    embeddings.before_reading = steps.pause
    trainer = Trainer(
        config,
        shards,
        dense,
        dense_optimizers,
        embeddings,
        # FAE's rule for rows, but not its order of batches.
        build_order(shards, replace(config, placement="all-fast"), order, predictor, start),
        _build_step_source(shards, rows, embeddings, ranks, device, has_used=optimizer.name == "adam"),
        steps,
        build_rates(shards, config, stopping),
        stopping,
        predictor,
        meter,
        WorkThreads(num_threads(config.threads)),
        ranks=ranks,
        resumables={"stopping": stopping},
        num_agreed=steps.num_agreed,
        whole_losses=steps.whole_losses,
    )
    steps.peek = lambda place: None if trainer.ahead is None else trainer.ahead.peek(place)
    return trainer


def _shard_layers(
    shards: ShardSet,
    config: TrainConfig,
    dense: DenseModel,
    objective: Objective | None,
    optimizer: RowOptimizer,
    ranks: TorchRanks,
    exchange: str,
    network: Network | None,
) -> tuple[Any, ReplicatedRows, ReplicatedOptimizer]:
    """Return the model of TorchRec, the division of its rows, and the optimizer of the replicated ones."""
    device = open_device(config.device)
    codecs = codecs_of(exchange, device)
    (uses,) = count_uses(shards, [ranks.num_ranks])
    rows = _divide_rows(shards, config, uses, ranks, network)
    model = shard(
        RankModel(HotColdEmbeddings(rows, device), dense, config, objective),
        shards,
        rows,
        optimizer,
        device,
        uses,
        codecs=codecs,
        cache_bytes=config.staging_bytes,
        is_prefetched=pipeline_class(is_prefetched=True) is not None,
        # A user's module may leave layers out.
        has_unused=isinstance(dense, UserModel),
    )
    return model, rows, ReplicatedOptimizer(model.module.embeddings.hot, optimizer)


def _is_last(config: TrainConfig, number: int) -> bool:
    """Return whether an evaluation or the end comes after the step of this number, as far as is known."""
    every = config.evaluate_every
    return number == config.recipe.max_steps or (isinstance(every, int) and number % every == 0)


def _build_layers(
    shards: ShardSet, config: TrainConfig, answers: Answers, model_source: ModelSource | None, num_ranks: int
) -> DenseModel:
    """Build the layers with the values that hotset's own engine gives them."""
    inputs = replace(ModelInputs.of(shards), labels=answers.labels)
    model_config = choose_model(config, shards.embedding_dim)
    dense = build_model(model_config, inputs, config.seed, model_source, shards.least_batch_samples)
    _check_layers(dense, num_ranks)
    if config.loss is None:
        warn_of_probabilities(dense)
    return dense


def _divide_rows(
    shards: ShardSet, config: TrainConfig, uses: RowUses, ranks: Ranks, network: Network | None
) -> ReplicatedRows:
    """Choose the rows that every rank holds, the same ones at each."""
    num_replicated = choose_num_replicated(shards, config, uses, network)
    # From sums, which may differ in their last digits between machines.
    check_equal_settings(ranks, {"rows to replicate": num_replicated})
    if ranks.rank == 0:
        by = "those that exchange the fewest bytes" if network is None else "those of the quickest exchange"
        by = "all hot ones" if config.placement == "fae" else by
        num_rows = sum(table.num_rows for table in shards.tables)
        _log.info("%s of %s rows are replicated: %s", f"{sum(num_replicated):,}", f"{num_rows:,}", by)
    pooling = choose_model(config, shards.embedding_dim).pooling
    return ReplicatedRows(shards.tables, num_replicated, pooling)


def _check_layers(dense: DenseModel, num_ranks: int) -> None:
    """Raise ConfigError for layers that TorchRec's ranks cannot train."""
    if dense.histories:
        raise ConfigError("--engine torchrec has no histories, and the model takes lists element by element")
    if num_ranks > 1 and any(isinstance(each, _BatchNorm) for each in dense.modules()):
        raise ConfigError(
            "--engine torchrec has no batch normalization on several ranks: each would normalize its own "
            "part of a batch"
        )


def _build_predictor(
    shards: ShardSet,
    config: TrainConfig,
    dense: DenseModel,
    embeddings: RankRows,
    meter: Meter,
    answers: Answers,
    objective: Objective | None,
    ranks: Ranks,
) -> Predictor:
    dtype = config.dense_dtype
    assert dtype != "auto", "resolve chooses it"
    step = GraphStep(dense, MicroBatches(shards.batch_size), config.seed, dtype, objective)
    return Predictor(shards, step, embeddings, meter, None, ranks, answers, config.negative_rate)


def _build_step_source(
    shards: ShardSet,
    rows: ReplicatedRows,
    embeddings: RankRows,
    ranks: Ranks,
    device: torch.device,
    *,
    has_used: bool,
) -> StepSource:
    """Build the source of a rank's steps, which the trainer reads ahead in a thread."""

    def read(number: int) -> Any:
        batch = shards.training_batch(number)
        own = rank_batch(batch, rows, ranks.rank, ranks.num_ranks, number, has_used=has_used)
        return own.pin_memory() if device.type == "cuda" else own

    return StepSource(embeddings, read, lambda number: False)


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

    def release(self) -> None:
        """Forget what was prefetched, and unlock all rows; what they are worth stays in the cache."""
        # Prefetches run in a stream of their own. A pass without a backward one, too, leaves rows locked.
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        for each in self.prefetched:
            each.timesteps_prefetched.clear()
            each.lxu_cache_locations_list.clear()
            each.lxu_cache_locking_counter.zero_()


@contextmanager
def _expected_left_out() -> Iterator[None]:
    """Leave out what TorchRec reports of each table without a cache in each step, by the root logger."""

    def is_other(record: logging.LogRecord) -> bool:
        return "prefetch_pipeline must be set" not in record.getMessage()

    logging.root.addFilter(is_other)
    try:
        yield
    finally:
        logging.root.removeFilter(is_other)


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
                with _expected_left_out():
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
