"""Moves rows of queued steps between the tiers: by kernels, or by the host.

Kernels read and write the slow tier in pinned memory, by lists that come with the batch. Rows in a file, or
in memory that cannot be pinned, are moved by the host while the device is idle.

Threads of the host that gather rows for a copy were tried on an H100. They moved up to 1.4 times the rows per
second at dim 16 and half of them at dim 128, and training was no faster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..device import Device, Event
from ..metrics import Kind
from ..rows.embeddings import Embeddings
from ..rows.step_plan import GroupStep, Transfer
from .packed_batch import MOVES, RowMoves, RowTensors, WidthTensors
from .transfers import QueuedTransfers

_log = logging.getLogger(__name__)

MovedRows = list[tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Sources and targets of each of `MOVES`."""
_NONE = np.empty(0, np.int64)
_NO_ROWS: MovedRows = [(_NONE, _NONE)] * len(MOVES)
Work = tuple[tuple[Transfer | None, ...], Kind]
"""One transfer per width, and the kind of work they count as."""
Kernels = Mapping[str, Callable[..., None]]


class StepMoves(Protocol):
    """Moves the rows of steps."""

    name: str | None
    """The mover: kernel; None: the host moves rows, or none move."""

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


class MovesAtOnce:
    """Moves rows on the host while the device is idle, if there are any to move."""

    name: str | None = None

    def __init__(self, transfers: QueuedTransfers[Work]) -> None:
        self._transfers = transfers

    def lists_of(self, part: GroupStep) -> MovedRows:
        return _NO_ROWS

    def begin(self, item: int, copied: Event) -> bool:
        self._transfers.wait_for(item)
        return False

    def launch(self, moves: Sequence[Sequence[RowMoves]]) -> None:
        """The host has moved the rows."""


def choose_moves(
    device: Device, kernels: Kernels, widths: Sequence[WidthTensors], embeddings: Embeddings
) -> StepMoves:
    """Choose what moves the rows of a run, before its first step.

    Args:
        device: runs the steps.
        kernels: of the device.
        widths: tensors of the rows.
        embeddings: the same rows, whose transfers are not begun.
    """
    queued = embeddings.transfers
    assert isinstance(queued, QueuedTransfers), "host and device take turns"
    if any(each.has_file for each in widths) or not any(map(_has_staging, widths)):
        # Copies of all hot rows (fae) are faster from pinned memory.
        for each in widths:
            if each.holds_rows and not each.has_file:
                each.pin_slow(device)
        return MovesAtOnce(queued)
    # A system may refuse to pin many pages, and those of a mapped file.
    if not all([each.pin_slow(device) for each in widths]):
        _log.warning("the slow tier cannot be pinned, so the device waits while the host moves rows")
        return MovesAtOnce(queued)
    return MovesByKernel(device, kernels, widths, queued)


def _has_staging(width: WidthTensors) -> bool:
    """Return whether rows of a width move between the tiers."""
    group = width.rows
    has_slots = group.fast.num_slots > group.fast.layout.num_own_slots
    return has_slots and group.slow.layout.num_own_slots > 0
