"""Rows moved between the tiers by threads of the host: gathered into pinned memory, and copied in one piece.

The other way to move them is a kernel that reads and writes host memory through the link
(`row_moves.MovesByKernel`). Threads cost the host's time and memory bandwidth instead of small reads over the
link, which may be slow where the memory of the host is behind tables of small pages, as in a virtual machine;
and the slow tier need not be pinned. Numba copies 23 to 30 million rows of 16 floats per second on one core,
6 to 7.5 million of 128.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from ..device.verbs import Device
from ..gpu_kernels.batch_lists import RowMoves, RowTensors
from ..rows.row_kernels import copy_rows
from ..rows.step_plan import Moves, Transfer
from .piece_ring import Piece, PieceRing, PieceShape, PieceSlot, pieces_of, slot_bytes
from .width_tensors import WidthTensors

_MOST_THREADS = 4
"""Threads that gather rows, at most: together they are quicker than the link."""
_ROWS_AT_ONCE = 4096
"""Rows that a thread copies at a time."""


class ThreadMover:
    """Moves rows for one thread, which may wait for the device; its helpers copy rows.

    Args:
        device: whose stream of moves copies pieces.
        kernels: of the device.
        widths: tensors of the rows of each width.
        num_threads: threads of the run.
    """

    def __init__(
        self,
        device: Device,
        kernels: Mapping[str, Callable[..., None]],
        widths: Sequence[WidthTensors],
        num_threads: int,
    ) -> None:
        self._device = device
        self._kernels = kernels
        self._widths = widths
        self._slot_bytes = slot_bytes((each.dim, each.state_width) for each in widths)
        # One ring each way, so that rows going up need not wait for those that came down.
        self._up = PieceRing(device, self._slot_bytes)
        self._down = PieceRing(device, self._slot_bytes)
        # The places of rows in a piece: one after the other.
        self._numbers_N = np.arange(self._slot_bytes // (4 * min(each.dim for each in widths)))
        self._numbers_on_device = torch.from_numpy(self._numbers_N.astype(np.int32)).to(device.torch_device)
        self._threads = ThreadPoolExecutor(min(num_threads, _MOST_THREADS), "move rows")
        # Compiled here, and not in the first transfer.
        nothing = self._numbers_N[:0]
        for each in widths:
            copy_rows(each.slow.weights_SD.numpy(), nothing, each.slow.weights_SD.numpy(), nothing)

    def move(self, transfers: Sequence[Transfer | None]) -> None:
        """Move the rows of a transfer; those written back are on the slow tier when this returns, the others
        on their way in the stream of moves."""
        for width, transfer in zip(self._widths, transfers, strict=True):
            if transfer is not None:
                # In this order: a slot is free, and a row up to date on the slow tier, once it is written
                # back.
                self.write_back(width, transfer.write_back)
                self.fetch(width, transfer.fetch)
                self.initialize(width, transfer.initialize)

    def write_back(self, width: WidthTensors, moves: Moves) -> None:
        """Copy rows to the slow tier; they are there when this returns."""
        under_way: deque[tuple[PieceSlot, PieceShape, Moves]] = deque()
        for part in pieces_of(moves, self._slot_bytes, width.dim, width.state_width):
            # A slot is used again once its rows have landed.
            if len(under_way) == self._down.num_slots:
                self._land(width, *under_way.popleft())
            slot = self._down.take()
            shape = PieceShape(1, part.num_rows, width.dim, width.state_width)
            on_device = shape.on(slot.on_device)
            # The list goes up, a kernel gathers the rows behind it, and they come down.
            self._send_lists(slot, shape, part.slots_N)
            gathered = RowMoves(on_device.place_3, on_device.lists[0], self._numbers(part))
            self._launch("move_rows", gathered, width.fast, on_device.rows)
            rows = slice(shape.list_bytes, shape.num_bytes)
            self._device.copy("moves", slot.on_device[rows], slot.pinned[rows])
            slot.done = self._device.record("moves")
            under_way.append((slot, shape, part))
        while under_way:
            self._land(width, *under_way.popleft())

    def fetch(self, width: WidthTensors, moves: Moves) -> None:
        """Copy rows of the slow tier to their slots."""
        for part in pieces_of(moves, self._slot_bytes, width.dim, width.state_width):
            slot = self._up.take()
            shape = PieceShape(1, part.num_rows, width.dim, width.state_width)
            host, on_device = shape.on(slot.pinned), shape.on(slot.on_device)
            _fill_lists(host, part.slots_N)
            self._copy(width.slow, part.rows_N, host.rows, self._numbers_N[: part.num_rows])
            self._device.copy("moves", slot.pinned[: shape.num_bytes], slot.on_device[: shape.num_bytes])
            slot.done = self._device.record("moves")
            scattered = RowMoves(on_device.place_3, self._numbers(part), on_device.lists[0])
            self._launch("move_rows", scattered, on_device.rows, width.fast)

    def initialize(self, width: WidthTensors, moves: Moves) -> None:
        """Give rows that no batch has used yet their initial values, in their slots."""
        for part in pieces_of(moves, self._slot_bytes, 0, 0):
            slot = self._up.take()
            shape = PieceShape(2, part.num_rows, 0, 0)
            on_device = shape.on(slot.on_device)
            self._send_lists(slot, shape, part.rows_N, part.slots_N)
            slot.done = self._device.record("moves")
            made = RowMoves(on_device.place_3, *on_device.lists)
            self._launch("make_rows", made, width.seeds, width.fast)

    def _land(self, width: WidthTensors, slot: PieceSlot, shape: PieceShape, part: Moves) -> None:
        """Copy the rows of a piece that came down to the slow tier."""
        assert slot.done is not None
        self._device.wait_on_host(slot.done)
        rows = shape.on(slot.pinned).rows
        self._copy(rows, self._numbers_N[: part.num_rows], width.slow, part.rows_N)

    def _send_lists(self, slot: PieceSlot, shape: PieceShape, *lists: NDArray[np.int64]) -> None:
        _fill_lists(shape.on(slot.pinned), *lists)
        own = slice(shape.list_bytes)
        self._device.copy("moves", slot.pinned[own], slot.on_device[own])

    def _launch(self, kernel: str, *arguments: object) -> None:
        self._device.launch("moves", self._kernels[kernel], *arguments)

    def _numbers(self, part: Moves) -> torch.Tensor:
        """The numbers from 0 up to the rows of a piece, on the device."""
        return self._numbers_on_device[: part.num_rows]

    def _copy(
        self,
        source: RowTensors,
        source_N: NDArray[np.int64],
        target: RowTensors,
        target_N: NDArray[np.int64],
    ) -> None:
        """Copy rows with their state between arrays of the host, in all threads."""
        pairs = [(each.numpy(), other.numpy()) for each, other in zip(source, target, strict=True)]

        def copy_some(first: int) -> None:
            own = slice(first, first + _ROWS_AT_ONCE)
            for source_SW, target_SW in pairs:
                copy_rows(source_SW, source_N[own], target_SW, target_N[own])

        # Waits for all of them, and raises what one raised.
        list(self._threads.map(copy_some, range(0, source_N.size, _ROWS_AT_ONCE)))


def _fill_lists(piece: Piece, *lists: NDArray[np.int64]) -> None:
    """Write the count and the lists of a piece on the host."""
    piece.place_3.numpy()[:] = lists[0].size, 0, 0
    for target, numbers_N in zip(piece.lists, lists, strict=True):
        target.numpy()[:] = numbers_N
