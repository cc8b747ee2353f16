"""Let runs take turns, so that ratios compare the same moments.

All runs of a group are built and warmed up; then each takes some steps in every round. The speed of a card
drifts with its heat, and that of a shared machine with its other work, which affects all runs of a round
alike. So a speed is the median over rounds, and a ratio the median over rounds of two speeds of the same
round.

A run that waits for its turn has read batches ahead, forty on a machine of many cores. They would be free in
its next turn, so each turn begins with steps that do not count, and the clock starts after them.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....pipeline.runtime.tasks import num_workers
from ....stats.shuffle import epoch_order
from ....train.build import MOST_READERS, build_trainer
from ....train.config import TrainConfig
from ....train.data.batch_order import RecordedOrder
from ....train.data.shards import Shards
from ....train.gpu.queued_steps import QueuedSteps
from ....train.loop import MOST_STEPS_AHEAD, Trainer, train_steps
from ....train.threads import PLACES_AT_A_TIME
from ..harness import median_ratio
from .link_rates import LinkRates, measure_link
from .records import Records

REFERENCE = "all-fast"
"""Name of the contestant that the others are compared with."""
_ROUNDS = 5
_WARM_UP_STEPS = 5
_MOST_SAMPLES = 12_000_000
"""Samples of the measured steps of one run, at most; they are planned before its first step."""
_MOST_STEPS = 1500
_STEP_SECONDS = 2.0
"""Measured time of one run, about."""
_ENDING_SECONDS = 5.0
"""Time that is kept for the runs of a group to end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """One of several runs that are compared."""

    name: str
    check: str
    """Name of the check that fails where the run raises."""
    shards: Shards
    config: TrainConfig
    is_hot_only: bool = False
    """Whether it trains on hot-only batches alone."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Columns of its row that say what was measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """The number and length of the turns of a run."""

    rounds: int = _ROUNDS
    seconds: float
    """Time after which a turn ends."""
    fewest_steps: int = 4
    """Steps before which it does not."""
    most_steps: int
    """Steps after which it ends in any case."""
    steps_ahead: int
    """Steps that may have been read ahead of a turn, and do not count."""

    @classmethod
    def of(cls, batch_size: int, *, is_small: bool) -> Turns:
        """Return the turns for a batch size; a few steps where everything is only tried."""
        if is_small:
            return cls(seconds=0.0, fewest_steps=2, most_steps=2, steps_ahead=0)
        # Batches are read ahead by each reader, packed ahead by each, and sent ahead.
        num_readers = min(num_workers(0), MOST_READERS)
        steps_ahead = 2 * num_readers + MOST_STEPS_AHEAD + PLACES_AT_A_TIME
        most_steps = min(_MOST_STEPS, _MOST_SAMPLES // batch_size) // _ROUNDS
        return cls(seconds=_STEP_SECONDS / _ROUNDS, most_steps=most_steps, steps_ahead=steps_ahead)


@dataclass(frozen=True, slots=True)
class Turn:
    """Work of a run in a turn, without the steps that do not count."""

    num_samples: int
    steps: int
    seconds: float

    @property
    def samples_per_second(self) -> float:
        """Speed of the turn."""
        return self.num_samples / self.seconds


class RunInTurns:
    """A run that takes some of its steps at each turn.

    Args:
        contestant: the run.
        turns: those that it will be given at most.
    """

    def __init__(self, contestant: Contestant, turns: Turns) -> None:
        self._turns = turns
        config = contestant.config
        shards = contestant.shards
        # fae orders its batches by itself, the mixed ones of an epoch together and the others together, so a
        # turn of it is whole epochs. What it decides as it goes is not read ahead.
        is_fae = config.placement == "fae"
        self._steps_ahead = 0 if is_fae else turns.steps_ahead
        self._multiple = shards.num_training_batches if is_fae and turns.seconds else 1
        self._most_steps = self._multiple * -(-turns.most_steps // self._multiple)
        num_steps = _WARM_UP_STEPS + turns.rounds * (self._steps_ahead + self._most_steps)
        if is_fae:
            epochs = -(-num_steps // shards.num_training_batches)
            self.trainer = build_trainer(shards, replace(config, epochs=epochs))
        else:
            order = _order_of(shards, config.seed, num_steps, is_hot_only=contestant.is_hot_only)
            self.trainer = build_trainer(shards, config, RecordedOrder(order))
        self._taken = train_steps(self.trainer)

    def warm_up(self) -> None:
        """Run the first steps, which plan, compile and record."""
        for _ in range(_WARM_UP_STEPS):
            self._take()
        self.trainer.runner.synchronize()

    def turn(self) -> Turn:
        """Run the steps of a turn, and return the work of those that count."""
        turns = self._turns
        begin = time.perf_counter()
        # Where half a turn does not suffice for what was read ahead, reading is not what the steps wait for.
        for _ in range(self._steps_ahead):
            self._take()
            if time.perf_counter() - begin > turns.seconds / 2:
                break
        # The clock is read with the device at rest, at both ends.
        self.trainer.runner.synchronize()
        begin = time.perf_counter()
        first_samples = self.trainer.num_samples
        for step in range(1, self._most_steps + 1):
            self._take()
            is_over = step >= turns.fewest_steps and step % self._multiple == 0
            if is_over and time.perf_counter() - begin > turns.seconds:
                break
        self.trainer.runner.synchronize()
        seconds = time.perf_counter() - begin
        return Turn(self.trainer.num_samples - first_samples, step, seconds)

    def close(self) -> None:
        """End the run; its trainer keeps its counts."""
        self._taken.close()

    def _take(self) -> None:
        if next(self._taken, None) is None:
            raise ValueError(f"the run ended after {self.trainer.step} steps")


def measure_in_turns(group: str, contestants: Sequence[Contestant], turns: Turns, records: Records) -> None:
    """Build the runs, let them take turns, and write a row for each.

    One that raises is a check that failed, and the others go on. Where time runs out the round is the last
    one, and where it does not suffice to build all, those that are left are left out.

    Args:
        group: name of the contestants together, in their rows.
        contestants: in the order in which they are built.
        turns: of each.
        records: get the rows.
    """
    runs = _Runs(group, records)
    try:
        for contestant in contestants:
            if not runs.add(contestant, turns):
                records.leave_open()
                break
        runs.take_rounds(turns.rounds)
        runs.write_rows()
    finally:
        runs.end()


class _Runs:
    """The runs of a group that are built, by the names of their contestants."""

    def __init__(self, group: str, records: Records) -> None:
        self._group = group
        self._records = records
        self._contestants: dict[str, Contestant] = {}
        self._runs: dict[str, RunInTurns] = {}
        self._turns: dict[str, list[Turn]] = {}
        """Turns so far, one in each round."""
        self._build_seconds = 0.0

    def add(self, contestant: Contestant, turns: Turns) -> bool:
        """Build a run and warm it up; False where there is no time for it."""
        # Two are built in any case: fewer have nothing to compare.
        if len(self._runs) > 1 and not self._records.has_time(self._build_seconds + _ENDING_SECONDS):
            return False
        begin = time.monotonic()
        gc.collect()  # the parts of a trainer refer to each other, and those of one that has raised go now
        with self._catching(contestant):
            name = contestant.name
            self._contestants[name] = contestant
            self._runs[name] = RunInTurns(contestant, turns)
            self._runs[name].warm_up()
            self._turns[name] = []
        self._build_seconds = max(self._build_seconds, time.monotonic() - begin)
        return True

    def take_rounds(self, num_rounds: int) -> None:
        """Run each contestant once per round, in alternating order."""
        for number in range(num_rounds):
            begin = time.monotonic()
            names = list(self._runs)
            for name in names if number % 2 == 0 else names[::-1]:
                with self._catching(self._contestants[name]):
                    self._turns[name].append(self._runs[name].turn())
            # What was found so far stays where a later turn hangs, and the process is killed.
            rates = {name: _rates(turns) for name, turns in self._turns.items()}
            self._records.fact(**{f"turns of {self._group}": rates})
            # Another round takes as long, and then the runs end.
            if not self._records.has_time(time.monotonic() - begin + _ENDING_SECONDS):
                break

    def write_rows(self) -> None:
        """End the runs, and write what was measured of each."""
        for name, run in list(self._runs.items()):
            with self._catching(self._contestants[name]):
                run.close()
        # Speeds are written whether or not the link can be measured.
        links: dict[str, LinkRates | None] = {}
        for device in {contestant.config.device for contestant in self._contestants.values()}:
            with self._records.catching(f"rates of the link: {self._group}"):
                links[device] = measure_link(device)
        for name, run in self._runs.items():
            contestant = self._contestants[name]
            turns = self._turns[name]
            rates = _rates(turns)
            with self._records.catching(contestant.check):
                measured = {"samples_per_second": statistics.median(rates), "rounds": rates}
                if REFERENCE in self._runs:
                    measured["of_all_fast"] = median_ratio(rates, _rates(self._turns[REFERENCE]))
                measured["steps"] = sum(turn.steps for turn in turns)
                measured["seconds"] = sum(turn.seconds for turn in turns)
                counted = _counted_by(run.trainer, links.get(contestant.config.device))
                self._records.row(**contestant.facts, group=self._group, **measured, **counted)

    def end(self) -> None:
        """Release all runs: their rows, 17 GB each at dim 128, go before others are built."""
        for contestant in self._contestants.values():
            self._release(contestant)
        gc.collect()

    @contextmanager
    def _catching(self, contestant: Contestant) -> Iterator[None]:
        """Note a check that failed where a run raises, and go on without it."""
        is_over = False
        with self._records.catching(contestant.check):
            yield
            is_over = True
        if not is_over:
            self._release(contestant)

    def _release(self, contestant: Contestant) -> None:
        run = self._runs.pop(contestant.name, None)
        if run is not None:
            with self._records.catching(f"end of the run: {contestant.check}"):
                run.close()


def _rates(turns: Sequence[Turn]) -> list[float]:
    return [turn.samples_per_second for turn in turns]


def _order_of(shards: Shards, seed: int, num_steps: int, *, is_hot_only: bool) -> NDArray[np.int32]:
    """Return the batches of ``num_steps`` steps in the order of an epoch, repeated if it has fewer."""
    order = epoch_order(shards.is_hot_only, seed, 0, spread=shards.is_grouped)
    if is_hot_only:
        order = order[shards.is_hot_only[order]]
    if order.size == 0:
        raise ValueError("no batch looks up hot rows alone")
    return np.resize(order, num_steps).astype(np.int32)


def _counted_by(trainer: Trainer, link: LinkRates | None) -> dict[str, Any]:
    """Return what a run has counted: bytes that moved, and what the link allows with them."""
    counted: dict[str, Any] = {}
    runner = trainer.runner
    assert isinstance(runner, QueuedSteps), "a part for devices that are not the host"
    if runner.sent_samples:
        counted["bytes_sent_per_sample"] = runner.sent_bytes / runner.sent_samples
        counted["is_recorded"] = runner.is_recorded
    # For a placement that waits for the link, this shows how well the link is used.
    traffic = trainer.meter.training_bytes()
    seconds = link.seconds(trainer.config.placement, *traffic) if link else 0.0
    return counted | {
        "bytes_to_device": traffic[0],
        "bytes_to_host": traffic[1],
        "mover": runner.moves.name,
        "mover_rows_per_second": dict(runner.moves.rows_per_second),
        "all_steps": trainer.step,
        "most_samples_per_second_of_link": trainer.num_samples / seconds if seconds else None,
    }
