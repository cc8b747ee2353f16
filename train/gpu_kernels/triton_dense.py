"""Triton kernels around the dense layers: last layer, ReLU, optimizer step; docstrings: `dense_twins`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .dense_rule import DenseRule
from .dense_twins import BIAS_BLOCK, LOSS_BLOCK
from .launching import EXACT

_COLUMNS = 64
"""Columns of a part of the outputs of a layer: a cache line in bfloat16."""
_BLOCKS = 64
"""Blocks whose sums are added at a time."""
_STEP_NUMBERS = 1024
_TILE_NUMBERS = 4096
"""Number of the inputs of the last layer that a program has at a time."""


def last_layer(
    hidden_BN: torch.Tensor,
    weights_M: torch.Tensor,
    label_B: torch.Tensor,
    num_samples_1: torch.Tensor,
    scale: float,
    hidden_grad_BN: torch.Tensor,
    partials_KM: torch.Tensor,
    losses_K: torch.Tensor,
    grad_M: torch.Tensor,
    loss_1: torch.Tensor,
) -> None:
    """See `dense_twins.last_layer`."""
    # Every block leaves its sums, which are then added in order: atomic adds would vary from run to run.
    num_samples, num_inputs = hidden_BN.shape
    num_blocks = triton.cdiv(num_samples, LOSS_BLOCK)
    width = triton.next_power_of_2(num_inputs)
    _last_layer[(num_blocks,)](
        hidden_BN,
        weights_M,
        label_B,
        num_samples_1,
        scale,
        hidden_grad_BN,
        partials_KM,
        losses_K,
        num_samples,
        N=num_inputs,
        NP=width,
        BLOCK=LOSS_BLOCK,
        R=max(1, min(LOSS_BLOCK, _TILE_NUMBERS // width)),
        **EXACT,
    )
    num_parts = triton.cdiv(num_inputs + 1, _COLUMNS)
    _add_sums[(num_parts,)](partials_KM, grad_M, num_blocks, num_inputs + 1, K=_BLOCKS, C=_COLUMNS)
    _add_losses[(1,)](losses_K, loss_1, num_blocks, R=triton.next_power_of_2(num_blocks))


def relu_backward(
    grad_BN: torch.Tensor, outputs_BN: torch.Tensor, partials_KN: torch.Tensor, bias_grad_N: torch.Tensor
) -> None:
    """See `dense_twins.relu_backward`."""
    num_samples, num_outputs = grad_BN.shape
    num_blocks = triton.cdiv(num_samples, BIAS_BLOCK)
    num_parts = triton.cdiv(num_outputs, _COLUMNS)
    _mask_by_relu[(num_blocks, num_parts)](
        grad_BN, outputs_BN, partials_KN, num_samples, num_outputs, R=BIAS_BLOCK, C=_COLUMNS, num_warps=8
    )
    _add_sums[(num_parts,)](partials_KN, bias_grad_N, num_blocks, num_outputs, K=_BLOCKS, C=_COLUMNS)


def step_dense(
    rule: DenseRule,
    rates_2: torch.Tensor,
    weights_N: torch.Tensor,
    grad_N: torch.Tensor,
    states_KN: torch.Tensor,
    rounded_N: torch.Tensor | None,
) -> None:
    """See `dense_twins.step_dense`."""
    size = weights_N.numel()
    keep, take = rule.keep, rule.take
    _step_dense[(triton.cdiv(size, _STEP_NUMBERS),)](
        rates_2,
        weights_N,
        grad_N,
        states_KN,
        weights_N if rounded_N is None else rounded_N,
        size,
        RULE=rule.name,
        EPS=rule.eps,
        DECAY=rule.decay,
        KEEP_FIRST=keep[0],
        KEEP_SECOND=keep[1],
        TAKE_FIRST=take[0],
        TAKE_SECOND=take[1],
        IS_ROUNDED=rounded_N is not None,
        R=_STEP_NUMBERS,
        **EXACT,
    )


@triton.jit
def _last_layer(
    hidden,
    weights,
    labels,
    num_samples_1,
    scale,
    hidden_grads,
    partials,
    losses,
    room,
    N: tl.constexpr,
    NP: tl.constexpr,
    BLOCK: tl.constexpr,
    R: tl.constexpr,
):
    """A block of samples a program, R at a time."""
    # The weights are read once; what the block adds up stays in registers.
    num_samples = tl.load(num_samples_1)
    block = tl.program_id(0)
    column = tl.arange(0, NP)
    weight = tl.load(weights + column, mask=column < N, other=0.0)
    bias = tl.load(weights + N)
    weight_grad = tl.zeros((NP,), tl.float32)
    bias_grad = 0.0
    loss_sum = tl.zeros((1,), tl.float64)
    for first in range(0, BLOCK, R):
        sample = block.to(tl.int64) * BLOCK + first + tl.arange(0, R)
        is_sample = sample < num_samples
        at = sample[:, None] * N + column[None, :]
        is_input = is_sample[:, None] & (column < N)[None, :]
        value = tl.load(hidden + at, mask=is_input, other=0.0).to(tl.float32)
        # The logit of each sample, which is the only output of the layer.
        logit = tl.sum(value * weight[None, :], axis=1) + bias
        label = tl.load(labels + sample, mask=is_sample, other=0).to(tl.float32)
        # An exponent that is not positive, so that none overflows.
        wide = logit.to(tl.float64)
        small = tl.exp(-tl.abs(wide))
        loss = tl.maximum(wide, 0.0) - wide * label.to(tl.float64) + tl.log(1.0 + small)
        loss_sum += tl.sum(tl.where(is_sample, loss, 0.0), axis=0)
        # The sigmoid from the same exponential, divided as IEEE rounds it. Samples behind the batch get 0.
        small_32 = small.to(tl.float32)
        one = tl.full((R,), 1.0, tl.float32)
        chance = tl.div_rn(tl.where(logit >= 0.0, one, small_32), one + small_32)
        grad = tl.where(is_sample, (chance - label) * scale, 0.0)
        hidden_grad = (grad[:, None] * weight[None, :]).to(hidden_grads.dtype.element_ty)
        # Rows behind the batch are written too, as zeros: the next kernel reads the whole room.
        tl.store(hidden_grads + at, hidden_grad, mask=(sample < room)[:, None] & (column < N)[None, :])
        weight_grad += tl.sum(value * grad[:, None], axis=0)
        bias_grad += tl.sum(grad, axis=0)
    # The weights' sums of the block, with that of the bias behind them, and its loss.
    tl.store(partials + block * (N + 1) + column, weight_grad, mask=column < N)
    tl.store(partials + block * (N + 1) + N, bias_grad)
    tl.store(losses + block + tl.arange(0, 1), loss_sum)


@triton.jit
def _add_losses(partials, loss, num_blocks, R: tl.constexpr):
    block = tl.arange(0, R)
    tl.store(loss, tl.sum(tl.load(partials + block, mask=block < num_blocks, other=0.0), axis=0))


@triton.jit
def _mask_by_relu(
    grads,
    outputs,
    partials,
    num_samples,
    num_outputs,
    R: tl.constexpr,
    C: tl.constexpr,
):
    # A tile: a block of samples by some columns.
    sample = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.program_id(1) * C + tl.arange(0, C)
    at = sample.to(tl.int64)[:, None] * num_outputs + column[None, :]
    is_number = (sample < num_samples)[:, None] & (column < num_outputs)[None, :]
    grad = tl.load(grads + at, mask=is_number, other=0.0)
    output = tl.load(outputs + at, mask=is_number, other=0.0)
    # No gradient passes where the output is 0; a NaN lets it pass.
    grad = tl.where(output <= 0.0, 0.0, grad)
    tl.store(grads + at, grad, mask=is_number)
    # The gradients as they are stored, perhaps rounded, are added up for the bias.
    total = tl.sum(grad.to(tl.float32), axis=0)
    tl.store(partials + tl.program_id(0) * num_outputs + column, total, mask=column < num_outputs)


@triton.jit
def _add_sums(partials, sums, num_blocks, num_outputs, K: tl.constexpr, C: tl.constexpr):
    # One program has its columns of all blocks, so that the order of the sum is fixed by the shape.
    column = tl.program_id(0) * C + tl.arange(0, C)
    total = tl.zeros((C,), tl.float32)
    first = 0
    while first < num_blocks:
        block = first + tl.arange(0, K)
        is_number = (block < num_blocks)[:, None] & (column < num_outputs)[None, :]
        values = tl.load(partials + block[:, None] * num_outputs + column[None, :], mask=is_number, other=0.0)
        total += tl.sum(values, axis=0)
        first += K
    tl.store(sums + column, total, mask=column < num_outputs)


@triton.jit
def _step_dense(
    rates,
    weights,
    grads,
    states,
    rounded,
    size,
    RULE: tl.constexpr,
    EPS: tl.constexpr,
    DECAY: tl.constexpr,
    KEEP_FIRST: tl.constexpr,
    KEEP_SECOND: tl.constexpr,
    TAKE_FIRST: tl.constexpr,
    TAKE_SECOND: tl.constexpr,
    IS_ROUNDED: tl.constexpr,
    R: tl.constexpr,
):
    # A program updates some parameters; those of all layers are one vector.
    number = tl.program_id(0) * R + tl.arange(0, R)
    is_number = number < size
    rate = tl.load(rates)
    weight = tl.load(weights + number, mask=is_number, other=0.0)
    grad = tl.load(grads + number, mask=is_number, other=0.0)
    # Weight decay is part of the gradient, as in torch's optimizers.
    if DECAY != 0.0:
        grad = grad + weight * DECAY
    # Each operation is rounded on its own: `EXACT` forbids the compiler to contract them.
    if RULE == "sgd":
        weight = weight - grad * rate
    elif RULE == "adagrad":
        squares = tl.load(states + number, mask=is_number, other=1.0) + grad * grad
        tl.store(states + number, squares, mask=is_number)
        weight = weight - tl.div_rn(grad * rate, tl.sqrt_rn(squares) + EPS)
    else:
        tl.static_assert(RULE == "adam")
        mean = tl.load(states + number, mask=is_number, other=0.0) * KEEP_FIRST + grad * TAKE_FIRST
        # The second moments lie behind the first ones of all parameters.
        square_at = states + size + number
        square = tl.load(square_at, mask=is_number, other=1.0) * KEEP_SECOND + (grad * grad) * TAKE_SECOND
        tl.store(states + number, mean, mask=is_number)
        tl.store(square_at, square, mask=is_number)
        root_scale = tl.full((R,), 0.0, tl.float32) + tl.load(rates + 1)
        weight = weight - tl.div_rn(mean * rate, tl.div_rn(tl.sqrt_rn(square), root_scale) + EPS)
    tl.store(weights + number, weight, mask=is_number)
    # The copy that the products of the next step read.
    if IS_ROUNDED:
        tl.store(rounded + number, weight.to(tl.bfloat16), mask=is_number)
