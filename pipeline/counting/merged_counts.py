"""Counts that are there already, and adding them up within the memory a stage may hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.count_merging import Counts, count_distinct, merge_counts
from ..folders.manifest import FileEntry, Manifest
from ..folders.output import Output
from ..folders.temporary_files import array_in
from ..formats.arrow_files import COUNT_COLUMNS, read_batch, read_file, values_of


def samples_from(array: Any, low: int) -> Any:
    """Return an Arrow array from its value ``low`` on, beginning at offset 0; copied where low is not 0."""
    return array if low == 0 else array.take(pa.array(np.arange(low, len(array))))


def counts_in(counts: Manifest, entry: FileEntry) -> Counts:
    """Map one file of a counts folder."""
    return _counts_of(read_batch(counts, entry))


def counts_written(output: Output, entry: FileEntry) -> Counts:
    """Map one file of a counts folder that is not sealed yet."""
    return _counts_of(read_file(output.folder / entry.path, entry.num_samples, COUNT_COLUMNS))


def _counts_of(batch: Any) -> Counts:
    array = batch.column("category")
    return values_of(array, array.type.to_pandas_dtype()), values_of(batch.column("count"), np.int64)


def merged_counts(
    sources: list[Counts], output: Output, room: int, dtype: Any
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Add up sources: in memory where even disjoint ones fit, else on disk, after counting the distinct."""
    # Counting the distinct costs another pass over all sources, so it is done only where it may save a file.
    most = sum(categories.shape[0] for categories, _ in sources)
    num_rows = most if most * (np.dtype(dtype).itemsize + 8) <= room else count_distinct(sources)
    categories = array_in(room // 2, output, (num_rows,), dtype)
    counts = array_in(room // 2, output, (num_rows,), np.int64)
    # The arrays may be longer than what was found: sources that share categories add up to fewer rows.
    num_categories = merge_counts(sources, categories, counts)
    return categories[:num_categories], counts[:num_categories]
