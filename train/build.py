"""Builds a trainer from shards and a config: model, rows, optimizers and steps.

A resumed run gets the batch order and the steps that are left after its last checkpoint. On the host a runner
takes each step synchronously; on a GPU it queues them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..pipeline.errors import ConfigError
from ..pipeline.runtime.tasks import num_workers
from .build_embeddings import RowTools, RunStart, build_embeddings, open_device, open_verbs, resolve
from .build_model import ModelSource, build_model, build_step
from .config import Optimizers, TrainConfig
from .data.batch import BatchShares
from .data.batch_order import BatchOrder, CutOrder, ResumedOrder, SeededOrder
from .data.shards import Shards
from .dense.dense_step import DenseStep, TiledStep
from .dense.gradients import BuildSums
from .dense.graph_step import GraphStep
from .device import Device
from .evaluate import Predictor
from .execution.embeddings import Embeddings
from .execution.row_parts import refill_stores, restore_rows
from .execution.step_source import SpillLimits, StepSource
from .gpu.fused_dlrm import FusedAtOnce, FusedDlrm, rule_of
from .gpu.queued_steps import QueuedSteps
from .gpu.twins import TWINS, Kernel, choose_kernels
from .loop import Trainer, num_steps_ahead
from .metrics import Meter
from .model.choose_model import choose_model
from .model.dense_model import DenseModel
from .model.dlrm import Dlrm
from .model.shapes import ModelInputs
from .optimizing import DenseUpdate, LearningRates, Stopping
from .placements.choose_placement import num_planned_steps, spills
from .placements.fae import TEST_SAMPLES, FaeOrder, ShuffleScheduler
from .ranks.codes import ChosenExchange, CodedExchange, build_coded_exchange
from .ranks.ranks import OneRank, Ranks
from .rows.tiers import HostMemory
from .step import StepParts, StepRunner, StepsAtOnce
from .threads import Readers, WorkThreads


def build_order(
    shards: Shards,
    config: TrainConfig,
    given: BatchOrder | None,
    scheduler: ShuffleScheduler | None,
    predictor: Predictor,
    start: RunStart | None,
) -> BatchOrder:
    """Build the order of the batches that are still to be trained on.

    Args:
        given: order to use instead of the placement's own.
        scheduler: of the placement ``fae``; None: another placement.
        predictor: finds the test losses that this scheduler needs.
    """
    order = given or _own_order(shards, config, scheduler, predictor, start.test_losses if start else ())
    num_planned = num_planned_steps(config, shards)
    if num_planned < config.epochs * shards.num_training_batches:
        order = CutOrder(order, num_planned)
    if start is not None and start.done is not None:
        order = ResumedOrder(order, start.done)
    return order


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


def build_step_source(
    shards: Shards,
    config: TrainConfig,
    tools: RowTools,
    embeddings: Embeddings,
    order: BatchOrder,
    readers: Readers,
    start: RunStart | None,
) -> StepSource:
    """Build the source of a run's steps.

    Args:
        readers: read batches ahead.
        start: rows that were restored, and the steps that are done.
    """
    # With rows in a spill file, a restored row is read as its plan says.
    is_fresh = start is None or start.is_fresh
    has_first_fetches = spills(config, shards)

    def looks_up_hot_rows_alone(number: int) -> bool:
        return bool(shards.is_hot_only[number])

    source = StepSource(
        embeddings,
        shards.training_batch,
        looks_up_hot_rows_alone,
        is_fresh=is_fresh or has_first_fetches,
        is_resumed=start is not None,
        readers=readers,
    )
    # A spill file holds rows by their next use, so it is written once the whole order is known.
    if has_first_fetches:
        assert config.slow_bytes is not None
        source.plan_run(order.epochs(), SpillLimits(config.slow_bytes, tools.folder))
        if start is not None:
            refill_stores(embeddings, start.rows)
    return source


def build_tools(
    shards: Shards,
    config: TrainConfig,
    ranks: Ranks,
    spill_folder: Path | None,
    verbs: Device | None,
    *,
    marks_rows: bool,
) -> RowTools:
    """Open the device, and limit what the rows may take of the machine.

    Args:
        config: with nothing left open.
        spill_folder: folder for rows beyond ``slow_bytes``; None: that of temporary files.
        verbs: device to queue steps on; None: the one that the settings name, if any.
        marks_rows: whether rows that steps change are marked, for checkpoints.

    Raises:
        ConfigError: no such device.
    """
    device = open_device(config.device)
    verbs = verbs or open_verbs(config.device)
    assert config.micro_batches is not None, "resolve chooses it"
    # The folder of a run is at its first rank; the others may be on machines without it.
    folder = spill_folder or Path(tempfile.gettempdir())
    if not folder.is_dir():
        folder = Path(tempfile.gettempdir())
    return RowTools(
        # The samples of this rank, and the shape of all sums, which shares decide.
        shares=BatchShares(shards.batch_size, config.micro_batches, ranks.rank, ranks.num_ranks),
        device=device,
        verbs=verbs,
        meter=Meter(device),
        threads=WorkThreads(config.threads or num_workers(0)),
        # Host memory is limited where rows may go to a spill file.
        host=HostMemory(
            config.slow_bytes, folder, is_planned=spills(config, shards), is_pinned=verbs is not None
        ),
        marks_rows=marks_rows,
        folder=folder,
    )


def build_rows(
    shards: Shards,
    config: TrainConfig,
    tools: RowTools,
    ranks: Ranks,
    coded: CodedExchange,
    start: RunStart | None,
) -> Embeddings:
    """Build the tiers of the rows of this rank, with their first values."""
    if ranks.num_ranks == 1:
        embeddings = build_embeddings(shards, config, tools)
        if start is not None:
            restore_rows(embeddings, start.rows, are_saved=start.done is not None)
        return embeddings
    # What a run in one process does not use it does not load.
    from .build_ranks import build_ranked_embeddings

    ranked = build_ranked_embeddings(shards, config, tools, ranks, coded)
    if start is not None:
        restore_rows(ranked, start.rows, are_saved=start.done is not None)
    return ranked


def has_fused_layers(config: TrainConfig, shards: Shards, model: DenseModel, verbs: Device | None) -> bool:
    """Return whether the dense layers of a run are kernels of its device.

    On the late device they are where kernels are chosen by name; else it trains with the layers of the host,
    and so with the bits of the host.
    """
    if verbs is None or (verbs.torch_device.type == "cpu" and config.kernels is None):
        return False
    is_plain = (
        isinstance(model, Dlrm) and model.is_plain and model.projections is None and config.micro_batches == 1
    )
    has_bags = any(table.is_multi_hot for table in shards.tables)
    return is_plain and not has_bags and config.recipe.clip_gradient is None


def build_runner(
    config: TrainConfig,
    shards: Shards,
    model: DenseModel,
    dense: DenseStep,
    optimizers: Sequence[torch.optim.Optimizer],
    embeddings: Embeddings,
    verbs: Device | None,
    threads: WorkThreads,
    readers: Readers,
    num_threads: int,
) -> StepRunner:
    """Build what takes the steps.

    Args:
        config: with nothing left open.
        dense: passes the model forward and backward.
        optimizers: those of its parameters.
        verbs: the device on which steps are queued; None: the host takes them.
        threads: of the step.
        readers: pack batches for a device.
        num_threads: of the run, whatever the step takes of them.

    Raises:
        ConfigError: kernels that there are not.
    """
    update = DenseUpdate(model.parameters(), optimizers, config.recipe.clip_gradient)
    parts = StepParts(embeddings, dense, update.prepare, [each.step for each in optimizers], threads)
    # On the host steps are synchronous, and no kernel has to be chosen.
    if verbs is None:
        if config.kernels is not None:
            raise ConfigError("kernels chooses those of a GPU, and the run is on the host")
        return StepsAtOnce(parts)
    keep_products_of_float32(verbs.torch_device)
    kernels = choose_kernels(verbs.torch_device, config.kernels or "")
    fused = None
    # The layers of DLRM as few kernels, where the device and the model allow them; else as torch has them.
    if has_fused_layers(config, shards, model, verbs):
        assert isinstance(model, Dlrm)
        name = config.optimizers(shards.embedding_optimizer).dense_optimizer
        rule = rule_of(name, config.recipe.dense_decay)
        # Where a GPU splits a long product, its parts are added in float32, too.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        fused = FusedDlrm(model, optimizers, rule, shards.batch_size, verbs, dense.dtype)
        at_once = FusedAtOnce(fused, kernels, dense, shards.batch_size)
        parts = StepParts(embeddings, at_once, at_once.prepare, [at_once.step], threads)
    return QueuedSteps(
        verbs,
        parts,
        kernels,
        shards.batch_size,
        shards.num_dense,
        num_steps_ahead(config, shards.mixed_share),
        readers,
        fused=fused,
        is_recorded=_can_be_recorded(kernels, verbs),
        mover=config.mover,
        num_threads=num_threads,
    )


def keep_products_of_float32(device: torch.device) -> None:
    """Make a GPU multiply float32 at full precision.

    Some builds of torch and some environments round factors to 10 bits (TF32).
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest")


def _can_be_recorded(kernels: Mapping[str, Kernel], verbs: Device) -> bool:
    """Return whether no kernel waits for a GPU while it is recorded.

    Those of torch do.
    """
    if verbs.torch_device.type == "cpu":
        return True
    return not any(kernel.__module__.rpartition(".")[2] in TWINS.values() for kernel in kernels.values())


_MOST_OPTIMIZERS = 4
"""Maximum number of optimizers for the dense layers; each call of one costs about 50 us."""


def build_dense_optimizers(
    model: DenseModel, chosen: Optimizers, num_threads: int, decay: float = 0.0, *, is_tiled: bool
) -> tuple[torch.optim.Optimizer, ...]:
    """Split the dense layers between torch optimizers that several threads can step.

    The update of a parameter depends on its own gradient alone, so the split changes no bit. Torch's fused
    Adam takes 1.0 ms instead of 2.6 ms on the host for the Kaggle model. It reads parameter, gradient and
    state in memory order and is wrong where their layouts differ, so only the tiled step, which keeps them
    equal, uses it.

    Args:
        is_tiled: whether the tiled step runs the model.
    """
    kinds: dict[str, Any] = {
        "sgd": torch.optim.SGD,
        "adagrad": torch.optim.Adagrad,
        "adam": torch.optim.Adam,
    }
    # Parameters go to the part that is smallest so far, the largest first.
    parts: list[list[torch.nn.Parameter]] = [[] for _ in range(min(num_threads, _MOST_OPTIMIZERS))]
    for parameter in sorted(model.parameters(), key=torch.Tensor.numel, reverse=True):
        min(parts, key=lambda part: sum(each.numel() for each in part)).append(parameter)
    build = kinds[chosen.dense_optimizer]
    # Fused Adam needs equal memory layouts, which only the tiled step guarantees.
    options: dict[str, Any] = {"lr": chosen.dense_lr, "weight_decay": decay}
    if chosen.dense_optimizer == "adam":
        options["fused"] = is_tiled
    return tuple(build(part, **options) for part in parts if part)


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
            `resuming.resume`.
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
        from .ranks.messages import DenseSums

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
    """Build the model with its initial parameters, and its step."""
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
    """Let rates decay to the last step taken, not the last epoch's."""
    num_steps = config.epochs * shards.num_training_batches
    if config.recipe.max_steps is not None:
        num_steps = min(num_steps, config.recipe.max_steps)
    chosen = config.optimizers(shards.embedding_optimizer)
    return LearningRates(config.recipe, chosen, num_steps, lambda: stopping.num_reductions)
