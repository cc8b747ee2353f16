"""The training loop and what it holds. The loop shows every step by name; the rest is assembly."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from ..pipeline.errors import ConfigError, HotsetError, ShardError
from ..pipeline.runtime.tasks import num_workers
from ..pipeline.sizes import format_byte_size
from ..stats.ranking.row_bytes import row_bytes
from .config import TrainConfig
from .data.background import Ahead
from .data.batch import Batch
from .data.batch_order import BatchOrder, SeededOrder
from .data.shards import Shards
from .execution.embeddings import Embeddings, Step
from .execution.step_source import Feed
from .meter import Meter
from .model.dlrm import Dlrm
from .model.dlrm_shape import dlrm_shape
from .placements.choose_placement import choose_placement
from .placements.fae import FaeOrder
from .placements.schedule_file import Schedule
from .placements.shuffle_scheduler import TEST_SAMPLES, ShuffleScheduler
from .predict import Predictor
from .rows.mapped_rows import HostMemory
from .rows.row_optimizers import RowOptimizer
from .weights_file import Weights

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Trainer:
    """Everything a run holds in memory."""

    config: TrainConfig
    shards: Shards
    model: Dlrm
    dense_optimizer: torch.optim.Optimizer
    embeddings: Embeddings
    order: BatchOrder
    feed: Feed
    predictor: Predictor
    meter: Meter
    scheduler: ShuffleScheduler | None
    """Of the placement ``fae``."""
    device: torch.device
    step: int = 0
    num_samples: int = 0
    numbers: list[int] = field(default_factory=list)
    """Training batch of each step so far."""
    losses: list[torch.Tensor] = field(default_factory=list)
    """Loss sum of each batch since the last line of the log, left on the device."""
    logged_samples: int = 0

    def steps(self) -> Generator[Step]:
        """The training steps in the order of the run, each timed from here on, its rows in place."""
        steps = self.feed.steps(self.order.epochs())
        # An order that is decided as the run goes cannot be read ahead.
        ahead = Ahead(steps, self.config.prefetch + 2, "feed") if self.order.is_known else None
        try:
            for step in ahead or steps:
                self.meter.enter("hot_only" if step.batch.is_hot_only else "mixed")
                self.numbers.append(step.number)
                self.embeddings.arrive(step)
                yield step
        finally:
            if ahead:
                ahead.close()

    def weights(self) -> Weights:
        """Dense layers and tables by name, on the host, each made when it is asked for."""
        dense = {f"dense.{name}": tensor for name, tensor in self.model.state_dict().items()}
        numbers = {table.name: number for number, table in enumerate(self.shards.tables)}
        shapes: dict[str, tuple[int, ...]] = {name: tuple(tensor.shape) for name, tensor in dense.items()}
        for table in self.shards.tables:
            shapes[table.name] = (table.num_rows, table.embedding_dim)

        def tensor_of(name: str) -> torch.Tensor:
            return dense[name].cpu() if name in dense else self.embeddings.table(numbers[name])

        return Weights(shapes, tensor_of)


def run_steps(trainer: Trainer, after_step: Callable[[Trainer, Batch, torch.Tensor], None]) -> None:
    """Train on every batch of the run, then bring all rows home.

    The loss of a batch is summed over its samples and divided by the nominal batch size, so that a short
    last batch takes a small step.
    """
    with closing(trainer.embeddings), closing(trainer.steps()) as steps:
        for step in steps:
            batch = step.batch
            embeddings = trainer.embeddings.look_up(step)
            dense_BK, label_B = batch.dense_BK.to(trainer.device), batch.label_B.to(trainer.device)
            logit_B = trainer.model(dense_BK, trainer.model.join(embeddings))
            loss_sum = binary_cross_entropy_with_logits(logit_B, label_B, reduction="sum")  # nats
            trainer.dense_optimizer.zero_grad(set_to_none=True)
            (loss_sum / trainer.shards.batch_size).backward()  # type: ignore[no-untyped-call]
            trainer.dense_optimizer.step()
            trainer.embeddings.update(step, embeddings)
            trainer.step += 1
            trainer.num_samples += batch.num_samples
            after_step(trainer, batch, loss_sum.detach())
        trainer.meter.enter("flush")
        trainer.embeddings.finish()
        trainer.meter.enter(None)


def build_trainer(
    shards: Shards, config: TrainConfig, order: BatchOrder | None = None, scratch: Path | None = None
) -> Trainer:
    """Make the model, the tiers with their initial rows, and the order of batches.

    Args:
        order: replayed instead of the placement's own.
        scratch: folder for rows that memory is not to hold; None: that of temporary files.

    Raises:
        HotsetError: no room for such rows.
        ConfigError: no such device, or a model that does not fit the shards.
        ShardError: shards that cannot be trained on.
    """
    if shards.num_training_batches == 0:
        raise ShardError(f"{shards.manifest.folder} has no training batch")
    device = open_device(config.device)
    meter = Meter(device)
    optimizer = RowOptimizer(config.embedding_optimizer, config.resolved_embedding_lr)
    if config.placement in ("fae", "lookahead"):
        _warn_of_row_bytes(shards, optimizer)
    model = build_model(shards, config.model, config.seed).to(device)
    make_placement = choose_placement(config, shards)
    host = HostMemory(config.slow_bytes, scratch or Path(tempfile.gettempdir()))
    embeddings = Embeddings.build(shards.tables, make_placement, optimizer, config.seed, device, meter, host)
    embeddings.initialise()
    predictor = Predictor(shards, model, embeddings, meter)
    scheduler = ShuffleScheduler.variant(config.fae_variant) if config.placement == "fae" else None
    order = order or _own_order(shards, config, scheduler, predictor)
    dense_optimizer = build_dense_optimizer(model, config)
    return Trainer(
        config,
        shards,
        model,
        dense_optimizer,
        embeddings,
        order,
        build_feed(shards, config, embeddings),
        predictor,
        meter,
        scheduler,
        device,
    )


def build_feed(shards: Shards, config: TrainConfig, embeddings: Embeddings) -> Feed:
    """What makes the steps of a run, from a schedule on disk where there is one for it."""
    is_hot_only, schedule = shards.is_hot_only, None
    if config.placement == "lookahead" and config.plan == "auto":
        schedule = Schedule.find(shards, config)

    def looks_up_hot_rows_alone(number: int) -> bool:
        return bool(is_hot_only[number])

    return Feed(embeddings, shards.training_batch, looks_up_hot_rows_alone, schedule=schedule)


def build_model(shards: Shards, name: str, seed: int) -> Dlrm:
    """The dense layers of preset ``name`` for these shards."""
    dims = [table.embedding_dim for table in shards.tables]
    return Dlrm(dlrm_shape(name, shards.num_dense, len(dims), shards.embedding_dim, dims), seed)


def build_dense_optimizer(model: Dlrm, config: TrainConfig) -> torch.optim.Optimizer:
    """Torch's own optimizer of the dense layers."""
    kinds: dict[str, Any] = {
        "sgd": torch.optim.SGD,
        "adagrad": torch.optim.Adagrad,
        "adam": torch.optim.Adam,
    }
    made: torch.optim.Optimizer = kinds[config.resolved_dense_optimizer](
        model.parameters(), lr=config.resolved_dense_lr
    )
    return made


def open_device(name: str) -> torch.device:
    """The torch device ``name``; raises ConfigError where this machine has none such."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"no device is called {name!r}", hint="--device is cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"training runs on cpu or cuda, not on {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("this machine has no CUDA device", hint="use --device cpu")
    return device


def set_threads(threads: int | None) -> int:
    """Fix the threads of the dense layers for the run; returns how many."""
    threads = threads or num_workers(0)
    torch.set_num_threads(threads)
    return threads


def refuse_divergence(mean_loss: float, step: int) -> None:
    """Raise HotsetError where the training loss is no number any more."""
    if not math.isfinite(mean_loss):
        raise HotsetError(
            f"the training loss is {mean_loss} at step {step}",
            hint="lower --embedding-lr or --dense-lr",
        )


def _own_order(
    shards: Shards, config: TrainConfig, scheduler: ShuffleScheduler | None, predictor: Predictor
) -> BatchOrder:
    kinds, seed, epochs = shards.is_hot_only, config.seed, config.epochs
    if scheduler is None:
        return SeededOrder(kinds, seed, epochs, is_grouped=shards.is_grouped)
    return FaeOrder(kinds, seed, epochs, scheduler, lambda: predictor.mean_loss(TEST_SAMPLES))


def _warn_of_row_bytes(shards: Shards, optimizer: RowOptimizer) -> None:
    def hot_bytes(name: str) -> int:
        return sum(table.num_hot * row_bytes(table.embedding_dim, name) for table in shards.tables)

    real, counted = hot_bytes(optimizer.name), hot_bytes(shards.embedding_optimizer)
    if real > counted:
        _log.warning(
            "the hot rows take %s with %s, the shards' budget counted %s with %s",
            format_byte_size(real),
            optimizer.name,
            format_byte_size(counted),
            shards.embedding_optimizer,
        )
