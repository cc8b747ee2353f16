"""Prepares the gradients and optimizers of the dense layers for a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch


class DenseUpdate:
    """Sets the learning rate of a step, and clips its gradient.

    Args:
        parameters: those of the dense layers.
        optimizers: theirs.
        clip_gradient: largest norm of the gradient of all parameters together; None: any.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        optimizers: Sequence[torch.optim.Optimizer],
        clip_gradient: float | None = None,
    ) -> None:
        self._parameters = tuple(parameters)
        self._optimizers = tuple(optimizers)
        self._most = clip_gradient

    def prepare(self, lr: float) -> None:
        """Prepare the step that the optimizers take next, once the gradients are there."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
        if self._most is not None:
            clip_gradients([each.grad for each in self._parameters if each.grad is not None], self._most)


def clip_gradients(gradients: Sequence[torch.Tensor], most: float) -> None:
    """Scale the gradients down, in place, to a norm of ``most`` over all of them where it is larger.

    The squares are summed in float64 in an order that no number of threads changes, unlike torch's own sums
    on the host. There a gradient that is not finite is left as it is: the loss says so.
    """
    if not gradients:
        return
    if gradients[0].device.type != "cpu":
        # Without waiting for the device: the factor is 1 where nothing is to be clipped.
        norms = torch.stack([torch.linalg.vector_norm(each, dtype=torch.float64) for each in gradients])
        factor = (most / torch.linalg.vector_norm(norms)).clamp(max=1.0)
        for each in gradients:
            each.mul_(factor.to(each.dtype))
        return
    squares = (float(np.square(each.numpy(), dtype=np.float64).sum()) for each in gradients)
    norm = math.sqrt(math.fsum(squares))
    if math.isfinite(norm) and norm > most:
        for each in gradients:
            each.mul_(most / norm)
