"""The Parquet file of predictions: one column, one row for each sample of the log, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .whole_file import whole_file

PROBABILITY = "probability"
_SCHEMA = pa.schema([pa.field(PROBABILITY, pa.float32(), nullable=False)])
_ROWS_OF_GROUP = 1 << 20


class ScoreWriter:
    """Collects probabilities and writes them as row groups of a million."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._waiting: list[NDArray[np.float32]] = []
        self.num_samples = 0
        """Samples added so far."""

    def add(self, probability_B: NDArray[np.float32]) -> None:
        """Add the probabilities of the next samples."""
        self._waiting.append(probability_B)
        self.num_samples += probability_B.size
        if sum(each.size for each in self._waiting) >= _ROWS_OF_GROUP:
            self.flush()

    def flush(self) -> None:
        """Write what was added since the last row group."""
        if self._waiting:
            column = pa.array(np.concatenate(self._waiting), pa.float32())
            self._writer.write_table(pa.table([column], schema=_SCHEMA))
            self._waiting.clear()


@contextmanager
def score_writer(path: Path, *, overwrite: bool = False) -> Iterator[ScoreWriter]:
    """Yield a writer whose file gets the name ``path`` when the block ends without an error.

    Raises:
        HotsetError: ``path`` exists, or cannot be written.
    """
    # pyarrow's Parquet module takes a fifth of the start of a command.
    import pyarrow.parquet as pq

    with whole_file(path, overwrite=overwrite) as file, pq.ParquetWriter(file, _SCHEMA) as parquet:
        writer = ScoreWriter(parquet)
        yield writer
        writer.flush()
