"""The training loop: batch, rows, forward, backward, rows, dense layers, log; and a run in memory.

`StepSource` reads, plans and loads ahead in another thread, and `run_log` writes the log after each step.
`step.HostSteps` does the work of a step on the host; on a GPU `gpu.queued_steps` queues the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ..pipeline.errors import ShardError
from ..pipeline.schema.schema import DENSE_PREFIX
from .config import TrainConfig
from .data.batch import Batch, BatchOrder
from .data.shards import ShardSet
from .evaluate import Predictor
from .metrics import Meter
from .model.dlrm import DenseModel
from .placements.placements import StepSource, num_planned_steps, num_steps_ahead
from .ranks.ranks import OneRank, Ranks
from .rows.embeddings import Embeddings
from .rows.step_plan import PlannedStep
from .run_folder.weights import Weights
from .step import LearningRates, Resumable, StepRunner, Stopping
from .threads import PLACES_AT_A_TIME, BackgroundIterator, WorkThreads

if TYPE_CHECKING:
    from .ranks.messages import CodedExchange


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
    num_planned = num_planned_steps(trainer.config, trainer.shards)
    with closing(embeddings.transfers), closing(read_ahead(trainer)) as steps:
        if max(trainer.ranks.num_ranks, trainer.num_agreed) > 1 and isinstance(steps, BackgroundIterator):
            trainer.ahead = steps
        for step in steps:
            meter.enter("hot_only" if step.batch.is_hot_only else "mixed")
            trainer.batch_numbers.append(step.number)
            for prepare in trainer.before_step:
                prepare(step)
            loss_sum = trainer.runner.train(step, trainer.step, trainer.rates.of_step(trainer.step))
            trainer.step_source.count(step)
            trainer.step += 1
            trainer.num_samples += step.num_samples
            trainer.unlogged_samples += step.num_samples
            # A shard that one rank cannot read must stop all of them after the same step.
            if trainer.ahead is not None:
                fault = trainer.ahead.fault(trainer.num_agreed)
                trainer.fault = fault if isinstance(fault, ShardError) else None
            yield step.batch, loss_sum
            # After the last planned step the source ends by itself, once staged rows are written back.
            if trainer.stopping.reason is not None and trainer.step < num_planned:
                break
        # Timed as part of training: a placement is not done before its rows are back.
        meter.enter("flush")
        if trainer.step < num_planned:
            steps.close()  # nothing is read and planned ahead any more
            embeddings.stop()
        else:
            embeddings.finish()
        meter.enter(None)


def read_ahead(trainer: Trainer) -> BackgroundIterator[PlannedStep] | Generator[PlannedStep]:
    """Return the steps of the run, read and planned in another thread where the order is known."""
    steps = trainer.step_source.steps(trainer.order.epochs(), trainer.runner.prepare)
    if not trainer.order.is_known:  # fae decides by the test loss
        return steps
    # The loop of a device is the busiest thread: it wakes the one that reads ahead now and then.
    at_a_time = 1 if trainer.runner.is_synchronous else PLACES_AT_A_TIME
    depth = num_steps_ahead(trainer.config, trainer.shards.mixed_share)
    depth += trainer.step_source.readers.num_threads + at_a_time - 1
    return BackgroundIterator(steps, depth, "steps", at_a_time)


@dataclass(slots=True)
class Trainer:
    """A run in memory."""

    config: TrainConfig
    shards: ShardSet
    model: DenseModel
    dense_optimizers: tuple[torch.optim.Optimizer, ...]
    embeddings: Embeddings
    order: BatchOrder
    step_source: StepSource
    runner: StepRunner
    rates: LearningRates
    stopping: Stopping
    predictor: Predictor
    meter: Meter
    threads: WorkThreads
    ranks: Ranks = field(default_factory=OneRank)
    rank_codecs: CodedExchange | None = None
    """Codecs and counts of what crosses between several ranks."""
    before_step: list[Callable[[PlannedStep], None]] = field(default_factory=list)
    """Work before a step changes rows: FAE's copies, and rows that a checkpoint has yet to save."""
    resumables: dict[str, Resumable] = field(default_factory=dict)
    """Other parts of the run whose state checkpoints keep, by name."""
    step: int = 0
    num_samples: int = 0
    batch_numbers: list[int] = field(default_factory=list)  # of each step so far
    losses: list[torch.Tensor] = field(default_factory=list)
    """Loss sum of each batch since the last line of the log, kept on the device."""
    unlogged_samples: int = 0  # that those losses cover
    fault: ShardError | None = None
    """What is wrong with the shards of the next steps, where this is one of several ranks."""
    num_agreed: int = 1
    """Next steps whose shards all ranks can read, or none of them takes another step."""
    whole_losses: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Adds the losses of all ranks, where each knows only those of its samples; every rank calls it."""
    ahead: BackgroundIterator[PlannedStep] | None = None
    """The steps after the current one, where another thread reads them and a step looks that far."""

    def step_losses(self) -> torch.Tensor:
        """Return the loss sum of each of `losses`, of all ranks, once it is computed."""
        self.runner.synchronize()
        losses = torch.stack(self.losses)
        if self.whole_losses is not None:
            losses = self.whole_losses(losses)
            self.set_losses(losses)
        return losses

    def set_losses(self, losses: torch.Tensor) -> None:
        """Set `losses` to those of all ranks, which are added up again later: the first rank has them."""
        is_counted = self.whole_losses is None or self.ranks.rank == 0
        self.losses = list(losses if is_counted else torch.zeros_like(losses))

    def weights(self) -> Weights:
        """Return dense layers and tables by name, copied to the host on access."""
        tables = self.embeddings.parts_by_name(self.shards.tables)
        return Weights.of_run(self.model.state_dict(prefix=DENSE_PREFIX), tables)
