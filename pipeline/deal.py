"""Dealing samples to output files: the first half of `pack`.

Parts are read in any order and by any thread. Each reserves the rows it needs of every file and fills them;
which of a file's rows a sample gets does not matter, because files are put in the order of keys later.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..stats.shuffle import deal_rows, log1p_table, transform_dense
from .arrow_files import fixed_lists, read_batch, validity_of, values_of
from .manifest import FileEntry, Manifest
from .scratch import scratch
from .shuffle_plan import ShuffledFile, ShufflePlan
from .tasks import run_tasks

_LOG1P = log1p_table(1 << 16)


@dataclass(frozen=True)
class PackInputs:
    """The folders `pack` reads, and what it needs of them."""

    columns: Manifest
    samples: Manifest
    plan: Manifest
    has_label: bool
    dense: list[str]
    num_features: int

    @property
    def width(self) -> int:
        """int32 words of a sample: tag, label, dense, ids."""
        return 2 + len(self.dense) + self.num_features

    def open(self, name: str) -> tuple[Any, Any]:
        """The record batches of one part, of columns and of samples."""
        columns, samples = self._entries
        return read_batch(self.columns, columns[name]), read_batch(self.samples, samples[name])

    @cached_property
    def _entries(self) -> tuple[dict[str, FileEntry], dict[str, FileEntry]]:
        """Files of columns and of samples by name: a log has thousands of parts."""
        columns, samples = ({e.path: e for e in folder.files} for folder in (self.columns, self.samples))
        return columns, samples


def starts_of(group: list[ShuffledFile]) -> list[int]:
    """The row at which each file of a group begins in the buffers."""
    return list(accumulate((file.num_samples for file in group[:-1]), initial=0))


@dataclass(frozen=True, slots=True)
class _Buffers:
    """The rows of a group of files, file by file, and how far each has been filled."""

    rows: NDArray[np.int32]
    keys: NDArray[np.uint64]
    next_row: NDArray[np.int64]
    """(num_files,), -1 for a file of another group."""
    lock: Lock

    def reserve(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """(num_files,): where a part may put ``counts`` rows of each file."""
        with self.lock:
            first_rows = self.next_row.copy()
            self.next_row[first_rows >= 0] += counts[first_rows >= 0]
        return first_rows


def deal(
    group: list[ShuffledFile], shuffled: ShufflePlan, inputs: PackInputs, workers: int
) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """Collect the rows of a group of files, file by file, in any order within a file."""
    total = sum(file.num_samples for file in group)
    next_row = np.full(len(shuffled.files), -1, np.int64)
    next_row[[file.index for file in group]] = starts_of(group)
    buffers = _Buffers(
        np.empty((total, inputs.width), np.int32), np.empty(total, np.uint64), next_row, Lock()
    )
    parts = shuffled.parts_for({file.kind for file in group})
    tasks = ((entry, first, shuffled, inputs, buffers) for entry, first in parts)
    for _ in run_tasks(_deal_part, tasks, workers=workers, here=True):
        pass
    return buffers.rows, buffers.keys


def _deal_part(
    entry: FileEntry, first_sample: int, shuffled: ShufflePlan, inputs: PackInputs, buffers: _Buffers
) -> None:
    """Put one part's samples into the buffers, those of other groups left out."""
    keys, files, counts = shuffled.keys_and_files(entry, first_sample)
    next_row = buffers.reserve(counts)
    if not counts[next_row >= 0].any():
        return
    columns, samples = inputs.open(entry.path)
    values = scratch("columns", (2 + len(inputs.dense), entry.num_samples), np.int32)
    as_floats = values.view(np.float32)
    values[0] = values_of(read_batch(inputs.plan, entry).column("is_hot"), np.uint8)
    as_floats[1] = values_of(columns.column("label"), np.uint8) if inputs.has_label else 0
    for column, name in zip(as_floats[2:], inputs.dense, strict=True):
        array = columns.column(name)
        transform_dense(values_of(array, np.int32), validity_of(array), _LOG1P, column)
    ids = fixed_lists(samples.column("ids"), inputs.num_features, np.int32)
    deal_rows(values, ids, keys, files, next_row, buffers.rows, buffers.keys)
