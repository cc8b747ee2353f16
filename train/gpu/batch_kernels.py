"""Triton kernels that decode batches and gather, move and initialize rows.

Their docstrings are in `twins`. Either tier may be pinned memory of the host, which programs on the GPU read
and write like device memory. A fixed number of programs does all moves, so that a transfer leaves most of the
GPU to the step that runs at the same time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .packed_batch import BatchLists, DecodedBatch, RowMoves, RowTensors, SeedTables, SlotLayout
from .row_kernels import EXACT, floor_of, num_programs

_TABLE_NUMBERS = 4096
"""Comparisons of rows with tables that a program makes at a time."""
_LOOKUPS = 512
_NO_END = tl.constexpr(2**31 - 1)


def decode_batch(lists: BatchLists, layout: SlotLayout, decoded: DecodedBatch) -> None:
    """See `twins.decode_batch`."""
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
    """See `twins.gather_rows`."""
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
    """Return the table of each entry of concatenated lists.

    It is the number of tables that end before it.
    """
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
    # Rows of all tables are concatenated: comparing with all ends in one operation finds the table.
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
        # Where the lookups of the row begin, counted over all tables, not within the table.
        start = tl.load(starts + row, mask=is_row, other=0).to(tl.int32) + tl.load(order_offsets + table)
        tl.store(starts_out + row, start, mask=row <= num_rows)

        # The last rows of a table are the ones that do not live on the fast tier.
        table = tl.where(is_row, table, 0)
        first_staged = tl.load(staged_offsets + table)
        num_staged = tl.load(staged_offsets + table + 1) - first_staged
        staged_row = row - (tl.load(row_offsets + table + 1) - num_staged)
        is_staged = is_row & (staged_row >= 0)
        # All others have their slot by id; staged ones have it in the list that came with the batch.
        own = tl.load(rows + row, mask=is_row, other=0) + tl.load(base + table) - tl.load(first + table)
        slot = tl.where(is_staged, tl.load(staged + first_staged + staged_row, mask=is_staged, other=0), own)
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
    # One entry for each lookup, and for the padding samples after the batch.
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
        # The samples past the end of the batch are padding.
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


MOVING_PROGRAMS = 64
"""Programs of a transfer; each moves a tile of rows at a time."""
_TILE_FLOATS = 2048

_MIX_ADD = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_SECOND = tl.constexpr(0x94D049BB133111EB)
"""The constants of `stats.id_tables.mix64`."""


def move_rows(moves: RowMoves, source: RowTensors, target: RowTensors) -> None:
    """See `twins.move_rows`."""
    for source_SW, target_SW in zip(source, target, strict=True):
        if source_SW.shape[1]:
            _move_rows[_grid(moves)](
                moves.place_3,
                moves.sources_N,
                moves.targets_N,
                source_SW,
                target_SW,
                **_sizes(source_SW.shape[1]),
                **EXACT,
            )


def make_rows(moves: RowMoves, seeds: SeedTables, rows: RowTensors) -> None:
    """See `twins.make_rows`."""
    num_tables = seeds.base_F.numel()
    tables = triton.next_power_of_2(num_tables)
    state_width = rows.state_SW.shape[1]
    sizes = _sizes(rows.weights_SD.shape[1])
    _make_rows[_grid(moves)](
        moves.place_3,
        moves.sources_N,
        moves.targets_N,
        seeds.first_F,
        seeds.base_F,
        seeds.streams_F,
        seeds.bounds_F,
        rows.weights_SD,
        rows.state_SW,
        F=num_tables,
        FP=tables,
        W=state_width,
        WP=triton.next_power_of_2(max(1, state_width)),
        **sizes | {"R": min(sizes["R"], floor_of(_TABLE_NUMBERS, tables))},
        **EXACT,
    )


def _grid(moves: RowMoves) -> tuple[int]:
    return (min(MOVING_PROGRAMS, max(1, moves.sources_N.numel())),)


def _sizes(width: int) -> dict[str, int]:
    power = triton.next_power_of_2(width)
    return {"D": width, "DP": power, "R": floor_of(_TILE_FLOATS, power)}


@triton.jit
def _move_rows(
    place,
    sources,
    targets,
    source,
    target,
    D: tl.constexpr,
    DP: tl.constexpr,
    R: tl.constexpr,
):
    # Number and lists are found on the device, so that one launch serves any step.
    count = tl.load(place)
    sources += tl.load(place + 1)
    targets += tl.load(place + 2)
    column = tl.arange(0, DP)[None, :]
    at = tl.program_id(0) * R
    while at < count:
        number = at + tl.arange(0, R)
        is_move = number < count
        from_row = tl.load(sources + number, mask=is_move, other=0).to(tl.int64)
        to_row = tl.load(targets + number, mask=is_move, other=0).to(tl.int64)
        is_number = is_move[:, None] & (column < D)
        # Rows of the host change between two reads, so they are not kept in the cache of a core.
        values = tl.load(source + from_row[:, None] * D + column, mask=is_number, cache_modifier=".cg")
        tl.store(target + to_row[:, None] * D + column, values, mask=is_number)
        at += tl.num_programs(0) * R


@triton.jit
def _mix(bits):
    """`stats.id_tables.mix64` on uint64."""
    bits = bits + _MIX_ADD
    bits = (bits ^ (bits >> 30)) * _MIX_FIRST
    bits = (bits ^ (bits >> 27)) * _MIX_SECOND
    return bits ^ (bits >> 31)


@triton.jit
def _make_rows(
    place,
    homes,
    targets,
    first,
    base,
    streams,
    bounds,
    weights,
    state,
    F: tl.constexpr,
    FP: tl.constexpr,
    W: tl.constexpr,
    WP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    R: tl.constexpr,
):
    # The bases of all tables, which give the table of a row.
    count = tl.load(place)
    homes += tl.load(place + 1)
    targets += tl.load(place + 2)
    table_numbers = tl.arange(0, FP)
    bases = tl.load(base + table_numbers, mask=table_numbers < F, other=2**31 - 1)
    column = tl.arange(0, DP)[None, :]
    at = tl.program_id(0) * R
    while at < count:
        number = at + tl.arange(0, R)
        is_made = number < count
        home = tl.load(homes + number, mask=is_made, other=0)
        target = tl.load(targets + number, mask=is_made, other=0).to(tl.int64)
        # Of several tables with one base all but the last are empty.
        table = tl.sum((home[:, None] >= bases[None, :]).to(tl.int32), axis=1) - 1
        # The id of the row in its table, which its initial values depend on.
        row = home - tl.load(base + table) + tl.load(first + table)
        # A stream of random bits for each row, hashed from the stream of its table; see `InitialValues`.
        stream = tl.load(streams + table).to(tl.uint64, bitcast=True)
        row_stream = _mix(_mix(stream) ^ row.to(tl.uint64))
        bits = _mix(_mix(row_stream)[:, None] ^ column.to(tl.uint64)) >> 40
        # 24 bits fit a float32 exactly, so only the product with the bound is rounded.
        odd = 2 * bits.to(tl.int32) + 1 - 16777216
        value = (odd.to(tl.float32) * (2.0**-24)) * tl.load(bounds + table)[:, None]
        tl.store(weights + target[:, None] * D + column, value, mask=is_made[:, None] & (column < D))
        # The optimizer state of a new row is zero.
        if W > 0:
            state_column = tl.arange(0, WP)[None, :]
            is_state = is_made[:, None] & (state_column < W)
            tl.store(state + target[:, None] * W + state_column, tl.zeros((R, WP), tl.float32), mask=is_state)
        at += tl.num_programs(0) * R
