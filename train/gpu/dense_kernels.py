"""Triton kernels of the interaction, the last layer, ReLU and the optimizer step.

Their docstrings are in `twins`. The interaction gathers rows and computes the dot products of all pairs of a
sample's vectors. A program has a few samples, whose vectors are the factors of a small matrix product each.
Long vectors are split into parts, so that a part of all vectors fits the registers. The backward pass gathers
the rows again: to store them would cost as much as to read them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .row_kernels import EXACT
from .twins import BIAS_BLOCK, LOSS_BLOCK, DenseRule

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
    """See `twins.last_layer`."""
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
    """See `twins.relu_backward`."""
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
    """See `twins.step_dense`."""
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
        # The sigmoid from the same exponential, divided as IEEE rounds it. Padding samples get 0.
        small_32 = small.to(tl.float32)
        one = tl.full((R,), 1.0, tl.float32)
        chance = tl.div_rn(tl.where(logit >= 0.0, one, small_32), one + small_32)
        grad = tl.where(is_sample, (chance - label) * scale, 0.0)
        hidden_grad = (grad[:, None] * weight[None, :]).to(hidden_grads.dtype.element_ty)
        # Padding rows are written too, as zeros: the next kernel reads the whole buffer.
        tl.store(hidden_grads + at, hidden_grad, mask=(sample < room)[:, None] & (column < N)[None, :])
        weight_grad += tl.sum(value * grad[:, None], axis=0)
        bias_grad += tl.sum(grad, axis=0)
    # The block's sums for the weights, then that for the bias, and its loss.
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
        # The second moments follow the first ones of all parameters.
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


_MOST_PART = 32
"""Columns of vectors in a part, a cache line of a row. A loop over parts needs at most 96 registers a thread
in bfloat16; a single pass over all 128 columns needs 180, and in float32 more than there are."""


def gather_dots(
    weights_SD: torch.Tensor,
    slots_BF: torch.Tensor,
    num_samples_1: torch.Tensor,
    bottom_BD: torch.Tensor | None,
    inputs_BP: torch.Tensor,
) -> None:
    """See `twins.gather_dots`."""
    sizes = _sizes(weights_SD, slots_BF, bottom_BD, inputs_BP)
    _gather_dots[(triton.cdiv(slots_BF.shape[0], sizes["B"]),)](
        weights_SD,
        slots_BF,
        num_samples_1,
        inputs_BP if bottom_BD is None else bottom_BD,
        inputs_BP,
        slots_BF.shape[0],
        **sizes,
        **EXACT,
    )


def gather_dots_backward(
    weights_SD: torch.Tensor,
    slots_BF: torch.Tensor,
    num_samples_1: torch.Tensor,
    bottom_BD: torch.Tensor | None,
    grad_BP: torch.Tensor,
    grad_BFD: torch.Tensor,
    bottom_grad_BD: torch.Tensor | None,
) -> None:
    """See `twins.gather_dots_backward`."""
    sizes = _sizes(weights_SD, slots_BF, bottom_BD, grad_BP)
    _gather_dots_backward[(triton.cdiv(slots_BF.shape[0], sizes["B"]),)](
        weights_SD,
        slots_BF,
        num_samples_1,
        grad_BP if bottom_BD is None else bottom_BD,
        grad_BP,
        grad_BFD,
        grad_BP if bottom_grad_BD is None else bottom_grad_BD,
        slots_BF.shape[0],
        **sizes,
        **EXACT,
    )


def _sizes(
    weights_SD: torch.Tensor,
    slots_BF: torch.Tensor,
    bottom_BD: torch.Tensor | None,
    inputs_BP: torch.Tensor,
) -> dict[str, Any]:
    num_tables, dim = slots_BF.shape[1], weights_SD.shape[1]
    has_bottom = bottom_BD is not None
    # Factors of a matrix product on tensor cores are at least 16 wide.
    vectors = max(16, triton.next_power_of_2(num_tables + has_bottom))
    part = min(_MOST_PART, max(16, triton.next_power_of_2(dim)))
    return {
        "F": num_tables,
        "D": dim,
        "P": inputs_BP.shape[1],
        "V": vectors,
        "PART": part,
        "HAS_BOTTOM": has_bottom,
        "B": max(1, _TILE_NUMBERS // (vectors * 2 * part)),
    }


@triton.jit
def _vectors(
    weights,
    slot,
    bottom,
    sample,
    is_sample,
    first,
    dtype: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    PART: tl.constexpr,
    HAS_BOTTOM: tl.constexpr,
):
    """Load PART columns of all vectors of samples, (B, V, PART), rounded.

    The columns begin at ``first``.
    """
    # Rows from the tier, with zeros where a vector is none.
    column = (first + tl.arange(0, PART))[None, None, :]
    is_number = (slot >= 0)[:, :, None] & (column < D)
    values = tl.load(weights + slot[:, :, None] * D + column, mask=is_number, other=0.0).to(dtype)
    # The output of the bottom MLP is the first vector; it is added to the zeros there.
    if HAS_BOTTOM:
        is_first = (tl.arange(0, V) == 0)[None, :, None]
        is_bottom = is_sample[:, None, None] & is_first & (column < D)
        values += tl.load(bottom + sample[:, None, None] * D + column, mask=is_bottom, other=0.0)
    return values


@triton.jit
def _slots(
    slots,
    sample,
    is_sample,
    F: tl.constexpr,
    V: tl.constexpr,
    HAS_BOTTOM: tl.constexpr,
):
    """(B, V) slots of the samples' vectors, -1 where a vector is no row."""
    table = tl.arange(0, V) - HAS_BOTTOM
    is_row = is_sample[:, None] & ((table >= 0) & (table < F))[None, :]
    return tl.load(slots + sample[:, None] * F + table[None, :], mask=is_row, other=-1).to(tl.int64)


@triton.jit
def _gather_dots(
    weights,
    slots,
    num_samples_1,
    bottom,
    inputs,
    room,
    F: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
    V: tl.constexpr,
    PART: tl.constexpr,
    HAS_BOTTOM: tl.constexpr,
    B: tl.constexpr,
):
    # The samples of this program, and the slots of their rows.
    dtype: tl.constexpr = inputs.dtype.element_ty
    sample = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    is_sample = sample < tl.load(num_samples_1)
    is_written = sample < room
    slot = _slots(slots, sample, is_sample, F, V, HAS_BOTTOM)
    # The dot products of all pairs, added up over the parts of the columns.
    dots = tl.zeros((B, V, V), tl.float32)
    for first in range(0, D, PART):
        values = _vectors(weights, slot, bottom, sample, is_sample, first, dtype, D, V, PART, HAS_BOTTOM)
        dots = tl.dot(values, tl.trans(values, (0, 2, 1)), acc=dots, input_precision="ieee")
        # The output of the bottom MLP is an input of the top MLP too, copied part by part.
        if HAS_BOTTOM:
            column = first + tl.arange(0, PART)[None, :]
            passed = tl.load(
                bottom + sample[:, None] * D + column, mask=is_sample[:, None] & (column < D), other=0.0
            )
            tl.store(inputs + sample[:, None] * P + column, passed, mask=is_written[:, None] & (column < D))

    # The lower triangle, row by row.
    left = tl.arange(0, V)[:, None]
    right = tl.arange(0, V)[None, :]
    pair = left * (left - 1) // 2 + right
    num_vectors: tl.constexpr = F + HAS_BOTTOM
    num_passed: tl.constexpr = D * HAS_BOTTOM
    is_pair = (left > right) & (left < num_vectors)
    target = inputs + sample[:, None, None] * P + num_passed + pair[None, :, :]
    tl.store(target, dots.to(dtype), mask=is_written[:, None, None] & is_pair[None, :, :])

    # What rounds the number of inputs up is zero.
    num_inputs: tl.constexpr = num_passed + num_vectors * (num_vectors - 1) // 2
    if num_inputs < P:
        rest = num_inputs + tl.arange(0, triton.next_power_of_2(P - num_inputs))[None, :]
        zeros = tl.zeros((B, triton.next_power_of_2(P - num_inputs)), dtype)
        tl.store(inputs + sample[:, None] * P + rest, zeros, mask=is_written[:, None] & (rest < P))


@triton.jit
def _gather_dots_backward(
    weights,
    slots,
    num_samples_1,
    bottom,
    grad,
    row_grad,
    bottom_grad,
    room,
    F: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
    V: tl.constexpr,
    PART: tl.constexpr,
    HAS_BOTTOM: tl.constexpr,
    B: tl.constexpr,
):
    dtype: tl.constexpr = grad.dtype.element_ty
    sample = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    is_sample = sample < tl.load(num_samples_1)
    slot = _slots(slots, sample, is_sample, F, V, HAS_BOTTOM)

    # The symmetric matrix of the pairs' gradients; d(u.v) is v for u and u for v.
    left = tl.arange(0, V)[:, None]
    right = tl.arange(0, V)[None, :]
    later = tl.maximum(left, right)
    pair = later * (later - 1) // 2 + tl.minimum(left, right)
    is_pair = (left != right) & (later < F + HAS_BOTTOM)
    source = grad + sample[:, None, None] * P + D * HAS_BOTTOM + pair[None, :, :]
    matrix = tl.load(source, mask=is_sample[:, None, None] & is_pair[None, :, :], other=0.0)

    # The gradients of all vectors are the matrix times the vectors, a part of the columns at a time.
    vector = tl.arange(0, V)[None, :, None]
    table = vector - HAS_BOTTOM
    is_row = is_sample[:, None, None] & (table >= 0) & (table < F)
    for first in range(0, D, PART):
        values = _vectors(weights, slot, bottom, sample, is_sample, first, dtype, D, V, PART, HAS_BOTTOM)
        found = tl.dot(matrix, values, input_precision="ieee")
        column = (first + tl.arange(0, PART))[None, None, :]
        target = row_grad + (sample[:, None, None] * F + table) * D + column
        tl.store(target, found, mask=is_row & (column < D))
        if HAS_BOTTOM:
            # The output of the bottom MLP is an input of the top MLP, too.
            is_bottom = (vector == 0) & (column < D)
            is_live = is_bottom & is_sample[:, None, None]
            found += tl.load(grad + sample[:, None, None] * P + column, mask=is_live, other=0.0).to(
                tl.float32
            )
            is_written = is_bottom & (sample < room)[:, None, None]
            target = tl.broadcast_to(bottom_grad + sample[:, None, None] * D + column, (B, V, PART))
            tl.store(target, found.to(dtype), mask=is_written)
