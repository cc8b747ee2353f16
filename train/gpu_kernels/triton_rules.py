"""The end of a Triton kernel that summed the gradient of a row: take an optimizer step, or store the sum.

Each operation of a step is rounded on its own, as in `row_steps`, so that the bits of both are equal.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ..rows.row_optimizers import MOMENTUM, RowOptimizer
from ..rows.row_steps import ADAM_KEEP, ADAM_TAKE
from .batch_lists import RowTensors, StepNumbers

_MOST_FOLDS = tl.constexpr(16)
_MOMENTUM = tl.constexpr(MOMENTUM)
_KEEP_FIRST = tl.constexpr(float(ADAM_KEEP[0]))
_KEEP_SECOND = tl.constexpr(float(ADAM_KEEP[1]))
_TAKE_FIRST = tl.constexpr(float(ADAM_TAKE[0]))
_TAKE_SECOND = tl.constexpr(float(ADAM_TAKE[1]))


def rule_of_step(optimizer: RowOptimizer, numbers: StepNumbers, rows: RowTensors) -> dict[str, Any]:
    """Return the arguments of `finish_rows` that take a step of ``optimizer`` on ``rows``."""
    return {
        "weights": rows.weights_SD,
        "state": rows.state_SW,
        "rates": numbers.rates_T,
        "root_scales": numbers.root_scales_T,
        "RULE": optimizer.name,
        "EPS": optimizer.eps,
        "DECAY": optimizer.decay,
        "T": numbers.rates_T.numel(),
        "ROOT_T": numbers.root_scales_T.numel(),
    }


def rule_of_sums(sums_UD: torch.Tensor) -> dict[str, Any]:
    """Return those that store the sums instead; nothing else is read."""
    fixed = {"RULE": "none", "EPS": 0.0, "DECAY": 0.0, "T": 1, "ROOT_T": 1}
    return {"weights": sums_UD, "state": sums_UD, "rates": sums_UD, "root_scales": sums_UD, **fixed}


@triton.jit
def _fold(values, R: tl.constexpr, DP: tl.constexpr):
    """(R, DP) -> (R,): the upper half is added to the lower one until one number is left."""
    for level in tl.static_range(_MOST_FOLDS):
        if DP >> level > 1:
            values = tl.sum(tl.reshape(values, (R, 2, DP >> (level + 1))), axis=1)
    return tl.reshape(values, (R,))


@triton.jit
def finish_rows(
    total,
    row,
    slot,
    is_row,
    weights,
    state,
    rates,
    root_scales,
    RULE: tl.constexpr,
    EPS: tl.constexpr,
    DECAY: tl.constexpr,
    T: tl.constexpr,
    ROOT_T: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    R: tl.constexpr,
):
    """Take a step on rows with a slot by their summed gradients; or store the sums where there is no rule."""
    # Sums go to the place of the row in the batch, steps to its slot.
    if RULE == "none":
        column = tl.arange(0, DP)[None, :]
        target = weights + row.to(tl.int64)[:, None] * D + column
        tl.store(target, total, mask=is_row[:, None] & (column < D))
    else:
        is_here = is_row & (slot >= 0)
        _take_step(
            total, slot, is_here, weights, state, rates, root_scales,
            RULE, EPS, DECAY, T, ROOT_T, D, DP, R,
        )  # fmt: skip


@triton.jit
def _take_step(
    total,
    slot,
    is_here,
    weights,
    state,
    rates,
    root_scales,
    RULE: tl.constexpr,
    EPS: tl.constexpr,
    DECAY: tl.constexpr,
    T: tl.constexpr,
    ROOT_T: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    R: tl.constexpr,
):
    """Take one optimizer step, each operation rounded on its own."""
    column = tl.arange(0, DP)[None, :]
    is_number = is_here[:, None] & (column < D)
    # Addresses take 64 bits: a tier may have more than 2**31 numbers.
    slot = slot.to(tl.int64)
    at = weights + slot[:, None] * D + column
    weight = tl.load(at, mask=is_number, other=0.0)
    # Weight decay is part of the gradient, as in torch's optimizers.
    if DECAY != 0.0:
        total = total + weight * DECAY
    if RULE == "sgd":
        weight = weight - total * tl.load(rates)
    elif RULE == "momentum":
        state_at = state + slot[:, None] * D + column
        velocity = tl.load(state_at, mask=is_number, other=0.0) * _MOMENTUM + total
        tl.store(state_at, velocity, mask=is_number)
        weight = weight - velocity * tl.load(rates)
    elif RULE == "adagrad":
        state_at = state + slot[:, None] * D + column
        squares = tl.load(state_at, mask=is_number, other=1.0) + total * total
        tl.store(state_at, squares, mask=is_number)
        weight = weight - tl.div_rn(total * tl.load(rates), tl.sqrt_rn(squares) + EPS)
    elif RULE == "rowwise-adagrad":
        # One number of state for the whole row: the mean square of its gradient, summed in a fixed order.
        mean = tl.div_rn(_fold(tl.where(column < D, total * total, 0.0), R, DP), tl.full((R,), D, tl.float32))
        squares = tl.load(state + slot, mask=is_here, other=1.0) + mean
        # Every warp reads these few numbers for itself, so none may write before all have read.
        tl.debug_barrier()
        tl.store(state + slot, squares, mask=is_here)
        root = tl.broadcast_to((tl.sqrt_rn(squares) + EPS)[:, None], (R, DP))
        weight = weight - tl.div_rn(total * tl.load(rates), root)
    else:
        tl.static_assert(RULE == "adam")
        # Both moments of a row, then how many steps it has taken.
        steps_at = state + slot * (2 * D + 1) + 2 * D
        steps = tl.load(steps_at, mask=is_here, other=0.0) + 1.0
        # Every warp reads these few numbers for itself, so none may write before all have read.
        tl.debug_barrier()
        tl.store(steps_at, steps, mask=is_here)
        # The corrections for bias of this row's own number of steps.
        number = steps.to(tl.int32)
        step_size = tl.load(rates + tl.minimum(number, T - 1))
        root_scale = tl.load(root_scales + tl.minimum(number, ROOT_T - 1))
        mean_at = state + slot[:, None] * (2 * D + 1) + column
        mean = tl.load(mean_at, mask=is_number, other=0.0) * _KEEP_FIRST + total * _TAKE_FIRST
        square = (
            tl.load(mean_at + D, mask=is_number, other=1.0) * _KEEP_SECOND + (total * total) * _TAKE_SECOND
        )
        tl.store(mean_at, mean, mask=is_number)
        tl.store(mean_at + D, square, mask=is_number)
        scale = tl.broadcast_to(root_scale[:, None], (R, DP))
        root = tl.div_rn(tl.sqrt_rn(square), scale) + EPS
        weight = weight - tl.div_rn(mean * step_size[:, None], root)
    tl.store(at, weight, mask=is_number)
