"""Step plans, which say what rows must be where, the transfers that load them, and changed rows.

A plan is plain data, which table groups run. It lists only rows that are not where they live: a row that
lives on the fast tier needs no entry, its slot is a base plus its id. Rows of the slow tier are named by
their slots there. The lookups themselves are those of the batch by row (`stats.batch_rows`), so a plan names
distinct rows alone.

Transfers run ahead of the batches they serve, in a thread of the host or on a device. The rule: items run in
order; an item starts once the batch it names as ``after`` is computed; a batch is computed once its item is
done. The planner makes sure that this is enough; this module only keeps the rule.

Marks of rows that training has changed take one byte a row of a table group. A checkpoint saves only changed
rows. A changed row is being saved from the moment a checkpoint begins until it is written, and pending until
it is copied, which is before the next step changes it. If the checkpoint could not be written, the row counts
as changed again. Whether a row was ever changed is remembered too: the others still have their initial
values, which are a function of (seed, table, id) and need no room in a file.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...stats.batch_rows import LookupsByRow
from ...stats.compile_notice import working_clock
from ...stats.kernel import kernel
from ..data.batch import Batch, BatchIds, EmbeddingTable
from .tiers import Layout, Moves

if TYPE_CHECKING:
    from ..device import Event


HotCopy = Literal["to_fast", "to_slow"]


NO_MOVES = Moves(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class Transfer:
    """Rows to write back and load before a batch, in field order.

    Transfers run one after the other, ahead of the batches they serve: one may start once the batch
    ``after`` is computed, and its own batch once the transfer is done.
    """

    after: int = -1
    """Step of the epoch that must be computed before this transfer starts; -1: none."""
    write_back: Moves = NO_MOVES
    """Staged rows that are written back to the slow tier; unchanged rows are evicted without."""
    fetch: Moves = NO_MOVES
    """Rows that are copied into staging slots."""
    initialize: Moves = NO_MOVES
    """Rows no batch has used yet: they get their initial values in their staging slots."""

    @classmethod
    def of(
        cls, loads: Moves, is_first: NDArray[np.bool_], after: int = -1, write_back: Moves = NO_MOVES
    ) -> Transfer:
        """Return the transfer that loads rows, those of which are initialized that no batch has used."""
        initialize = replace(loads.part(is_first), fetches_N=None)
        return cls(after, write_back, loads.part(~is_first), initialize)


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """A batch with more cold rows than staging slots, loaded in passes.

    Each pass loads ``num_slots`` rows, once for their vectors and, after the one dense step of the batch,
    once more for their updates. None stays.
    """

    rows_U: NDArray[np.int64]
    """Slots on the slow tier of the distinct rows that do not live on the fast tier, in the order of the
    batch's lookups by row; row i is loaded with pass ``i // num_slots``."""
    is_first_U: NDArray[np.bool_]
    """Whether no batch has used the row yet, so that it is initialized rather than fetched."""
    num_slots: int
    fetches_U: NDArray[np.int64] | None = None
    """Where the slow tier is a file: number of the fetch of each row, -1 where it is initialized."""
    next_fetches_U: NDArray[np.int64] | None = None
    """Number of the next fetch of each row, -1 where there is none."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """Lookups of rows that stay on the slow tier.

    Their vectors are sent to the fast tier, their gradients back.
    """

    sends: Literal["bags", "rows"]
    """One vector per bag, whose lookups the slow tier adds up; or one per distinct row."""
    is_whole: bool = True
    """Whether all rows are served so; if not, those that live on the fast tier are served there. A part of
    them in evaluation only."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The work of a table group around one batch, in the order of the fields."""

    copy_hot: HotCopy | None = None
    """Copy every hot row between the tiers first (the switch of FAE)."""
    transfer: Transfer | None = None
    """Rows that are written back and loaded for this batch."""
    staged_U: NDArray[np.int64] | None = None
    """Slots on the fast tier of the distinct rows that do not live there, in the order of the batch's lookups
    by row."""
    split: SplitBatch | None = None
    """How these rows are served where they are too many."""
    in_place: InPlace | None = None
    """Lookups of rows that do not move."""
    is_shortened: bool = False
    """Whether the transfer waits for a later batch than the prefetch depth requires."""


NOTHING_TO_MOVE = StepPlan()
"""The step plan of a batch all of whose rows live on the fast tier."""
BAGS_IN_PLACE = StepPlan(in_place=InPlace("bags"))
"""All rows stay on the slow tier, one vector per bag is sent."""
COLD_ROWS_IN_PLACE = StepPlan(in_place=InPlace("rows", is_whole=False))
"""Rows that live on the fast tier are read there, the vectors of others are sent (evaluation)."""
ROWS_IN_PLACE = StepPlan(in_place=InPlace("rows"))
"""All rows stay on the slow tier, the vector of each distinct row is sent."""


@dataclass(frozen=True, slots=True)
class GroupStep:
    """The part of a step that concerns one table group."""

    ids: BatchIds
    lookups: LookupsByRow
    """The same lookups by row."""
    exchange: Any = None
    """`ranks.exchange.GroupExchange` of the step, where there are several ranks."""
    plan: StepPlan = NOTHING_TO_MOVE


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One batch with its step plans."""

    number: int
    """Which of the training or evaluation batches this is."""
    batch: Batch
    """The samples that are computed here: all of the batch, or those of this rank."""
    num_samples: int
    """Samples of the batch, those of all ranks."""
    parts: tuple[GroupStep, ...]
    """One per table group."""
    item: int | None = None
    """The item of the transfer thread that loads its rows; None where it needs none."""
    packing: Any = None
    """The batch in pinned memory, once a reader has packed it for a device; None: it is not sent."""


@dataclass(frozen=True, slots=True)
class ColdRows:
    """The distinct rows of a batch that live on the slow tier."""

    rows_U: NDArray[np.int64]
    """Slots on the slow tier, ascending: in order of table and id."""
    lookups_U: NDArray[np.int64]
    """Lookups of each."""


class Placement(ABC):
    """A planner of step plans, for one run over tables of given sizes."""

    name: ClassVar[str]
    fast: Layout
    """Rows that live on the fast tier, each in a fixed slot."""
    slow: Layout
    """Rows that have a slot on the slow tier."""
    num_staging_slots: int = 0
    """Staging slots of the fast tier, after those of the rows that live there."""
    is_staging: ClassVar[bool] = False
    """Whether it is a `staging.StagingPlacement`."""

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        self.num_rows = [table.num_rows for table in tables]
        self.num_hot = [table.num_hot for table in tables]
        self.no_rows = [0] * len(tables)
        # Every row lives on the slow tier where a placement does not say otherwise.
        self.fast = Layout.of(self.no_rows, self.no_rows)
        self.slow = Layout.of(self.no_rows, self.num_rows)

    @abstractmethod
    def plan(self, *, is_hot_only: bool) -> StepPlan:
        """The step plan of the next training batch."""

    @abstractmethod
    def plan_evaluation(self, *, is_stale: bool) -> StepPlan:
        """A plan that reads the newest weights and moves no row for good.

        Args:
            is_stale: whether rows that both tiers hold are newer on the fast one. Batches are
                planned ahead of those computed, so a placement cannot know it.
        """

    def cold_rows(self, lookups: LookupsByRow) -> ColdRows:
        """Return the rows that staging slots have to serve, if any do."""
        raise NotImplementedError

    def find_cold_rows(self, ids: BatchIds) -> ColdRows:
        """Return the same of lookups that are not grouped by row."""
        raise NotImplementedError


Work = TypeVar("Work")


@dataclass(frozen=True, slots=True)
class TransferItem(Generic[Work]):
    """One transfer in the sequence of all."""

    number: int
    after: int
    """The batch, by the number of its item, that has to be computed before this item starts; -1 for none."""
    work: Work


class Transfers(ABC, Generic[Work]):
    """Runs items by the rule.

    Args:
        run: does the work of an item.
    """

    def __init__(self, run: Callable[[Work], None]) -> None:
        self._run = run
        self._queue: deque[TransferItem[Work]] = deque()
        self.num_items = 0
        """Items put so far."""
        self.busy_seconds = 0.0
        """Seconds spent in transfers; 0 where the host does not know how long a device takes."""
        self.stall_seconds = 0.0
        """Seconds that batches waited for transfers."""
        self.num_stalls = 0
        """Batches that waited at all."""

    @property
    @abstractmethod
    def num_done(self) -> int:
        """Items that are done; exact while a device is idle."""

    def put(self, work: Work, after: int) -> int:
        """Add an item; return its number. ``after`` is the number of an earlier one or -1."""
        number = self.num_items
        assert after < number, "an item cannot wait for its own batch"
        self.num_items += 1
        self._queue.append(TransferItem(number, after, work))
        return number

    @abstractmethod
    def wait_for(self, number: int) -> None:
        """Return once item ``number`` is done; raises what its work raised."""

    @abstractmethod
    def mark_computed(self, number: int, computed: Event | None = None) -> None:
        """Mark the batch of item ``number`` as computed, but no later one.

        Args:
            computed: where a device computes the batch, the event after it; None: the event is made here.
        """

    @abstractmethod
    def paused(self) -> AbstractContextManager[None]:
        """Hold the transfers between two items; those put before may be done or not."""

    @abstractmethod
    def drain(self) -> None:
        """Return once all items put are done; their batches must be computed."""

    @abstractmethod
    def close(self) -> None:
        """Stop after the present item, and forget the others; a device finishes what it was given."""


class TransferThread(Transfers[Work]):
    """A thread that runs items by the rule."""

    def __init__(self, run: Callable[[Work], None]) -> None:
        super().__init__(run)
        # One condition guards the queue and all that follows; every change of it notifies both threads.
        self._state = threading.Condition()
        # Items that are done and batches that are computed, each up to this number.
        self._done = -1
        self._computed = -1
        self._is_busy = False
        self._is_closed = False
        self._num_pauses = 0
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def num_done(self) -> int:
        return self._done + 1

    def put(self, work: Work, after: int) -> int:
        with self._state:
            self._check()
            number = super().put(work, after)
            # The thread starts with the first item: most placements have none.
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="transfers", daemon=True)
                self._thread.start()
            self._state.notify_all()
            return number

    def wait_for(self, number: int) -> None:
        with self._state:
            self._check()
            if self._done < number:
                start = working_clock()
                self._state.wait_for(lambda: self._done >= number or self._error is not None)
                self.stall_seconds += working_clock() - start
                self.num_stalls += 1
                self._check()

    def mark_computed(self, number: int, computed: Event | None = None) -> None:
        with self._state:
            self._computed = number
            self._state.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self._state:
            self._raise_error()
            # Counted before the wait, so that no further item starts meanwhile.
            self._num_pauses += 1
            self._state.wait_for(lambda: not self._is_busy)
        try:
            self._raise_error()
            yield
        finally:
            with self._state:
                self._num_pauses -= 1
                self._state.notify_all()

    def drain(self) -> None:
        with self._state:
            self._state.wait_for(lambda: self.num_done == self.num_items or self._error is not None)
            self._check()

    def close(self) -> None:
        with self._state:
            self._is_closed = True
            self._state.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _check(self) -> None:
        self._raise_error()
        if self._is_closed:
            raise RuntimeError("the transfer thread is closed")

    def _work(self) -> None:
        try:
            while True:
                with self._state:
                    self._state.wait_for(lambda: self._is_closed or self._may_start())
                    if self._is_closed:
                        return
                    item = self._queue.popleft()
                    self._is_busy = True
                start = working_clock()
                self._run(item.work)
                with self._state:
                    self._done = item.number
                    self._is_busy = False
                    self.busy_seconds += working_clock() - start
                    self._state.notify_all()
        except BaseException as error:
            # Whatever it is, it is kept for the other thread, whose next call raises it.
            with self._state:
                self._error = error
                self._is_busy = False
                self._state.notify_all()

    def _may_start(self) -> bool:
        return bool(self._queue) and not self._num_pauses and self._computed >= self._queue[0].after


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
