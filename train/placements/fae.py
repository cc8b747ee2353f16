"""FAE as published: hot-only batches on the fast tier, mixed on slow.

Both tiers hold the hot rows; one copy at a time is current, and a switch between the kinds of batches copies
all of them, changed or not, as the paper has it. Ids are ranks, so the hot rows of a table are a prefix of
its slots on either tier, and a copy is one slice per table, weights and state. Kernels and copies are those
of the other placements, so only the algorithm differs.

The shuffle scheduler decides from the test loss how long to stay with one kind of batches. R(r) runs r% of
the epoch's mixed batches, at least one, then the same share of its hot-only ones. R(100) switches once an
epoch, R(1) about a hundred times. The rule follows the paper's prose; its typeset equation swaps min and max.

Source:
    Adnan et al., Accelerating Recommendation System Training by Leveraging Popular Choices (FAE), PVLDB 15
    (2021), sections 4 and 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from numpy.typing import NDArray

from ...stats.shuffle import shuffled
from ..data.batch import BatchOrder, EmbeddingTable
from ..rows.embeddings import Embeddings
from ..rows.step_plan import (
    BAGS_IN_PLACE,
    COLD_ROWS_IN_PLACE,
    NOTHING_TO_MOVE,
    ROWS_IN_PLACE,
    HotCopy,
    Placement,
    PlannedStep,
    StepPlan,
)
from ..rows.table_group import TableGroup
from ..rows.tiers import Layout

if TYPE_CHECKING:
    from ..config import TrainConfig
    from ..data.shards import ShardSet

START_RATE = 50.0
LEAST_RATE = 1.0
MOST_RATE = 100.0
FALLS_TO_DOUBLE = 4
"""Falls of the test loss in a row that double the rate; u in the paper."""
TEST_SAMPLES = 32_768
"""Samples of the evaluation part, from its front, whose mean loss is the test loss."""


class ShuffleScheduler:
    """The rate r in percent, and the turns into which it divides an epoch."""

    def __init__(self, *, rate: float = START_RATE, is_adaptive: bool = True) -> None:
        self.rate = rate
        self.is_adaptive = is_adaptive
        """Whether the rate follows test losses at all."""
        self.losses: list[float] = []
        """Test loss after each switch, nats per sample."""
        self._num_falls = 0

    @classmethod
    def variant(cls, name: str) -> ShuffleScheduler:
        """Build the scheduler of ``paper``, adaptive R(50), or of ``code``, always R(100)."""
        if name == "code":
            return cls(rate=MOST_RATE, is_adaptive=False)
        return cls()

    def observe(self, loss: float) -> None:
        """Adapt the rate to the test loss after a switch.

        A rise halves it; after ``FALLS_TO_DOUBLE`` falls in a row it doubles, and falls are counted from 0
        again.
        """
        previous = self.losses[-1] if self.losses else loss
        self.losses.append(loss)
        self._num_falls = self._num_falls + 1 if loss < previous else 0
        if loss > previous:
            self.rate = max(self.rate / 2, LEAST_RATE)
        elif self._num_falls == FALLS_TO_DOUBLE:
            self.rate = min(2 * self.rate, MOST_RATE)
            self._num_falls = 0

    def turns(self, num_mixed: int, num_hot_only: int) -> Iterator[tuple[int, int]]:
        """Return the numbers of mixed and of hot-only batches of each turn.

        A turn of an epoch runs them in this order. The rate is read again for each turn. Shares are
        cumulative, so every batch runs once.
        """
        # Without mixed batches there is nothing to switch between.
        if num_mixed == 0:
            yield 0, num_hot_only
            return
        mixed_done = 0
        hot_done = 0
        while mixed_done < num_mixed:
            count = max(1, round(self.rate / 100 * num_mixed))
            # The same share of each kind, so that both run out in the last turn.
            mixed_until = min(mixed_done + count, num_mixed)
            hot_until = mixed_until * num_hot_only // num_mixed
            yield mixed_until - mixed_done, hot_until - hot_done
            mixed_done = mixed_until
            hot_done = hot_until


class Fae(Placement):
    """Every row on the slow tier, and hot ones on the fast, too.

    Args:
        tables: those of one table group.
        sends: what crosses between the tiers of a mixed batch: the vector of each bag, as published, or of
            each distinct row.
    """

    name = "fae"

    def __init__(self, tables: Sequence[EmbeddingTable], sends: Literal["bags", "rows"] = "bags") -> None:
        super().__init__(tables)
        self._in_place = BAGS_IN_PLACE if sends == "bags" else ROWS_IN_PLACE
        self.fast = Layout.of(self.no_rows, self.num_hot)
        self._is_last_hot_only = False
        """Kind of the batch planned last. A replayed order is planned ahead of the batch being computed."""

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        """Serve all on the fast tier or all in place; copy where that changes."""
        is_switch = is_hot_only != self._is_last_hot_only
        self._is_last_hot_only = is_hot_only
        if is_hot_only:
            return StepPlan(copy_hot="to_fast") if is_switch else NOTHING_TO_MOVE
        return replace(self._in_place, copy_hot="to_slow") if is_switch else self._in_place

    def plan_evaluation(self, *, is_stale: bool) -> StepPlan:
        """Read hot rows where they are current, cold rows in place."""
        return COLD_ROWS_IN_PLACE if is_stale else self._in_place

    def start_over(self) -> None:
        """Plan as at the start of a run: both tiers are equal, and no plan made before is carried out."""
        self._is_last_hot_only = False


class FaeOrder(BatchOrder):
    """The order of batches by the shuffle scheduler: mixed and hot-only ones in turns.

    Args:
        is_hot_only: (num_batches,); kind of each training batch.
        seed: shuffles the batches of each kind, differently in each epoch.
        num_epochs: epochs of the run; the last switch of all is followed by no test.
        scheduler: decides how many batches a turn takes.
        test_loss: measures the test loss after a switch; None where there are no evaluation samples.
    """

    is_known = False

    @property
    def test_losses(self) -> Sequence[float]:
        return self._scheduler.losses

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
        """Yield batch numbers, epoch by epoch; each is decided when the caller takes it."""
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


def build_fae_order(
    shards: ShardSet,
    config: TrainConfig,
    mean_loss: Callable[[int], float | None],
    earlier_losses: Sequence[float],
) -> FaeOrder:
    """Build the order of a run with the placement ``fae``.

    Args:
        mean_loss: measures the mean loss of so many samples that may steer training.
        earlier_losses: test losses of the steps that are done.
    """
    # A resumed run makes the decisions of its scheduler once more, by the losses that it had then.
    earlier = iter(earlier_losses)

    def test_loss() -> float | None:
        found = next(earlier, None)
        return mean_loss(TEST_SAMPLES) if found is None else found

    scheduler = ShuffleScheduler.variant(config.fae_variant)
    return FaeOrder(shards.is_hot_only, config.seed, config.epochs, scheduler, test_loss)


class HotCopies:
    """Copies all hot rows between the tiers, at each switch between the kinds of batches."""

    def __init__(self, embeddings: Embeddings) -> None:
        self._groups = embeddings.groups
        self._transfers = embeddings.transfers

    def before_step(self, step: PlannedStep) -> None:
        """Make the copy that the plan of a step begins with, if any."""
        # The placement is one for all table groups.
        if step.parts and (way := step.parts[0].plan.copy_hot):
            with self._transfers.paused():
                for group in self._groups:
                    _copy(group, way)

    def finish(self) -> None:
        """Copy the hot rows that are newer on the fast tier; the slow one is then up to date."""
        # What was planned last says nothing: a run that stops early has planned ahead.
        with self._transfers.paused():
            for group in self._groups:
                if group.slow.is_stale:
                    _copy(group, "to_slow")
                cast("Fae", group.placement).start_over()


def _copy(group: TableGroup, way: HotCopy) -> None:
    """Overwrite the hot rows of one tier with those of the other."""
    fast, slow = group.fast, group.slow
    with group.traffic.meter.during("switch"):
        for table in range(fast.layout.num_tables):
            on_fast = fast.layout.slots_of_table(table)
            start = slow.layout.slots_of_table(table).start
            on_slow = slice(start, start + on_fast.stop - on_fast.start)
            # A row and its state move together.
            for of_fast, of_slow in ((fast.weights_SD, slow.weights_SD), (fast.state_SW, slow.state_SW)):
                if way == "to_fast":
                    of_fast[on_fast].copy_(of_slow[on_slow])
                else:
                    of_slow[on_slow].copy_(of_fast[on_fast])
        slow.is_stale = way == "to_fast"
        num_rows_F = fast.layout.last_F - fast.layout.first_F
        group.traffic.by_table(way, num_rows_F, fast.row_bytes)
