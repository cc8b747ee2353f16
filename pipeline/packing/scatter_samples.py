"""Dealing samples to output files: the first half of `pack`.

Parts are read in any order and by any thread. Each reserves the rows it needs of every file and fills them;
which of a file's rows a sample gets does not matter, because files are put in the order of keys later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ...stats.batches.bag_shuffle import add_lengths, deal_bags, place_bags
from ...stats.batches.sample_shuffle import deal_rows
from ..folders.manifest import FileEntry
from ..formats.arrow_files import read_batch, values_of
from ..formats.part_ids import PartIds
from ..runtime.tasks import run_tasks
from ..runtime.thread_buffers import scratch
from .pack_inputs import PackInputs
from .shuffle_plan import ShuffledFile, ShufflePlan


def starts_of(counts: Sequence[int]) -> list[int]:
    """Where each file of a group begins in a buffer, by what each puts there."""
    return list(accumulate(counts[:-1], initial=0))


@dataclass(frozen=True, slots=True)
class Buffers:
    """The rows of a group of files, file by file, in any order within a file."""

    rows: NDArray[np.int32]
    """(num_rows, width)."""
    keys: NDArray[np.uint64]
    """(num_rows,)."""
    bag_places: NDArray[np.int64]
    """(num_rows,), where each row's bags begin in ``bags``; (0,) where no table is multi-hot."""
    bags: NDArray[np.int32]
    """(num_lookups,), ids of multi-hot tables."""
    next_row: NDArray[np.int64]
    """(num_files,), how far each file has been filled; -1 for a file of another group."""
    next_lookup: NDArray[np.int64]
    """(num_files,), the same of ``bags``."""
    lock: Lock

    @classmethod
    def of(
        cls, group: list[ShuffledFile], lookups_of_files: NDArray[np.int64], inputs: PackInputs
    ) -> Buffers:
        """Empty ones for the files of a group; ``lookups_of_files``: (num_files,), in multi-hot tables."""
        total, indexes = sum(file.num_samples for file in group), [file.index for file in group]
        next_row, next_lookup = (np.full(lookups_of_files.shape[0], -1, np.int64) for _ in range(2))
        next_row[indexes] = starts_of([file.num_samples for file in group])
        next_lookup[indexes] = starts_of(lookups_of_files[indexes].tolist())
        num_lookups = int(lookups_of_files[indexes].sum())
        rows, keys = np.empty((total, inputs.width), np.int32), np.empty(total, np.uint64)
        places = np.empty(total if inputs.lists else 0, np.int64)
        return cls(rows, keys, places, np.empty(num_lookups, np.int32), next_row, next_lookup, Lock())

    def reserve(
        self, counts: NDArray[np.int64], lookups: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(num_files,) each: where a part may put ``counts`` rows of each file, and ``lookups`` in bags."""
        with self.lock:
            first_rows, first_lookups = self.next_row.copy(), self.next_lookup.copy()
            is_here = first_rows >= 0
            self.next_row[is_here] += counts[is_here]
            self.next_lookup[is_here] += lookups[is_here]
        return first_rows, first_lookups


def count_lookups(shuffled: ShufflePlan, inputs: PackInputs, workers: int) -> NDArray[np.int64]:
    """(num_files,): look-ups in multi-hot tables of the samples of each output file."""
    total = np.zeros(len(shuffled.files), np.int64)
    parts = shuffled.parts if inputs.lists else []
    tasks = ((entry, first, shuffled, inputs) for entry, first in parts)
    for lookups in run_tasks(_count_part, tasks, workers=workers, here=True):
        total += lookups
    return total


def _count_part(
    entry: FileEntry, first_sample: int, shuffled: ShufflePlan, inputs: PackInputs
) -> NDArray[np.int64]:
    _, files, _ = shuffled.keys_and_files(entry, first_sample)
    return _lookups_of(inputs.read_ids(entry.path), files, len(shuffled.files))


def _lookups_of(ids: PartIds, files: NDArray[np.int64], num_files: int) -> NDArray[np.int64]:
    lookups = np.zeros(num_files, np.int64)
    for offsets, _ in ids.lists.values():
        add_lengths(offsets, files, lookups)
    return lookups


def deal(
    group: list[ShuffledFile],
    shuffled: ShufflePlan,
    lookups_of_files: NDArray[np.int64],
    inputs: PackInputs,
    workers: int,
) -> Buffers:
    """Collect the rows of a group of files."""
    buffers = Buffers.of(group, lookups_of_files, inputs)
    parts = shuffled.parts_for({file.kind for file in group})
    tasks = ((entry, first, shuffled, inputs, buffers) for entry, first in parts)
    for _ in run_tasks(_deal_part, tasks, workers=workers, here=True):
        pass
    return buffers


def _deal_part(
    entry: FileEntry, first_sample: int, shuffled: ShufflePlan, inputs: PackInputs, buffers: Buffers
) -> None:
    """Put one part's samples into the buffers, those of other groups left out."""
    keys, files, counts = shuffled.keys_and_files(entry, first_sample)
    if not counts[buffers.next_row >= 0].any():
        return
    columns, ids = inputs.open(entry.path)
    next_row, next_lookup = buffers.reserve(counts, _lookups_of(ids, files, counts.shape[0]))
    num_columns = 2 + len(inputs.dense) + len(ids.lists)
    values = scratch("columns", (num_columns, entry.num_samples), np.int32)
    as_floats = values.view(np.float32)
    values[0] = values_of(read_batch(inputs.plan, entry).column("is_hot"), np.uint8)
    as_floats[1] = values_of(columns.column("label"), np.uint8) if inputs.has_label else 0
    for column, name in zip(as_floats[2:], inputs.dense, strict=False):
        inputs.transform(name, columns.column(name), column)
    if ids.lists:
        _deal_bags(ids, files, next_row.copy(), next_lookup, values[2 + len(inputs.dense) :], buffers)
    deal_rows(values, ids.matrix, keys, files, next_row, buffers.rows, buffers.keys)


def _deal_bags(
    ids: PartIds,
    files: NDArray[np.int64],
    next_row: NDArray[np.int64],
    next_lookup: NDArray[np.int64],
    lengths: NDArray[np.int32],
    buffers: Buffers,
) -> None:
    """Put one part's bags into the buffers, and their lengths, (num_tables, num_samples), to ``lengths``."""
    for row, (offsets, _) in zip(lengths, ids.lists.values(), strict=True):
        np.subtract(offsets[1:], offsets[:-1], out=row)
    places = scratch("places", files.shape, np.int64)
    place_bags(lengths, files, next_row, next_lookup, places, buffers.bag_places)
    for offsets, flat in ids.lists.values():
        deal_bags(offsets, flat, places, buffers.bags)
