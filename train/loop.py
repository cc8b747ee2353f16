"""The training loop: batch, rows, forward, backward, rows, dense layers, log.

`StepSource` reads, plans and loads ahead in another thread, and `run_log` writes the log after each step.
`step.HostSteps` does the work of a step on the host; on a GPU `gpu.queued_steps` queues the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing

import torch

from ..pipeline.errors import ShardError
from .data.batch import Batch
from .placements.placements import num_planned_steps, num_steps_ahead
from .rows.step_plan import PlannedStep
from .threads import PLACES_AT_A_TIME, BackgroundIterator
from .trainer import Trainer


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
        is_asked_ahead = trainer.ranks.num_ranks > 1 or trainer.num_agreed > 1
        if is_asked_ahead and isinstance(steps, BackgroundIterator):
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
