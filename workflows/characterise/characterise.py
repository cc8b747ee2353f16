"""``hotset characterise``: measure the constants of this machine, then cells of a sweep, then fit.

A quarter of the time goes to constants at most; what is left goes to cells until it is over. Cells are lines
of a file beside the result, so that a run that is killed goes on where it stopped.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ... import __version__
from ...pipeline.errors import HotsetError
from ...pipeline.formats.whole_file import refuse_target
from ...pipeline.runtime.tasks import num_workers
from ...stats.step_model.held_out import PredictionError
from ...stats.step_model.part_model import fit_parts
from ...stats.step_model.quietness import disturbances
from ...stats.step_model.rate_curves import ProductCurve, RowCurve
from ...stats.step_model.step_work import WorkConstants
from ...train.planning.machine_file import (
    FORMAT,
    VERSION,
    Constant,
    Curves,
    HeldOutError,
    MachineFile,
    StepModel,
)
from ..machine_facts import describe_machine
from .cell_file import CellFile
from .cell_work import measured_step
from .characterise_config import CharacteriseConfig
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

_CONSTANTS_SHARE = 1 / 4
"""Share of the time for constants."""
_MOST_ROUNDS = 15
_LEAST_CELLS = 12
"""Cells of either half below which nothing is fitted."""
_MEMORY_SHARE = 1 / 16
"""Share of the memory that the rows of a cell may take."""
_NO_GPU = "steps on a GPU are not measured yet"


@dataclass(frozen=True, slots=True)
class Characterised:
    """What was measured."""

    machine: MachineFile
    cells: list[CellRecord]


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
    cell_file = CellFile(cells_path(out), _identity(threads))
    done = cell_file.read()
    started_at = time.monotonic()
    watch = _Quiet()
    with tempfile.TemporaryDirectory(prefix="hotset-characterise-") as scratch:
        # A run that goes on measures its constants again: only cells are kept.
        say("measuring constants")
        constants, not_measured = _measure_constants(config, threads, Path(scratch), watch)
        if done:
            say(f"{cell_file.path} has {len(done)} cells already")
        is_over = _deadline(config, started_at)
        cells = [*done, *_sweep(threads, done, cell_file, is_over, Path(scratch), watch, say)]
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
        model=fit_model(constants, cells),
    )
    machine.write(out)
    return Characterised(machine, cells)


def cells_path(out: Path) -> Path:
    """Return the file of the cells of a machine file."""
    return out.with_suffix(".cells.jsonl")


def _identity(threads: int) -> dict[str, Any]:
    return {
        "format": "hotset cells",
        "version": VERSION,
        "hotset": __version__,
        "device": "cpu",
        "device_name": describe_machine()["cpu"],
        "threads": threads,
    }


def _bytes_of_rows() -> int:
    """Return how many bytes the rows of a probe or of a cell may take."""
    return int(describe_machine()["memory_bytes"] * _MEMORY_SHARE)


def _known(libraries: dict[str, str | None]) -> dict[str, str]:
    return {name: version for name, version in libraries.items() if version is not None}


def _deadline(config: CharacteriseConfig, started_at: float) -> Callable[[], bool]:
    """Return a function that says whether the time for cells is over."""
    if config.sweep:
        return lambda: False
    return lambda: time.monotonic() - started_at >= 60 * config.minutes


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
    watts = power_between(energy, read_energy(), time.monotonic() - started_at)
    if watts is None:
        not_measured["power"] = "the system does not tell the energy of its processors"
    else:
        constants.append(_power(watts))
    return constants, not_measured


def _power(watts: float) -> Constant:
    return Constant(name="power", unit="watts", facts={}, median=watts, low=watts, high=watts, repetitions=1)


def _sweep(
    threads: int,
    done: Sequence[CellRecord],
    cell_file: CellFile,
    is_over: Callable[[], bool],
    scratch: Path,
    watch: _Quiet,
    say: Callable[[str], object],
) -> list[CellRecord]:
    """Measure the cells that are not done, until the time is over."""
    finished = {record.cell.key for record in done}
    todo = [cell for cell in grid(_bytes_of_rows()) if cell.key not in finished]
    found: list[CellRecord] = []
    for number, cell in enumerate(todo):
        if is_over():
            break
        if number % 20 == 0:
            say(f"cell {len(finished) + number + 1} of {len(finished) + len(todo)}")
        # The same piece of work before each cell shows what disturbed the sweep.
        watch.probe()
        record = run_cell(cell, threads, scratch)
        cell_file.add(record)
        found.append(record)
    return found


def fit_model(constants: Sequence[Constant], cells: Sequence[CellRecord]) -> StepModel | None:
    """Fit the times of steps to half of the cells, and tell their error on the other half.

    The halves follow from the cells' factors, so that repetitions of a cell are on one side. Returns None
    where either half is too small.
    """
    fitted = [measured_step(record) for record in cells if not record.cell.is_held_out]
    held_out = [measured_step(record) for record in cells if record.cell.is_held_out]
    if min(len(fitted), len(held_out)) < _LEAST_CELLS:
        return None
    model = fit_parts(fitted, work_constants(constants))
    predicted = [model.predict(cell.work).seconds for cell in held_out]
    error = PredictionError.of([cell.seconds for cell in held_out], predicted)
    return StepModel(
        curves=Curves.of(model.constants),
        weights={part: tuple(weights) for part, weights in model.weights.items()},
        contention=model.contention,
        num_fitted=len(fitted),
        error=HeldOutError.of(error),
    )


def work_constants(constants: Sequence[Constant]) -> WorkConstants:
    """Fit the curves to the constants that were measured."""

    def columns(name: str, *facts: str) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
        own = [each for each in constants if each.name == name]
        if not own:
            raise HotsetError(f"the constant {name!r} was not measured")
        return [
            *(np.array([each.facts[fact] for each in own]) for fact in facts),
            np.array([each.median for each in own]),
        ]

    batch, inputs, outputs, seconds = columns("product fp32", "batch", "inputs", "outputs")
    copied = columns("copy row", "row_bytes", "working_bytes")
    # A row with one lookup: what further lookups cost is fitted with the steps.
    single = [each for each in constants if each.facts.get("lookups_per_row", 1) == 1]
    updated = [
        np.array([each.facts[fact] for each in single if each.name == "update row"])
        for fact in ("row_bytes", "working_bytes")
    ]
    update_seconds = np.array([each.median for each in single if each.name == "update row"])
    (copy_seconds,) = columns("copy")
    # No message between ranks is measured here: they are taken for copies in memory, without a fixed cost.
    return WorkConstants(
        products=ProductCurve.fit(batch, 2 * batch * inputs * outputs, seconds),
        rows=RowCurve.fit(*copied),
        updates=RowCurve.fit(updated[0], updated[1], update_seconds),
        copy_bytes_per_second=1 / float(copy_seconds[0]),
        message_seconds=0.0,
        message_bytes_per_second=1 / float(copy_seconds[0]),
    )
