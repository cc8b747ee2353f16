"""Triton kernels that move rows between tiers and make new ones; the docstrings are in `row_twins`.

Either tier may be pinned memory of the host, which programs on the GPU read and write as they do their own. A
fixed number of programs does all moves, so that a transfer leaves most of the GPU to the step beside it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .batch_lists import RowMoves, RowTensors, SeedTables
from .launching import EXACT, floor_of

MOVING_PROGRAMS = 64
"""Programs of a transfer; each moves a tile of rows at a time."""
_TILE_FLOATS = 2048
_TABLE_NUMBERS = 4096
"""Comparisons of rows with tables that a program makes at a time."""
_MIX_ADD = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_SECOND = tl.constexpr(0x94D049BB133111EB)
"""The constants of `stats.hashing.mix64`."""


def move_rows(moves: RowMoves, source: RowTensors, target: RowTensors) -> None:
    """See `row_twins.move_rows`."""
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
    """See `row_twins.make_rows`."""
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
    """`stats.hashing.mix64` on uint64."""
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
    # The bases of all tables, which tell the table of a row.
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
