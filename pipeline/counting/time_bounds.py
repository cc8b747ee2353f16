"""Where a time begins in columns whose samples are ordered by time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import ManifestError
from ..folders.file_facts import ColumnsFacts
from ..folders.manifest import FileEntry, Manifest
from ..folders.stage_totals import ColumnsTotals
from ..formats.arrow_files import read_batch, values_of
from ..schema.schema import SAMPLE_TIME
from ..stage_commands import hint_to_rewrite


def first_of_time(columns: Manifest, sample: int) -> int:
    """Return the first sample with the time of this one; the sample itself where samples have no times.

    Raises:
        ManifestError: a part is not in the order of time.
    """
    if not ColumnsTotals.of(columns).has_time or not 0 < sample < columns.num_samples:
        return sample
    parts = [(first, entry) for first, entry in columns.parts() if entry.num_samples]
    number = next(i for i, (first, entry) in enumerate(parts) if first + entry.num_samples > sample)
    first, entry = parts[number]
    times = _times_of(columns, entry)
    time = int(times[sample - first])
    position = int(np.searchsorted(times, time))
    # Samples of this time may begin in a part before it.
    while position == 0 and number and ColumnsFacts.of(columns, parts[number - 1][1]).last_time == time:
        number -= 1
        first, entry = parts[number]
        position = int(np.searchsorted(_times_of(columns, entry), time))
    return first + position


def _times_of(columns: Manifest, entry: FileEntry) -> NDArray[np.int64]:
    """(num_samples,): the time of each sample of a part, seconds since 1970."""
    times: NDArray[np.int64] = values_of(read_batch(columns, entry).column(SAMPLE_TIME), np.int64)
    if (np.diff(times) < 0).any():
        raise ManifestError(
            f"{columns.folder / entry.path} is damaged: its times are not in order",
            hint=hint_to_rewrite(columns.folder),
        )
    return times
