"""One batch as one range of bytes: what a step needs from the host, and where in the range each list lies.

A batch goes to the device in a single copy. It holds labels (1 byte), dense values (float32), the lookups by
row, the rows to move, and the learning rates: 140 to 195 bytes per sample
of the Criteo model. All but the rows to move have fixed places, so that a recorded step finds them. These
come last, so that the copy ends where they end; where each of their lists begins stands in a fixed place.

Files are not read into the pinned memory itself. Of the 303 bytes of a sample that are read, ids are not
sent, labels change their type, and nothing is sent before it was held against the ids. Of 299 ns of CPU time
per sample (batches of 65,536, two busy cores) that takes 168, and reading 70, into new memory or used. The
copies into the slot take 11, which is all that could be saved.

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

from ...stats.batch_rows import LookupsByRow, PackedLookups, count_long_rows, pack_lookups
from ..gpu_kernels.batch_lists import BatchLists, BatchRoom, RowMoves
from ..rows.tiers import Layout

_ALIGNMENT = 64
"""Bytes; what the widest loads of kernels and the engines of copies like."""
_SPARE_SHARE = 0.25
"""Room beyond the largest batch so far, so that few batches need more again."""
_PLACE_NUMBERS = 4
"""Numbers of the place of a list of rows to move, of which the last is of no use: 16 bytes, because Triton
compiles a kernel once for such addresses, and anew for each mixture with others."""
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
    """Numbers of the row optimizer of each width."""
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

    @cached_property
    def rates(self) -> Section:
        """The numbers of all optimizers with the gaps between them, which the host writes as one."""
        first = self.sections["dense_rates"].first_byte
        stop = max(self.sections[name].stop_byte for name in self._rate_names)
        return Section(first, (stop - first) // torch.float32.itemsize, torch.float32)

    @property
    def rate_places(self) -> list[slice]:
        """The places among `rates` of the dense layers and of each width."""
        places = []
        for name in self._rate_names:
            section = self.sections[name]
            start = (section.first_byte - self.rates.first_byte) // section.dtype.itemsize
            places.append(slice(start, start + section.count))
        return places

    @property
    def _rate_names(self) -> list[str]:
        return ["dense_rates", *(f"rates{width}" for width in range(len(self.widths)))]

    def _lists(self) -> Iterator[tuple[str, int, torch.dtype]]:
        yield "label", self.num_samples, torch.uint8
        yield "dense", self.num_samples * self.num_dense, torch.float32
        # Side by side, because they are known last and written last.
        for name, count in zip(self._rate_names, (2, *self.num_rates), strict=True):
            yield name, count, torch.float32
        for width, room in enumerate(self.widths):
            # Tensors without memory, for their sizes and types.
            lists = room.new_lists(torch.device("meta"))
            for name, tensor in lists._asdict().items():
                yield f"{name}{width}", tensor.numel(), tensor.dtype
        yield "move_places", _PLACE_NUMBERS * len(MOVES) * len(self.widths), torch.int32
        yield "moves", 2 * self.num_moves, torch.int32

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

    def moves_on(self, packed: torch.Tensor) -> list[list[RowMoves]]:
        """The rows to move of each width and list of `MOVES`, as views of a packed batch: the same memory in
        all batches of this room."""
        places = self.sections["move_places"].of(packed).view(len(self.widths), len(MOVES), -1)
        numbers = self.sections["moves"].of(packed)
        return [[RowMoves(place[:3], numbers, numbers) for place in of_width] for of_width in places]


@dataclass(frozen=True, slots=True)
class HostLists:
    """The lookups of a batch in the tables of one width, one lookup of each table in a sample."""

    lookups: LookupsByRow
    layout: Layout
    """Layout of the rows that live on the fast tier."""
    staged_C: NDArray[np.int64]
    """Slot of each other row, in order."""
    num_long: int
    """Rows with a long list."""

    @classmethod
    def of(cls, lookups: LookupsByRow, layout: Layout, staged_C: NDArray[np.int64]) -> HostLists:
        return cls(lookups, layout, staged_C, count_long_rows(lookups.starts_U1))


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch in a range of bytes.

    Everything that the loop needs of it is made by the thread that packs: a view costs the loop as much as
    queueing a kernel.
    """

    room: PackedRoom
    source: torch.Tensor
    """The bytes that are sent, up to the end of the rows to move; in pinned memory."""
    num_samples: int
    rates: NDArray[np.float32]
    """The place of the numbers of the step, which are written last; see `PackedRoom.rates`."""
    target: torch.Tensor | None = None
    """Where these bytes go on the device, once there is memory for such batches."""
    sent_rows: tuple[NDArray[np.int64], ...] = ()
    """Slots on the slow tier of the distinct rows of each width, where these are sent with the step."""

    @property
    def num_bytes(self) -> int:
        return self.source.numel()


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
    # Dense layers take as many samples of every batch, so those behind a short one are zeros.
    place_of("dense")[dense_BK.size :] = 0
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
    # Where the lists of rows to move begin stands in a place of its own, for kernels that read it there.
    move_places = place_of("move_places").reshape(len(widths), len(MOVES), _PLACE_NUMBERS)
    numbers = place_of("moves")
    first = 0
    for of_width, places_of_width in zip(moves, move_places, strict=True):
        for (sources_N, targets_N), place in zip(of_width, places_of_width, strict=True):
            middle, stop = first + sources_N.size, first + 2 * sources_N.size
            place[:] = sources_N.size, first, middle, 0
            numbers[first:middle] = sources_N
            numbers[middle:stop] = targets_N
            first = stop
    # The rows to move are last, so that the copy ends with what this step has.
    num_bytes = room.sections["moves"].first_byte + first * torch.int32.itemsize
    rates = packed[room.rates.first_byte : room.rates.stop_byte].view(np.float32)
    return PackedBatch(room, slot[:num_bytes], num_samples, rates)


def _grown(room: int, needed: int) -> int:
    return room if needed <= room else int(needed * (1 + _SPARE_SHARE))
