"""Moves rows of queued steps between the tiers: by kernels, threads, or the host.

Kernels read and write the slow tier in pinned memory, by lists that come with the batch. Threads of the host
gather rows into pinned memory ahead of the loop and copy them in one piece. That costs the host's time and
memory bandwidth instead of small reads over the link, which may be slow where the memory of the host is
mapped by small pages, as in a virtual machine; and the slow tier need not be pinned. Numba copies 23 to 30
million rows of 16 floats per second on one core, 6 to 7.5 million of 128. On a GPU both ways are timed before
the first step. Rows in a file are moved by the host, while the device is idle.

A piece is some rows with the lists that say where they belong, as one range of bytes, so it takes one copy.
Each slot of a ring is a range of pinned memory with a counterpart on the device, so that however many rows a
transfer moves, it takes the memory of a few pieces.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..config import MoverName
from ..device import Device, Event
from ..execution.embeddings import Embeddings
from ..metrics import Kind
from ..rows.kernels import copy_rows
from ..rows.step_plan import GroupStep, Moves, Transfer
from .packed_batch import MOVES, RowMoves, RowTensors, WidthTensors
from .transfers import QueuedTransfers, ThreadedTransfers

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
    """Return the bytes of a slot that fits any of these rows.

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


_MOST_THREADS = 4
"""Threads that gather rows, at most: together they are faster than the link."""
_ROWS_AT_ONCE = 4096
"""Rows that a thread copies at a time."""


class ThreadMover:
    """Moves rows for one thread, which may wait; helpers copy rows.

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
        """Move the rows of a transfer.

        Those written back are on the slow tier when this returns, the others queued in the stream of moves.
        """
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
            # The list is copied to the device, a kernel gathers the rows after it, and they are copied back.
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


_log = logging.getLogger(__name__)

MovedRows = list[tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Sources and targets of each of `MOVES`."""
_NONE = np.empty(0, np.int64)
_NO_ROWS: MovedRows = [(_NONE, _NONE)] * len(MOVES)
_TRIED_ROWS = 1 << 17
"""Rows that are moved there and back to find the faster mover: some milliseconds."""
_TRIALS = 5

Work = tuple[tuple[Transfer | None, ...], Kind]
"""One transfer per width, and the kind of work they count as."""
Kernels = Mapping[str, Callable[..., None]]


class StepMoves(Protocol):
    """Moves the rows of steps."""

    name: str | None
    """The mover, as the settings name it; None: the host moves rows from and to a file, or none move."""
    rows_per_second: dict[str, float]
    """The rate of each mover that was timed, rows each way; empty where none was."""

    def lists_of(self, part: GroupStep) -> MovedRows:
        """The lists that go up with the batch."""

    def begin(self, item: int, copied: Event) -> bool:
        """Begin the transfer of the next step, or let compute wait for its rows.

        Args:
            item: the number of the transfer.
            copied: event of the copy of the batch.

        Returns:
            Whether the rows are moved by what `launch` queues, which compute has to wait for.
        """

    def launch(self, moves: Sequence[Sequence[RowMoves]]) -> None:
        """Queue the moves of a step after `begin` returned true for it.

        They can be recorded.

        Args:
            moves: the rows to move on the device, of each table group and list of `MOVES`.
        """


class MovesByKernel:
    """Kernels move rows in the stream of moves; the slow tier is pinned."""

    name: str | None = "kernel"

    def __init__(
        self,
        device: Device,
        kernels: Kernels,
        widths: Sequence[WidthTensors],
        transfers: QueuedTransfers[Work],
    ) -> None:
        self._device = device
        self._kernels = kernels
        self._groups = [each.rows for each in widths]
        # Kernel, source and target of each of `MOVES`.
        self._ways: list[tuple[tuple[str, Any, RowTensors], ...]] = [
            (
                ("move_rows", each.fast, each.slow),
                ("move_rows", each.slow, each.fast),
                ("make_rows", each.seeds, each.fast),
            )
            for each in widths
        ]
        self._transfers = transfers
        self.rows_per_second: dict[str, float] = {}

    def lists_of(self, part: GroupStep) -> MovedRows:
        transfer = part.plan.transfer
        if transfer is None:
            return _NO_ROWS
        # A write-back goes from slots to rows, the others from rows to slots.
        write_back, fetch, initialize = transfer.write_back, transfer.fetch, transfer.initialize
        return [
            (write_back.slots_N, write_back.rows_N),
            (fetch.rows_N, fetch.slots_N),
            (initialize.rows_N, initialize.slots_N),
        ]

    def begin(self, item: int, copied: Event) -> bool:
        transfers, kind = self._transfers.begin(item)
        for group, transfer in zip(self._groups, transfers, strict=True):
            if transfer is not None:
                group.staged.begin(transfer, kind)
        self._device.wait("moves", copied)
        return True

    def launch(self, moves: Sequence[Sequence[RowMoves]]) -> None:
        # In this order: a slot is free, and a row up to date on the slow tier, once it is written back. Lists
        # without rows are launched, too, since what is recorded is the same for every step.
        for ways, of_width in zip(self._ways, moves, strict=True):
            for (name, source, target), of_kind in zip(ways, of_width, strict=True):
                self._device.launch("moves", self._kernels[name], of_kind, source, target)


class MovesByThreads:
    """Threads move rows ahead of the loop, by the rule of `ThreadedTransfers`."""

    name: str | None = "threads"

    def __init__(self, mover: ThreadMover, device: Device, embeddings: Embeddings) -> None:
        self._mover = mover
        self._embeddings = embeddings
        self._transfers: ThreadedTransfers[Work] = ThreadedTransfers(self._run, device)
        self.rows_per_second: dict[str, float] = {}
        embeddings.transfers = self._transfers

    def lists_of(self, part: GroupStep) -> MovedRows:
        return _NO_ROWS

    def begin(self, item: int, copied: Event) -> bool:
        self._transfers.begin_batch(item)
        return False

    def launch(self, moves: Sequence[Sequence[RowMoves]]) -> None:
        """The threads have queued the moves."""

    def _run(self, work: Work) -> None:
        transfers, kind = work
        self._mover.move(transfers)
        for width, transfer in zip(self._embeddings.groups, transfers, strict=True):
            if transfer is not None:
                width.staged.begin(transfer, kind)


class MovesAtOnce:
    """Moves rows on the host while the device is idle.

    The rows are in a file, or there are none to move.
    """

    name: str | None = None

    def __init__(self, transfers: QueuedTransfers[Work]) -> None:
        self._transfers = transfers
        self.rows_per_second: dict[str, float] = {}

    def lists_of(self, part: GroupStep) -> MovedRows:
        return _NO_ROWS

    def begin(self, item: int, copied: Event) -> bool:
        self._transfers.wait_for(item)
        return False

    def launch(self, moves: Sequence[Sequence[RowMoves]]) -> None:
        """The host has moved the rows."""


def choose_moves(
    wanted: MoverName,
    device: Device,
    kernels: Kernels,
    widths: Sequence[WidthTensors],
    embeddings: Embeddings,
    num_threads: int,
) -> StepMoves:
    """Choose what moves the rows of a run, before its first step.

    Args:
        wanted: the configured mover; ``auto`` times both where the device has a clock.
        device: runs the steps.
        kernels: of the device.
        widths: tensors of the rows.
        embeddings: the same rows, whose transfers are not begun.
        num_threads: threads of the run.
    """
    queued = embeddings.transfers
    assert isinstance(queued, QueuedTransfers), "host and device take turns"
    moving = [each for each in widths if _num_tried(each)]
    if not moving or any(each.has_file for each in widths):
        # Copies of all hot rows (fae) are faster from pinned memory.
        for each in widths:
            if each.holds_rows and not each.has_file:
                each.pin_slow(device)
        return MovesAtOnce(queued)

    def by_threads() -> MovesByThreads:
        return MovesByThreads(ThreadMover(device, kernels, widths, num_threads), device, embeddings)

    if wanted == "threads":
        return by_threads()
    # A system may refuse to pin many pages, and those of a mapped file.
    if not all([each.pin_slow(device) for each in widths]):
        if wanted == "kernel":
            _log.warning("the slow tier cannot be pinned for --mover kernel, so threads move the rows")
        return by_threads()
    by_kernel = MovesByKernel(device, kernels, widths, queued)
    if wanted == "kernel" or not device.is_timed:
        return by_kernel
    # Both do the same moves, there and back, so that no row changes.
    mover = ThreadMover(device, kernels, widths, num_threads)
    found = _rows_per_second(device, kernels, mover, moving)
    is_kernel = found["kernel"] >= found["threads"]
    chosen: StepMoves = by_kernel if is_kernel else MovesByThreads(mover, device, embeddings)
    chosen.rows_per_second = found
    return chosen


def _rows_per_second(
    device: Device, kernels: Kernels, mover: ThreadMover, widths: Sequence[WidthTensors]
) -> dict[str, float]:
    """Move rows to staging slots and back with either mover; return their speeds."""
    tried = [_tried_moves(width) for width in widths]
    on_device = [[_on_device(part, device) for part in (fetch, back)] for _, fetch, back in tried]

    def with_kernel() -> None:
        for width, (fetch, back) in zip(widths, on_device, strict=True):
            device.launch("moves", kernels["move_rows"], fetch, width.slow, width.fast)
            device.launch("moves", kernels["move_rows"], back, width.fast, width.slow)

    def with_threads() -> None:
        for width, (moves, _, _) in zip(widths, tried, strict=True):
            mover.fetch(width, moves)
            mover.write_back(width, moves)

    num_rows = sum(moves.num_rows for moves, _, _ in tried)
    return {
        "kernel": num_rows / _least_seconds(with_kernel, device),
        "threads": num_rows / _least_seconds(with_threads, device),
    }


def _num_tried(width: WidthTensors) -> int:
    """Rows of a width that can be moved there and back."""
    group = width.rows
    num_staging = group.fast.num_slots - group.fast.layout.num_own_slots
    return min(num_staging, group.slow.layout.num_own_slots, _TRIED_ROWS)


def _tried_moves(width: WidthTensors) -> tuple[Moves, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Return some distant rows of the slow tier, and the first staging slots."""
    group = width.rows
    count = _num_tried(width)
    # Strides as those of rare rows, in no order that an engine could guess.
    rows_N = np.linspace(0, group.slow.layout.num_own_slots - 1, count).astype(np.int64)
    rows_N = np.random.default_rng(0).permutation(rows_N)
    slots_N = group.fast.layout.num_own_slots + np.arange(count)
    return Moves(rows_N, slots_N), (rows_N, slots_N), (slots_N, rows_N)


def _on_device(lists: tuple[np.ndarray, ...], device: Device) -> RowMoves:
    # Each list begins where its tensor does.
    place = np.array([lists[0].size, 0, 0])
    tensors = (torch.from_numpy(each.astype(np.int32)) for each in (place, *lists))
    return RowMoves(*(each.to(device.torch_device) for each in tensors))


def _least_seconds(work: Callable[[], None], device: Device) -> float:
    """Return the seconds of the fastest of a few trials, after one that compiles."""
    found = []
    for _ in range(1 + _TRIALS):
        device.synchronize()
        begin = time.perf_counter()
        work()
        device.synchronize()
        found.append(time.perf_counter() - begin)
    return min(found[1:])
