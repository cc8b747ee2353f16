"""The loss of runs with weights, several labels, missing labels, or a loss of the user's own.

Imported by such runs alone. The loss of a batch is a sum over its samples and labels,

    sum over samples i and labels l of  v_l w_i loss(z_il, y_il)   where sample i has label l,

with the loss weight v of a label and the weight w of a sample. As the plain loss, its gradient is divided by
the nominal batch size: by no sum of weights and no number of labels, which would depend on how a batch is
cut. So a weight of 2 counts as two samples, one of 0 as none, and a missing label as a weight of 0.

Shapes: T samples of a tile, B of a batch, L labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from ...pipeline.schema.schema import LABEL, WEIGHT
from ..data.batch import Batch
from .kernels import weighted_logistic_loss

LossOfSamples = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Losses of samples from logits, labels and weights, each (B,), or (B, L) for several labels."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What the logits of some samples are held against; (B,) for one label, (B, L) for several."""

    labels: torch.Tensor
    """float32; 0 where one is missing."""
    weights: torch.Tensor
    """float32; loss weight of the label times weight of the sample, 0 where the label is missing."""
    own_loss: LossOfSamples | None = None
    """Loss of the user; None: the log loss."""

    def __getitem__(self, samples: slice) -> Targets:
        return Targets(self.labels[samples], self.weights[samples], self.own_loss)

    @property
    def shape(self) -> torch.Size:
        return self.labels.shape

    def to(self, device: torch.device) -> Targets:
        """Return them on a device."""
        return Targets(self.labels.to(device), self.weights.to(device), self.own_loss)

    def loss_sum(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the summed loss of the logits, with a graph."""
        if self.own_loss is not None:
            return self.own_loss(logits, self.labels, self.weights).sum()
        return binary_cross_entropy_with_logits(logits, self.labels, self.weights, reduction="sum")

    def write_gradients(self, logits: torch.Tensor, scale: float, grads: torch.Tensor) -> float:
        """Write the gradients by the logits, times ``scale``; return the summed loss.

        Args:
            logits: (T,), or (T, L) for several labels.
            scale: one over the nominal batch size.
            grads: of the shape of the logits, written.
        """
        if self.own_loss is None:
            arrays = [each.reshape(-1).numpy() for each in (logits, self.labels, self.weights, grads)]
            loss: float = weighted_logistic_loss(*arrays[:3], np.float32(scale), arrays[3])
            return loss
        with torch.enable_grad():
            leaf = logits.clone().requires_grad_()
            loss_sum = self.loss_sum(leaf)
            (found,) = torch.autograd.grad(loss_sum * scale, [leaf])
        grads.copy_(found)
        return loss_sum.item()


@dataclass(frozen=True, slots=True)
class Objective:
    """The labels of a run, what each counts, and the loss."""

    columns: tuple[str, ...]
    """Columns of batches with the labels, in the order of the logits."""
    loss_weights: tuple[float, ...]
    """Weight of each label."""
    own_loss: LossOfSamples | None = None
    """Loss of the user; None: the log loss."""

    def targets(self, batch: Batch) -> Targets:
        """Return the labels and weights of a batch, on the host."""
        found = [
            batch.label_B.cpu() if name == LABEL else _on_host(batch.of_samples[name])
            for name in self.columns
        ]
        label_BL = torch.stack(found, dim=1)
        is_there_BL = ~label_BL.isnan()
        weight_BL = is_there_BL * torch.tensor(self.loss_weights, dtype=torch.float32, device="cpu")
        if WEIGHT in batch.of_samples:
            weight_BL *= _on_host(batch.of_samples[WEIGHT]).unsqueeze(1)
        label_BL = label_BL.where(is_there_BL, 0.0)
        if len(self.columns) == 1:
            return Targets(label_BL.squeeze(1), weight_BL.squeeze(1), self.own_loss)
        return Targets(label_BL, weight_BL, self.own_loss)


def _on_host(values: Any) -> torch.Tensor:
    """Return labels or weights, an array or a tensor of any device, as float32 of the host."""
    return torch.as_tensor(values, dtype=torch.float32, device="cpu")
