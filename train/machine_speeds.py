"""The file of four measured speeds that `characterise` writes and `advise --speeds` reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from ..pipeline.errors import ConfigError, first_line
from ..pipeline.folders.manifest import JsonRecord, RecordError
from ..pipeline.folders.whole_file import whole_file
from ..stats.step_times import Machine

_FORMAT = "hotset speeds 1"
_GIGA = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSpeeds(JsonRecord):
    """Four speeds of a machine."""

    device_name: str
    threads: int
    """Number of threads of a step."""
    flops: float
    """Operations per second of the dense layers in training."""
    host_rows_per_second: float
    """Rows read or written at random places of host memory, by all threads."""
    row_bytes: int
    """Bytes of those rows."""
    link_bytes_per_second: float
    """Bytes between the tiers, each way at once."""
    loader_samples_per_second: float
    """Samples read from shards."""

    def refuse_nonsense(self, where: str) -> None:
        for name in ("flops", "host_rows_per_second", "link_bytes_per_second", "loader_samples_per_second"):
            if not 0 < getattr(self, name) < float("inf"):
                raise RecordError(f"{where}{name} is {getattr(self, name)}, want a number above 0")
        if self.row_bytes < 1:
            raise RecordError(f"{where}row_bytes is {self.row_bytes}, want 1 or more")

    @classmethod
    def read(cls, path: Path) -> MachineSpeeds:
        """Read a file.

        Raises:
            ConfigError: it cannot be read, or is no such file.
        """
        try:
            fields = json.loads(path.read_text())
            if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
                raise ValueError(f"its format is not {_FORMAT!r}")
            return cls.from_json(fields)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path} cannot be read as speeds: {first_line(error)}",
                hint="`hotset characterise --out FILE` measures those of this machine",
            ) from error

    def write(self, path: Path) -> None:
        """Write the file, which must not exist."""
        fields = {"format": _FORMAT, "hotset": __version__, **self.to_json()}
        with whole_file(path) as file:
            file.write((json.dumps(fields, indent=2) + "\n").encode())

    def machine(self) -> Machine:
        """Return the machine that predictions take; the fixed time of a step stays the typical one."""
        return Machine(
            link_bytes_per_second=self.link_bytes_per_second,
            host_bytes_per_second=self.host_rows_per_second * self.row_bytes,
            flops=self.flops,
            loader_samples_per_second=self.loader_samples_per_second,
        )

    def in_units(self) -> list[tuple[str, float, str]]:
        """Return name, value and unit of each speed, for tables."""
        return [
            ("dense layers", self.flops / _GIGA, "GFLOP/s"),
            ("host rows", self.host_rows_per_second / 1e6, f"M rows of {self.row_bytes} B/s"),
            ("link", self.link_bytes_per_second / _GIGA, "GB/s each way"),
            ("loader", self.loader_samples_per_second / 1e6, "M samples/s"),
        ]
