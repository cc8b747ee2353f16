"""Triton kernels that sum gradients by row and update the rows.

Their docstrings are in `twins`. Rows with few lookups are summed in one program each: their gradients one
after the other, within blocks of samples and over the blocks. Those of rows with a long list are summed in a
program per block of samples, and the sums of the blocks by a second kernel. Both add in the order of
`kernels.sum_gradients`; a block without a lookup of a row is zero there, which changes no bit, as a sum that
begins with 0 is never -0. Each operation of an optimizer step is rounded separately, as in `rows.backends`,
so that the bits of both are equal.

A kernel is launched with as many programs as the device runs concurrently, each of which takes every n-th
part. The grid is then fixed, whatever a batch holds, so that a recorded step fits any batch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from ...stats.batch_rows import LONG_LOOKUPS
from ..rows.backends import ADAM_KEEP, ADAM_TAKE, MOMENTUM, RowOptimizer
from ..rows.kernels import BLOCK_SAMPLES
from .packed_batch import BatchLists, DecodedBatch, RowTensors, StepNumbers

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
    """Fold (R, DP) to (R,): add halves until one number is left."""
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
    """Take a step on rows by their summed gradients, or store the sums.

    Rows without a slot are skipped; without a rule the sums are stored.
    """
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


EXACT = {"enable_fp_fusion": False}
"""Options of kernels that promise bits: else a product and a sum are fused, which rounds once less."""
_PROGRAMS_OF_A_CORE = 16
_HOST_PROGRAMS = 3
"""In Triton's interpreter: few, so that each has several parts."""


def num_programs(num_parts: int, device: torch.device) -> int:
    """Return the programs that share so many parts of the work."""
    return max(1, min(num_parts, _most_programs(device)))


def floor_of(value: int, divisor: int) -> int:
    """Return how often ``divisor`` is in ``value``, at least once."""
    return max(1, value // divisor)


@cache
def _most_programs(device: torch.device) -> int:
    if device.type != "cuda":
        return _HOST_PROGRAMS
    return _PROGRAMS_OF_A_CORE * torch.cuda.get_device_properties(device).multi_processor_count


_TILE_FLOATS = 512
"""Numbers of a tile of a program that sums rows: a warp has four numbers of 16 bytes for each of its
threads at dim 16."""
_BLOCK = tl.constexpr(BLOCK_SAMPLES)
_LONG = tl.constexpr(LONG_LOOKUPS)
_AHEAD = tl.constexpr(8)
"""Gradients of a row that are loaded ahead in one round."""
_BLOCKS_AHEAD = tl.constexpr(32)


def sum_gradients(
    lists: BatchLists,
    decoded: DecodedBatch,
    grad_BFD: torch.Tensor,
    partials_LKD: torch.Tensor,
    sums_UD: torch.Tensor,
) -> None:
    """See `twins.sum_gradients`."""
    _sum(lists, decoded, grad_BFD, partials_LKD, rule_of_sums(sums_UD))


def sum_and_step(
    lists: BatchLists,
    decoded: DecodedBatch,
    grad_BFD: torch.Tensor,
    partials_LKD: torch.Tensor,
    optimizer: RowOptimizer,
    numbers: StepNumbers,
    rows: RowTensors,
) -> None:
    """See `twins.sum_and_step`."""
    _sum(lists, decoded, grad_BFD, partials_LKD, rule_of_step(optimizer, numbers, rows))


def _sum(
    lists: BatchLists,
    decoded: DecodedBatch,
    grad_BFD: torch.Tensor,
    partials_LKD: torch.Tensor,
    rule: dict[str, Any],
) -> None:
    device = grad_BFD.device
    _, num_tables, dim = grad_BFD.shape
    num_long, num_blocks, _ = partials_LKD.shape
    sizes = _sizes(dim)
    num_long_1 = lists.long_offsets_F1[-1:]
    # Without a long list, too: what a step launches first is all it ever launches, and can be recorded then.
    parts = num_long * triton.cdiv(num_blocks, sizes["R"])
    _sum_blocks[(num_programs(parts, device),)](
        lists.num_samples_1,
        num_long_1,
        decoded.long_rows_L,
        decoded.starts_U1,
        lists.order_N,
        grad_BFD,
        partials_LKD,
        num_blocks,
        F=num_tables,
        **sizes,
        **EXACT,
    )
    # The rows with short lists, summed and updated in one kernel.
    num_rows = decoded.slots_U.numel()
    _sum_rows[(num_programs(triton.cdiv(num_rows, sizes["R"]), device),)](
        lists.num_samples_1,
        lists.row_offsets_F1[-1:],
        decoded.starts_U1,
        decoded.slots_U,
        lists.order_N,
        grad_BFD,
        **rule,
        F=num_tables,
        **sizes,
        **EXACT,
    )
    # The rows with long lists are few: small tiles of one warp spread them over more programs.
    long_sizes = sizes | {"R": floor_of(128, sizes["DP"]), "num_warps": 1}
    _add_blocks[(num_programs(triton.cdiv(num_long, long_sizes["R"]), device),)](
        lists.num_samples_1,
        num_long_1,
        decoded.long_rows_L,
        decoded.slots_U,
        partials_LKD,
        num_blocks,
        **rule,
        **long_sizes,
        **EXACT,
    )


def _sizes(dim: int) -> dict[str, int]:
    width = triton.next_power_of_2(dim)
    return {"D": dim, "DP": width, "R": floor_of(_TILE_FLOATS, width)}


@triton.jit
def _sum_rows(
    num_samples_1,
    num_rows_1,
    starts,
    slots,
    order,
    grad,
    weights,
    state,
    rates,
    root_scales,
    RULE: tl.constexpr,
    EPS: tl.constexpr,
    DECAY: tl.constexpr,
    T: tl.constexpr,
    ROOT_T: tl.constexpr,
    F: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    R: tl.constexpr,
):
    """Sum the gradients of each row without a long list, and finish it."""
    # Numbers of the batch come from the device: programs loop over as many rows as there are.
    num_samples = tl.maximum(tl.load(num_samples_1), 1)
    num_rows = tl.load(num_rows_1)
    column = tl.arange(0, DP)[None, :]
    at = tl.program_id(0) * R
    while at < num_rows:
        row = at + tl.arange(0, R)
        is_row = row < num_rows
        # Rows with a long list belong to the other kernels; those without a slot take no step.
        start = tl.load(starts + row, mask=is_row, other=0)
        stop = tl.load(starts + row + 1, mask=is_row, other=0)
        slot = tl.load(slots + row, mask=is_row, other=-1)
        is_row = is_row & (stop - start <= _LONG)
        if RULE != "none":
            is_row = is_row & (slot >= 0)
        num_lookups = tl.where(is_row, stop - start, 0)
        # Every table has one lookup in each sample, so the start of a list gives the table.
        table = start // num_samples
        total = tl.zeros((R, DP), tl.float32)
        partial = tl.zeros((R, DP), tl.float32)
        block = tl.zeros((R,), tl.int32)
        first = 0
        most = tl.max(num_lookups)
        # As many rounds as the longest list of the tile needs; lists that ended add nothing.
        while first < most:
            for i in tl.static_range(_AHEAD):
                is_on = first + i < num_lookups
                sample = tl.load(order + start + first + i, mask=is_on, other=0).to(tl.int32)
                source = grad + (sample.to(tl.int64) * F + table)[:, None] * D + column
                gradient = tl.load(source, mask=is_on[:, None] & (column < D), other=0.0)
                is_next = is_on & (sample // _BLOCK != block)
                # The first lookup past a block ends it.
                total = tl.where(is_next[:, None], total + partial, total)
                partial = tl.where(is_next[:, None], gradient, partial + gradient)
                block = tl.where(is_on, sample // _BLOCK, block)
            first += _AHEAD
        # No lookup follows the last block.
        total = total + partial
        finish_rows(
            total, row, slot, is_row, weights, state, rates, root_scales,
            RULE, EPS, DECAY, T, ROOT_T, D, DP, R,
        )  # fmt: skip
        at += tl.num_programs(0) * R


@triton.jit
def _first_lookup(order, start, stop, sample):
    """Return where ``sample`` or a later one first is in a list."""
    # Binary search for all entries together, until the last one is done.
    low = start
    high = stop
    while tl.max(high - low) > 0:
        is_open = low < high
        middle = (low + high) // 2
        is_before = tl.load(order + middle, mask=is_open, other=0).to(tl.int32) < sample
        low = tl.where(is_open & is_before, middle + 1, low)
        high = tl.where(is_open & (is_before == 0), middle, high)
    return low


@triton.jit
def _sum_blocks(
    num_samples_1,
    num_long_1,
    long_rows,
    starts,
    order,
    grad,
    partials,
    room,
    F: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    R: tl.constexpr,
):
    """Sum the gradients of long-list rows in every block of samples.

    A program takes R blocks.
    """
    # A part is one row and R consecutive blocks of samples.
    num_samples = tl.maximum(tl.load(num_samples_1), 1)
    num_blocks = tl.cdiv(num_samples, _BLOCK)
    num_groups = tl.cdiv(num_blocks, R)
    num_parts = tl.load(num_long_1) * num_groups
    column = tl.arange(0, DP)[None, :]
    part = tl.program_id(0)
    while part < num_parts:
        # The list of the row, which is ascending by sample.
        number = part // num_groups
        row = tl.load(long_rows + number)
        start = tl.load(starts + row)
        stop = tl.load(starts + row + 1)
        table = start // num_samples
        # Where each block begins and ends in the list.
        block = (part % num_groups) * R + tl.arange(0, R)
        zero = tl.zeros((R,), tl.int32)
        first = _first_lookup(order, zero + start, zero + stop, block * _BLOCK)
        # A row has one lookup in a sample.
        most_last = tl.minimum(first + _BLOCK, stop)
        last = _first_lookup(order, first, most_last, (block + 1) * _BLOCK)
        # One after the other within a block, in the order of the samples.
        partial = tl.zeros((R, DP), tl.float32)
        most = tl.max(last - first)
        lookup = 0
        while lookup < most:
            for i in tl.static_range(_AHEAD):
                is_on = first + lookup + i < last
                sample = tl.load(order + first + lookup + i, mask=is_on, other=0).to(tl.int64)
                source = grad + (sample * F + table)[:, None] * D + column
                partial += tl.load(source, mask=is_on[:, None] & (column < D), other=0.0)
            lookup += _AHEAD
        # By row and block, so that the next kernel adds them in order.
        target = partials + (number.to(tl.int64) * room + block)[:, None] * D + column
        tl.store(target, partial, mask=(block < num_blocks)[:, None] & (column < D))
        part += tl.num_programs(0)


@triton.jit
def _add_blocks(
    num_samples_1,
    num_long_1,
    long_rows,
    slots,
    partials,
    room,
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
    """Add the blocks' sums of long-list rows in order, and finish the rows."""
    # As many rows as this batch has with a long list, perhaps none.
    num_blocks = tl.cdiv(tl.load(num_samples_1), _BLOCK)
    num_long = tl.load(num_long_1)
    column = tl.arange(0, DP)[None, :]
    at = tl.program_id(0) * R
    while at < num_long:
        number = at + tl.arange(0, R)
        is_row = number < num_long
        row = tl.load(long_rows + number, mask=is_row, other=0)
        slot = tl.load(slots + row, mask=is_row, other=-1)
        is_number = is_row[:, None] & (column < D)
        # From the first block to the last; several loads are under way at a time.
        total = tl.zeros((R, DP), tl.float32)
        block = 0
        while block < num_blocks:
            for i in tl.static_range(_BLOCKS_AHEAD):
                source = partials + (number.to(tl.int64) * room + block + i)[:, None] * D + column
                total += tl.load(source, mask=is_number & (block + i < num_blocks), other=0.0)
            block += _BLOCKS_AHEAD
        finish_rows(
            total, row, slot, is_row, weights, state, rates, root_scales,
            RULE, EPS, DECAY, T, ROOT_T, D, DP, R,
        )  # fmt: skip
        at += tl.num_programs(0) * R
