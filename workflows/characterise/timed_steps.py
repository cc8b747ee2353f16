"""Training steps whose parts are timed: what the loop does, and what runs beside it in other threads.

Every part has a watch of its own, and none is what the others leave, so that parts which add up to the step
show that nothing was missed. Inside the dense layers the work of all threads is added up by part and divided
by their number. Idle is measured too: threads that wait for their first tile or for the last one of others,
or for the interpreter between two passes of a tile or two parts, which other threads may hold, and the
interpreter between pieces of work, during which all threads but one wait.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch

from ...train.data.batch import Batch
from ...train.data.batch_shares import BatchShares
from ...train.exchange.coded_exchange import CodedExchange
from ...train.exchange.dense_sums import DenseSums
from ...train.execution.row_width import PlannedStep
from ...train.execution.step_source import StepSource
from ...train.model.dense_step import StepTile, TiledStep
from ...train.model.dlrm import Dlrm
from ...train.model.flat_parameters import ParameterViews
from ...train.model.mlp_tiles import MlpTiles
from ...train.model.tile_gradients import SumsOfRanks
from ...train.steps.step_runner import PreparedStep
from ...train.trainer import Trainer
from ...train.work_threads import WorkThreads
from .probes import SpeedProbe

_IN_THREADS = "in threads"


@dataclass(frozen=True, slots=True)
class StepLaps:
    """The seconds of one step."""

    seconds: float
    """From the end of the step before to the end of this one, by one reading of the clock at each end."""
    parts: dict[str, float]
    """By part of the loop, as `stats.step_model.step_parts` names them."""
    distinct_rows: int
    """Distinct rows that its batch looked up."""


@dataclass(frozen=True, slots=True)
class TimedRun:
    """The steps of a run, and the work beside the loop, all of its steps together."""

    steps: list[StepLaps]
    load_seconds: float
    """CPU seconds of the thread that reads and plans."""
    transfer_seconds: float
    """Seconds in which the transfer thread was busy."""
    rows: dict[str, int]
    """Rows and vectors that moved to the fast tier, to the slow one, and that were initialized."""
    link_bytes: dict[str, int]
    """Bytes between the tiers each way, and those that this rank sent by kind."""
    probe_seconds: float
    """Seconds of the work of a `SpeedProbe` between the steps, the median."""


class _Watch:
    """Seconds of one thread by part; a part inside of another one interrupts it.

    Between two parts the thread may have to wait for the interpreter, which other threads hold: that is
    idling. What it computes there is counted nowhere, so that work without a part is found missing.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0
        self._worked = 0.0

    @contextmanager
    def __call__(self, part: str) -> Generator[None]:
        self.enter(part)
        try:
            yield
        finally:
            self.leave()

    def begin(self, now: float) -> None:
        """Count from this reading of the clock on, which is in no part yet."""
        self._since = now
        self._worked = time.thread_time()

    def end(self) -> float:
        """Count up to now, and nothing from here on; return the reading of the clock."""
        return self._lap()

    def enter(self, part: str) -> float:
        """Begin a part; return the reading of the clock."""
        now = self._lap()
        self._open.append(part)
        return now

    def leave(self) -> float:
        """End the innermost part; return the reading of the clock."""
        now = self._lap()
        self._open.pop()
        if not self._open:
            self._worked = time.thread_time()
        return now

    def _lap(self) -> float:
        """Give the time since the last change to the innermost part."""
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        else:
            # A thread that waits uses no processor. Clocks differ by less than a microsecond.
            worked = time.thread_time() - self._worked
            self.seconds["idle"] += max(now - self._since - worked, 0.0)
        self._since = now
        return now

    def take(self) -> dict[str, float]:
        """Return the seconds, and begin again at zero."""
        found = dict(self.seconds)
        self.seconds.clear()
        return found


class _TimedMlp:
    """Hidden layers whose passes are timed."""

    def __init__(self, mlp: MlpTiles, part: str, watch: _Watch) -> None:
        self._mlp = mlp
        self._part = part
        self._watch = watch

    def forward(self, inputs_TK: torch.Tensor) -> torch.Tensor:
        with self._watch(self._part):
            return self._mlp.forward(inputs_TK)

    def backward(
        self, grad_TN: torch.Tensor, gradients: ParameterViews, *, to_inputs: bool
    ) -> torch.Tensor | None:
        with self._watch("backward"):
            return self._mlp.backward(grad_TN, gradients, to_inputs=to_inputs)


class _TimedTile:
    """A tile whose passes are timed, those of its layers apart.

    Args:
        tile: of one worker.
        waits: of that worker, which has nothing else to do between two passes.
    """

    def __init__(self, tile: StepTile, waits: _Waits) -> None:
        self._tile = tile
        self._waits = waits
        self.watch = _Watch()
        # The tile calls its layers through the watch from here on: what it does itself is the interaction.
        if tile.bottom is not None:
            tile.bottom = _TimedMlp(tile.bottom, "bottom", self.watch)
        if tile.top is not None:
            tile.top = _TimedMlp(tile.top, "top", self.watch)

    def forward(self, dense_TK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        with self._waits.none(self.watch), self.watch("interaction"):
            return self._tile.forward(dense_TK, embeddings)

    def backward(self, *args: object) -> float:
        with self._waits.none(self.watch), self.watch("interaction"):
            return cast(Callable[..., float], self._tile.backward)(*args)


class _Waits:
    """The seconds in which one thread has no work, or has to wait for the interpreter to begin it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = 0.0

    def begin(self, now: float) -> None:
        """Count what follows this reading of the clock."""
        self._since = now

    def end(self, now: float) -> None:
        """Count nothing from this reading on."""
        self.seconds += now - self._since

    @contextmanager
    def none(self, watch: _Watch) -> Generator[None]:
        """Count nothing of the block, whose parts the watch counts, and what follows it."""
        now = time.perf_counter()
        self.end(now)
        watch.begin(now)
        try:
            yield
        finally:
            self.begin(watch.end())


class _TimedThreads:
    """Threads whose waits are timed: until their first piece, between passes, and for the last of others."""

    def __init__(self, threads: WorkThreads, watch: _Watch) -> None:
        self._threads = threads
        self._watch = watch
        self._waits = [_Waits() for _ in range(threads.num_threads)]

    def waits_of(self, worker: int) -> _Waits:
        """Return those of a thread, which its pieces of work interrupt."""
        return self._waits[worker]

    def run(self, work: Callable[[int, int], object], num_pieces: int) -> None:
        """Run the pieces, each of which says itself when it does not wait."""
        # While threads work the watch of the loop stands in a part that nobody counts.
        now = self._watch.enter(_IN_THREADS)
        for waits in self._waits:
            waits.begin(now)
        try:
            self._threads.run(work, num_pieces)
        finally:
            now = self._watch.leave()
            for waits in self._waits:
                waits.end(now)

    def run_all(self, *calls: Callable[[], object]) -> None:
        """Make the calls that put new weights in order for the products: a part of their update."""
        with self._watch("update"):
            self._threads.run_all(*calls)

    def take(self) -> float:
        """Return the idle seconds, the mean over threads, and begin again at zero."""
        found = statistics.fmean(waits.seconds for waits in self._waits)
        for waits in self._waits:
            waits.seconds = 0.0
        return found


class _TimedSums:
    """Sums over ranks that are timed."""

    def __init__(self, sums: SumsOfRanks, watch: _Watch) -> None:
        self._sums = sums
        self._watch = watch

    def add(self, gradient_N: torch.Tensor, loss: float) -> float:
        with self._watch("reduce"):
            return self._sums.add(gradient_N, loss)


class TimedStep(TiledStep):
    """The dense layers, with a watch for each thread.

    Args:
        trainer: whose layers these are.
        loop: the watch of the thread that takes the steps.
    """

    def __init__(self, trainer: Trainer, loop: _Watch) -> None:
        assert isinstance(trainer.model, Dlrm)
        self._num_workers = trainer.threads.num_threads
        self._timed: dict[int, _TimedTile] = {}
        self._loop = loop
        # The same shares as those of the trainer, whose own step is not used.
        ranks = trainer.ranks
        assert trainer.config.shares is not None, "resolve chooses it"
        shares = BatchShares(trainer.shards.batch_size, trainer.config.shares, ranks.rank, ranks.num_ranks)

        def build_sums(num_numbers: int) -> SumsOfRanks:
            return _TimedSums(DenseSums(ranks, trainer.coded, num_numbers), self._loop)

        several = build_sums if ranks.num_ranks > 1 else None
        super().__init__(trainer.model, shares, trainer.threads, build_sums=several)
        # The tiles run on timed threads, sums of gradients on those that were given.
        self._timed_threads = _TimedThreads(trainer.threads, self._loop)
        self._threads = cast(WorkThreads, self._timed_threads)

    def tile_of(self, worker: int) -> StepTile:
        # The step meets the watched tile in place of its own: it calls the two passes, and nothing else.
        if worker not in self._timed:
            waits = self._timed_threads.waits_of(worker)
            self._timed[worker] = _TimedTile(super().tile_of(worker), waits)
        return cast(StepTile, self._timed[worker])

    def add_gradients(self, counts: Sequence[int]) -> ParameterViews:
        with self._loop("reduce"):
            return super().add_gradients(counts)

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        # What the loop does itself between pieces of work: the other threads have nothing to do.
        with self._loop("idle"):
            return super().train(batch, embeddings, step)

    def take_parts(self) -> dict[str, float]:
        """Return the seconds of the threads by part, the mean over them, and begin again at zero."""
        sums = defaultdict(float, idle=self._timed_threads.take())
        for tile in list(self._timed.values()):
            for part, seconds in tile.watch.take().items():
                sums[part] += seconds / self._num_workers
        return dict(sums)


class _TimedSource:
    """The source of a trainer's steps, with the CPU seconds that its thread takes for them."""

    def __init__(self, source: StepSource) -> None:
        self._source = source
        self.seconds: list[float] = []

    def steps(self, epochs: Iterable[Iterable[int]]) -> Generator[PlannedStep]:
        with closing(self._source.steps(epochs)) as steps:
            while True:
                # CPU seconds: by the clock, the thread also waits for the loop and for the interpreter.
                start = time.thread_time()
                step = next(steps, None)
                self.seconds.append(time.thread_time() - start)
                if step is None:
                    return
                yield step


def time_steps(trainer: Trainer, num_warm_up: int) -> TimedRun:
    """Train with every part timed.

    Args:
        trainer: a new one on the host, its dense layers on tiles; all ranks of a run call this.
        num_warm_up: first steps that are left out of the times, and not of the rows.
    """
    watch = _Watch()
    dense = TimedStep(trainer, watch)
    source = _TimedSource(trainer.step_source)
    # The trainer asks for its steps in a thread that reads ahead, which the source times.
    trainer.step_source = cast(StepSource, source)
    laps = []
    busy_before = 0.0
    probe = SpeedProbe(trainer.threads)
    with closing(trainer.embeddings), closing(trainer.steps()) as steps:
        end = time.perf_counter()
        for number, prepared in enumerate(steps):
            # From the end of the last step until the next one is there, the loop waits for the reader.
            now = time.perf_counter()
            watch.seconds["load"] += now - end
            watch.begin(now)
            _take_step(trainer, prepared, dense, watch)
            before = end
            end = watch.end()
            parts = watch.take()
            # What transfers were busy with during the warm-up is subtracted after the run.
            if number < num_warm_up:
                busy_before = trainer.embeddings.transfers.busy_seconds
                probe.take(now=True)
                probe.seconds.clear()
                end = time.perf_counter()
                continue
            distinct = sum(part.lookups.num_rows for part in prepared.step.parts)
            laps.append(StepLaps(end - before, parts, distinct))
            # Between two steps, in the seconds of neither.
            probe.take(now=not probe.seconds)
            end = time.perf_counter()
        # The last write-back counts among the rows moved, and in no step's seconds.
        trainer.meter.enter("flush")
        busy = trainer.embeddings.transfers.busy_seconds - busy_before
        trainer.embeddings.finish()
        trainer.meter.enter(None)
    counts = trainer.embeddings.rows_by_table()
    rows = {str(way): sum(table[way] for table in counts) for way in counts[0]}
    to_fast, to_slow = trainer.meter.training_bytes()
    sent = {str(kind): count for kind, count in trainer.coded.counts.sent_bytes.items()}
    link_bytes = {"to fast": to_fast, "to slow": to_slow} | sent
    # The source ends with an entry for the end of the run, and its first ones plan the whole epoch.
    read_seconds = sum(source.seconds[num_warm_up:])
    return TimedRun(laps, read_seconds, busy, rows, link_bytes, statistics.median(probe.seconds))


def _take_step(trainer: Trainer, prepared: PreparedStep, dense: TimedStep, watch: _Watch) -> None:
    """Take a step as `train.steps.step_runner.StepsAtOnce` does, part by part."""
    step = prepared.step
    with watch("transfers"):
        trainer.embeddings.wait_for_rows(step)
    with watch("lookup"), _exchange_apart(trainer.coded, "lookup", watch):
        embeddings = trainer.embeddings.look_up(step)
        trainer.embeddings.send_ahead(prepared.following)
    _pass_dense(step.batch, embeddings, dense, watch)
    with watch("update"), _exchange_apart(trainer.coded, "update", watch):
        trainer.threads.run_all(
            partial(trainer.embeddings.update, step, embeddings),
            *[each.step for each in trainer.dense_optimizers],
        )
    trainer.step += 1


@contextmanager
def _exchange_apart(coded: CodedExchange, part: str, watch: _Watch) -> Generator[None]:
    """Count what a part does for the exchange, coding and waiting for other ranks, as the exchange's."""
    before = coded.counts.seconds
    yield
    seconds = coded.counts.seconds - before
    # A process by itself exchanges nothing.
    if not seconds:
        return
    watch.seconds[part] -= seconds
    watch.seconds["exchange"] += seconds


def _pass_dense(batch: Batch, embeddings: Sequence[torch.Tensor], dense: TimedStep, watch: _Watch) -> None:
    dense.train(batch, embeddings)
    # Adding up the watches of all threads is the interpreter's work, too.
    with watch("idle"):
        del watch.seconds[_IN_THREADS]
        for part, seconds in dense.take_parts().items():
            watch.seconds[part] += seconds
