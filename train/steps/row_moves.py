"""Movers of the rows of queued steps between the tiers: kernels, threads, or the host at its leisure.

Kernels read and write the slow tier themselves, in pinned memory, by lists that come with the batch. Threads
gather rows into pinned pieces, ahead of the loop (`thread_mover`). Which is quicker depends on the link and
on how the host's memory is mapped, so on a GPU both are timed before the first step. Rows in a file are moved
by the host, while the device stands still.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..config import MoverName
from ..device.verbs import Device, Event
from ..execution.embeddings import Embeddings
from ..execution.queued_transfers import QueuedTransfers
from ..execution.row_width import WidthStep
from ..execution.threaded_transfers import ThreadedTransfers
from ..gpu_kernels.batch_lists import RowMoves, RowTensors
from ..meter import Kind
from ..rows.step_plan import Moves, Transfer
from .packed_batch import MOVES
from .thread_mover import ThreadMover
from .width_tensors import WidthTensors

_log = logging.getLogger(__name__)

MovedRows = list[tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Sources and targets of each of `MOVES`."""
_NONE = np.empty(0, np.int64)
_NO_ROWS: MovedRows = [(_NONE, _NONE)] * len(MOVES)
_TRIED_ROWS = 1 << 17
"""Rows that are moved there and back to find what is quicker: some milliseconds."""
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

    def lists_of(self, part: WidthStep) -> MovedRows:
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
        """Queue the moves of a step whose `begin` asked for it; they can be recorded.

        Args:
            moves: the rows to move on the device, of each width and list of `MOVES`.
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
        self._executors = [each.rows.executor for each in widths]
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

    def lists_of(self, part: WidthStep) -> MovedRows:
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
        for executor, transfer in zip(self._executors, transfers, strict=True):
            if transfer is not None:
                executor.staged.begin(transfer, kind)
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
        embeddings.queue_transfers_in(self._transfers)

    def lists_of(self, part: WidthStep) -> MovedRows:
        return _NO_ROWS

    def begin(self, item: int, copied: Event) -> bool:
        self._transfers.begin_batch(item)
        return False

    def launch(self, moves: Sequence[Sequence[RowMoves]]) -> None:
        """The threads have queued the moves."""

    def _run(self, work: Work) -> None:
        transfers, kind = work
        self._mover.move(transfers)
        for width, transfer in zip(self._embeddings.widths, transfers, strict=True):
            if transfer is not None:
                width.executor.staged.begin(transfer, kind)


class MovesAtOnce:
    """The host moves rows while the device stands still: they are in a file, or there are none to move."""

    name: str | None = None

    def __init__(self, transfers: QueuedTransfers[Work]) -> None:
        self._transfers = transfers
        self.rows_per_second: dict[str, float] = {}

    def lists_of(self, part: WidthStep) -> MovedRows:
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
        wanted: the settings have it so; ``auto`` times both where the device has a clock of its own.
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
        # Copies of all hot rows (fae) are quicker from pinned memory.
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
    """Move rows of each width to staging slots and back with either mover; return how many each way."""
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
    executor = width.rows.executor
    num_staging = executor.fast.num_slots - executor.fast.layout.num_own_slots
    return min(num_staging, executor.slow.layout.num_own_slots, _TRIED_ROWS)


def _tried_moves(width: WidthTensors) -> tuple[Moves, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Some rows of the slow tier far from each other, and the first staging slots."""
    executor = width.rows.executor
    count = _num_tried(width)
    # Strides as those of rare rows, in no order that an engine could guess.
    rows_N = np.linspace(0, executor.slow.layout.num_own_slots - 1, count).astype(np.int64)
    rows_N = np.random.default_rng(0).permutation(rows_N)
    slots_N = executor.fast.layout.num_own_slots + np.arange(count)
    return Moves(rows_N, slots_N), (rows_N, slots_N), (slots_N, rows_N)


def _on_device(lists: tuple[np.ndarray, ...], device: Device) -> RowMoves:
    # Each list begins where its tensor does.
    place = np.array([lists[0].size, 0, 0])
    tensors = (torch.from_numpy(each.astype(np.int32)) for each in (place, *lists))
    return RowMoves(*(each.to(device.torch_device) for each in tensors))


def _least_seconds(work: Callable[[], None], device: Device) -> float:
    """Return the seconds of the quickest of a few trials, after one that compiles."""
    found = []
    for _ in range(1 + _TRIALS):
        device.synchronize()
        begin = time.perf_counter()
        work()
        device.synchronize()
        found.append(time.perf_counter() - begin)
    return min(found[1:])
