"""Builds a trainer from shards and settings: model, rows, order of batches, source of steps, runner."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..config import TrainConfig
from ..data.batch_order import BatchOrder
from ..data.readers import Readers
from ..data.shards import Shards
from ..device.verbs import Device
from ..exchange.chosen_exchange import ChosenExchange
from ..exchange.coded_exchange import build_coded_exchange
from ..model.dense_model import DenseModel
from ..model.dense_step import DenseStep, TiledStep
from ..model.graph_step import GraphStep
from ..model.tile_gradients import BuildSums
from ..model_building.build_model import build_model, build_step
from ..model_building.choose_model import choose_model
from ..model_building.model_inputs import ModelInputs
from ..model_building.user_code import ModelSource
from ..placements.shuffle_scheduler import ShuffleScheduler
from ..predict import Predictor
from ..ranks.ranks import OneRank, Ranks
from ..recipe.learning_rates import LearningRates
from ..recipe.stopping import Stopping
from ..trainer import Trainer
from ..work_threads import WorkThreads
from .build_embeddings import RowTools
from .build_order import build_order, build_step_source
from .build_rows import build_rows, build_tools
from .build_steps import build_runner, has_fused_layers
from .dense_optimizers import build_dense_optimizers
from .resolve_config import resolve
from .run_start import RunStart

MOST_READERS = 16
"""Threads that read and pack for a GPU: 40 million samples per second, more than it takes."""


def build_trainer(
    shards: Shards,
    config: TrainConfig,
    order: BatchOrder | None = None,
    spill_folder: Path | None = None,
    model_source: ModelSource | None = None,
    *,
    start: RunStart | None = None,
    tracks_changes: bool = False,
    ranks: Ranks | None = None,
    exchange: ChosenExchange | None = None,
    verbs: Device | None = None,
) -> Trainer:
    """Build the model, the tiers with their initial rows, and the order of batches.

    Args:
        order: order of batches to use instead of the placement's own.
        spill_folder: folder for rows beyond ``slow_bytes``; None: that of temporary files.
        model_source: makes the module of a user; None imports the class that ``config.model`` names.
        start: rows to start with, and the steps that are done; what else the run has is restored by
            `resuming.saved_run`.
        tracks_changes: whether rows that steps change are marked, for checkpoints.
        ranks: share the batches and the rows; None: this process does it all.
        exchange: codecs of what crosses between them; None: it crosses as it is.
        verbs: device to queue steps on; None: the one that the settings name, if any.

    Raises:
        HotsetError: no disk space for such rows.
        ConfigError: no such device, or a model that does not fit the shards.
        ShardError: shards that cannot be trained on.
    """
    # From here on nothing is left open: a schedule on disk is compared with it, and the run records it.
    ranks = ranks or OneRank()
    config = resolve(shards, config, ranks.num_ranks)
    chosen_model = choose_model(config, shards.embedding_dim)
    if chosen_model.kind == "tbsm":
        shards = shards.with_histories(chosen_model.history_length + 1)
    marks_rows = tracks_changes or start is not None
    tools = build_tools(shards, config, ranks, spill_folder, verbs, marks_rows=marks_rows)
    # Rows on the host are the work of all threads; a GPU takes its work from one.
    threads = WorkThreads(1) if tools.device.type == "cuda" else tools.threads
    num_done = start.num_done if start is not None else 0
    coded = build_coded_exchange(
        shards.tables, config.seed, ranks.rank, exchange or ChosenExchange(), num_done
    )
    build_sums = None
    if ranks.num_ranks > 1:
        from ..exchange.dense_sums import DenseSums

        build_sums = partial(DenseSums, ranks, coded)
    model, dense = _build_dense_layers(shards, config, tools, threads, build_sums, model_source)
    embeddings = build_rows(shards, config, tools, ranks, coded, start)

    # The order of batches follows the predictor, which that of fae needs for its test loss.
    predictor = Predictor(shards, dense, embeddings, tools.meter, tools.folder, ranks)
    scheduler = ShuffleScheduler.variant(config.fae_variant) if config.placement == "fae" else None
    order = build_order(shards, config, order, scheduler, predictor, start)
    # An order that depends on the run cannot be read ahead, and the host itself is busy with the steps.
    reads_ahead = tools.verbs is not None and order.is_known
    readers = Readers(min(tools.threads.num_threads, MOST_READERS) if reads_ahead else 0)
    source = build_step_source(shards, config, tools, embeddings, order, readers, start)

    optimizers = build_dense_optimizers(
        model,
        config.optimizers(shards.embedding_optimizer),
        threads.num_threads,
        config.recipe.dense_decay,
        is_tiled=isinstance(dense, TiledStep),
    )
    stopping = Stopping(config.recipe)
    num_threads = tools.threads.num_threads
    runner = build_runner(
        config, shards, model, dense, optimizers, embeddings, tools.verbs, threads, readers, num_threads
    )
    return Trainer(
        config,
        shards,
        model,
        dense,
        optimizers,
        embeddings,
        order,
        source,
        predictor,
        tools.meter,
        scheduler,
        tools.device,
        threads,
        runner,
        _build_rates(shards, config, stopping),
        readers,
        stopping=stopping,
        resumables={"stopping": stopping},
        ranks=ranks,
        coded=coded,
    )


def _build_dense_layers(
    shards: Shards,
    config: TrainConfig,
    tools: RowTools,
    threads: WorkThreads,
    build_sums: BuildSums | None,
    model_source: ModelSource | None,
) -> tuple[DenseModel, DenseStep]:
    """Build the model with its initial parameters, and what passes it forward and backward."""
    chosen = choose_model(config, shards.embedding_dim)
    inputs = ModelInputs.of(shards)
    model = build_model(chosen, inputs, config.seed, model_source, shards.least_batch_samples)
    model = model.to(tools.device)
    dtype = config.dense_dtype
    assert dtype != "auto", "resolve chooses it"
    # Layers whose parameters are moved by others are passed by the module itself.
    if has_fused_layers(config, shards, model, tools.verbs):
        return model, GraphStep(model, tools.shares, config.seed, dtype)
    step = build_step(model, chosen, shards.tables, tools.shares, threads, dtype, config.seed, build_sums)
    return model, step


def _build_rates(shards: Shards, config: TrainConfig, stopping: Stopping) -> LearningRates:
    """Let rates decay to the last step that is taken, not to that of the last epoch."""
    num_steps = config.epochs * shards.num_training_batches
    if config.recipe.max_steps is not None:
        num_steps = min(num_steps, config.recipe.max_steps)
    chosen = config.optimizers(shards.embedding_optimizer)
    return LearningRates(config.recipe, chosen, num_steps, lambda: stopping.num_reductions)
