"""One batch as one range of bytes: what a step needs from the host, and where in the range each list lies.

A batch goes to the device in a single copy. It holds labels (1 byte), dense values (float32), the lookups by
row as `hotset transpose` stores them, the rows to move, and the learning rates: 140 to 195 bytes a sample of
the Criteo model. All but the rows to move have fixed places, so that a recorded step finds them; these come
last, and the copy ends where they end.

Shapes as in `gpu_kernels.batch_lists`.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.folders.stage_totals import LookupsTotals
from ...stats.batches.lookups_by_row import LookupsByRow
from ...stats.batches.packed_lookups import PackedLookups, count_long_rows, pack_lookups
from ..gpu_kernels.batch_lists import BatchLists, BatchRoom, RowMoves
from ..rows.tiers import Layout

_ALIGNMENT = 64
"""Bytes; what the widest loads of kernels and the engines of copies like."""
_SPARE_SHARE = 0.25
"""Room beyond the largest batch so far, so that few batches need more again."""
_MOVE_NUMBERS = 4
"""Lists of rows to move begin at multiples of so many numbers, 16 bytes: Triton compiles a kernel once for
such addresses, and anew for each mixture with others."""
MOVES = ("write_back", "fetch", "initialize")
"""Lists of rows to move, in the order of their work."""
_NUMPY = {
    torch.uint8: np.uint8,
    torch.uint16: np.uint16,
    torch.int32: np.int32,
    torch.float32: np.float32,
}


@dataclass(frozen=True, slots=True)
class Section:
    """A list within the range of bytes."""

    first_byte: int
    count: int
    dtype: torch.dtype

    @property
    def stop_byte(self) -> int:
        return self.first_byte + self.count * self.dtype.itemsize

    def of(self, packed: torch.Tensor) -> torch.Tensor:
        """The list as a view of the bytes."""
        return packed[self.first_byte : self.stop_byte].view(self.dtype)


@dataclass(frozen=True)
class PackedRoom:
    """The largest batch that has room, and the places of its lists."""

    num_samples: int
    num_dense: int
    widths: tuple[BatchRoom, ...]
    """The lookups of each row width."""
    num_rates: tuple[int, ...]
    """Numbers of the row optimizer of each width, see `row_rates`."""
    num_moves: int
    """Rows to move, of all widths and both ways."""

    @cached_property
    def sections(self) -> Mapping[str, Section]:
        """All lists by name, in the order of their bytes."""
        # Each list begins at a multiple of the alignment behind the one before.
        sections: dict[str, Section] = {}
        next_byte = 0
        for name, count, dtype in self._lists():
            sections[name] = Section(next_byte, count, dtype)
            next_byte = -(-sections[name].stop_byte // _ALIGNMENT) * _ALIGNMENT
        return sections

    @property
    def num_bytes(self) -> int:
        return self.sections["moves"].stop_byte

    def _lists(self) -> Iterator[tuple[str, int, torch.dtype]]:
        yield "label", self.num_samples, torch.uint8
        yield "dense", self.num_samples * self.num_dense, torch.float32
        yield "dense_rates", 2, torch.float32
        for width, (room, num_rates) in enumerate(zip(self.widths, self.num_rates, strict=True)):
            yield f"rates{width}", num_rates, torch.float32
            # Tensors without memory, for their sizes and types.
            lists = room.new_lists(torch.device("meta"))
            for name, tensor in lists._asdict().items():
                yield f"{name}{width}", tensor.numel(), tensor.dtype
        # Each list has its count, and its two parts are filled up.
        most_filled = 3 * _MOVE_NUMBERS * len(MOVES) * len(self.widths)
        yield "moves", 2 * self.num_moves + most_filled, torch.int32

    def with_room_for(self, widths: Sequence[HostLists], num_moves: int) -> PackedRoom:
        """This room, or more where a batch does not fit."""
        # Only what depends on the lookups grows; samples and tables are fixed for a run.
        rooms = []
        for room, lists in zip(self.widths, widths, strict=True):
            rooms.append(
                replace(
                    room,
                    num_rows=_grown(room.num_rows, lists.lookups.num_rows),
                    num_long=_grown(room.num_long, lists.num_long),
                    num_staged=_grown(room.num_staged, lists.staged_C.size),
                )
            )
        grown = replace(self, widths=tuple(rooms), num_moves=_grown(self.num_moves, num_moves))
        # The same object where nothing grew: steps compare by identity, and record again where it changed.
        return self if grown == self else grown

    def lists_on(self, packed: torch.Tensor, width: int) -> BatchLists:
        """The lookups of a width as views of a packed batch."""
        return BatchLists(*(self.sections[f"{name}{width}"].of(packed) for name in BatchLists._fields))


@dataclass(frozen=True, slots=True)
class HostLists:
    """The lookups of a batch in the tables of one width, one lookup of each table in a sample."""

    lookups: LookupsByRow
    layout: Layout
    """Of the rows that live on the fast tier."""
    staged_C: NDArray[np.int64]
    """Slot of each other row, in order."""
    num_long: int
    """Rows with a long list."""

    @classmethod
    def of(cls, lookups: LookupsByRow, layout: Layout, staged_C: NDArray[np.int64]) -> HostLists:
        return cls(lookups, layout, staged_C, count_long_rows(lookups.starts_U1))


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch in a range of bytes."""

    room: PackedRoom
    slot: torch.Tensor
    """The bytes, in pinned memory."""
    num_samples: int
    num_bytes: int
    """Up to the end of the rows to move; what is behind is not sent."""
    num_moves: tuple[tuple[int, ...], ...]
    """Number of rows of each list of `MOVES`, for each width."""

    def set_rates(self, rates: Sequence[NDArray[np.float32]], dense_2: NDArray[np.float32] | None) -> None:
        """Write the numbers of the step: those of each width's row optimizer, and of the dense one."""
        for width, rates_T in enumerate(rates):
            self.room.sections[f"rates{width}"].of(self.slot).numpy()[:] = rates_T
        if dense_2 is not None:
            self.room.sections["dense_rates"].of(self.slot).numpy()[:] = dense_2

    def moves_on(self, packed: torch.Tensor, width: int, kind: int) -> RowMoves:
        """The rows of one list as views of the packed batch: sources and targets are as they were packed."""
        # Each list is its count, its sources and its targets, behind those of earlier widths and kinds.
        earlier = [count for counts in self.num_moves[:width] for count in counts]
        earlier += self.num_moves[width][:kind]
        count = self.num_moves[width][kind]
        first = sum(_MOVE_NUMBERS + 2 * _filled_up(each) for each in earlier)
        sources = first + _MOVE_NUMBERS
        targets = sources + _filled_up(count)
        moves = self.room.sections["moves"].of(packed)
        return RowMoves(
            moves[first : first + 1], moves[sources : sources + count], moves[targets : targets + count]
        )


def bytes_per_sample(lookups: LookupsTotals, num_dense: int, *, has_long_numbers: bool = False) -> float:
    """Return what the batches of a log take of a copy, by the totals of its lookups.

    Rows to move come on top.

    Args:
        lookups: of the folder that `transpose` wrote.
        num_dense: dense features.
        has_long_numbers: whether batches have more than 65,536 samples.
    """
    number = 4 if has_long_numbers else 2
    # A row has its id, where its lookups begin, and perhaps an entry among those with long lists.
    rows = lookups.rows * (4 + number) + 4 * lookups.long_rows
    return 1 + 4 * num_dense + (number * lookups.lookups + rows) / max(lookups.samples, 1)


def pack(
    room: PackedRoom,
    slot: torch.Tensor,
    label_B: NDArray[np.float32],
    dense_BK: NDArray[np.float32],
    widths: Sequence[HostLists],
    moves: Sequence[Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]],
) -> PackedBatch:
    """Write a batch, which has room, to a range of bytes.

    Args:
        room: where everything goes.
        slot: (at least ``room.num_bytes``,) uint8 of the host, written.
        label_B: each 0 or 1.
        dense_BK: of the samples.
        widths: lookups of each width.
        moves: of each width and list of `MOVES` the rows that are read, and where they are written.
    """

    packed = slot.numpy()

    def place_of(name: str) -> NDArray[Any]:
        section = room.sections[name]
        return packed[section.first_byte : section.stop_byte].view(_NUMPY[section.dtype])

    def put(name: str, values: NDArray[np.generic]) -> None:
        place_of(name)[: values.size] = values.reshape(-1)

    # Everything of fixed places first.
    num_samples = label_B.size
    put("label", label_B)
    put("dense", dense_BK)
    for width, lists in enumerate(widths):
        lookups, layout = lists.lookups, lists.layout
        put(f"num_samples_1{width}", np.array([num_samples]))
        put(f"order_offsets_F1{width}", np.arange(layout.num_tables + 1) * num_samples)
        put(f"rows_U{width}", lookups.rows_U)
        put(f"row_offsets_F1{width}", lookups.first_F1)
        put(f"staged_C{width}", lists.staged_C)
        # Numbers within each table; the device adds the offsets itself.
        places = PackedLookups(*(place_of(f"{name}{width}") for name in PackedLookups._fields))
        pack_lookups(lookups, num_samples, layout.first_F, layout.last_F, places)
        assert places.staged_offsets_F1[layout.num_tables] == lists.staged_C.size, (
            "the plan lists too few rows"
        )
    # Counts stand before the rows of their list, for kernels that read them on the device.
    place = place_of("moves")
    first = 0
    for of_width in moves:
        for sources_N, targets_N in of_width:
            place[first] = sources_N.size
            first += _MOVE_NUMBERS
            for rows_N in (sources_N, targets_N):
                place[first : first + rows_N.size] = rows_N
                first += _filled_up(rows_N.size)
    # The rows to move are last, so that the copy ends with what this step has.
    num_bytes = room.sections["moves"].first_byte + 4 * first
    counts = tuple(tuple(sources_N.size for sources_N, _ in of_width) for of_width in moves)
    return PackedBatch(room, slot, num_samples, num_bytes, counts)


def _filled_up(count: int) -> int:
    """So many numbers, and what is behind them up to where a list may begin."""
    return -(-count // _MOVE_NUMBERS) * _MOVE_NUMBERS


def _grown(room: int, needed: int) -> int:
    return room if needed <= room else int(needed * (1 + _SPARE_SHARE))
