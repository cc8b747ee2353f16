"""The file of a machine, ``machine.json``: what was measured, and the step times that were fitted to it.

`hotset characterise` writes it and `hotset advise --machine` reads it. It names the kind of processor and no
address, user or path. Imports no torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from ...pipeline.errors import ConfigError
from ...pipeline.folders.json_record import JsonRecord, RecordError, require_range
from ...pipeline.formats.whole_file import whole_file
from ...stats.step_model.held_out import PredictionError
from ...stats.step_model.part_model import PartModel
from ...stats.step_model.rate_curves import ProductCurve, RowCurve
from ...stats.step_model.step_work import NUM_FEATURES, WorkConstants

FORMAT = "hotset machine"
VERSION = 1


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
class Curves(JsonRecord):
    """The fitted curves that features of a step are made of; see `stats.step_model.rate_curves`."""

    product_seconds: float
    product_flops: float
    product_half_batch: float
    working_bytes: tuple[float, ...]
    row_seconds: tuple[float, ...]
    row_byte_seconds: tuple[float, ...]
    update_working_bytes: tuple[float, ...]
    update_seconds: tuple[float, ...]
    update_byte_seconds: tuple[float, ...]
    copy_bytes_per_second: float
    message_seconds: float
    message_bytes_per_second: float

    @classmethod
    def of(cls, constants: WorkConstants) -> Curves:
        """Take the curves apart."""
        rows, updates = constants.rows, constants.updates
        return cls(
            product_seconds=constants.products.fixed_seconds,
            product_flops=constants.products.flops,
            product_half_batch=constants.products.half_batch,
            working_bytes=rows.working_bytes,
            row_seconds=rows.seconds_per_row,
            row_byte_seconds=rows.seconds_per_byte,
            update_working_bytes=updates.working_bytes,
            update_seconds=updates.seconds_per_row,
            update_byte_seconds=updates.seconds_per_byte,
            copy_bytes_per_second=constants.copy_bytes_per_second,
            message_seconds=constants.message_seconds,
            message_bytes_per_second=constants.message_bytes_per_second,
        )

    def refuse_nonsense(self, where: str) -> None:
        # No time, size or rate is negative.
        for name, value in asdict(self).items():
            values = value if isinstance(value, (list, tuple)) else [value]
            if any(each < 0 for each in values):
                raise RecordError(f"{where}{name} is below 0")
        # Predictions divide by these three.
        for name in ("product_flops", "copy_bytes_per_second", "message_bytes_per_second"):
            if getattr(self, name) <= 0:
                raise RecordError(f"{where}{name} is {getattr(self, name)}, want more than 0")
        # Curves are interpolated over the logarithms of their working sets, one time for each.
        for sizes, values in (
            ("working_bytes", ("row_seconds", "row_byte_seconds")),
            ("update_working_bytes", ("update_seconds", "update_byte_seconds")),
        ):
            wanted = len(getattr(self, sizes))
            if not wanted or any(len(getattr(self, name)) != wanted for name in values):
                raise RecordError(f"{where}{sizes} has {wanted} values, and its curves have others")
            if min(getattr(self, sizes)) <= 0:
                raise RecordError(f"{where}{sizes} is not above 0")
            # Times between two sizes are interpolated, which wants them in order.
            if any(larger <= smaller for smaller, larger in pairwise(getattr(self, sizes))):
                raise RecordError(f"{where}{sizes} is not ascending")

    @property
    def constants(self) -> WorkConstants:
        """The curves put together."""
        return WorkConstants(
            products=ProductCurve(self.product_seconds, self.product_flops, self.product_half_batch),
            rows=RowCurve(self.working_bytes, self.row_seconds, self.row_byte_seconds),
            updates=RowCurve(self.update_working_bytes, self.update_seconds, self.update_byte_seconds),
            copy_bytes_per_second=self.copy_bytes_per_second,
            message_seconds=self.message_seconds,
            message_bytes_per_second=self.message_bytes_per_second,
        )


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
    error: HeldOutError | None
    """Its error on the others; None where there were none."""

    def refuse_nonsense(self, where: str) -> None:
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
    """What disturbed the measurements, in words."""
    constants: tuple[Constant, ...]
    not_measured: dict[str, str]
    """What is null, and why."""
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
        try:
            found = json.loads(path.read_text())
        except OSError as error:
            raise _refusal(path, f"cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise _refusal(path, f"is no machine file: {error}") from error
        # Its version comes first: the fields of another one may mean something else.
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise _refusal(path, "is no machine file")
        if found.get("version") != VERSION:
            raise _refusal(path, f"has version {found.get('version')!r}, want {VERSION}")
        try:
            return cls.from_json(found)
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


def _refusal(path: Path, why: str) -> ConfigError:
    """The error of a file that cannot be used."""
    return ConfigError(f"{path} {why}", hint="`hotset characterise --out FILE` measures this machine")
