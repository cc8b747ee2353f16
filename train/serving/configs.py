"""Settings of predictions and exports. Imports little: the command line builds its options from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...pipeline.errors import ByteSize, require_at_least, require_at_most, require_choices

RowType = Literal["fp32", "fp16", "bf16", "int8"]
_MOST_THREADS = 1024
ROW_TYPES: tuple[RowType, ...] = ("fp32", "fp16", "bf16", "int8")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """Settings of an export."""

    row_type: RowType = "fp32"
    """Number type of the rows: fp32 as trained, fp16, bf16, or int8 with a scale for each row."""

    onnx: bool = False
    """Write an ONNX model too, with its tables in a second file; needs the extra onnx."""

    def __post_init__(self) -> None:
        require_choices(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictConfig:
    """Settings of a prediction; none but the batch size may change a bit of it."""

    batch_size: int | None = None
    """Number of samples predicted together; by default that of the training."""

    threads: int | None = None
    """Number of threads that parse, and of those that predict; by default as many as the training used."""

    slow_bytes: ByteSize | None = None
    """Memory for embedding rows; if not all fit, those of some batches at a time are read from the run's
    weights. By default as much as there is."""

    def __post_init__(self) -> None:
        require_at_least("batch_size", self.batch_size, 1)
        require_at_least("threads", self.threads, 1)
        require_at_most("threads", self.threads, _MOST_THREADS)
        require_at_least("slow_bytes", self.slow_bytes, 0)
