"""Builds a trainer from shards and a config: model, rows, order, optimizers and steps.

What a run does not use it does not import: steps on a device, several ranks, FAE and rows on disk are
imported here, where a config asks for them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..pipeline.errors import ConfigError
from ..pipeline.schema.schema import GROUP, LABEL, WEIGHT
from .build_embeddings import (
    RowTools,
    RunStart,
    build_embeddings,
    num_threads,
    open_device,
    open_device_api,
    resolve,
    with_options,
)
from .build_model import (
    LossSource,
    ModelSource,
    build_model,
    open_loss,
    pooled_step,
    predicts,
    warn_of_probabilities,
)
from .config import Optimizers, TrainConfig
from .config_parts import ChosenExchange, ModelConfig, parse_best_by, parse_loss_weights
from .data.batch import (
    Batch,
    BatchOrder,
    CutOrder,
    Lookups,
    LookupsOfBatch,
    MicroBatches,
    ResumedOrder,
    SeededOrder,
    with_histories,
)
from .data.shards import ShardSet
from .evaluate import Predictor
from .loop import Trainer
from .metrics import Answers, Meter
from .model.dense_step import DenseStep, GraphStep, TiledStep, build_dense_step
from .model.dlrm import DenseModel
from .model.gradients import BuildSums
from .model.shapes import ModelInputs, choose_labels, choose_model
from .placements.placements import StepSource, num_planned_steps, num_steps_ahead, spills
from .ranks.ranks import OneRank, Ranks
from .rows.embeddings import Embeddings, refill_stores, restore_rows
from .rows.tiers import HostMemory
from .step import DenseUpdate, HostSteps, LearningRates, StepParts, StepRunner, Stopping
from .threads import Readers, WorkThreads

if TYPE_CHECKING:
    from .device import Device
    from .model.kernels import Objective
    from .ranks.exchange import Node
    from .ranks.messages import CodedExchange

MOST_READERS = 16
"""Threads that read and pack for a GPU: 40 million samples per second, more than it takes."""


def build_trainer(
    shards: ShardSet,
    config: TrainConfig,
    order: BatchOrder | None = None,
    spill_folder: Path | None = None,
    model_source: ModelSource | None = None,
    loss_source: LossSource | None = None,
    *,
    start: RunStart | None = None,
    tracks_changes: bool = False,
    ranks: Ranks | None = None,
    exchange: ChosenExchange | None = None,
    device_api: Device | None = None,
) -> Trainer:
    """Build the model, the tiers with their initial rows, and the order of batches.

    Args:
        order: order of batches to use instead of the placement's own.
        spill_folder: folder for rows beyond ``slow_bytes``; None: that of temporary files.
        start: rows to start with, and the steps that are done; what else the run has is restored by
            `checkpoints.resume`.
        tracks_changes: whether rows that steps change are marked, for checkpoints.
        ranks: share the batches and the rows; None: this process does it all.
        exchange: codecs of what crosses between them; None: it crosses as it is.
        device_api: device to queue steps on; None: the one that the settings name, if any.

    Raises:
        HotsetError: no disk space for such rows.
        ConfigError: no such device, or a model that does not fit the shards.
        ShardError: shards that cannot be trained on.
    """
    ranks = ranks or OneRank()
    shards = with_options(shards, config)
    config = resolve(shards, config, ranks.num_ranks)
    chosen_model = choose_model(config, shards.embedding_dim)
    marks_rows = tracks_changes or start is not None
    tools = build_tools(shards, config, ranks, spill_folder, device_api, marks_rows=marks_rows)
    # Rows on the host are the work of all threads; a GPU takes its work from one.
    threads = WorkThreads(1) if tools.device.type == "cuda" else tools.threads

    num_done = start.num_done if start is not None else 0
    coded, build_sums = _build_codecs(shards, config, ranks, exchange or ChosenExchange(), num_done)
    answers = answers_of_run(shards, config, loss_source)
    objective = build_objective(shards, config, answers, loss_source)
    layers = (shards, config, chosen_model, tools, threads)
    model, dense = _build_dense_layers(*layers, build_sums, objective, answers.labels, model_source)
    shards = shards.with_histories(model.histories) if model.histories else shards
    reading = _Reading(shards.training_batch, shards.training_lookups, shards.evaluation_lookups)
    node = None
    if ranks.num_ranks > 1:
        node, reading = _share_reading(shards, ranks, tools.micro_batches)
    embeddings = _build_rows(shards, config, tools, ranks, coded, start, node)
    scoring = (tools.meter, tools.folder, ranks, answers, config.negative_rate)
    predictor = Predictor(shards, dense, embeddings, *scoring, reading.evaluation_lookups)
    order = build_order(shards, config, order, predictor, start)
    source = _build_step_source(shards, config, tools, embeddings, order, start, reading)

    stopping = Stopping(config.recipe)
    optimizers, runner = _build_runner(
        shards, config, model, dense, embeddings, tools, threads, source.readers
    )
    return Trainer(
        config,
        shards,
        model,
        optimizers,
        embeddings,
        order,
        source,
        runner,
        build_rates(shards, config, stopping),
        stopping,
        predictor,
        tools.meter,
        threads,
        ranks=ranks,
        rank_codecs=coded,
        before_step=[] if embeddings.hot_copies is None else [embeddings.hot_copies.before_step],
        resumables={"stopping": stopping},
    )


def answers_of_run(shards: ShardSet, config: TrainConfig, loss_source: LossSource | None) -> Answers:
    """Return what the logits of the run mean; raise ConfigError where they have no such best score."""
    labels = choose_labels(config, shards.labels)
    predicted = predicts(config.loss, loss_source)
    label, score = parse_best_by(config.recipe.best_by)
    if label is not None and label not in labels:
        known = ", ".join(labels) or "none by a name"
        raise ConfigError(f"--best-by names {label!r}, and the labels of the run are: {known}")
    if score == "gauc" and (GROUP not in shards.sample_columns or predicted == "value"):
        why = "the run predicts values" if predicted == "value" else "the schema of the log names no group"
        raise ConfigError(f"--best-by {config.recipe.best_by}: there is no GAUC, as {why}")
    return Answers(labels=labels, predicts=predicted, negative_rate=config.negative_rate)


def _build_codecs(
    shards: ShardSet, config: TrainConfig, ranks: Ranks, exchange: ChosenExchange, num_done: int
) -> tuple[CodedExchange | None, BuildSums | None]:
    """Build the codecs of what crosses between ranks, and the sums of dense gradients; one rank has none."""
    if ranks.num_ranks == 1:
        return None, None
    from .ranks.messages import CodedExchange, DenseSums

    coded = CodedExchange(ranks.rank, config.seed, shards.tables, num_done)
    coded.use(exchange)
    return coded, partial(DenseSums, ranks, coded)


def build_tools(
    shards: ShardSet,
    config: TrainConfig,
    ranks: Ranks,
    spill_folder: Path | None,
    device_api: Device | None,
    *,
    marks_rows: bool,
) -> RowTools:
    """Open the device, and limit what the rows may take of the machine.

    Raises:
        ConfigError: no such device.
    """
    device = open_device(config.device)
    device_api = device_api or open_device_api(config.device)
    assert config.micro_batches is not None, "resolve chooses it"
    # The folder of a run is at its first rank; the others may be on machines without it.
    folder = spill_folder or Path(tempfile.gettempdir())
    if not folder.is_dir():
        folder = Path(tempfile.gettempdir())
    return RowTools(
        device=device,
        meter=Meter(device),
        threads=WorkThreads(num_threads(config.threads)),
        # The samples of this rank, and the shape of all sums, which micro-batches decide.
        micro_batches=MicroBatches(shards.batch_size, config.micro_batches, ranks.rank, ranks.num_ranks),
        device_api=device_api,
        # Host memory is limited where rows may go to a spill file.
        host=HostMemory(
            config.slow_bytes, folder, is_planned=spills(config, shards), is_pinned=device_api is not None
        ),
        marks_rows=marks_rows,
        folder=folder,
    )


def _build_dense_layers(
    shards: ShardSet,
    config: TrainConfig,
    chosen: ModelConfig,
    tools: RowTools,
    threads: WorkThreads,
    build_sums: BuildSums | None,
    objective: Objective | None,
    labels: tuple[str, ...],
    model_source: ModelSource | None,
) -> tuple[DenseModel, DenseStep]:
    """Build the model with its initial parameters, and its step."""
    inputs = replace(ModelInputs.of(shards), labels=labels)
    model = build_model(chosen, inputs, config.seed, model_source, shards.least_batch_samples)
    if config.loss is None:
        warn_of_probabilities(model)
    model = model.to(tools.device)
    dtype = config.dense_dtype
    assert dtype != "auto", "resolve chooses it"
    if tools.device_api is not None:
        from .gpu.build import has_fused_layers

        # Layers whose parameters are moved by others are passed by the module itself.
        if objective is None and has_fused_layers(config, shards, model, tools.device_api):
            return model, GraphStep(model, tools.micro_batches, config.seed, dtype)
    step = build_dense_step(model, tools.micro_batches, threads, dtype, config.seed, build_sums, objective)
    tables = with_histories(shards.tables, model.histories)
    return model, pooled_step(step, model, chosen.pooling, tables)


def build_objective(
    shards: ShardSet, config: TrainConfig, answers: Answers, loss_source: LossSource | None
) -> Objective | None:
    """Build the loss of a run; None for the log loss of the first label, where all samples have it."""
    labels, is_value = answers.labels, answers.predicts == "value"
    of_labels = parse_loss_weights(config.loss_weights)
    columns = [shards.column_of(name) for name in labels] or [LABEL]
    weights = [of_labels.get(name, 1.0) for name in labels] or [1.0]
    numbers = [name for name in labels if name in shards.number_labels]
    if numbers and not is_value:
        raise ConfigError(
            f"the label {numbers[0]!r} is any number, and a probability is of 0 and 1",
            hint='give --loss a function with predicts = "value", or leave the label out: a loss weight of 0',
        )
    if config.negative_rate is not None and (is_value or len(columns) > 1):
        raise ConfigError(
            "--negative-rate recalibrates the probability of a single label",
            hint="leave the other labels out, or leave --negative-rate out",
        )
    is_plain = columns == [LABEL] and weights == [1.0] and not shards.num_unlabeled
    if is_plain and config.loss is None and WEIGHT not in shards.sample_columns:
        return None
    from .model.kernels import Objective

    own_loss = None if config.loss is None else open_loss(config.loss, len(columns), loss_source)
    return Objective(tuple(columns), tuple(weights), own_loss)


class _Reading(NamedTuple):
    """What returns training batches by number, their lookups alone, and those of evaluation batches."""

    batch: Callable[[int], Batch]
    lookups: Callable[[int], Lookups]
    evaluation_lookups: Callable[[int], LookupsOfBatch]


def _share_reading(shards: ShardSet, ranks: Ranks, micro_batches: MicroBatches) -> tuple[Node, _Reading]:
    """Let this rank read its own samples, and one rank of each machine the lookups of all."""
    from .ranks.exchange import Node, NodeLookups, OwnBatches

    node = Node(ranks)
    lookups = NodeLookups(shards, node)
    own = OwnBatches(shards, micro_batches, lookups.read)
    return node, _Reading(own.read, lookups.read, lookups.read_evaluation)


def _build_rows(
    shards: ShardSet,
    config: TrainConfig,
    tools: RowTools,
    ranks: Ranks,
    coded: CodedExchange | None,
    start: RunStart | None,
    node: Node | None,
) -> Embeddings:
    """Build the tiers of the rows of this rank, with their first values."""
    if coded is None or node is None:
        embeddings = build_embeddings(shards, config, tools)
    else:
        from .ranked_run import build_ranked_embeddings

        embeddings = build_ranked_embeddings(shards, config, tools, ranks, coded, node)
    if start is not None:
        restore_rows(embeddings, start.rows, are_saved=start.done is not None)
    return embeddings


def build_order(
    shards: ShardSet,
    config: TrainConfig,
    given: BatchOrder | None,
    predictor: Predictor,
    start: RunStart | None,
) -> BatchOrder:
    """Build the order of the batches that are still to be trained on."""
    order: BatchOrder | None = given
    if order is None and config.placement == "fae":
        from .placements.fae import build_fae_order

        order = build_fae_order(shards, config, predictor.mean_loss, start.test_losses if start else ())
    if order is None:
        order = SeededOrder(shards.is_hot_only, config.seed, config.epochs, is_grouped=shards.is_grouped)
    num_planned = num_planned_steps(config, shards)
    if num_planned < config.epochs * shards.num_training_batches:
        order = CutOrder(order, num_planned)
    if start is not None and start.done is not None:
        order = ResumedOrder(order, start.done)
    return order


def _build_step_source(
    shards: ShardSet,
    config: TrainConfig,
    tools: RowTools,
    embeddings: Embeddings,
    order: BatchOrder,
    start: RunStart | None,
    reading: _Reading,
) -> StepSource:
    """Build the source of a run's steps; where rows spill to disk, plan the run."""
    # An order that depends on the run cannot be read ahead, and the host itself is busy with the steps.
    reads_ahead = tools.device_api is not None and order.is_known
    readers = Readers(min(tools.threads.num_threads, MOST_READERS) if reads_ahead else 0)
    # With rows in a spill file, a restored row is read as its plan says.
    is_planned = spills(config, shards)
    is_fresh = start is None or start.is_fresh or is_planned
    source = StepSource(
        embeddings,
        reading.batch,
        lambda number: bool(shards.is_hot_only[number]),
        is_fresh=is_fresh,
        is_resumed=start is not None,
        readers=readers,
        read_lookups=reading.lookups,
    )
    # A spill file holds rows by their next use, so it is written once the whole order is known.
    if is_planned:
        from .placements.spilled_run import SpillLimits, plan_run

        assert config.slow_bytes is not None
        plan_run(source, order.epochs(), SpillLimits(config.slow_bytes, tools.folder))
        if start is not None:
            refill_stores(embeddings, start.rows)
    return source


def _build_runner(
    shards: ShardSet,
    config: TrainConfig,
    model: DenseModel,
    dense: DenseStep,
    embeddings: Embeddings,
    tools: RowTools,
    threads: WorkThreads,
    readers: Readers,
) -> tuple[tuple[torch.optim.Optimizer, ...], StepRunner]:
    """Build the optimizers of the dense layers and what runs the steps: the host, or a device.

    Raises:
        ConfigError: kernels that there are not.
    """
    chosen = config.optimizers(shards.embedding_optimizer)
    decay, is_tiled = config.recipe.dense_decay, isinstance(dense, TiledStep)
    optimizers = build_dense_optimizers(model, chosen, threads.num_threads, decay, is_tiled=is_tiled)
    update = DenseUpdate(model.parameters(), optimizers, config.recipe.clip_gradient)
    parts = StepParts(embeddings, dense, update.prepare, [each.step for each in optimizers], threads)
    if tools.device_api is None:
        if config.kernels is not None:
            raise ConfigError("kernels chooses those of a GPU, and the run is on the host")
        return optimizers, HostSteps(parts)
    from .gpu.build import build_queued_steps

    num_ahead = num_steps_ahead(config, shards.mixed_share)
    settings = (config, shards, model, optimizers, parts, tools.device_api)
    return optimizers, build_queued_steps(*settings, readers, num_ahead)


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


def build_rates(shards: ShardSet, config: TrainConfig, stopping: Stopping) -> LearningRates:
    """Let rates decay to the last step taken, not the last epoch's."""
    num_steps = config.epochs * shards.num_training_batches
    if config.recipe.max_steps is not None:
        num_steps = min(num_steps, config.recipe.max_steps)
    chosen = config.optimizers(shards.embedding_optimizer)
    return LearningRates(config.recipe, chosen, num_steps, lambda: stopping.num_reductions)
