"""Step plans, which say what rows must be where; and the transfers that bring them there.

A plan is plain data, which table groups run. It lists only rows that are not where they
live: a row that lives on the fast tier needs no entry, its slot is a base plus its id. Rows of the slow tier
are named by their slots there. The lookups themselves are those of the batch by row (`stats.batch_rows`), so
a plan names distinct rows alone.

Transfers run ahead of the batches they serve, in a thread of the host or on a device.
The rule: items run in order; an item starts once the batch it names as ``after`` is computed; a batch is
computed once its item is done. The planner makes sure that this is enough; this module only keeps the rule.
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
