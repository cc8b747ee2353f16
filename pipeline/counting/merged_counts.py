"""Counts that are there already, and adding them up within the memory a stage may hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.counting.count_merging import Counts, count_distinct, merge_counts
from ..folders.manifest import FileEntry, Manifest
from ..folders.output import Output
from ..formats.arrow_files import read_batch, values_of
from ..runtime.memory import array_in


def samples_from(array: Any, low: int) -> Any:
    """An Arrow array from its value ``low`` on, beginning at offset 0; copied where low is not 0."""
    return array if low == 0 else array.take(pa.array(np.arange(low, len(array))))


def counts_in(counts: Manifest, entry: FileEntry) -> Counts:
    """One file of a counts folder, memory-mapped."""
    batch = read_batch(counts, entry)
    array = batch.column("category")
    return values_of(array, array.type.to_pandas_dtype()), values_of(batch.column("count"), np.int64)


def merged_counts(
    sources: list[Counts], output: Output, room: int, dtype: Any
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Sources added up: in memory where they fit whatever they share, else on disk, measured before."""
    most = sum(categories.shape[0] for categories, _ in sources)
    num_rows = most if most * (np.dtype(dtype).itemsize + 8) <= room else count_distinct(sources)
    categories = array_in(room // 2, output, (num_rows,), dtype)
    counts = array_in(room // 2, output, (num_rows,), np.int64)
    num_categories = merge_counts(sources, categories, counts)
    return categories[:num_categories], counts[:num_categories]
