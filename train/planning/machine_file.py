"""The file of a machine, ``machine.json``: what was measured, and the step times that were fitted to it.

`hotset characterise` writes it and `hotset advise --machine` reads it. It names the kind of processor and no
address, user or path. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...pipeline.errors import ConfigError
from ...pipeline.folders.json_record import JsonRecord, RecordError, require_range
from ...pipeline.formats.whole_file import whole_file
from ...stats.step_model.held_out import PredictionError
from ...stats.step_model.part_model import PartModel
from ...stats.step_model.step_features import NUM_FEATURES
from .curves import Curves

FORMAT = "hotset machine"
VERSION = 6
_MEASURED_ALIKE = (2, 3, 4, 5, VERSION)
"""Versions whose constants and cells mean the same; what is fitted to them differs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant(JsonRecord):
    """One measured constant."""

    name: str
    """The work that was repeated, such as ``product fp32``."""
    unit: str
    facts: dict[str, float]
    """Sizes of the work."""
    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    repetitions: int

    def refuse_nonsense(self, where: str) -> None:
        require_range(f"{where}repetitions", self.repetitions, 1)
        if not 0 <= self.low <= self.median <= self.high:
            raise RecordError(f"{where}median is {self.median}, want one between its quartiles")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutError(JsonRecord):
    """The error of predictions on cells that nothing was fitted to; see `stats.step_model.held_out`."""

    num_cells: int
    median_error: float
    p90_error: float
    low_ratio: float
    high_ratio: float
    num_pairs: int
    pairs_in_order: float | None

    @classmethod
    def of(cls, found: PredictionError) -> HeldOutError:
        """Take over what was found."""
        return cls(**asdict(found))

    def refuse_nonsense(self, where: str) -> None:
        if not 0 < self.low_ratio <= self.high_ratio:
            raise RecordError(f"{where}low_ratio is {self.low_ratio}, want one above 0 and below high_ratio")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepModel(JsonRecord):
    """The fitted times of a step."""

    curves: Curves
    weights: dict[str, tuple[float, ...]]
    contention: float
    num_fitted: int
    """Cells that it was fitted to."""
    ranks: tuple[int, ...]
    """Numbers of ranks of these cells."""
    placements: tuple[str, ...]
    """Their placements."""
    error: HeldOutError | None
    """Its error on the others in their undisturbed runs, as far as there are any; None where there are no
    others."""
    steady_error: HeldOutError | None = None
    """The same with their times as if the machine had not changed its speed; None where that is not known."""
    first_error: HeldOutError | None = None
    """The same with the first run of each of them, disturbed or not; None where runs are not known."""
    repeat_error: HeldOutError | None = None
    """The error of the runs before as a prediction of the last run of the same cells, which a perfect model
    would have, too; None where few of them ran twice."""
    num_disturbed: int = 0
    """Cells of both halves that were disturbed whenever they ran."""

    def refuse_nonsense(self, where: str) -> None:
        require_range(f"{where}num_disturbed", self.num_disturbed, 0)
        if not 0 <= self.contention <= 1:
            raise RecordError(f"{where}contention is {self.contention}, want a share in [0, 1]")
        # A part has one weight, never negative, for each of its features.
        for part, wanted in NUM_FEATURES.items():
            found = self.weights.get(part, ())
            if len(found) != wanted:
                raise RecordError(f"{where}weights: {part} has {len(found)} weights, want {wanted}")
            if min(found) < 0:
                raise RecordError(f"{where}weights: {part} has a weight below 0")

    @property
    def parts(self) -> PartModel:
        """The model as predictions use it."""
        return PartModel(self.curves.constants, self.weights, self.contention)


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFile(JsonRecord):
    """A machine as `hotset characterise` measured it."""

    format: str
    version: int
    hotset: str
    """Version of hotset that measured."""
    device: str
    device_name: str
    threads: int
    """Threads of a step."""
    memory_bytes: int
    libraries: dict[str, str]
    minutes: float
    """Time that measuring took."""
    is_quiet: bool
    disturbances: tuple[str, ...]
    """The disturbances of the measurements, in words."""
    constants: tuple[Constant, ...]
    not_measured: dict[str, str]
    """The figures that are null, and why."""
    num_cells: int
    """Cells of the sweep that were measured."""
    model: StepModel | None
    """None where there were too few cells for a fit."""

    def refuse_nonsense(self, where: str) -> None:
        require_range(f"{where}threads", self.threads, 1)

    @classmethod
    def read(cls, path: Path) -> MachineFile:
        """Read a file, and check it.

        Raises:
            ConfigError: there is none, or it is no such file, or one of another version.
        """
        found = _read_fields(path, (VERSION,))
        try:
            return cls.from_json(found)
        except RecordError as error:
            raise _refusal(path, f"is damaged: {error}") from error

    @classmethod
    def read_measured(cls, path: Path) -> MachineFile:
        """Read what was measured, without the times that were fitted to it: of earlier versions, too.

        Raises:
            ConfigError: as in `read`.
        """
        found = _read_fields(path, _MEASURED_ALIKE)
        try:
            return cls.from_json(found | {"version": VERSION, "model": None})
        except RecordError as error:
            raise _refusal(path, f"is damaged: {error}") from error

    def write(self, path: Path) -> None:
        """Write the file, or raise HotsetError where it exists or cannot be written."""
        with whole_file(path) as file:
            file.write((json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n").encode())

    def refuse_other(self, path: Path, device: str, threads: int | None) -> None:
        """Raise ConfigError where the file is of another device or number of threads than is asked for."""
        # Each difference in two ways: as the file has it, and as the option that asks for the other.
        differs = []
        if device != self.device:
            differs.append((f"the device {self.device}", f"--device {device}"))
        if threads is not None and threads != self.threads:
            differs.append((f"{self.threads} threads", f"--threads {threads}"))
        if differs:
            found = " and ".join(own for own, _ in differs)
            wanted = " ".join(option for _, option in differs)
            raise ConfigError(
                f"{path} was measured with {found}, and {wanted} is asked for",
                hint=f"`hotset characterise {wanted} --out FILE` measures that",
            )

    def fitted_model(self, path: Path) -> StepModel:
        """Return the fitted times; raises ConfigError where there were too few cells for them."""
        if self.model is None:
            raise _refusal(path, f"has {self.num_cells} cells, too few to predict from")
        return self.model


def _read_fields(path: Path, versions: Sequence[int]) -> dict[str, Any]:
    """Return the fields of a file of one of these versions."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _refusal(path, f"is no machine file: {error}") from error
    # Its version comes first: the fields of another one may mean something else.
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise _refusal(path, "is no machine file")
    if found.get("version") not in versions:
        why = f"has version {found.get('version')!r}, want {VERSION}"
        if found.get("version") in _MEASURED_ALIKE:
            raise ConfigError(
                f"{path} {why}", hint=f"`hotset characterise --fit {path} --out FILE` fits its cells again"
            )
        raise _refusal(path, why)
    return found


def _refusal(path: Path, why: str) -> ConfigError:
    """The error of a file that cannot be used."""
    return ConfigError(f"{path} {why}", hint="`hotset characterise --out FILE` measures this machine")
