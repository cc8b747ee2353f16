"""The engine of ``--engine torchrec``: TorchRec's sharded tables and data-parallel layers behind a trainer.

The loop, the order of batches, evaluations, logs and the run folder are those of every run; a step is run by
TorchRec. All ranks take their part of the same batch. In a hot-only one nobody calls the sharded tables, so
that nothing is exchanged but the gradients of dense layers and replicated rows, which torch's
DistributedDataParallel averages. In a mixed one each rank sends its distinct cold ids, and receives their
vectors.

A rank's loss is the sum over its samples times ``world_size / batch_size``: averaged over the ranks, the
gradients are those of the loss of all samples over the nominal batch size, however unequal the parts are.
Results do not depend on the ranks but in their last digits: additions are in other orders.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
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
from ..data.shards import Shards
from ..evaluate import Predictor
from ..loop import Trainer
from ..metrics import Answers, Meter
from ..model.dense_step import GraphStep, logits_of, loss_sum_of, random_numbers_of, set_mode
from ..model.dlrm import DenseModel, drawing
from ..model.shapes import ModelInputs, choose_model
from ..placements.placements import StepSource
from ..ranks.ranks import Ranks, TorchRanks, check_equal_settings
from ..rows.backends import ADAM_BETAS, RowOptimizer
from ..step import DenseUpdate, Stopping
from ..threads import WorkThreads
from .batches import RankBatch, ReplicatedRows, rank_batch
from .embeddings import HotColdEmbeddings, ReplicatedOptimizer
from .rank_rows import RankRows
from .sharding import choose_num_replicated, codecs_of, count_uses, plan_sharding
from .steps import StepOptimizers, TorchRecSteps, pipeline_class

if TYPE_CHECKING:
    from ...stats.replication import Network, RowUses
    from ..model.kernels import Objective

_log = logging.getLogger(__name__)
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
    shards: Shards,
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
    codecs = codecs_of(exchange, device)
    dense = _build_layers(shards, config, answers, model_source, ranks.num_ranks).to(device)
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
    hot = ReplicatedOptimizer(model.module.embeddings.hot, optimizer)
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


def _is_last(config: TrainConfig, number: int) -> bool:
    """Return whether an evaluation or the end comes after the step of this number, as far as is known."""
    every = config.evaluate_every
    return number == config.recipe.max_steps or (isinstance(every, int) and number % every == 0)


def _build_layers(
    shards: Shards, config: TrainConfig, answers: Answers, model_source: ModelSource | None, num_ranks: int
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
    shards: Shards, config: TrainConfig, uses: RowUses, ranks: Ranks, network: Network | None
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
    shards: Shards,
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
    shards: Shards,
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


def shard(
    model: nn.Module,
    shards: Shards,
    rows: ReplicatedRows,
    optimizer: RowOptimizer,
    device: torch.device,
    uses: RowUses,
    *,
    eps: float | None = None,
    codecs: Any = None,
    cache_bytes: int | None = None,
    is_prefetched: bool = False,
    has_unused: bool | None = None,
    constraints: Mapping[str, Any] | None = None,
    plan: Any = None,
) -> Any:
    """Shard the tables of a model over the ranks, and make the rest data-parallel.

    Args:
        model: holds one `HotColdEmbeddings` of ``rows``.
        optimizer: that of rows, with its first learning rate.
        uses: of rows by the ranks, from which the plan follows.
        eps: of Adagrad; None: that of ``optimizer``.
        codecs: TorchRec's, of what the sharded tables exchange; None: it crosses as it is.
        cache_bytes: memory of a GPU for sharded rows; None: what there is.
        is_prefetched: whether a pipeline fetches the rows of the next step into the caches.
        has_unused: whether a step may leave out parameters that are not sharded; None: each step leaves out
            the same ones.
        constraints: of tables, see `plan_sharding`.
        plan: TorchRec's; None: one by its planner.

    Returns:
        A ``DistributedModelParallel``.
    """
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.model_parallel import DefaultDataParallelWrapper, DistributedModelParallel
    from torchrec.distributed.types import ShardingPlan

    settings = _settings_of(optimizer, optimizer.eps if eps is None else eps)
    sharders: Any = [EmbeddingCollectionSharder(fused_params=settings, qcomm_codecs_registry=codecs)]
    with quiet():
        if plan is None and any(group.cold_tables for group in rows.groups):
            plan = plan_sharding(
                model,
                sharders,
                shards,
                rows.num_replicated,
                uses,
                device=device,
                optimizer=optimizer.name,
                cache_bytes=cache_bytes,
                is_prefetched=is_prefetched,
                constraints=constraints,
            )
        wrapper = DefaultDataParallelWrapper(
            static_graph=has_unused is None, find_unused_parameters=bool(has_unused)
        )
        return DistributedModelParallel(
            model,
            device=device,
            plan=plan or ShardingPlan({}),
            sharders=sharders,
            data_parallel_wrapper=wrapper,
        )


def _settings_of(optimizer: RowOptimizer, eps: float) -> dict[str, Any]:
    """Return what FBGEMM is told of the optimizer of sharded rows, for TorchRec to rewrite."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType

    kinds = {
        "sgd": EmbOptimType.EXACT_SGD,
        "adagrad": EmbOptimType.EXACT_ADAGRAD,
        "rowwise-adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        "adam": EmbOptimType.ADAM,
    }
    settings = {"optimizer": kinds[optimizer.name], "learning_rate": optimizer.lr, "eps": eps}
    if optimizer.name == "adam":
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import UserEnabledConfigDefinition

        # By default it corrects for bias by the steps of the run. FBGEMM warns that it is not tuned.
        by_row = UserEnabledConfigDefinition(use_rowwise_bias_correction=True)
        settings |= {"beta1": ADAM_BETAS[0], "beta2": ADAM_BETAS[1], "extra_optimizer_config": by_row}
        warnings.filterwarnings("ignore", message=r"[\s\S]*optimizer 'adam' is marked as")
    return settings


@contextmanager
def quiet() -> Iterator[None]:
    """Keep TorchRec's hundreds of lines about its own deprecations off the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
