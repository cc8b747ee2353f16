"""The training loop, which shows every step by name."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import torch

from ..pipeline.schema.schema import DENSE_PREFIX
from .checkpoints.files import Resumable
from .config import Optimizers, TrainConfig
from .data.batch import Batch
from .data.batch_order import BatchOrder
from .data.shards import Shards
from .dense.dense_step import DenseStep
from .evaluate import Predictor
from .execution.embeddings import Embeddings, PlannedStep
from .execution.step_source import StepSource
from .metrics import Meter
from .model.dense_model import DenseModel
from .optimizing import LearningRates, Stopping
from .placements.choose_placement import num_planned_steps
from .placements.fae import ShuffleScheduler
from .ranks.codes import CodedExchange
from .ranks.ranks import OneRank, Ranks
from .run_folder.weights import Weights
from .step import PreparedStep, StepRunner
from .threads import PLACES_AT_A_TIME, BackgroundIterator, Readers, WorkThreads

_log = logging.getLogger(__name__)

MOST_STEPS_AHEAD = 12
"""Steps that are read ahead for the sake of transfers, at most; a larger prefetch depth has what it needs."""


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
    runner: StepRunner
    """Takes the steps."""
    rates: LearningRates
    readers: Readers = field(default_factory=Readers)
    """Threads that read and pack ahead of a device; none for the host."""
    step: int = 0
    num_samples: int = 0
    numbers: list[int] = field(default_factory=list)
    """Number of the training batch of each step so far."""
    losses: list[torch.Tensor] = field(default_factory=list)
    """Loss sum of each batch since the last line of the log, kept on the device."""
    unlogged_samples: int = 0
    """Samples that those losses cover."""
    resumables: dict[str, Resumable] = field(default_factory=dict)
    """Other parts of the run whose state checkpoints keep, by name."""
    stopping: Stopping | None = None
    """Decides when the run stops before its last step; None: never."""
    before_update: Callable[[PlannedStep], None] | None = None
    """Copies the rows of a checkpoint under way that a step is about to change; None: there are none."""
    earlier_file_bytes: tuple[int, int] = (0, 0)
    """Bytes that processes of the run before this one read from their spill files, and wrote."""
    ranks: Ranks = field(default_factory=OneRank)
    """The ranks that share the run."""
    coded: CodedExchange = field(default_factory=lambda: CodedExchange(0, 0))
    """Codecs and counts of what crosses between them."""

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

    def steps(self) -> Generator[PreparedStep]:
        """The training steps in the order of the run, each timed from here on."""
        steps = self._prepared_steps()
        # An order that depends on the run (fae) cannot be read ahead.
        num_ahead = num_steps_ahead(self.config, self.shards.mixed_share) + self.readers.num_threads
        # The loop of a device is the busiest thread: it wakes the one that reads ahead now and then.
        at_a_time = 1 if self.runner.is_at_once else PLACES_AT_A_TIME
        ahead = None
        if self.order.is_known:
            ahead = BackgroundIterator(steps, num_ahead + at_a_time - 1, "steps", at_a_time)
        known = ahead or steps
        try:
            for step in known:
                self.meter.enter("hot_only" if step.step.batch.is_hot_only else "mixed")
                self.numbers.append(step.step.number)
                yield step
        finally:
            if ahead:
                ahead.close()

    def _prepared_steps(self) -> Generator[PreparedStep]:
        with self.readers, closing(self.step_source.steps(self.order.epochs())) as steps:
            for step in steps:
                yield self.runner.prepare(step)

    def weights(self) -> Weights:
        """Return dense layers and tables by name, copied to the host on access."""
        dense = {f"{DENSE_PREFIX}{name}": tensor for name, tensor in self.model.state_dict().items()}
        tables = {
            table.name: ((table.num_rows, table.embedding_dim), partial(self.embeddings.table_parts, number))
            for number, table in enumerate(self.shards.tables)
        }
        return Weights.of_run(dense, tables)


def run_steps(trainer: Trainer, after_step: Callable[[Trainer, Batch, torch.Tensor], None]) -> None:
    """Train on every batch of the run, then write all rows back; see `taken_steps`."""
    with closing(taken_steps(trainer)) as taken:
        for batch, loss_sum in taken:
            after_step(trainer, batch, loss_sum)


def taken_steps(trainer: Trainer) -> Generator[tuple[Batch, torch.Tensor]]:
    """Train on every batch, then write all rows back; yield batch and loss.

    The loss of a batch is summed over its samples and divided by the nominal batch size, so that a short
    last batch takes a small step. Whoever takes these steps may let others run between two of them, and
    closes the generator where it wants no more.
    """
    with closing(trainer.embeddings), closing(trainer.steps()) as steps:
        for step in steps:
            if trainer.before_update is not None:
                trainer.before_update(step.step)
            loss_sum = trainer.runner.train(step, trainer.step, trainer.rates.of_step(trainer.step))
            trainer.step += 1
            trainer.num_samples += step.step.num_samples
            trainer.unlogged_samples += step.step.num_samples
            yield step.step.batch, loss_sum
            # The step that met the condition is the last one. After the last planned one the steps end by
            # themselves, once what is staged has been sent back.
            is_stopped = trainer.stopping is not None and trainer.stopping.reason is not None
            if is_stopped and trainer.step < trainer.num_planned_steps:
                break
        # Clocked as part of training: a placement is not done before its rows are back.
        trainer.meter.enter("flush")
        # A run that stops early leaves plans and transfers that nobody will need.
        if trainer.step < trainer.num_planned_steps:
            steps.close()  # nothing is read and planned ahead any more
            trainer.embeddings.stop()
        else:
            trainer.embeddings.finish()
        trainer.meter.enter(None)


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
