"""The training loop and what it holds. The loop shows every step by name; the rest is assembly."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..pipeline.errors import ConfigError, HotsetError, ShardError
from ..pipeline.runtime.tasks import num_workers
from ..pipeline.schema.schema_names import DENSE_PREFIX
from ..pipeline.sizes import format_byte_size
from ..stats.ranking.row_bytes import row_bytes
from .checkpoints.run_state import Resumable
from .config import Optimizers, TrainConfig
from .data.background import BackgroundIterator
from .data.batch import Batch
from .data.batch_order import BatchOrder, ResumedOrder, SeededOrder
from .data.shards import Shards
from .data.stored_batches import StoredBatches
from .execution.embeddings import Embeddings, PlannedStep
from .execution.row_parts import RowsSource, refill_stores, restore_rows
from .execution.spilled_run import SpillLimits
from .execution.step_source import StepSource
from .meter import Meter
from .model.dense_dtype import choose_dense_dtype, cpu_features
from .model.dense_model import DenseModel
from .model.dense_step import DenseStep
from .model.dlrm import Dlrm
from .model_building.build_model import build_model, build_step
from .model_building.choose_model import choose_model
from .model_building.model_inputs import ModelInputs
from .model_building.user_code import ModelSource
from .placements.choose_placement import build_placements, spills, with_staging
from .placements.fae import FaeOrder
from .placements.schedule_file import Schedule
from .placements.shuffle_scheduler import TEST_SAMPLES, ShuffleScheduler
from .predict import Predictor
from .recipe.dense_update import DenseUpdate
from .recipe.learning_rates import LearningRates
from .recipe.stopping import Stopping
from .rows.mapped_rows import HostMemory
from .rows.row_optimizers import RowOptimizer
from .run_folder.weights_file import Weights, dtypes_of
from .work_threads import WorkThreads

_log = logging.getLogger(__name__)

_MOST_OPTIMIZERS = 4
"""Parts of the dense layers with an optimizer of their own at most; a call of each costs some 50 us."""


@dataclass(slots=True)
class Trainer:
    """Everything a run holds in memory."""

    config: TrainConfig
    shards: Shards
    model: DenseModel
    dense: DenseStep
    """Passes the model forward and backward."""
    dense_optimizers: tuple[torch.optim.Optimizer, ...]
    """Those of the parameters, each of a part of them."""
    embeddings: Embeddings
    order: BatchOrder
    step_source: StepSource
    predictor: Predictor
    meter: Meter
    scheduler: ShuffleScheduler | None
    """Scheduler of the placement ``fae``; None for the others."""
    device: torch.device
    threads: WorkThreads
    """Threads of the step."""
    rates: LearningRates
    dense_update: DenseUpdate
    step: int = 0
    num_samples: int = 0
    numbers: list[int] = field(default_factory=list)
    """Number of the training batch of each step so far."""
    losses: list[torch.Tensor] = field(default_factory=list)
    """Loss sum of each batch since the last line of the log, kept on the device."""
    unlogged_samples: int = 0
    """Samples behind those losses."""
    resumables: dict[str, Resumable] = field(default_factory=dict)
    """Other parts of the run whose state checkpoints keep, by name."""
    stopping: Stopping | None = None
    """Decides when the run stops before its last step; None: never."""
    earlier_file_bytes: tuple[int, int] = (0, 0)
    """Bytes that processes of the run before this one read from their spill files, and wrote."""

    @property
    def num_steps(self) -> int:
        """Steps of all epochs."""
        return self.config.epochs * self.shards.num_training_batches

    @property
    def optimizers(self) -> Optimizers:
        """The optimizers and learning rates of the run."""
        return self.config.optimizers(self.shards.embedding_optimizer)

    def steps(self) -> Generator[PlannedStep]:
        """The training steps in the order of the run, each timed from here on, once its rows are in place."""
        steps = self.step_source.steps(self.order.epochs())
        # An order that depends on the run (fae) cannot be read ahead. The queue holds two batches more than
        # transfers may run ahead: the one being computed and the one being prepared.
        assert self.config.prefetch is not None, "build_trainer chooses it"
        num_ahead = self.config.prefetch + 2
        ahead = BackgroundIterator(steps, num_ahead, "steps") if self.order.is_known else None
        try:
            for step in ahead or steps:
                self.meter.enter("hot_only" if step.batch.is_hot_only else "mixed")
                self.numbers.append(step.number)
                self.embeddings.wait_for_rows(step)
                yield step
        finally:
            if ahead:
                ahead.close()

    def weights(self) -> Weights:
        """Dense layers and tables by name, on the host, each copied when it is asked for."""
        # Dense tensors are there already, tables are put together one at a time while they are written.
        dense = {f"{DENSE_PREFIX}{name}": tensor for name, tensor in self.model.state_dict().items()}
        numbers = {table.name: number for number, table in enumerate(self.shards.tables)}
        shapes: dict[str, tuple[int, ...]] = {name: tuple(tensor.shape) for name, tensor in dense.items()}
        for table in self.shards.tables:
            shapes[table.name] = (table.num_rows, table.embedding_dim)

        def tensor_of(name: str) -> torch.Tensor:
            return dense[name].cpu() if name in dense else self.embeddings.table(numbers[name])

        def parts_of(name: str) -> Iterator[torch.Tensor]:
            return iter([dense[name].cpu()]) if name in dense else self.embeddings.table_parts(numbers[name])

        return Weights(shapes, tensor_of, parts_of, dtypes=dtypes_of(dense))


def run_steps(trainer: Trainer, after_step: Callable[[Trainer, Batch, torch.Tensor], None]) -> None:
    """Train on every batch of the run, then write all rows back.

    The loss of a batch is summed over its samples and divided by the nominal batch size, so that a short
    last batch takes a small step.
    """
    with closing(trainer.embeddings), closing(trainer.steps()) as steps:
        for step in steps:
            batch = step.batch
            embeddings = trainer.embeddings.look_up(step)
            loss_sum = trainer.dense.train(batch, embeddings, trainer.step)  # nats; leaves the gradients
            rates = trainer.rates.of_step(trainer.step)
            trainer.dense_update.prepare(rates.dense)
            # Embedding rows by our optimizer, dense layers by torch's, at the same time.
            trainer.threads.run_all(
                partial(trainer.embeddings.update, step, embeddings, rates.rows),
                *(optimizer.step for optimizer in trainer.dense_optimizers),
            )
            trainer.step += 1
            trainer.num_samples += batch.num_samples
            after_step(trainer, batch, loss_sum)
            if trainer.stopping is not None and trainer.stopping.reason is not None:
                break
        # Clocked as part of training: a placement is not done before its rows are back.
        trainer.meter.enter("flush")
        if trainer.step < trainer.num_steps:
            steps.close()  # nothing is read and planned ahead any more
            trainer.embeddings.stop()
        else:
            trainer.embeddings.finish()
        trainer.meter.enter(None)


def resolve(shards: Shards, config: TrainConfig) -> TrainConfig:
    """Fill in what the settings leave to the shards and the machine, but for the optimizers.

    Raises:
        ConfigError: no such device.
        ShardError: shards that cannot be trained on.
    """
    if shards.num_training_batches == 0:
        raise ShardError(f"{shards.manifest.folder} has no training batch")
    _refuse_no_validation(shards, config)
    dtype = choose_dense_dtype(config.dense_dtype, open_device(config.device).type, cpu_features())
    return replace(with_staging(config, shards), dense_dtype=dtype)


def _refuse_no_validation(shards: Shards, config: TrainConfig) -> None:
    """Raise ConfigError where the recipe needs what the shards or the placement do not have."""
    option = config.recipe.needs_validation
    if option is not None and not shards.num_validation_samples:
        raise ConfigError(
            f"{option} is decided by a validation part, and {shards.manifest.folder} has none",
            hint="give preprocess --valid-fraction 0.1 or --valid-files 1, with --redo count for this folder",
        )
    option = config.recipe.may_stop
    if option is not None and spills(config, shards):
        raise ConfigError(
            f"{option} needs all rows before the last step, and with --slow-bytes they lie in a file planned "
            "to the end",
            hint="give --plan online too, or leave --slow-bytes out",
        )


@dataclass(frozen=True, slots=True)
class RunStart:
    """Rows that a run starts with instead of its initial ones, and how far an interrupted run has come."""

    rows: RowsSource
    done: NDArray[np.int32] | None = None
    """(num_steps,); training batch of each step so far; None: a new run."""
    test_losses: tuple[float, ...] = ()
    """What the scheduler of fae has seen."""


def build_trainer(
    shards: Shards,
    config: TrainConfig,
    order: BatchOrder | None = None,
    spill_folder: Path | None = None,
    model_source: ModelSource | None = None,
    *,
    start: RunStart | None = None,
    tracks_changes: bool = False,
) -> Trainer:
    """Build the model, the tiers with their initial rows, and the order of batches.

    Args:
        order: order of batches to use instead of the placement's own.
        spill_folder: folder for rows beyond ``slow_bytes``; None: that of temporary files.
        model_source: makes the module of a user; None imports the class that ``config.model`` names.
        start: rows to start with, and the steps that are done; what else the run has is restored by
            `resuming.run_checkpoints`.
        tracks_changes: whether rows that steps change are marked, for checkpoints.

    Raises:
        HotsetError: no disk space for such rows.
        ConfigError: no such device, or a model that does not fit the shards.
        ShardError: shards that cannot be trained on.
    """
    if shards.num_training_batches == 0:
        raise ShardError(f"{shards.manifest.folder} has no training batch")
    device = open_device(config.device)
    meter = Meter(device)
    # The order of batches is built last: that of fae needs the predictor for its test loss.
    chosen = config.optimizers(shards.embedding_optimizer)
    optimizer = RowOptimizer(chosen.embedding_optimizer, chosen.embedding_lr, config.recipe.embedding_decay)
    # The two placements that keep hot rows on the fast tier permanently.
    if config.placement in ("fae", "lookahead"):
        _warn_of_row_bytes(shards, optimizer)
    model_config = choose_model(config, shards.embedding_dim)
    model = build_model(
        model_config, inputs_of(shards), config.seed, model_source, shards.least_batch_samples
    ).to(device)
    # Rows on the host are the work of all threads; a GPU takes its work from one.
    row_threads = WorkThreads(config.threads or num_workers(0))
    threads = WorkThreads(1) if device.type == "cuda" else row_threads
    # From here on nothing is left open: a schedule on disk is compared with it, and the run records it.
    config = resolve(shards, config)
    dtype = choose_dense_dtype(config.dense_dtype, device.type, cpu_features())
    dense = build_step(model, model_config, shards.tables, shards.batch_size, threads, dtype, config.seed)
    placements = build_placements(config, shards)
    folder = spill_folder or Path(tempfile.gettempdir())
    host = HostMemory(config.slow_bytes, folder, is_planned=spills(config, shards))
    embeddings = Embeddings.build(
        shards.tables,
        placements,
        optimizer,
        config.seed,
        device,
        meter,
        row_threads,
        host,
        tracks_changes=tracks_changes or start is not None,
    )
    embeddings.initialize()
    if start is not None:
        restore_rows(embeddings, start.rows, are_saved=start.done is not None)
    predictor = Predictor(shards, dense, embeddings, meter, folder)
    scheduler = ShuffleScheduler.variant(config.fae_variant) if config.placement == "fae" else None
    order = order or _own_order(shards, config, scheduler, predictor, start.test_losses if start else ())
    if start is not None and start.done is not None:
        order = ResumedOrder(order, start.done)
    source = build_step_source(shards, config, embeddings, is_resumed=start is not None)
    if host.is_planned:
        assert config.slow_bytes is not None
        source.plan_run(order.epochs(), SpillLimits(config.slow_bytes, folder))
        if start is not None:
            refill_stores(embeddings, start.rows)
    optimizers = build_dense_optimizers(model, chosen, threads.num_threads, config.recipe.dense_decay)
    num_steps = config.epochs * shards.num_training_batches
    if config.recipe.max_steps is not None:
        num_steps = min(num_steps, config.recipe.max_steps)
    stopping = Stopping(config.recipe)
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
        LearningRates(config.recipe, chosen, num_steps),
        DenseUpdate(model.parameters(), optimizers, config.recipe.clip_gradient),
        stopping=stopping,
        resumables={"stopping": stopping},
    )


def build_step_source(
    shards: Shards, config: TrainConfig, embeddings: Embeddings, *, is_resumed: bool = False
) -> StepSource:
    """Build the source of a run's steps, from a schedule on disk where there is one for this run.

    Args:
        is_resumed: whether rows were restored; a schedule, which is for a run from its first step and rows
            with their initial values, is then left alone.
    """
    # A plan asked for by name is made here, whatever lies on disk.
    schedule = None
    if config.placement == "lookahead" and config.plan == "auto" and not is_resumed:
        schedule = Schedule.find(shards, config)

    def looks_up_hot_rows_alone(number: int) -> bool:
        return bool(shards.is_hot_only[number])

    stored = StoredBatches.find(shards)
    return StepSource(
        embeddings,
        shards.training_batch,
        looks_up_hot_rows_alone,
        is_resumed=is_resumed,
        schedule=schedule,
        stored=stored,
    )


def inputs_of(shards: Shards) -> ModelInputs:
    """Return the sizes of these shards that a model is built for."""
    return ModelInputs.of(shards.num_dense, shards.tables, shards.embedding_dim)


def build_dense_optimizers(
    model: DenseModel, chosen: Optimizers, num_threads: int, decay: float = 0.0
) -> tuple[torch.optim.Optimizer, ...]:
    """Build torch's own optimizer for parts of the dense layers, so that several threads can take a step.

    A parameter's step is a function of its own gradients, so the parts change no bit. Torch's fused Adam
    takes 1.0 instead of 2.6 ms on the host for the Kaggle model. It reads parameter, gradient and state as
    they lie in memory and is wrong where these differ, so it is for the one model whose step sees to that.
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
    options: dict[str, Any] = {"lr": chosen.dense_lr, "weight_decay": decay}
    if chosen.dense_optimizer == "adam":
        options["fused"] = isinstance(model, Dlrm) and next(model.parameters()).device.type == "cpu"
    return tuple(build(part, **options) for part in parts if part)


def open_device(name: str) -> torch.device:
    """The torch device ``name``; raises ConfigError where this machine has no such device."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {name!r}", hint="--device is cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"training runs on cpu or cuda, not on {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("this machine has no CUDA device", hint="use --device cpu")
    if device.type == "cuda":
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise ConfigError(
                f"this machine has {torch.cuda.device_count()} CUDA devices, and {name!r} is none of them",
                hint="count devices from cuda:0",
            )
        # Events and buffers that name no device are those of the calling thread's.
        torch.cuda.set_device(device)
    return device


def set_threads(threads: int | None) -> int:
    """Set the number of threads of the dense layers for the run, and return it."""
    threads = threads or num_workers(0)
    torch.set_num_threads(threads)
    return threads


def divergence(fault: str) -> HotsetError:
    """Return the error of a run whose loss or weights are no finite numbers."""
    return HotsetError(
        fault,
        hint="lower --embedding-lr or --dense-lr, and give another --out or remove the folder",
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


def _warn_of_row_bytes(shards: Shards, optimizer: RowOptimizer) -> None:
    """Warn where the hot rows take more bytes with this optimizer than with the one they were chosen for."""

    def hot_bytes(name: str) -> int:
        return sum(table.num_hot * row_bytes(table.embedding_dim, name) for table in shards.tables)

    needed = hot_bytes(optimizer.name)
    counted = hot_bytes(shards.embedding_optimizer)
    if needed > counted:
        _log.warning(
            "the hot rows take %s with %s; the shards were packed for %s with %s",
            format_byte_size(needed),
            optimizer.name,
            format_byte_size(counted),
            shards.embedding_optimizer,
        )
