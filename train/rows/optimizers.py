"""Optimizers of embedding rows: their state, the numbers of an update, and the update.

All are lazy: a step touches the rows a batch looks up and no others, state included. For Adam this means that
the averages of a row decay, and are corrected for bias, by the steps that row has taken. Torch's SparseAdam
corrects by the steps of the run, which makes the first step of a rare row up to 3.2 times the rate.

An update runs with Numba on the host and with torch on any device. Both do the same float32 operations in the
same order, so on the CPU they give the same bits. Torch runs each operation as a separate kernel, so no
compiler fuses a product with a sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.row_bytes import OPTIMIZERS, row_bytes, state_width
from . import kernels

ADAGRAD_EPS = 1e-10
"""Torch's default: about the 11th digit of the first step, so that a zero gradient divides by no zero."""
ADAM_EPS = 1e-8
"""Torch's and the paper's default."""
ADAM_BETAS = (0.9, 0.999)
"""Torch's and the paper's defaults."""
MOMENTUM = 0.9
"""Share of a row's last step that stays."""
_CORRECTED_BELOW = 2.0**-26
"""``1 - x`` rounds to 1 in float32 below this."""


@dataclass(frozen=True)
class RowOptimizer:
    """One embedding optimizer; ``lr`` and ``decay`` are rounded to float32 once, here."""

    name: str
    lr: float
    """Learning rate of steps that are not given another."""
    decay: float = 0.0
    """Share of a row's weights that is added to its gradient at each of its steps (L2)."""

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ValueError(f"no embedding optimizer {self.name!r}")
        object.__setattr__(self, "lr", float(np.float32(self.lr)))
        object.__setattr__(self, "decay", float(np.float32(self.decay)))

    @cached_property
    def eps(self) -> float:
        """The number added to the root of the squares, a float32."""
        return float(np.float32(ADAM_EPS if self.name == "adam" else ADAGRAD_EPS))

    def state_width(self, embedding_dim: int) -> int:
        """Return how many float32 numbers of state each row has."""
        return state_width(embedding_dim, self.name)

    def row_bytes(self, embedding_dim: int) -> int:
        """Bytes of a row with its state."""
        return row_bytes(embedding_dim, self.name)

    def step_rates(self, lr: float) -> NDArray[np.float32]:
        """Return the learning rate of a step, or of Adam ``lr / (1 - b1**t)``.

        These go on until float32 sees no change, whatever the rate; t counts from 0, entry 0 is unused.
        """
        if self.name != "adam":
            return np.array([lr], np.float32)
        return np.concatenate([np.ones(1), lr / (1 - self._adam_powers[0])]).astype(np.float32)

    @cached_property
    def root_scales(self) -> NDArray[np.float32]:
        """Return ``sqrt(1 - b2**t)`` of Adam likewise; nothing for others."""
        if self.name != "adam":
            return np.empty(0, np.float32)
        return np.concatenate([np.ones(1), np.sqrt(1 - self._adam_powers[1])]).astype(np.float32)

    @cached_property
    def _adam_powers(self) -> list[NDArray[np.float64]]:
        """Powers of both betas, by repeated products in float64, as powers differ between machines."""
        num_steps = [2 + math.ceil(math.log(_CORRECTED_BELOW) / math.log(beta)) for beta in ADAM_BETAS]
        return [
            np.multiply.accumulate(np.full(count, beta))
            for count, beta in zip(num_steps, ADAM_BETAS, strict=True)
        ]


ADAM_KEEP = np.array(ADAM_BETAS, np.float32)
"""Shares of Adam's two averages that stay."""
ADAM_TAKE = (1 - np.array(ADAM_BETAS)).astype(np.float32)
"""Shares of the gradient and of its square that are added to them."""


def step_with_numba(
    optimizer: RowOptimizer,
    weights_SD: NDArray[np.float32],
    state_SW: NDArray[np.float32],
    slots_U: NDArray[np.int64],
    sums_UD: NDArray[np.float32],
    rate: float | None = None,
) -> None:
    """Update rows ``slots_U``, none twice, by their gradients ``sums_UD``, which a decay changes.

    Args:
        rate: learning rate of this step, a float32; None: that of the optimizer.
    """
    # The optimizers share everything but their arithmetic, and each has a kernel for that.
    rate = optimizer.lr if rate is None else rate
    lr = np.float32(rate)
    eps = np.float32(optimizer.eps)
    # Decay is a part of the gradient, as torch has it, and so comes before any optimizer sees it.
    if optimizer.decay:
        kernels.add_decay(weights_SD, slots_U, np.float32(optimizer.decay), sums_UD)
    if optimizer.name == "sgd":
        kernels.apply_sgd(weights_SD, slots_U, sums_UD, lr)
    elif optimizer.name == "momentum":
        kernels.apply_momentum(weights_SD, state_SW, slots_U, sums_UD, lr, np.float32(MOMENTUM))
    elif optimizer.name == "adagrad":
        kernels.apply_adagrad(weights_SD, state_SW, slots_U, sums_UD, lr, eps)
    elif optimizer.name == "adam":
        numbers = (ADAM_KEEP, ADAM_TAKE, optimizer.step_rates(rate), optimizer.root_scales, eps)
        kernels.apply_adam(weights_SD, state_SW, slots_U, sums_UD, *numbers)
    else:
        squares = np.empty(fold_width(weights_SD.shape[1]), np.float32)
        kernels.apply_rowwise_adagrad(weights_SD, state_SW, slots_U, sums_UD, lr, eps, squares)


def step_with_torch(
    optimizer: RowOptimizer,
    weights_SD: torch.Tensor,
    state_SW: torch.Tensor,
    slots_U: torch.Tensor,
    grad_UD: torch.Tensor,
    rates_T: torch.Tensor,
    root_scales_T: torch.Tensor,
) -> None:
    """Update rows ``slots_U``, none twice, without waiting for the device.

    Args:
        optimizer: that of the rows.
        weights_SD: updated.
        state_SW: updated.
        slots_U: int64.
        grad_UD: gradient of each row.
        rates_T: `RowOptimizer.step_rates` of the step.
        root_scales_T: `RowOptimizer.root_scales`.
    """
    # Rows are gathered, stepped together and scattered: no value leaves the device.
    weights_UD = weights_SD.index_select(0, slots_U)
    if optimizer.decay:
        grad_UD = grad_UD + weights_UD * optimizer.decay
    if optimizer.name == "sgd":
        weights_SD.index_copy_(0, slots_U, weights_UD - grad_UD * rates_T[0])
        return
    # All others keep a state, which moves with the weights.
    state_UW = state_SW.index_select(0, slots_U)
    if optimizer.name == "adam":
        state_UW, change_UD = _adam(state_UW, grad_UD, rates_T, root_scales_T, optimizer.eps)
    elif optimizer.name == "momentum":
        state_UW = state_UW * MOMENTUM + grad_UD
        change_UD = state_UW * rates_T[0]
    else:
        squares = grad_UD * grad_UD
        state_UW = state_UW + (_folded_mean(squares) if optimizer.name == "rowwise-adagrad" else squares)
        change_UD = grad_UD * rates_T[0] / (exact_sqrt(state_UW) + optimizer.eps)
    state_SW.index_copy_(0, slots_U, state_UW)
    weights_SD.index_copy_(0, slots_U, weights_UD - change_UD)


def _adam(
    state_UW: torch.Tensor,
    grad_UD: torch.Tensor,
    step_sizes_T: torch.Tensor,
    root_scales_T: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state after a step, and what is subtracted from the weights."""
    dim = grad_UD.shape[1]
    steps_U1 = state_UW[:, 2 * dim :] + 1
    steps_U = steps_U1.squeeze(1).long()
    step_sizes_U, root_scales_U = (
        table_T[steps_U.clamp(max=table_T.numel() - 1)] for table_T in (step_sizes_T, root_scales_T)
    )
    # Python floats that hold the float32 values: torch rounds a product with one as with a float32.
    keep = ADAM_KEEP.tolist()
    take = ADAM_TAKE.tolist()
    mean_UD = state_UW[:, :dim] * keep[0] + grad_UD * take[0]
    square_UD = state_UW[:, dim : 2 * dim] * keep[1] + grad_UD * grad_UD * take[1]
    root_UD = exact_sqrt(square_UD) / root_scales_U.unsqueeze(1) + eps
    change_UD = mean_UD * step_sizes_U.unsqueeze(1) / root_UD
    return torch.cat([mean_UD, square_UD, steps_U1], dim=1), change_UD


def _folded_mean(squares_UD: torch.Tensor) -> torch.Tensor:
    """Return the mean over columns, (U, 1), summed as ``apply_rowwise_adagrad`` does."""
    dim = squares_UD.shape[1]
    folded = torch.nn.functional.pad(squares_UD, (0, fold_width(dim) - dim))
    while folded.shape[1] > 1:
        half = folded.shape[1] // 2
        folded = folded[:, :half] + folded[:, half:]
    # On a GPU torch multiplies by the reciprocal of a number, which is off by a bit where it is inexact.
    return folded / torch.full_like(folded, dim)


def exact_sqrt(values: torch.Tensor) -> torch.Tensor:
    """Return float32 square roots, correctly rounded.

    Torch's on the CPU is off by a bit in one of six. Through float64, whose error is too small to cross a
    rounding boundary of float32 here.
    """
    return values.double().sqrt().float()


def fold_width(dim: int) -> int:
    """The power of two from ``dim`` up."""
    return 1 << (dim - 1).bit_length()
