"""Builds a trainer from shards and settings: model, tiers with their rows, order of batches, step source."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.runtime.tasks import num_workers
from ...stats.exchange.homes_name import HomesName
from ..config import TrainConfig
from ..data.batch_order import BatchOrder, CutOrder, ResumedOrder, SeededOrder
from ..data.batch_shares import BatchShares
from ..data.readers import Readers
from ..data.shards import Shards
from ..data.stored_batches import StoredBatches
from ..device.verbs import Device
from ..exchange.chosen_exchange import ChosenExchange
from ..exchange.dense_sums import DenseSums
from ..exchange.exchange_file import ExchangeSchedule
from ..exchange.exchange_fit import RunOnRanks
from ..execution.embeddings import Embeddings
from ..execution.ranked_embeddings import RankedEmbeddings
from ..execution.row_parts import RowsSource, refill_stores, restore_rows
from ..execution.spilled_run import SpillLimits
from ..execution.step_source import NOTHING_DONE, DoneSteps, StepSource
from ..meter import Meter
from ..model.dense_model import DenseModel
from ..model.dense_step import DenseStep, TiledStep
from ..model.graph_step import GraphStep
from ..model.tile_gradients import BuildSums
from ..model_building.build_model import build_model, build_step
from ..model_building.choose_model import choose_model
from ..model_building.model_inputs import ModelInputs
from ..model_building.user_code import ModelSource
from ..placements.choose_placement import num_planned_steps, spills
from ..placements.fae import FaeOrder
from ..placements.schedule_file import Schedule
from ..placements.shuffle_scheduler import TEST_SAMPLES, ShuffleScheduler
from ..predict import Predictor
from ..ranks.ranks import OneRank, Ranks, agree
from ..recipe.learning_rates import LearningRates
from ..recipe.stopping import Stopping
from ..rows.mapped_rows import HostMemory
from ..trainer import Trainer
from ..work_threads import WorkThreads
from .build_embeddings import (
    RowTools,
    build_coded_exchange,
    build_embeddings,
    build_ranked_embeddings,
)
from .build_steps import build_runner, has_fused_layers
from .dense_optimizers import build_dense_optimizers
from .devices import open_device, open_verbs
from .resolve_config import resolve

_log = logging.getLogger(__name__)

_MOST_READERS = 16
"""Threads that read and pack for a GPU: 40 million samples a second, more than it takes."""


@dataclass(frozen=True, slots=True)
class RunStart:
    """Rows that a run starts with instead of its initial ones, and how far an interrupted run has come."""

    rows: RowsSource
    done: NDArray[np.int32] | None = None
    """(num_steps,); training batch of each step so far; None: a new run."""
    test_losses: tuple[float, ...] = ()
    """Test losses that the scheduler of fae has seen."""
    is_fresh: bool = True
    """Whether rows that no step has used have their initial values; not where the run began with others."""


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
    homes: HomesName = "by-use",
    exchange: ChosenExchange | None = None,
    verbs: Device | None = None,
) -> Trainer:
    """Build the model, the tiers with their initial rows, and the order of batches.

    Args:
        order: order of batches to use instead of the placement's own.
        spill_folder: folder for rows beyond ``slow_bytes``; None: that of temporary files.
        model_source: makes the module of a user; None imports the class that ``config.model`` names.
        start: rows to start with, and the steps that are done; what else the run has is restored by
            `resuming.run_checkpoints`.
        tracks_changes: whether rows that steps change are marked, for checkpoints.
        ranks: share the batches and the rows; None: this process does it all.
        homes: where rows live among several ranks.
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
    device = open_device(config.device)
    verbs = verbs or open_verbs(config.device)
    meter = Meter(device)
    # Rows on the host are the work of all threads; a GPU takes its work from one.
    row_threads = WorkThreads(config.threads or num_workers(0))
    threads = WorkThreads(1) if device.type == "cuda" else row_threads
    assert config.shares is not None, "resolve chooses it"
    # The samples of this rank, and the shape of all sums, which shares decide.
    batch_shares = BatchShares(shards.batch_size, config.shares, ranks.rank, ranks.num_ranks)
    num_done = start.done.size if start is not None and start.done is not None else 0
    chosen_exchange = exchange or ChosenExchange()
    coded = build_coded_exchange(shards, config.seed, ranks.rank, chosen_exchange, num_done)
    build_sums = partial(DenseSums, ranks, coded) if ranks.num_ranks > 1 else None
    model, dense = _build_dense_layers(
        shards, config, batch_shares, build_sums, model_source, device, verbs, threads
    )

    # The folder of a run is at its first rank; the others may be on machines without it.
    folder = spill_folder or Path(tempfile.gettempdir())
    if not folder.is_dir():
        folder = Path(tempfile.gettempdir())
    # Host memory has a limit where rows are to lie in a file beyond it.
    host = HostMemory(
        config.slow_bytes, folder, is_planned=spills(config, shards), is_pinned=verbs is not None
    )
    marks_rows = tracks_changes or start is not None
    tools = RowTools(
        shares=batch_shares,
        device=device,
        verbs=verbs,
        meter=meter,
        threads=row_threads,
        host=host,
        marks_rows=marks_rows,
        folder=folder,
    )
    embeddings: Embeddings
    if ranks.num_ranks > 1:
        run = _run_on(ranks, homes, config, chosen_exchange, start, has_own_order=order is not None)
        schedule = agree(ranks, partial(ExchangeSchedule.find, shards, config, run))
        # Where some ranks have none, their plans are found to be others.
        has_schedule = all(ranks.gather(torch.tensor([schedule is not None])))
        if has_schedule and schedule is not None:
            schedule.refuse_contradictions(ranks, shards, config.epochs)
        embeddings = build_ranked_embeddings(shards, config, tools, ranks, homes, coded, schedule)
    else:
        embeddings = build_embeddings(shards, config, tools)
    if start is not None:
        restore_rows(embeddings, start.rows, are_saved=start.done is not None)
    if isinstance(embeddings, RankedEmbeddings):
        embeddings.copies.begin()

    # The order of batches follows the predictor, which that of fae needs for its test loss.
    predictor = Predictor(shards, dense, embeddings, meter, folder, ranks)
    scheduler = ShuffleScheduler.variant(config.fae_variant) if config.placement == "fae" else None
    order = order or _own_order(shards, config, scheduler, predictor, start.test_losses if start else ())
    num_planned = num_planned_steps(config, shards)
    if num_planned < config.epochs * shards.num_training_batches:
        order = CutOrder(order, num_planned)
    if start is not None and start.done is not None:
        order = ResumedOrder(order, start.done)
    # An order that depends on the run cannot be read ahead, and the host itself is busy with the steps.
    readers = Readers(min(row_threads.num_threads, _MOST_READERS) if verbs and order.is_known else 0)
    source = build_step_source(shards, config, embeddings, start, readers)
    # A spill file holds rows by their next use, so it is written once the whole order is known.
    if host.is_planned:
        assert config.slow_bytes is not None
        source.plan_run(order.epochs(), SpillLimits(config.slow_bytes, folder))
        if start is not None:
            refill_stores(embeddings, start.rows)

    chosen = config.optimizers(shards.embedding_optimizer)
    is_tiled = isinstance(dense, TiledStep)
    optimizers = build_dense_optimizers(
        model, chosen, threads.num_threads, config.recipe.dense_decay, is_tiled=is_tiled
    )
    # Rates decay to the last step that is taken, not to that of the last epoch.
    num_steps = config.epochs * shards.num_training_batches
    if config.recipe.max_steps is not None:
        num_steps = min(num_steps, config.recipe.max_steps)
    stopping = Stopping(config.recipe)
    runner = build_runner(
        config,
        shards,
        model,
        dense,
        optimizers,
        embeddings,
        verbs,
        threads,
        readers,
        row_threads.num_threads,
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
        meter,
        scheduler,
        device,
        threads,
        runner,
        LearningRates(config.recipe, chosen, num_steps, lambda: stopping.num_reductions),
        readers,
        stopping=stopping,
        resumables={"stopping": stopping},
        ranks=ranks,
        coded=coded,
    )


def _run_on(
    ranks: Ranks,
    homes: HomesName,
    config: TrainConfig,
    exchange: ChosenExchange,
    start: RunStart | None,
    *,
    has_own_order: bool,
) -> RunOnRanks:
    """Say what of a run decides whether its ranks can follow a schedule on disk."""
    own_plan = None
    if config.placement == "fae" or has_own_order:
        own_plan = "the run decides the order of its batches as it goes"
    elif exchange.sync_every is not None:
        own_plan = "the run holds copies of rows on all ranks"
    elif config.plan != "auto":
        own_plan = f"the run was given --plan {config.plan}"
    num_done = start.done.size if start is not None and start.done is not None else 0
    is_fresh = start is None or start.is_fresh
    return RunOnRanks(ranks.rank, ranks.num_ranks, homes, num_done, not is_fresh, own_plan)


def _build_dense_layers(
    shards: Shards,
    config: TrainConfig,
    parts: BatchShares,
    build_sums: BuildSums | None,
    model_source: ModelSource | None,
    device: torch.device,
    verbs: Device | None,
    threads: WorkThreads,
) -> tuple[DenseModel, DenseStep]:
    """Build the model with its initial parameters, and what passes it forward and backward."""
    chosen = choose_model(config, shards.embedding_dim)
    inputs = ModelInputs.of(shards)
    model = build_model(chosen, inputs, config.seed, model_source, shards.least_batch_samples).to(device)
    dtype = config.dense_dtype
    assert dtype != "auto", "resolve chooses it"
    # Layers whose parameters are moved by others are passed by the module itself.
    if has_fused_layers(config, shards, model, verbs):
        return model, GraphStep(model, parts, config.seed, dtype)
    step = build_step(model, chosen, shards.tables, parts, threads, dtype, config.seed, build_sums)
    return model, step


def build_step_source(
    shards: Shards,
    config: TrainConfig,
    embeddings: Embeddings,
    start: RunStart | None,
    readers: Readers | None = None,
) -> StepSource:
    """Build the source of a run's steps, from a schedule on disk where there is one for this run.

    Args:
        readers: read batches ahead; None: each is read where its step is made.
        start: rows that were restored, and the steps that are done.
    """
    # Where rows lie in a file by their next fetch, one that was restored is fetched by its plan.
    is_fresh = start is None or start.is_fresh
    has_first_fetches = spills(config, shards)
    # A plan asked for by name is made here, whatever lies on disk.
    schedule = None
    is_alone = not isinstance(embeddings, RankedEmbeddings)
    # A row that moves to a rank has a value there before the first batch that uses it here.
    may_move = isinstance(embeddings, RankedEmbeddings) and embeddings.may_move
    may_fetch = is_fresh or not has_first_fetches
    # It has the plans of whole epochs.
    may_fetch &= num_planned_steps(config, shards) == config.epochs * shards.num_training_batches
    if config.placement == "lookahead" and config.plan == "auto" and is_alone and may_fetch:
        schedule = Schedule.find(shards, config)
    # The steps that the checkpoint counts are done in every epoch they belong to.
    done = NOTHING_DONE
    if start is not None and start.done is not None:
        done = DoneSteps.of(start.done, shards.num_training_batches)

    def looks_up_hot_rows_alone(number: int) -> bool:
        return bool(shards.is_hot_only[number])

    stored = StoredBatches.find(shards)
    return StepSource(
        embeddings,
        shards.training_batch,
        looks_up_hot_rows_alone,
        is_fresh=(is_fresh or has_first_fetches) and not may_move,
        is_resumed=start is not None,
        done=done,
        schedule=schedule,
        stored=stored,
        readers=readers,
    )


def _own_order(
    shards: Shards,
    config: TrainConfig,
    scheduler: ShuffleScheduler | None,
    predictor: Predictor,
    test_losses: tuple[float, ...],
) -> BatchOrder:
    kinds = shards.is_hot_only
    if scheduler is None:
        return SeededOrder(kinds, config.seed, config.epochs, is_grouped=shards.is_grouped)
    # A resumed run makes the decisions of its scheduler once more, by the losses that it had then.
    earlier = iter(test_losses)

    def test_loss() -> float | None:
        found = next(earlier, None)
        return predictor.mean_loss(TEST_SAMPLES) if found is None else found

    return FaeOrder(kinds, config.seed, config.epochs, scheduler, test_loss)
