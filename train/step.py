"""The work of a training step: its parts, the interface of what runs it, and the steps of the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from .dense.dense_step import DenseStep
from .optimizing import StepRates
from .rows.embeddings import Embeddings
from .rows.step_plan import PlannedStep
from .threads import WorkThreads


@dataclass(frozen=True, slots=True)
class StepParts:
    """The layers and rows that steps work on."""

    embeddings: Embeddings
    dense: DenseStep
    prepare_dense: Callable[[float], None]
    """Sets the learning rate of the next step of the dense layers, once the gradients are there."""
    step_dense: Sequence[Callable[[], object]]
    """Take that step, each of a part of the layers."""
    threads: WorkThreads


class StepRunner(Protocol):
    """Runs the training steps of a run, in order."""

    is_synchronous: bool
    """Whether a step is done when `train` returns."""

    @property
    def moves(self) -> Any:
        """What moves rows on a device, `gpu.row_moves.RowMover`; None on the host."""

    @property
    def prepare(self) -> Callable[[PlannedStep], PlannedStep] | None:
        """Does what can be done ahead of a step, in the thread that reads ahead; None: nothing can."""

    def train(self, step: PlannedStep, number: int, rates: StepRates) -> torch.Tensor:
        """Run a step; return the loss in nats, summed over the samples.

        What a device was given may be done later: see `synchronize`.

        Args:
            number: of the step in the run.
            rates: learning rates of the step.
        """

    def synchronize(self) -> None:
        """Return once all steps are done: losses, weights and rows can be read."""


class HostSteps:
    """Runs each step synchronously on the host."""

    is_synchronous = True
    prepare = moves = None

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts

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

    def synchronize(self) -> None: ...
