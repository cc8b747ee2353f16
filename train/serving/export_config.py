"""Settings of an export. Imports little: the command line builds its options from this class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...pipeline.errors import ConfigError

RowType = Literal["fp32", "fp16", "bf16", "int8"]


ROW_TYPES: tuple[RowType, ...] = ("fp32", "fp16", "bf16", "int8")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """Settings of an export."""

    row_type: RowType = "fp32"
    """Number type of the rows: fp32 as trained, fp16, bf16, or int8 with a scale for each row."""

    onnx: bool = False
    """Write an ONNX model too, with its tables in a second file; needs the extra onnx."""

    def __post_init__(self) -> None:
        if self.row_type not in ROW_TYPES:
            raise ConfigError(f"row_type must be one of {', '.join(ROW_TYPES)}, got {self.row_type!r}")
