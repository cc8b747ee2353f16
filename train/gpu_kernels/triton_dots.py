"""Triton kernels of the interaction: rows gathered, and the dot products of all pairs of a sample's vectors.

A program has a few samples, whose vectors are the factors of a small matrix product each. Wide vectors are
taken in parts, so that a part of all vectors fits the registers. The backward pass gathers the rows again:
to store them would cost as much as to read them. The docstrings are in `dense_twins`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .launching import EXACT

_MOST_PART = 32
"""Columns of vectors in a part, a cache line of a row. A loop over parts needs 96 registers a thread at most
in bfloat16; all of 128 columns at once need 180, and in float32 more than there are."""
_TILE_NUMBERS = 4096
"""Numbers of twice the vectors of a program."""


def gather_dots(
    weights_SD: torch.Tensor,
    slots_BF: torch.Tensor,
    num_samples_1: torch.Tensor,
    bottom_BD: torch.Tensor | None,
    inputs_BP: torch.Tensor,
) -> None:
    """See `dense_twins.gather_dots`."""
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
    """See `dense_twins.gather_dots_backward`."""
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
    """(B, V, PART) columns from ``first`` of all vectors of the samples, rounded to a type."""
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
