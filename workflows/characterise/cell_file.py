"""The file of a sweep: a line for the machine, and one for each cell, so that a killed sweep goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...pipeline.errors import ConfigError, HotsetError, first_line
from ...pipeline.folders.json_record import RecordError
from .run_cell import CellRecord

FORMAT = "hotset cells"
CELLS_VERSION = 2
"""Of cells; it does not change with the times that are fitted to them."""


@dataclass(frozen=True, slots=True)
class CellFile:
    """The lines of one sweep."""

    path: Path
    identity: dict[str, Any]
    """The machine and settings that all lines share."""

    def read(self) -> list[CellRecord]:
        """Return the cells that are done; a last line that was cut off is removed.

        Raises:
            ConfigError: another machine or other settings began the file, or it is damaged.
        """
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        # A line ends with its newline: what follows the last one was being written when the process died.
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        lines = whole.decode(errors="replace").splitlines()
        if not lines:
            return []
        # Times of another machine, version or number of threads do not belong together.
        try:
            found = [json.loads(line) for line in lines]
            if found[0] != self.identity:
                raise self._begun_otherwise(found[0])
            return [CellRecord.from_json(each, f"line {number}") for number, each in enumerate(found[1:], 2)]
        except (ValueError, RecordError) as error:
            # It is a ValueError, too, and says already what is wrong.
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"{self.path} is damaged: {error}", hint="delete it, and measure its cells again"
            ) from error

    def add(self, record: CellRecord) -> None:
        """Write a line, and the first one before it where the file is new.

        Raises:
            HotsetError: the disk is full, or the file cannot be written.
        """
        try:
            # A first line that was cut off leaves an empty file, which begins anew.
            is_new = not self.path.exists() or self.path.stat().st_size == 0
            lines = [self.identity] if is_new else []
            # Closed after each cell, so that a sweep that is killed loses only the one under way.
            with self.path.open("a") as file:
                for each in (*lines, record.to_json()):
                    file.write(json.dumps(each, allow_nan=False) + "\n")
        except OSError as error:
            raise HotsetError(
                f"{self.path} cannot be written: {error.strerror or error}",
                hint="free disk space, and run the same command: finished cells are kept",
            ) from error

    def _begun_otherwise(self, found: Any) -> ConfigError:
        others = [
            f"{name} {found.get(name)!r} instead of {value!r}"
            for name, value in self.identity.items()
            if isinstance(found, dict) and found.get(name) != value
        ]
        return ConfigError(
            f"{self.path} was begun with {', '.join(others) or 'another first line'}",
            hint="give another --out, or delete the file",
        )


def cells_path(machine: Path) -> Path:
    """Return the file of the cells of a machine file."""
    return machine.with_suffix(".cells.jsonl")


def read_measured_cells(machine: Path, device_name: str, threads: int) -> list[CellRecord]:
    """Return the cells that were measured with a machine file, on whatever machine.

    Args:
        machine: that file.
        device_name: of the machine, as the file has it.
        threads: of a step, likewise.

    Raises:
        ConfigError: there are none, they are of another machine, or the file is damaged.
    """
    path = cells_path(machine)
    wanted = {"format": FORMAT, "version": CELLS_VERSION, "device_name": device_name, "threads": threads}
    try:
        with path.open() as file:
            identity = json.loads(file.readline())
        # The cells of another machine have times of their own, whatever their file is called.
        for name, value in wanted.items():
            found = identity.get(name) if isinstance(identity, dict) else None
            if found != value:
                raise ValueError(f"it has {name} {found!r}, and {machine} wants {value!r}")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be fitted: {first_line(error)}",
            hint="`hotset characterise --out FILE` measures constants and cells",
        ) from error
    return CellFile(path, identity).read()
