"""The training loop: batch, rows, forward, backward, rows, dense layers, log.

`run.train` builds a `Trainer` and runs `train_steps`. `StepSource` reads, plans and loads ahead in another
thread; `HostSteps` shows the work of a step; on a GPU `gpu.queued_steps` queues the same work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from ..pipeline.schema.schema import DENSE_PREFIX
from .checkpoints.files import Resumable
from .config import Optimizers, TrainConfig
from .data.batch import Batch
from .data.batch_order import BatchOrder
from .data.shards import Shards
from .evaluate import Predictor
from .execution.embeddings import Embeddings
from .execution.step_source import StepSource
from .metrics import Meter
from .model.dense_model import DenseModel
from .optimizing import LearningRates, StepRates, Stopping
from .placements.choose_placement import num_planned_steps
from .ranks.ranks import OneRank, Ranks
from .rows.step_plan import PlannedStep
from .run_folder.weights import Weights
from .step import StepParts, StepRunner
from .threads import PLACES_AT_A_TIME, BackgroundIterator, WorkThreads

if TYPE_CHECKING:
    from .ranks.codes import CodedExchange

MOST_STEPS_AHEAD = 12
"""Steps that are read ahead for the sake of transfers, at most; a larger prefetch depth has what it needs."""


@dataclass(slots=True)
class Trainer:
    """A run in memory."""

    config: TrainConfig
    """Resolved."""
    shards: Shards
    model: DenseModel
    dense_optimizers: tuple[torch.optim.Optimizer, ...]
    """Those of the parameters, each of a part of them."""
    embeddings: Embeddings
    order: BatchOrder
    step_source: StepSource
    runner: StepRunner
    """Runs the steps."""
    rates: LearningRates
    stopping: Stopping
    """Decides whether the run stops before its last step."""
    predictor: Predictor
    meter: Meter
    threads: WorkThreads
    """Threads of the step."""
    ranks: Ranks = field(default_factory=OneRank)
    """The ranks that share the run."""
    coded: CodedExchange | None = None
    """Codecs and counts of what crosses between several ranks."""
    before_step: list[Callable[[PlannedStep], None]] = field(default_factory=list)
    """Work before a step changes rows: FAE's copies, and rows that a checkpoint has yet to save."""
    resumables: dict[str, Resumable] = field(default_factory=dict)
    """Other parts of the run whose state checkpoints keep, by name."""
    step: int = 0
    num_samples: int = 0
    batch_numbers: list[int] = field(default_factory=list)
    """Training batch of each step so far."""
    losses: list[torch.Tensor] = field(default_factory=list)
    """Loss sum of each batch since the last line of the log, kept on the device."""
    unlogged_samples: int = 0
    """Samples that those losses cover."""

    @property
    def num_steps(self) -> int:
        """Steps of all epochs."""
        return self.config.epochs * self.shards.num_training_batches

    @property
    def num_planned_steps(self) -> int:
        """Steps after which all rows are written back; a run may be stopped before."""
        return num_planned_steps(self.config, self.shards)

    @property
    def optimizers(self) -> Optimizers:
        """The optimizers and learning rates of the run."""
        return self.config.optimizers(self.shards.embedding_optimizer)

    def weights(self) -> Weights:
        """Return dense layers and tables by name, copied to the host on access."""
        dense = {f"{DENSE_PREFIX}{name}": tensor for name, tensor in self.model.state_dict().items()}
        tables = {
            table.name: ((table.num_rows, table.embedding_dim), partial(self.embeddings.table_parts, number))
            for number, table in enumerate(self.shards.tables)
        }
        return Weights.of_run(dense, tables)


def run_steps(trainer: Trainer, after_step: Callable[[Trainer, Batch, torch.Tensor], None]) -> None:
    """Train on every batch of the run, then write all rows back; see `train_steps`."""
    with closing(train_steps(trainer)) as steps:
        for batch, loss_sum in steps:
            after_step(trainer, batch, loss_sum)


def train_steps(trainer: Trainer) -> Generator[tuple[Batch, torch.Tensor]]:
    """Train on every batch, then write all rows back; yield each batch with its loss.

    The loss is the sum over the samples, in nats. Its gradient is divided by the nominal batch size, so that
    a short last batch takes a small step. Close the generator to stop early.
    """
    embeddings, meter = trainer.embeddings, trainer.meter
    with closing(embeddings), closing(read_ahead(trainer)) as steps:
        for step in steps:
            meter.enter("hot_only" if step.batch.is_hot_only else "mixed")
            trainer.batch_numbers.append(step.number)
            for prepare in trainer.before_step:
                prepare(step)
            loss_sum = trainer.runner.train(step, trainer.step, trainer.rates.of_step(trainer.step))
            trainer.step += 1
            trainer.num_samples += step.num_samples
            trainer.unlogged_samples += step.num_samples
            yield step.batch, loss_sum
            # After the last planned step the source ends by itself, once what is staged has been sent back.
            if trainer.stopping.reason is not None and trainer.step < trainer.num_planned_steps:
                break
        # Timed as part of training: a placement is not done before its rows are back.
        meter.enter("flush")
        if trainer.step < trainer.num_planned_steps:
            steps.close()  # nothing is read and planned ahead any more
            embeddings.stop()
        else:
            embeddings.finish()
        meter.enter(None)


class HostSteps:
    """Runs each step synchronously on the host."""

    is_synchronous = True
    prepare = None
    mover_name: str | None = None

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts
        self.mover_rows_per_second: Mapping[str, float] = {}

    def train(self, step: PlannedStep, number: int, rates: StepRates) -> torch.Tensor:
        parts = self._parts
        parts.embeddings.wait_for_rows(step)
        embeddings = parts.embeddings.look_up(step)
        loss_sum = parts.dense.train(step.batch, embeddings, number)  # forward and backward: leaves gradients
        parts.prepare_dense(rates.dense)
        # Embedding rows by our optimizer, dense layers by torch's, in parallel.
        update_rows = partial(parts.embeddings.update, step, embeddings, rates.rows)
        parts.threads.run_all(update_rows, *parts.step_dense)
        return loss_sum

    def synchronize(self) -> None:
        """Nothing is under way."""


def read_ahead(trainer: Trainer) -> BackgroundIterator[PlannedStep] | Generator[PlannedStep]:
    """Return the steps of the run, read and planned in another thread where the order is known."""
    steps = trainer.step_source.steps(trainer.order.epochs(), trainer.runner.prepare)
    if not trainer.order.is_known:  # fae decides by the test loss
        return steps
    num_ahead = (
        num_steps_ahead(trainer.config, trainer.shards.mixed_share) + trainer.step_source.readers.num_threads
    )
    # The loop of a device is the busiest thread: it wakes the one that reads ahead now and then.
    at_a_time = 1 if trainer.runner.is_synchronous else PLACES_AT_A_TIME
    return BackgroundIterator(steps, num_ahead + at_a_time - 1, "steps", at_a_time)


def num_steps_ahead(config: TrainConfig, mixed_share: float = 1.0) -> int:
    """Return how many steps are read and planned ahead of the current one.

    Transfers run as many batches with transfers ahead as are prefetched, over those between them that need
    none; two more are the one being computed and the one being prepared.

    Args:
        config: of the run.
        mixed_share: share of the batches that is mixed.
    """
    assert config.prefetch is not None, "resolve chooses it"
    least = config.prefetch + 2
    # The other placements have a transfer for every batch, or none at all.
    if config.placement != "lookahead" or not mixed_share:
        return least
    return max(least, min(math.ceil((config.prefetch + 1) / mixed_share) + 1, MOST_STEPS_AHEAD))
