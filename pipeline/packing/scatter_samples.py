"""Scattering samples to output files: the first half of `pack`.

Parts are read in any order and by any thread. Each reserves the rows it needs of every file and fills them;
which of a file's rows a sample gets does not matter, because files are put in the order of keys later.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import read_only
from ...stats.shuffle import (
    bag_lengths,
    num_buckets,
    order_keys,
    place_bags,
    scatter_bags,
    scatter_rows,
    take_bytes,
)
from ..folders.manifest import FileEntry
from ..formats.arrow_files import values_of
from ..formats.part_ids import PartIds
from ..runtime.tasks import run_tasks
from ..runtime.thread_buffers import thread_buffer
from .pack_inputs import PackInputs
from .row_layout import LABEL, TAG
from .shuffle_plan import ChosenSamples, KeyRanges, ShuffledFile, ShufflePlan


def starts_of(counts: Sequence[int]) -> list[int]:
    """Return where each file of a group begins in a buffer, by what each puts there."""
    return list(itertools.accumulate(counts[:-1], initial=0))


def bytes_of_file(num_samples: int, num_lookups: int, inputs: PackInputs) -> int:
    """Return the bytes of an output file in the buffers; ``num_lookups`` in multi-hot tables."""
    return num_samples * (4 * inputs.layout.width + (16 if inputs.lists else 8)) + 4 * num_lookups


@dataclass(frozen=True, slots=True)
class Buffers:
    """The rows of a group of files, file by file, in any order within a file."""

    rows: NDArray[np.int32]
    """(num_rows, width), see `RowLayout`."""
    keys: NDArray[np.uint64]
    """(num_rows,), keys of the shuffle."""
    bag_starts: NDArray[np.int64]
    """(num_rows,), where each row's bags begin in ``bags``; (0,) where no table is multi-hot."""
    bags: NDArray[np.int32]
    """(num_lookups,), ids of multi-hot tables."""
    next_row: NDArray[np.int64]
    """(num_files,), how far each file has been filled; -1 for a file of another group."""
    next_lookup: NDArray[np.int64]
    """(num_files,), the same of ``bags``."""
    lock: Lock

    def order(self, rows: slice) -> NDArray[np.int64]:
        """Return the positions of some rows in the order of their keys; valid until the thread asks again."""
        keys = self.keys[rows]
        order = thread_buffer("order", keys.shape, np.int64)
        next_places = thread_buffer("next places", (num_buckets(keys.shape[0]),), np.uint32)
        order_keys(keys, next_places, thread_buffer("sorted keys", keys.shape, np.uint64), order)
        return order

    @classmethod
    def of_group(
        cls,
        group: list[ShuffledFile],
        lookups_of_files: NDArray[np.int64],
        inputs: PackInputs,
        memory: NDArray[np.uint8],
    ) -> Buffers:
        """Lay out the buffers of a group of files in ``memory``, which the next group overwrites.

        Args:
            group: the files.
            lookups_of_files: (num_files,), in multi-hot tables.
            inputs: the layout of a row.
            memory: ``bytes_of_file`` of each file of the group together, or more.
        """
        indexes = [file.index for file in group]
        num_files = lookups_of_files.shape[0]
        num_rows = sum(file.num_samples for file in group)
        num_starts = num_rows if inputs.lists else 0
        num_lookups = int(lookups_of_files[indexes].sum())
        # Words of 64 bits come first, so that all numbers are aligned.
        width = inputs.layout.width
        ends = np.cumsum([0, 8 * num_rows, 8 * num_starts, 4 * width * num_rows, 4 * num_lookups])
        keys, bag_starts, rows, bags = (memory[start:stop] for start, stop in itertools.pairwise(ends))
        # Files lie one after another in the buffers, so a file's next free row starts at the sum of those
        # before.
        next_row = np.full(num_files, -1, np.int64)
        next_row[indexes] = starts_of([file.num_samples for file in group])
        next_lookup = np.full(num_files, -1, np.int64)
        next_lookup[indexes] = starts_of(lookups_of_files[indexes].tolist())
        return cls(
            rows=rows.view(np.int32).reshape(num_rows, width),
            keys=keys.view(np.uint64),
            bag_starts=bag_starts.view(np.int64),
            bags=bags.view(np.int32),
            next_row=next_row,
            next_lookup=next_lookup,
            lock=Lock(),
        )

    def reserve(
        self, counts: NDArray[np.int64], lookups: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where a part may put ``counts`` rows of each file and ``lookups`` in bags: (num_files,).

        The lock is held for the copy and the sums only; parts then fill what they reserved side by side.
        """
        with self.lock:
            first_rows = self.next_row.copy()
            first_lookups = self.next_lookup.copy()
            is_here = first_rows >= 0
            self.next_row[is_here] += counts[is_here]
            self.next_lookup[is_here] += lookups[is_here]
        return first_rows, first_lookups


def count_list_lookups(shuffled: ShufflePlan, inputs: PackInputs, workers: int) -> NDArray[np.int64]:
    """Count the lookups in multi-hot tables of the samples of each output file: (num_files,)."""
    total = np.zeros(len(shuffled.files), np.int64)
    parts = shuffled.parts if inputs.lists else []
    ranges = shuffled.key_ranges(shuffled.files)
    tasks = ((entry, first, shuffled, inputs, ranges) for entry, first in parts)
    # Bags differ in length, so buffers can be sized only after all lengths were added up once.
    for lookups in run_tasks(_count_part, tasks, workers=workers, shares_memory=True):
        total += lookups
    return total


def _count_part(
    entry: FileEntry, first_sample: int, shuffled: ShufflePlan, inputs: PackInputs, ranges: KeyRanges
) -> NDArray[np.int64]:
    chosen = shuffled.choose(entry, first_sample, ranges)
    return _bag_lengths(inputs.read_ids(entry.path), chosen)[1]


def _bag_lengths(ids: PartIds, chosen: ChosenSamples) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the length of each chosen sample's bags, (num_tables, num_chosen), and their sum by file."""
    lengths = thread_buffer("lengths", (len(ids.lists), chosen.positions.shape[0]), np.int32)
    lookups = np.zeros(chosen.counts.shape, np.int64)
    for of_table, (offsets, _) in zip(lengths, ids.lists.values(), strict=True):
        bag_lengths(offsets, chosen.positions, chosen.files, of_table, lookups)
    return lengths, lookups


def scatter_samples(
    group: list[ShuffledFile],
    shuffled: ShufflePlan,
    lookups_of_files: NDArray[np.int64],
    inputs: PackInputs,
    memory: NDArray[np.uint8],
    workers: int,
) -> Buffers:
    """Collect the rows of a group of files in ``memory``, as `Buffers.of_group` lays them out."""
    # Parts are threads' tasks: all write to the same buffers, each into rows that it reserved.
    buffers = Buffers.of_group(group, lookups_of_files, inputs, memory)
    parts = shuffled.parts_for({file.kind for file in group})
    ranges = shuffled.key_ranges(group)
    tasks = ((entry, first, shuffled, inputs, ranges, buffers) for entry, first in parts)
    for _ in run_tasks(_scatter_part, tasks, workers=workers, shares_memory=True):
        pass
    return buffers


def _scatter_part(
    entry: FileEntry,
    first_sample: int,
    shuffled: ShufflePlan,
    inputs: PackInputs,
    ranges: KeyRanges,
    buffers: Buffers,
) -> None:
    """Put one part's samples into the buffers, those of other groups left out."""
    # In one of many passes few samples are wanted: only these are read, checked and transformed. A resumed
    # run may have files between those of the group that are finished.
    chosen = shuffled.choose(entry, first_sample, ranges).within(buffers.next_row >= 0)
    if not chosen.counts.any():
        return
    # Reserve before anything is filled: from here on the part owns its rows and needs no lock.
    columns, ids = inputs.open(entry.path)
    lengths, lookups = _bag_lengths(ids, chosen)
    next_row, next_lookup = buffers.reserve(chosen.counts, lookups)
    # Everything but the ids, column by column: the kernel turns columns into rows as it scatters them.
    layout = inputs.layout
    positions = chosen.positions
    values = thread_buffer("columns", (layout.ids.start, positions.shape[0]), np.int32)
    as_floats = values.view(np.float32)
    take_bytes(read_only(inputs.read_tags(entry)), positions, values[TAG])
    if inputs.has_label:
        label = values_of(columns.column("label"), np.uint8)
        take_bytes(read_only(label), positions, as_floats[LABEL])
    else:
        as_floats[LABEL] = 0
    for column, name in zip(as_floats[layout.dense], inputs.dense, strict=True):
        inputs.transform(name, columns.column(name), positions, column)
    values[layout.lengths] = lengths
    if ids.lists:
        # Bags first, with a copy of ``next_row``: both kernels count it up over the same samples.
        _scatter_bags(ids, chosen, next_row.copy(), next_lookup, lengths, buffers)
    largest = np.zeros(layout.num_one_hot, np.uint32)
    scatter_rows(
        values,
        ids.matrix,
        positions,
        chosen.keys,
        chosen.files,
        next_row,
        buffers.rows,
        buffers.keys,
        largest,
    )
    # Checked as they are copied, those of this pass alone: nothing is written before all parts are through.
    ids.refuse_strays(inputs.samples.folder / entry.path, largest)


def _scatter_bags(
    ids: PartIds,
    chosen: ChosenSamples,
    next_row: NDArray[np.int64],
    next_lookup: NDArray[np.int64],
    lengths: NDArray[np.int32],
    buffers: Buffers,
) -> None:
    """Put the bags of one part's samples into the buffers; ``lengths`` as of `_bag_lengths`."""
    # All bags of a sample lie together, those of one table behind those of the table before.
    next_in_bags = thread_buffer("places", chosen.files.shape, np.int64)
    place_bags(lengths, chosen.files, next_row, next_lookup, next_in_bags, buffers.bag_starts)
    for offsets, flat in ids.lists.values():
        scatter_bags(offsets, flat, chosen.positions, next_in_bags, buffers.bags)
