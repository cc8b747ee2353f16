"""``hotset characterise``: measure the constants of this machine, then cells of a sweep, then fit.

A quarter of the time goes to constants at most; what is left goes to cells until it is over. Cells are lines
of a file beside the result, so that a run that is killed goes on where it stopped.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...pipeline.formats.whole_file import refuse_target
from ...pipeline.runtime.tasks import num_workers
from ...stats.step_model.quietness import disturbances
from ...train.planning.machine_file import (
    FORMAT,
    VERSION,
    Constant,
    MachineFile,
)
from ..bench.ranks.rank_group import RankGroup
from ..machine_facts import describe_machine
from .cell_file import CELLS_VERSION, CellFile, cells_path
from .characterise_config import CharacteriseConfig
from .collective_probes import COLLECTIVES, collective_constants
from .fit_machine import Characterised, fit_model
from .grid import grid
from .machine_probes import (
    call_probes,
    codec_probes,
    copy_probes,
    loader_probe,
    other_cpu_seconds,
    power_between,
    product_probes,
    quiet_probe,
    read_energy,
    row_probes,
)
from .probes import Probe, measure_probes
from .run_cell import CellRecord, run_cell
from .run_order import RunOrder
from .typical_runs import typical_cells

_CONSTANTS_SHARE = 1 / 4
"""Share of the time for constants."""
_MOST_ROUNDS = 15
_MOST_REPETITIONS = 5
"""Runs of a cell: those of one take different times, and the middle one of several is nearer to its next."""
_NEW_CELLS_SHARE = 1 / 2
"""Share of the time for cells in which new ones come before those that were disturbed."""
_MEMORY_SHARE = 1 / 16
"""Share of the memory that the rows of a cell may take."""
_NO_GPU = "steps on a GPU are not measured yet"
_NO_RANKS = "one process has nobody to send to: --ranks 2 measures it"
_RANKS_SHARE = 1 / 20
"""Share of the time for collectives between ranks."""


class _Quiet:
    """Watches whether the machine is left alone."""

    def __init__(self) -> None:
        self._work = quiet_probe()
        self._work()
        self.seconds: list[float] = []
        self._started_at = time.perf_counter()
        self._other = other_cpu_seconds()

    def probe(self) -> None:
        """Do the piece of work once more."""
        start = time.perf_counter()
        for _ in range(8):
            self._work()
        self.seconds.append(time.perf_counter() - start)

    def disturbances(self) -> list[str]:
        """Return what disturbed the time since the beginning."""
        now = other_cpu_seconds()
        other = None
        if now is not None and self._other is not None:
            other = (now - self._other) / (time.perf_counter() - self._started_at)
        return disturbances(self.seconds, other)


def characterise(
    config: CharacteriseConfig, out: Path, say: Callable[[str], object] = lambda text: None
) -> Characterised:
    """Measure this machine, and write ``out``; cells go to ``out`` with ``.cells.jsonl`` for its suffix.

    Raises:
        HotsetError: ``out`` exists, or its cells were begun on another machine.
    """
    # Both files are looked at before minutes of work: a result may be there, or cells of another machine.
    refuse_target(out, overwrite=False)
    threads = config.threads or num_workers(0)
    cell_file = CellFile(cells_path(out), _identity(threads, config.ranks))
    done = cell_file.read()
    started_at = time.monotonic()
    watch = _Quiet()
    # The ranks start after the constants of one process, which they would disturb.
    with tempfile.TemporaryDirectory(prefix="hotset-characterise-") as scratch, ExitStack() as stack:
        # A run that goes on measures its constants again: only cells are kept.
        say("measuring constants")
        constants, not_measured = _measure_constants(config, threads, Path(scratch), watch)
        group = None
        if config.ranks > 1:
            say(f"starting {config.ranks} ranks")
            group = stack.enter_context(RankGroup(config.ranks))
            constants += collective_constants(group, _RANKS_SHARE * 60 * config.minutes)
        if done:
            say(f"{cell_file.path} has {len(done)} cells already")
        sweep = _Sweep(config, threads, cell_file, Path(scratch), group)
        ends_at = math.inf if config.sweep else started_at + 60 * config.minutes
        runs = [*done, *sweep.run(done, ends_at, watch, say)]
    cells = typical_cells(runs)
    found = watch.disturbances()
    described = describe_machine()
    machine = MachineFile(
        format=FORMAT,
        version=VERSION,
        hotset=__version__,
        device=config.device,
        device_name=described["cpu"],
        threads=threads,
        memory_bytes=described["memory_bytes"],
        libraries={"torch": torch.__version__} | _known(described["libraries"]),
        minutes=(time.monotonic() - started_at) / 60,
        is_quiet=not found,
        disturbances=tuple(found),
        constants=tuple(constants),
        not_measured=not_measured,
        num_cells=len(cells),
        model=fit_model(constants, cells, runs),
    )
    machine.write(out)
    return Characterised(machine, cells)


def _identity(threads: int, ranks: int) -> dict[str, Any]:
    return {
        "format": "hotset cells",
        "version": CELLS_VERSION,
        "hotset": __version__,
        "device": "cpu",
        "device_name": describe_machine()["cpu"],
        "threads": threads,
        "ranks": ranks,
    }


def _bytes_of_rows() -> int:
    """Return how many bytes the rows of a probe or of a cell may take."""
    return int(describe_machine()["memory_bytes"] * _MEMORY_SHARE)


def _known(libraries: dict[str, str | None]) -> dict[str, str]:
    return {name: version for name, version in libraries.items() if version is not None}


def _measure_constants(
    config: CharacteriseConfig, threads: int, scratch: Path, watch: _Quiet
) -> tuple[list[Constant], dict[str, str]]:
    """Measure all constants; return them, and what could not be measured."""
    energy = read_energy()
    started_at = time.monotonic()
    probes: list[Probe] = [
        *product_probes(),
        *row_probes(_bytes_of_rows()),
        *copy_probes(),
        *call_probes(threads),
        *codec_probes(),
        loader_probe(scratch),
    ]
    seconds = 60 * config.minutes * _CONSTANTS_SHARE

    # Rounds end with their share of the time, or when quartiles gain little from more.
    def is_enough(num_rounds: int) -> bool:
        return num_rounds >= _MOST_ROUNDS or time.monotonic() - started_at > seconds

    constants = measure_probes(probes, is_enough, lambda _: watch.probe())
    not_measured = dict.fromkeys(("host to device", "kernel launch", "GPU products", "GPU rows"), _NO_GPU)
    if config.ranks == 1:
        not_measured |= dict.fromkeys((*COLLECTIVES, "cells of several ranks"), _NO_RANKS)
    watts = power_between(energy, read_energy(), time.monotonic() - started_at)
    if watts is None:
        not_measured["power"] = "the system does not tell the energy of its processors"
    else:
        constants.append(_power(watts))
    return constants, not_measured


def _power(watts: float) -> Constant:
    return Constant(name="power", unit="watts", facts={}, median=watts, low=watts, high=watts, repetitions=1)


@dataclass(frozen=True, slots=True)
class _Sweep:
    """The cells of a measurement, and what runs them."""

    config: CharacteriseConfig
    threads: int
    cell_file: CellFile
    scratch: Path
    group: RankGroup | None
    """The ranks of cells that have several."""

    def run(
        self,
        done: Sequence[CellRecord],
        ends_at: float,
        watch: _Quiet,
        say: Callable[[str], object],
    ) -> list[CellRecord]:
        """Measure cells until the time is over, those again that ran while the machine was disturbed.

        Args:
            done: runs of before.
            ends_at: of the monotonic clock.
            watch: of the machine.
            say: tells where it is.
        """
        every = grid(_bytes_of_rows(), self.config.ranks)
        # A whole sweep measures each cell once, however long it takes.
        order = RunOrder(every, 1 if self.config.sweep else _MOST_REPETITIONS)
        for record in done:
            order.add(record)
        found: list[CellRecord] = []
        now = time.monotonic()
        is_late_at = now + _NEW_CELLS_SHARE * (ends_at - now)
        while now < ends_at:
            following = order.following(begins_new=now < is_late_at)
            if following is None:
                break
            place, cell = following
            if len(found) % 20 == 0:
                say(f"cell {place + 1} of {len(every)}{', once more' if order.has_run(cell) else ''}")
            # The same piece of work before each cell shows what disturbed the sweep.
            watch.probe()
            record = run_cell(cell, self.threads, self.scratch, self.group)
            before, now = now, time.monotonic()
            order.add(record, now - before)
            self.cell_file.add(record)
            found.append(record)
        return found
