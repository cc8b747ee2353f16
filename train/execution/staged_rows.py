"""Which row is in each staging slot of a row width, as the transfers say that were noted.

A device is given transfers faster than they can be noted: some milliseconds each, for whatever thread has
time. Whoever asks for the staged rows notes first what is left.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
from numpy.typing import NDArray

from ..meter import Kind
from ..rows.step_plan import Transfer
from ..rows.tiers import Tier
from .traffic import TrafficCounter


class StagedRows:
    """The rows in the staging slots of a fast tier, by their slots on the slow one.

    Args:
        fast: the tier.
        traffic: counts the rows that move.
    """

    def __init__(self, fast: Tier, traffic: TrafficCounter) -> None:
        self._first = fast.layout.num_own_slots
        self._row_bytes = fast.row_bytes
        self._traffic = traffic
        self._row_S = np.full(fast.num_slots - self._first, -1, np.int64)
        """Row in each staging slot; -1 where there is none."""
        self._begun: deque[tuple[Transfer, Kind | None]] = deque()
        """Transfers that a device was given, and that are not noted yet."""
        # Several threads note them, one at a time, in order.
        self._noting = threading.Lock()

    def begin(self, transfer: Transfer, kind: Kind | None) -> None:
        """Take down that a device was given a transfer; `catch_up` does the rest."""
        self._begun.append((transfer, kind))

    def catch_up(self, *, waits: bool = True) -> None:
        """Note the transfers that a device was given.

        Args:
            waits: for a thread that is at it; otherwise the transfers are left to that one, or to the next.
        """
        if not self._noting.acquire(blocking=waits):
            return
        try:
            while self._begun:
                self.note(*self._begun.popleft())
        finally:
            self._noting.release()

    def note(self, transfer: Transfer, kind: Kind | None) -> None:
        """Note where rows are once a transfer is done, and count it."""
        self._row_S[transfer.write_back.slots_N - self._first] = -1
        for moves in (transfer.fetch, transfer.initialize):
            self._row_S[moves.slots_N - self._first] = moves.rows_N

        self._traffic.rows("to_slow", transfer.write_back.rows_N, self._row_bytes, kind)
        self._traffic.rows("to_fast", transfer.fetch.rows_N, self._row_bytes, kind)
        self._traffic.rows("made", transfer.initialize.rows_N, self._row_bytes, kind)

    def by_slot(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The staged rows and their slots on the fast tier, in the order of the slots."""
        self.catch_up()
        staged_N = np.flatnonzero(self._row_S >= 0)
        return self._row_S[staged_N], staged_N + self._first

    def by_row(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same, rows ascending."""
        rows_N, slots_N = self.by_slot()
        order_N = np.argsort(rows_N)
        return rows_N[order_N], slots_N[order_N]

    def forget(self) -> None:
        """Take no row as staged any more, once all are written back and no step follows."""
        self.catch_up()
        self._row_S[:] = -1
