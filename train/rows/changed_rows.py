"""Rows that training has changed since they were last saved.

Each row of a table group takes one byte. A checkpoint saves only changed rows. A changed row is being saved
from the moment a checkpoint begins until it is written, and pending until it is copied, which is before the
next step changes it. If the checkpoint could not be written, the row counts as changed again. Whether a row
was ever changed is remembered too: the others still have their initial values, which are a function of (seed,
table, id) and need no room in a file.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from ...stats.batch_rows import LookupsByRow
from ...stats.kernel import kernel
from .tiers import Layout

_CHANGED = np.uint8(1)
_SAVING = np.uint8(2)
_USED = np.uint8(4)
_PENDING = np.uint8(8)
_PART_ROWS = 1 << 18
"""Rows that are looked through at a time."""


@kernel
def _mark(
    rows_U: NDArray[np.int32],
    first_F1: NDArray[np.int64],
    base_F: NDArray[np.int64],
    tables_C: NDArray[np.int64],
    marks_R: NDArray[np.uint8],
) -> None:
    """Mark distinct rows of some tables as changed and used.

    Args:
        rows_U: (num_distinct,); their ids, table after table.
        first_F1: (num_tables + 1,); where those of each table begin.
        base_F: (num_tables,); number of the first row of each table.
        tables_C: (num_chosen,); those tables.
        marks_R: (num_rows,), updated.
    """
    for table in tables_C:
        for i in range(first_F1[table], first_F1[table + 1]):
            marks_R[base_F[table] + rows_U[i]] |= np.uint8(5)


def _parts(marks_R: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    """Yield the marks in parts that stay in the cache, which share their memory."""
    for first in range(0, marks_R.size, _PART_ROWS):
        yield marks_R[first : first + _PART_ROWS]


class ChangedRows:
    """The marks of the rows of one table group.

    A step's rows may be marked later, by another thread than the one that trains: a million bytes here and
    there take longer than queueing the step. Every other call marks them first, so nobody sees the delay.

    Args:
        num_rows: rows of each table of the group.
        marks_R: (all of them,), zeros; memory to use.
        frozen: positions of the tables whose rows no step changes.
    """

    def __init__(
        self,
        num_rows: Sequence[int],
        marks_R: NDArray[np.uint8] | None = None,
        frozen: Sequence[int] = (),
    ) -> None:
        self.layout = Layout.of([0] * len(num_rows), num_rows)
        """Numbers the rows of the group from 0, table after table."""
        self._marks_R = np.zeros(self.layout.num_own_slots, np.uint8) if marks_R is None else marks_R
        self._tables_C = np.setdiff1d(np.arange(len(num_rows)), np.array(frozen, np.int64))
        """Tables whose rows steps change."""
        self._first_pending = 0
        """Where `take_pending` goes on."""
        self._unmarked: deque[LookupsByRow] = deque()
        """Lookups of steps whose rows are marked later, in order."""
        # Two threads never change marks at a time: each changes some bits of a byte.
        self._lock = threading.Lock()

    def mark(self, lookups: LookupsByRow, *, is_later: bool = False) -> None:
        """Mark the rows that a step has changed.

        Args:
            is_later: whether they are left to `catch_up`, which other threads call soon.
        """
        if is_later:
            self._unmarked.append(lookups)
            return
        with self._lock:
            if self._unmarked:
                self._mark_all()
            _mark(lookups.rows_U, lookups.first_F1, self.layout.base_F, self._tables_C, self._marks_R)

    def catch_up(self, *, waits: bool = True) -> None:
        """Mark the rows that were left for later.

        Args:
            waits: for a thread that is at it; otherwise they are left to that one, or to the next.
        """
        if not self._lock.acquire(blocking=waits):
            return
        try:
            self._mark_all()
        finally:
            self._lock.release()

    def mark_rows(self, rows_N: NDArray[np.int64], *, is_saved: bool) -> None:
        """Mark rows, by number, as used; and as changed unless they are saved already."""
        with self._caught_up() as marks_R:
            marks_R[rows_N] |= _USED if is_saved else _USED | _CHANGED

    def begin_saving(self) -> int:
        """Begin to save the changed rows; return how many are pending."""
        num_pending = 0
        with self._caught_up() as marks_R:
            self._first_pending = 0
            for part in _parts(marks_R):
                is_changed = part & _CHANGED
                num_pending += int(np.count_nonzero(is_changed))
                part &= ~_CHANGED
                part |= is_changed * (_SAVING | _PENDING)
        return num_pending

    def take_pending(self, most: int) -> NDArray[np.int64]:
        """Return the next pending rows, ascending, at most ``most``; they are no longer pending.

        The rows follow those of the last call; the result is empty where none are left.
        """
        found = [np.empty(0, np.int64)]
        with self._caught_up() as marks_R:
            while most and self._first_pending < marks_R.size:
                part = marks_R[self._first_pending : self._first_pending + _PART_ROWS]
                pending_N = np.flatnonzero((part & _PENDING) != 0)[:most]
                most -= pending_N.size
                # The part may have more where no more are wanted.
                part = part if most else part[: pending_N[-1] + 1]
                part &= ~_PENDING
                found.append(self._first_pending + pending_N)
                self._first_pending += part.size
        return np.concatenate(found)

    def take_pending_of(self, lookups: LookupsByRow) -> NDArray[np.int64]:
        """Return pending rows that a step is about to change, ascending; they are pending no more."""
        rows_N = np.repeat(self.layout.base_F, np.diff(lookups.first_F1)) + lookups.rows_U
        return rows_N[self.take_pending_among(rows_N)]

    def take_pending_among(self, rows_N: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(num_rows,): whether each of these distinct rows was pending; they are pending no more."""
        with self._caught_up() as marks_R:
            was_pending_N: NDArray[np.bool_] = (marks_R[rows_N] & _PENDING) != 0
            marks_R[rows_N] &= ~_PENDING
        return was_pending_N

    def settle(self, *, is_lost: bool) -> None:
        """End the saving of all taken rows: saved, or changed again."""
        with self._caught_up() as marks_R:
            for part in _parts(marks_R):
                if is_lost:
                    part[(part & _SAVING) != 0] |= _CHANGED
                part &= ~(_SAVING | _PENDING)

    def is_being_saved(self, rows_N: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(num_rows,): whether the current checkpoint saves each of these rows."""
        with self._caught_up() as marks_R:
            is_saved_N: NDArray[np.bool_] = (marks_R[rows_N] & _SAVING) != 0
        return is_saved_N

    def used(self) -> Iterator[NDArray[np.int64]]:
        """Yield the rows that were ever changed, ascending, in parts."""
        for first in range(0, self._marks_R.size, _PART_ROWS):
            with self._caught_up() as marks_R:
                rows_N = first + np.flatnonzero(marks_R[first : first + _PART_ROWS] & _USED)
            yield rows_N

    @property
    def num_changed(self) -> int:
        """Rows that are to be saved."""
        return self._num_marked(_CHANGED)

    @property
    def num_used(self) -> int:
        """Rows that were ever changed."""
        return self._num_marked(_USED)

    def _num_marked(self, mark: np.uint8) -> int:
        with self._caught_up() as marks_R:
            return sum(int(np.count_nonzero(part & mark)) for part in _parts(marks_R))

    @contextmanager
    def _caught_up(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the marks with those of all steps so far, for the caller alone."""
        with self._lock:
            self._mark_all()
            yield self._marks_R

    def _mark_all(self) -> None:
        while self._unmarked:
            lookups = self._unmarked.popleft()
            _mark(lookups.rows_U, lookups.first_F1, self.layout.base_F, self._tables_C, self._marks_R)
