"""Triton kernels that decode the lists of a batch and gather its rows; the docstrings are in `row_twins`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .batch_lists import BatchLists, DecodedBatch, SlotLayout
from .launching import EXACT, floor_of, num_programs

_TABLE_NUMBERS = 4096
"""Comparisons of rows with tables that a program makes at a time."""
_LOOKUPS = 512
_NO_END = tl.constexpr(2**31 - 1)


def decode_batch(lists: BatchLists, layout: SlotLayout, decoded: DecodedBatch) -> None:
    """See `row_twins.decode_batch`."""
    # First the slot of each distinct row, then of each lookup: two kernels, as the second reads all rows.
    device = lists.rows_U.device
    num_samples, num_tables = decoded.slots_BF.shape
    tables = triton.next_power_of_2(num_tables)
    rows = floor_of(_TABLE_NUMBERS, tables)
    _locate_rows[(num_programs(triton.cdiv(decoded.starts_U1.numel(), rows), device),)](
        lists.rows_U,
        lists.row_offsets_F1,
        lists.starts_U,
        lists.order_offsets_F1,
        lists.long_rows_L,
        lists.long_offsets_F1,
        lists.staged_C,
        lists.staged_offsets_F1,
        layout.first_F,
        layout.base_F,
        decoded.slots_U,
        decoded.starts_U1,
        decoded.long_rows_L,
        F=num_tables,
        FP=tables,
        R=rows,
    )
    _scatter_slots[(num_programs(triton.cdiv(num_samples * num_tables, _LOOKUPS), device),)](
        lists.num_samples_1,
        lists.order_N,
        lists.row_offsets_F1,
        decoded.starts_U1,
        decoded.slots_U,
        decoded.slots_BF,
        num_samples * num_tables,
        F=num_tables,
        R=_LOOKUPS,
    )


def gather_rows(
    weights_SD: torch.Tensor, slots_BF: torch.Tensor, num_samples_1: torch.Tensor, vectors_BFD: torch.Tensor
) -> None:
    """See `row_twins.gather_rows`."""
    dim = weights_SD.shape[1]
    width = triton.next_power_of_2(dim)
    rows = floor_of(2048, width)
    num_parts = triton.cdiv(slots_BF.numel(), rows)
    _gather_rows[(num_programs(num_parts, slots_BF.device),)](
        weights_SD,
        slots_BF,
        num_samples_1,
        vectors_BFD,
        slots_BF.numel(),
        F=slots_BF.shape[1],
        D=dim,
        DP=width,
        R=rows,
        **EXACT,
    )


@triton.jit
def _table_of(number, ends, FP: tl.constexpr):
    """The table of each entry of lists that lie one behind the other: as many as end before it."""
    return tl.sum((number[:, None] >= ends[None, :]).to(tl.int32), axis=1)


@triton.jit
def _locate_rows(
    rows,
    row_offsets,
    starts,
    order_offsets,
    long_rows,
    long_offsets,
    staged,
    staged_offsets,
    first,
    base,
    slots_out,
    starts_out,
    long_out,
    F: tl.constexpr,
    FP: tl.constexpr,
    R: tl.constexpr,
):
    # Rows of all tables lie one behind the other: the table is found by comparing with all ends at once.
    table_numbers = tl.arange(0, FP)
    is_table = table_numbers < F
    row_ends = tl.load(row_offsets + 1 + table_numbers, mask=is_table, other=_NO_END)
    num_rows = tl.load(row_offsets + F)
    at = tl.program_id(0) * R
    # One more than there are rows: the end of the last row's lookups.
    while at <= num_rows:
        row = at + tl.arange(0, R)
        is_row = row < num_rows
        table = tl.where(is_row, _table_of(row, row_ends, FP), F)
        # Where the lookups of the row begin, counted over all tables instead of its own.
        start = tl.load(starts + row, mask=is_row, other=0).to(tl.int32) + tl.load(order_offsets + table)
        tl.store(starts_out + row, start, mask=row <= num_rows)

        # The last rows of a table are the ones that do not live on the fast tier.
        table = tl.where(is_row, table, 0)
        first_staged = tl.load(staged_offsets + table)
        num_staged = tl.load(staged_offsets + table + 1) - first_staged
        behind = row - (tl.load(row_offsets + table + 1) - num_staged)
        is_staged = is_row & (behind >= 0)
        # All others have their slot by id; staged ones have it in the list that came with the batch.
        own = tl.load(rows + row, mask=is_row, other=0) + tl.load(base + table) - tl.load(first + table)
        slot = tl.where(is_staged, tl.load(staged + first_staged + behind, mask=is_staged, other=0), own)
        tl.store(slots_out + row, slot, mask=is_row)
        at += tl.num_programs(0) * R

    # Of rows with a long list, positions within a table become positions among all rows.
    long_ends = tl.load(long_offsets + 1 + table_numbers, mask=is_table, other=_NO_END)
    num_long = tl.load(long_offsets + F)
    at = tl.program_id(0) * R
    while at < num_long:
        number = at + tl.arange(0, R)
        is_long = number < num_long
        table = tl.where(is_long, _table_of(number, long_ends, FP), 0)
        row = tl.load(long_rows + number, mask=is_long, other=0) + tl.load(row_offsets + table)
        tl.store(long_out + number, row, mask=is_long)
        at += tl.num_programs(0) * R


@triton.jit
def _scatter_slots(
    num_samples_1,
    order,
    row_offsets,
    starts,
    slots,
    slots_out,
    room,
    F: tl.constexpr,
    R: tl.constexpr,
):
    # One entry for each lookup, and for the samples of padding behind the batch.
    num_samples = tl.load(num_samples_1)
    num_lookups = num_samples * F
    at = tl.program_id(0) * R
    while at < room:
        lookup = at + tl.arange(0, R)
        is_lookup = lookup < num_lookups
        table = tl.where(is_lookup, lookup // tl.maximum(num_samples, 1), 0)
        # The last row that begins at or before the lookup.
        low = tl.where(is_lookup, tl.load(row_offsets + table), 0)
        high = tl.where(is_lookup, tl.load(row_offsets + table + 1), 0)
        while tl.max(high - low) > 1:
            middle = (low + high) // 2
            is_before = tl.load(starts + middle) <= lookup
            low = tl.where(is_before, middle, low)
            high = tl.where(is_before, high, middle)
        # The slot goes to the place of the lookup in its sample; padding gets -1.
        slot = tl.load(slots + low, mask=is_lookup, other=-1)
        sample = tl.load(order + lookup, mask=is_lookup, other=0).to(tl.int32)
        # What lies behind the batch are its samples of padding.
        target = tl.where(is_lookup, sample * F + table, lookup)
        tl.store(slots_out + target, slot, mask=lookup < room)
        at += tl.num_programs(0) * R


@triton.jit
def _gather_rows(
    weights,
    slots,
    num_samples_1,
    vectors,
    num_bags,
    F: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    R: tl.constexpr,
):
    # Lookups without a slot, and padding, read nothing and become zeros.
    num_lookups = tl.load(num_samples_1) * F
    column = tl.arange(0, DP)
    at = tl.program_id(0) * R
    while at < num_bags:
        bag = at + tl.arange(0, R)
        slot = tl.load(slots + bag, mask=bag < num_lookups, other=-1).to(tl.int64)
        is_column = (column < D)[None, :]
        values = tl.load(
            weights + slot[:, None] * D + column[None, :], mask=(slot >= 0)[:, None] & is_column, other=0.0
        )
        target = vectors + bag.to(tl.int64)[:, None] * D + column[None, :]
        tl.store(target, values, mask=(bag < num_bags)[:, None] & is_column)
        at += tl.num_programs(0) * R
