"""The interface that takes training steps and returns the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from .dense.dense_step import DenseStep
from .execution.embeddings import Embeddings, PlannedStep
from .optimizing import StepRates
from .threads import WorkThreads


@dataclass(eq=False, slots=True)
class Packing:
    """A batch that a reader packs for a device.

    The loop reads it without a lock once it is there.
    """

    packed: Any = None
    """Set by the reader."""
    future: Future[Any] | None = None
    """The same; or the error of the reader."""

    def result(self) -> Any:
        """Return the batch once it is packed."""
        if self.packed is not None:
            return self.packed
        assert self.future is not None
        return self.future.result()


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step as the loop gets it."""

    step: PlannedStep
    packing: Packing | None = None
    """The batch in a slot of pinned memory, where it is sent to a device, once a reader has packed it."""
    copies_hot: bool = False
    """Whether all hot rows are copied to the other tier before a step that is sent."""


class StepRunner(Protocol):
    """Takes the training steps of a run, in order."""

    is_at_once: bool
    """Whether a step is done when `train` returns."""

    def prepare(self, step: PlannedStep) -> PreparedStep:
        """Do what can be done ahead, in the thread that reads ahead."""

    def train(self, prepared: PreparedStep, number: int, rates: StepRates) -> torch.Tensor:
        """Take a step; return the loss in nats, summed over the samples.

        What a device was given may be done later: see `synchronize`.

        Args:
            number: of the step in the run.
            rates: learning rates of the step.
        """

    def synchronize(self) -> None:
        """Return once all steps are done: losses, weights and rows can be read."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """The batch and rows that a step works on."""

    embeddings: Embeddings
    dense: DenseStep
    prepare_dense: Callable[[float], None]
    """Sets the learning rate of the step that the dense layers take next, once the gradients are there."""
    step_dense: Sequence[Callable[[], object]]
    """Take that step, each of a part of the layers."""
    threads: WorkThreads


class StepsAtOnce:
    """Takes each step synchronously.

    Args:
        parts: what steps work on.
    """

    is_at_once = True

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts

    def prepare(self, step: PlannedStep) -> PreparedStep:
        return PreparedStep(step)

    def train(self, prepared: PreparedStep, number: int, rates: StepRates) -> torch.Tensor:
        step = prepared.step
        parts = self._parts
        parts.embeddings.wait_for_rows(step)
        embeddings = parts.embeddings.look_up(step)
        loss_sum = parts.dense.train(step.batch, embeddings, number)  # leaves the gradients
        parts.prepare_dense(rates.dense)
        # Embedding rows by our optimizer, dense layers by torch's, at the same time.
        parts.threads.run_all(
            partial(parts.embeddings.update, step, embeddings, rates.rows), *parts.step_dense
        )
        return loss_sum

    def synchronize(self) -> None:
        """Nothing is under way."""
