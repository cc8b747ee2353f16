"""Moves rows of queued steps between the tiers: by kernels, or by the host.

Kernels read and write the slow tier in pinned memory. A transfer of a step is queued with the step, whose
copy includes its lists; the host only queues. Other transfers, such as the flush of an epoch, and those of
rows in a file or in memory that cannot be pinned, are run by the host while the device is idle.

Threads of the host that gather rows for a copy were tried on an H100. They moved up to 1.4 times the rows per
second at dim 16 and half of them at dim 128, and training was no faster.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..device import Device, Event
from ..metrics import Kind
from ..rows.embeddings import Embeddings
from ..rows.step_plan import GroupStep, Transfer
from ..rows.transfers import Transfers, Work
from .packed_batch import MOVES, GroupTensors, RowMoves, RowTensors

_log = logging.getLogger(__name__)

MovedRows = list[tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Sources and targets of each of `MOVES`."""
_NONE = np.empty(0, np.int64)
_NO_ROWS: MovedRows = [(_NONE, _NONE)] * len(MOVES)
_StepWork = tuple[tuple[Transfer | None, ...], Kind]
"""One transfer per table group, and the kind of work they count as."""
Kernels = Mapping[str, Callable[..., None]]


class QueuedTransfers(Transfers[Work]):
    """The items of a run on a device.

    Args:
        run: does the work of an item on the host, synchronously, while the device is idle.
        device: runs the items of steps.
    """

    def __init__(self, run: Callable[[Work], None], device: Device) -> None:
        super().__init__(run)
        self._device = device
        # The thread that plans ahead puts items; that of the steps takes them.
        self._lock = threading.Lock()
        self._computed: dict[int, Event] = {}
        """When batches are computed that items to come may wait for."""

    @property
    def num_done(self) -> int:
        with self._lock:
            return self.num_items - len(self._queue)

    def put(self, work: Work, after: int) -> int:
        with self._lock:
            return super().put(work, after)

    def begin(self, number: int) -> Work:
        """Make moves wait for what item ``number`` waits for; return its work.

        Items before it that belong to no step are run first.
        """
        self._run_before(number)
        with self._lock:
            item = self._queue.popleft()
        assert item.number == number
        # The stream runs in order: having waited for the events up to ``after`` once, later items need not.
        for batch in [batch for batch in self._computed if batch <= item.after]:
            self._device.wait("moves", self._computed.pop(batch))
        return item.work

    def wait_for(self, number: int) -> None:
        """Run an item, and those before it, synchronously, while the device is idle."""
        self._run_before(number + 1)

    def mark_computed(self, number: int, computed: Event | None = None) -> None:
        """Mark the batch of item ``number`` as computed by all queued work."""
        self._computed[number] = computed or self._device.record("compute")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the device finish; items not yet begun are left for later."""
        self._device.synchronize()
        yield
        # What the block asked of a GPU outside its streams is over before they continue.
        self._device.synchronize()

    def drain(self) -> None:
        self._run_before(self.num_items)
        self._device.synchronize()

    def close(self) -> None:
        self._queue.clear()
        self._device.synchronize()
        self._device.close()

    def _run_before(self, number: int) -> None:
        """Run the items before ``number`` that are left."""
        while self._queue and self._queue[0].number < number:
            with self._lock:
                item = self._queue.popleft()
            self._device.synchronize()
            self._computed.clear()
            self._run(item.work)


class RowMover:
    """Moves the rows of steps: by kernels in the stream of moves, or on the host while the device is idle.

    Args:
        device: runs the steps.
        kernels: of the device.
        groups: tensors of the rows.
        embeddings: the same rows, whose transfers are not begun.
    """

    def __init__(
        self, device: Device, kernels: Kernels, groups: Sequence[GroupTensors], embeddings: Embeddings
    ) -> None:
        assert isinstance(embeddings.transfers, QueuedTransfers), "host and device take turns"
        self._transfers: QueuedTransfers[_StepWork] = embeddings.transfers
        self._device = device
        self._kernels = kernels
        self._groups = [each.rows for each in groups]
        # Kernel, source and target of each of `MOVES`.
        self._ways: list[tuple[tuple[str, Any, RowTensors], ...]] = [
            (
                ("move_rows", each.fast, each.slow),
                ("move_rows", each.slow, each.fast),
                ("make_rows", each.seeds, each.fast),
            )
            for each in groups
        ]
        self.name = "kernel" if _can_move(device, groups) else None
        """The mover: kernel; None: the host moves rows, or none move."""

    def lists_of(self, part: GroupStep) -> MovedRows:
        """The lists that go up with the batch."""
        transfer = part.plan.transfer
        if self.name is None or transfer is None:
            return _NO_ROWS
        # A write-back goes from slots to rows, the others from rows to slots.
        write_back, fetch, initialize = transfer.write_back, transfer.fetch, transfer.initialize
        return [
            (write_back.slots_N, write_back.rows_N),
            (fetch.rows_N, fetch.slots_N),
            (initialize.rows_N, initialize.slots_N),
        ]

    def begin(self, item: int, copied: Event) -> bool:
        """Begin the transfer of the next step, or let the host run it.

        Args:
            item: the number of the transfer.
            copied: event of the copy of the batch.

        Returns:
            Whether the rows are moved by what `launch` queues, which compute has to wait for.
        """
        if self.name is None:
            self._transfers.wait_for(item)
            return False
        transfers, kind = self._transfers.begin(item)
        for group, transfer in zip(self._groups, transfers, strict=True):
            if transfer is not None:
                group.staged.begin(transfer, kind)
        self._device.wait("moves", copied)
        return True

    def launch(self, moves: Sequence[Sequence[RowMoves]]) -> None:
        """Queue the moves of a step after `begin` returned true for it.

        They can be recorded.

        Args:
            moves: the rows to move on the device, of each table group and list of `MOVES`.
        """
        # In this order: a slot is free, and a row up to date on the slow tier, once it is written back. Lists
        # without rows are launched, too, since what is recorded is the same for every step.
        for ways, of_width in zip(self._ways, moves, strict=True):
            for (name, source, target), of_kind in zip(ways, of_width, strict=True):
                self._device.launch("moves", self._kernels[name], of_kind, source, target)


def _can_move(device: Device, groups: Sequence[GroupTensors]) -> bool:
    """Return whether kernels move the rows of a run; pin what they, or copies of all hot rows, access."""
    if any(each.has_file for each in groups) or not any(each.has_staging for each in groups):
        # Copies of all hot rows (fae) are faster from pinned memory.
        for each in groups:
            if each.rows.fast.layout.num_own_slots and not each.has_file:
                each.pin_slow(device)
        return False
    # A system may refuse to pin many pages, and those of a mapped file.
    if not all([each.pin_slow(device) for each in groups]):
        _log.warning("the slow tier cannot be pinned, so the device waits while the host moves rows")
        return False
    return True
