"""Pinned memory through which host threads send rows to a device and get them back, piece after piece.

A piece is some rows with the lists that say where they belong, as one range of bytes: it goes up in one copy.
Each slot of a ring is a range of pinned memory with its like on the device, so that however many rows a
transfer moves, it takes the memory of a few pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..device.verbs import Device, Event
from ..gpu_kernels.batch_lists import RowTensors
from ..rows.step_plan import Moves

PIECE_BYTES = 8 << 20
"""Bytes of a piece; half a millisecond of threads that gather rows, a sixth of one on the link."""
_SLOTS = 3
"""Slots of a ring: one is filled or emptied, one is copied, and one waits for either."""
_ALIGNMENT = 64
"""Bytes; what the widest loads of kernels and the engines of copies like."""


@dataclass(frozen=True, slots=True)
class PieceShape:
    """The sizes of a piece."""

    num_lists: int
    """Lists of a number for each row."""
    num_rows: int
    width: int
    """Floats of a row; 0: lists alone."""
    state_width: int
    """Floats of its optimizer state."""

    @property
    def list_bytes(self) -> int:
        """Bytes of the count and the lists, which come first."""
        return _ALIGNMENT + self.num_lists * _filled_up(4 * self.num_rows)

    @property
    def num_bytes(self) -> int:
        rows = _filled_up(4 * self.num_rows * self.width) + 4 * self.num_rows * self.state_width
        return self.list_bytes + rows

    def on(self, memory: torch.Tensor) -> Piece:
        """The piece as views of the bytes of a slot."""
        lists = []
        first = _ALIGNMENT
        for _ in range(self.num_lists):
            lists.append(memory[first : first + 4 * self.num_rows].view(torch.int32))
            first += _filled_up(4 * self.num_rows)
        # Weights, then states, each from an aligned byte on.
        rows = []
        for width in (self.width, self.state_width):
            num_bytes = 4 * self.num_rows * width
            part = memory[first : first + num_bytes].view(torch.float32)
            rows.append(part.view(self.num_rows, width))
            first += _filled_up(num_bytes)
        return Piece(memory[:12].view(torch.int32), lists, RowTensors(*rows))


@dataclass(frozen=True, slots=True)
class Piece:
    """Views of a piece, on the host or on the device."""

    place_3: torch.Tensor
    """int32; rows of the piece, and where its lists begin in themselves."""
    lists: list[torch.Tensor]
    """(num_rows,) int32 each."""
    rows: RowTensors


@dataclass(slots=True)
class PieceSlot:
    """A range of pinned memory and its like on the device."""

    pinned: torch.Tensor
    on_device: torch.Tensor
    done: Event | None = None
    """When the device has read the pinned memory, or written it."""


class PieceRing:
    """Slots for pieces, taken in turns.

    Args:
        device: copies them.
        num_bytes: of a slot.
    """

    def __init__(self, device: Device, num_bytes: int) -> None:
        self._device = device
        # In the stream of moves a slot is used again in order; only the host has to wait for it.
        self._slots = [
            PieceSlot(
                device.allocate_pinned([num_bytes], torch.uint8), device.allocate([num_bytes], torch.uint8)
            )
            for _ in range(_SLOTS)
        ]
        self._num_taken = 0

    @property
    def num_slots(self) -> int:
        return len(self._slots)

    def take(self) -> PieceSlot:
        """The next slot, once the device is done with its pinned memory."""
        slot = self._slots[self._num_taken % len(self._slots)]
        self._num_taken += 1
        if slot.done is not None:
            self._device.wait_on_host(slot.done)
        return slot


def slot_bytes(widths: Iterator[tuple[int, int]]) -> int:
    """Return the bytes of a slot that has room for a piece of any of these rows.

    Args:
        widths: floats of a row and of its state.
    """
    # A piece has one row at least.
    return max([PIECE_BYTES, *(PieceShape(2, 1, *width).num_bytes for width in widths)])


def pieces_of(moves: Moves, num_bytes: int, width: int, state_width: int) -> Iterator[Moves]:
    """Yield parts of moves that fit in a slot, two lists for each included."""
    # What is filled up takes less than an alignment for each of two lists and two arrays of rows.
    usable = num_bytes - 5 * _ALIGNMENT
    most = max(usable // (4 * (2 + width + state_width)), 1)
    for first in range(0, moves.num_rows, most):
        part = slice(first, first + most)
        yield Moves(moves.rows_N[part], moves.slots_N[part])


def _filled_up(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
