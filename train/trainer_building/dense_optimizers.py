"""Torch's optimizers of the dense layers, one for each part of them that a thread can step by itself."""

from __future__ import annotations

from typing import Any

import torch

from ..config import Optimizers
from ..model.dense_model import DenseModel

_MOST_OPTIMIZERS = 4
"""Parts of the dense layers with an optimizer of their own at most; a call of each costs some 50 us."""


def build_dense_optimizers(
    model: DenseModel, chosen: Optimizers, num_threads: int, decay: float = 0.0, *, is_tiled: bool
) -> tuple[torch.optim.Optimizer, ...]:
    """Build torch's own optimizer for parts of the dense layers, so that several threads can take a step.

    A parameter's step is a function of its own gradients, so the parts change no bit. Torch's fused Adam
    takes 1.0 instead of 2.6 ms on the host for the Kaggle model. It reads parameter, gradient and state as
    they lie in memory and is wrong where these differ, so it is for the one step that sees to that.

    Args:
        is_tiled: whether that step passes the model.
    """
    kinds: dict[str, Any] = {
        "sgd": torch.optim.SGD,
        "adagrad": torch.optim.Adagrad,
        "adam": torch.optim.Adam,
    }
    # Parameters go to the part that is smallest so far, the largest first.
    parts: list[list[torch.nn.Parameter]] = [[] for _ in range(min(num_threads, _MOST_OPTIMIZERS))]
    for parameter in sorted(model.parameters(), key=torch.Tensor.numel, reverse=True):
        min(parts, key=lambda part: sum(each.numel() for each in part)).append(parameter)
    build = kinds[chosen.dense_optimizer]
    # Fused Adam reads parameters as they lie in memory, which the tiled step sees to.
    options: dict[str, Any] = {"lr": chosen.dense_lr, "weight_decay": decay}
    if chosen.dense_optimizer == "adam":
        options["fused"] = is_tiled
    return tuple(build(part, **options) for part in parts if part)
