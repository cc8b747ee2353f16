"""FAE as published: hot-only batches wholly on the fast tier, mixed ones wholly on the slow one.

Both tiers hold the hot rows; one copy at a time is current, and a switch between the kinds of batches
copies all of them. The shuffle scheduler decides when to switch, from the test loss. Kernels and copies are
those of the other placements, so only the algorithm differs.

Source:
    Adnan et al., Accelerating Recommendation System Training by Leveraging Popular Choices (FAE),
    PVLDB 15 (2021), section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...stats.shuffle import shuffled
from ..data.batch import EmbeddingTable
from ..rows.step_plan import NOTHING_TO_MOVE, StepPlan
from ..rows.tiers import Layout
from .placements import BAGS_IN_PLACE, COLD_ROWS_IN_PLACE, ROWS_IN_PLACE, Placement
from .shuffle_scheduler import ShuffleScheduler


class Fae(Placement):
    """Every row on the slow tier, and a replica of the hot ones on the fast tier.

    Args:
        tables: those of one row width.
        sends: what crosses between the tiers of a mixed batch: the vector of each bag, as published, or of
            each distinct row.
    """

    name = "fae"

    def __init__(self, tables: Sequence[EmbeddingTable], sends: Literal["bags", "rows"] = "bags") -> None:
        super().__init__(tables)
        self._in_place = BAGS_IN_PLACE if sends == "bags" else ROWS_IN_PLACE
        self.fast = Layout.of(self.none, self.num_hot)
        self.slow = Layout.of(self.none, self.num_rows)
        self._is_last_hot_only = False
        """Kind of the batch planned last; batches may be planned far ahead of the one being computed."""

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        """Serve all on the fast tier or all in place; with the copy where the kind of batch changes."""
        is_switch = is_hot_only != self._is_last_hot_only
        self._is_last_hot_only = is_hot_only
        if is_hot_only:
            return StepPlan(copy_hot="to_fast") if is_switch else NOTHING_TO_MOVE
        return replace(self._in_place, copy_hot="to_slow") if is_switch else self._in_place

    def plan_evaluation(self, *, is_replica_current: bool) -> StepPlan:
        """Read hot rows where they are current, cold rows in place."""
        return COLD_ROWS_IN_PLACE if is_replica_current else self._in_place

    def plan_finish(self) -> StepPlan:
        """The last switch, after which the slow tier is up to date."""
        if not self._is_last_hot_only:
            return NOTHING_TO_MOVE
        self._is_last_hot_only = False
        return StepPlan(copy_hot="to_slow")


class FaeOrder:
    """The order of batches by the shuffle scheduler: mixed and hot-only ones in turns.

    Args:
        is_hot_only: (num_batches,); kind of each training batch.
        seed: shuffles the batches of each kind, differently in each epoch.
        num_epochs: epochs of the run; the last switch of all is followed by no test.
        scheduler: decides how many batches a turn takes.
        test_loss: measures the test loss after a switch; None where there are no evaluation samples.
    """

    is_known = False

    def __init__(
        self,
        is_hot_only: NDArray[np.bool_],
        seed: int,
        num_epochs: int,
        scheduler: ShuffleScheduler,
        test_loss: Callable[[], float | None],
    ) -> None:
        self._is_hot_only = is_hot_only
        self._seed = seed
        self._num_epochs = num_epochs
        self._scheduler = scheduler
        self._test_loss = test_loss

    def epochs(self) -> Iterator[Iterator[int]]:
        """Batch numbers, epoch by epoch; each is decided when it is asked for."""
        for epoch in range(self._num_epochs):
            order = shuffled(self._is_hot_only.size, self._seed, epoch)
            is_hot = self._is_hot_only[order]
            yield self._epoch(order[~is_hot].tolist(), order[is_hot].tolist(), epoch)

    def _epoch(self, mixed: list[int], hot_only: list[int], epoch: int) -> Iterator[int]:
        mixed_done = 0
        hot_done = 0
        # A turn: mixed batches, a switch, hot-only batches, a switch. Each switch is followed by a test
        # loss, but for the last one of the run, and where only one kind of batches is left.
        for num_mixed, num_hot_only in self._scheduler.turns(len(mixed), len(hot_only)):
            yield from mixed[mixed_done : mixed_done + num_mixed]
            mixed_done += num_mixed
            if num_hot_only == 0:
                continue
            if num_mixed:
                self._observe()
            yield from hot_only[hot_done : hot_done + num_hot_only]
            hot_done += num_hot_only
            is_end = mixed_done == len(mixed) and hot_done == len(hot_only)
            if mixed and not (is_end and epoch == self._num_epochs - 1):
                self._observe()

    def _observe(self) -> None:
        # A switch changes no value, so the loss may be measured before its copy is made.
        if self._scheduler.is_adaptive and (loss := self._test_loss()) is not None:
            self._scheduler.observe(loss)
