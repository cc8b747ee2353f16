"""Pieces of work that are timed over and over: the constants of a machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ...stats.step_model.quietness import Series
from ...train.planning.machine_file import Constant
from ...train.work_threads import WorkThreads

_LEAST_SECONDS = 2e-3
"""A turn takes at least so long, so that reading the clock costs nothing beside it."""
_MOST_CALLS = 4096
_PROBE_WIDTH = 128
_PROBE_PRODUCTS = 5
"""Products of matrices of that width, some 0.3 ms, which stay in the caches of a core."""
_PROBE_INTERVAL = 0.01
"""Seconds from one to the next at least: a thirtieth of the time is theirs."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One piece of work."""

    name: str
    facts: Mapping[str, float]
    """Sizes of the work."""
    call: Callable[[], object]
    num_units: float = 1.0
    """Units in one call; the constant is seconds per unit."""
    unit: str = "seconds"


class Turns:
    """The measurements of one probe, turn by turn."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.seconds: list[float] = []
        # Twice to warm up: the first call compiles and touches memory.
        probe.call()
        start = time.perf_counter()
        probe.call()
        once = max(time.perf_counter() - start, 1e-7)
        self._num_calls = min(max(int(_LEAST_SECONDS / once), 1), _MOST_CALLS)

    def take(self) -> None:
        """Measure once more."""
        call = self.probe.call
        start = time.perf_counter()
        for _ in range(self._num_calls):
            call()
        self.seconds.append((time.perf_counter() - start) / self._num_calls / self.probe.num_units)

    def constant(self) -> Constant:
        """Return the constant with its quartiles."""
        found = Series.of(self.seconds)
        return Constant(
            name=self.probe.name,
            unit=self.probe.unit,
            facts=dict(self.probe.facts),
            median=found.median,
            low=found.low,
            high=found.high,
            repetitions=found.repetitions,
        )


def measure_probes(
    probes: Sequence[Probe], until: Callable[[int], bool], after_round: Callable[[int], object]
) -> list[Constant]:
    """Measure all probes in turns, so that what drifts hits all alike.

    Args:
        until: told how many rounds are over; says whether they are enough.
        after_round: told the same.
    """
    turns = [Turns(probe) for probe in probes]
    num_rounds = 0
    # One round is taken even when the time is over: every constant is needed.
    while num_rounds == 0 or not until(num_rounds):
        for each in turns:
            each.take()
        num_rounds += 1
        after_round(num_rounds)
    return [each.constant() for each in turns]


class SpeedProbe:
    """One piece of work that all threads do between steps: it tells how quick the machine is meanwhile.

    Args:
        threads: those of the steps.
    """

    def __init__(self, threads: WorkThreads) -> None:
        self._threads = threads
        self._products = [
            (torch.ones(_PROBE_WIDTH, _PROBE_WIDTH), torch.empty(_PROBE_WIDTH, _PROBE_WIDTH))
            for _ in range(threads.num_threads)
        ]
        self.seconds: list[float] = []
        """Of the work, the mean over threads."""
        self._last_at = time.perf_counter()

    def take(self, *, now: bool = False) -> None:
        """Do the work where the last time is long enough ago, or now."""
        if not now and time.perf_counter() - self._last_at < _PROBE_INTERVAL:
            return
        found = [0.0] * self._threads.num_threads

        def multiply(piece: int, worker: int) -> None:
            start = time.perf_counter()
            factor, out = self._products[worker]
            for _ in range(_PROBE_PRODUCTS):
                torch.mm(factor, factor, out=out)
            found[piece] = time.perf_counter() - start

        self._threads.run(multiply, self._threads.num_threads)
        self.seconds.append(statistics.fmean(found))
        self._last_at = time.perf_counter()
