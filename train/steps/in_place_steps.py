"""Steps whose rows stay on the host (hybrid, and mixed batches of fae), queued around the host's own work.

The host looks the rows up in all its threads, into pinned memory; the vectors go up in one copy, the dense
layers run, and the gradients come down in another. While they come, the device takes the step of its dense
layers; then the host updates the rows. A batch's vectors depend on the updates of the batch before, so the
two copies and the layers follow each other, and nothing can be looked up ahead: this is the placement's own
chain, and the link's time in it is a lower bound of a step.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from ..data.batch import Batch
from ..device.verbs import Device
from ..execution.row_width import PlannedStep, RowWidth
from ..recipe.learning_rates import StepRates
from .step_runner import StepParts


class InPlaceSteps:
    """Takes the steps of a run whose rows stay on the host.

    Args:
        device: passes the dense layers.
        parts: what steps work on.
        batch_size: samples of the largest batch.
        num_dense: dense features.
    """

    def __init__(self, device: Device, parts: StepParts, batch_size: int, num_dense: int) -> None:
        self._device = device
        self._parts = parts
        self._shapes = [[batch_size], [batch_size, num_dense]]
        self._shapes += [
            [batch_size, len(width.tables), width.embedding_dim] for width in parts.embeddings.widths
        ]

    @staticmethod
    def can_take(step: PlannedStep) -> bool:
        """Whether one vector per bag crosses of all rows of a step."""
        plans = [part.plan.in_place for part in step.parts]
        return all(plan is not None and plan.is_whole and plan.sends == "bags" for plan in plans)

    def train(self, step: PlannedStep, number: int, rates: StepRates, loss_1: torch.Tensor) -> None:
        """Take a step; its loss may be written later, its rows are updated when this returns.

        Args:
            step: with a plan that `can_take` accepts.
            number: of the step in the run.
            rates: learning rates of the step.
            loss_1: (1,) float64 on the device, written.
        """
        widths = self._parts.embeddings.widths
        if any(part.plan.copy_hot for part in step.parts):
            self._device.synchronize()
            for width, part in zip(widths, step.parts, strict=True):
                width.executor.copy_hot(part.plan)
        device, count = self._device, step.batch.num_samples
        host, near = self._host.cut(count), self._near.cut(count)
        # Labels and dense values are on their way while the host looks up.
        host.label_B.copy_(step.batch.label_B)
        host.dense_BK.copy_(step.batch.dense_BK)
        device.copy("copies", host.label_B, near.label_B)
        device.copy("copies", host.dense_BK, near.dense_BK)
        for width, part, host_BFD, near_BFD in zip(widths, step.parts, host.rows, near.rows, strict=True):
            width.executor.look_up_on_host(part.ids, part.lookups, _by_bag(width, host_BFD))
            device.copy("copies", host_BFD, near_BFD)
        device.wait("compute", device.record("copies"))
        device.launch("compute", self._pass_dense, step.batch, near, number, loss_1)
        # The gradients come down, to where the vectors were, beside the step of the dense layers.
        device.wait("moves", device.record("compute"))
        for host_BFD, near_BFD in zip(host.rows, near.rows, strict=True):
            device.copy("moves", near_BFD, host_BFD)
        landed = device.record("moves")
        device.launch("compute", self._step_dense, rates.dense)
        device.wait_on_host(landed)
        for width, part, grad_BFD in zip(widths, step.parts, host.rows, strict=True):
            grad_PD = _by_bag(width, grad_BFD)
            width.executor.update_on_host(part.ids, part.lookups, grad_PD, part.plan, rates.rows)
        self._parts.embeddings.mark_updated(step)

    @cached_property
    def _host(self) -> _Buffers:
        return _Buffers.of([self._device.allocate_pinned(each, torch.float32) for each in self._shapes])

    @cached_property
    def _near(self) -> _Buffers:
        return _Buffers.of([self._device.allocate(each, torch.float32) for each in self._shapes])

    def _pass_dense(self, batch: Batch, near: _Buffers, number: int, loss_1: torch.Tensor) -> None:
        """Pass the dense layers forward and backward; a kernel as far as the device is concerned."""
        on_device = replace(batch, label_B=near.label_B, dense_BK=near.dense_BK)
        # The model gets detached rows, and leaves their gradients in ``grad``.
        embeddings = [vectors_BFD.detach() for vectors_BFD in near.rows]
        loss_1.copy_(self._parts.dense.train(on_device, embeddings, number))
        for emb_BFD, near_BFD in zip(embeddings, near.rows, strict=True):
            assert emb_BFD.grad is not None
            near_BFD.copy_(emb_BFD.grad)

    def _step_dense(self, rate: float) -> None:
        self._parts.prepare_dense(rate)
        for step in self._parts.step_dense:
            step()


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Memory of a batch on the host or on the device."""

    label_B: torch.Tensor
    dense_BK: torch.Tensor
    rows: Sequence[torch.Tensor]
    """(B, F, D) of each width: vectors, then their gradients."""

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> _Buffers:
        return cls(tensors[0], tensors[1], tensors[2:])

    def cut(self, num_samples: int) -> _Buffers:
        """The part of a batch of so many samples."""
        return _Buffers.of([each[:num_samples] for each in (self.label_B, self.dense_BK, *self.rows)])


def _by_bag(width: RowWidth, values_BFD: torch.Tensor) -> torch.Tensor:
    return values_BFD.view(-1, width.embedding_dim)
