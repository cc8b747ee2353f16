"""Pack in two phases, where a pass over the inputs for each group of files would read them too often.

The first phase reads every part once, a run of parts at a time, and writes their rows sorted by output file:
a piece of each run for each file. The second reads the pieces of some files at a time. Rows cross the disk
twice more, 0.7 bytes for a byte of input each time; a pass reads nearly all of its pages again. The order of
samples is that of their keys, so both ways give the same bytes.

Pieces are freed as soon as their files are written, where the file system can free a part of a file, so the
rows and the shards never take the disk both in full. A killed run keeps its finished runs of parts and its
finished files; the next one needs neither the same memory nor the same number of workers.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, format_byte_size
from ..folders.output import Output
from ..folders.pieces import PieceArrays, PieceFolders, Run, lack_of_room
from ..runtime.tasks import Resources, check_cap, groups_within, run_tasks, threads_here
from .shuffle import (
    Buffers,
    Group,
    PackInputs,
    PackSizes,
    ShuffledFile,
    ShufflePlan,
    bytes_of_files,
    bytes_of_parts,
    count_rows,
    scatter_parts,
)

_WRITES_PER_WORKER = 4
"""Writes of a run, so that no worker waits long for the last one."""
_log = logging.getLogger(__name__)


def two_phases(
    sizes: PackSizes,
    output: Output,
    shuffled: ShufflePlan,
    inputs: PackInputs,
    of_workers: int,
    resources: Resources,
) -> TwoPhases | None:
    """Return the two phases of a call; None where its files are packed in passes.

    Args:
        sizes: of the inputs and of memory.
        output: the folder of shards.
        shuffled: the output files.
        inputs: the folders that are read.
        of_workers: bytes of the workers next to the buffers.
        resources: workers and scratch.

    Raises:
        ConfigError: the folder of pieces has no room for them, and the user or an earlier run chose it.
    """
    pieces = PieceFolders(output.scratch_folders(), len(shuffled.files), inputs.layout.width)
    # What an earlier run has mapped is used, whatever memory there is now.
    goes_on = bool(pieces.runs) and sizes.can_map and sizes.rows > 0
    if not (sizes.is_two_phases or goes_on):
        pieces.remove()
        return None
    pieces.write_to(output.scratch_folder(resources.scratch))
    bytes_of_each = bytes_of_parts(inputs)
    missing = sum(bytes_of_each[part] for gap in pieces.missing(len(shuffled.parts)) for part in gap)
    # What a group of files takes is there before its pieces go.
    more = min(sizes.rows, sizes.room) if pieces.frees_space else sizes.rows
    reason = lack_of_room(pieces.target, missing, output.folder, more)
    if reason is None:
        return TwoPhases(shuffled, inputs, pieces, sizes.room, of_workers, resources)
    if resources.scratch is not None or goes_on:
        raise ConfigError(reason, hint="free disk space, or give another --scratch")
    # What was packed without pieces before they were thought of still is, as slowly.
    _log.warning(
        f"{reason}: pack reads {format_byte_size(sizes.inputs)} about {sizes.num_passes} times; "
        "--scratch names a folder with room, more --memory needs fewer passes"
    )
    pieces.remove()
    return None


@dataclass(frozen=True, slots=True)
class TwoPhases:
    """The two phases of one call."""

    shuffled: ShufflePlan
    inputs: PackInputs
    pieces: PieceFolders
    room: int
    """Bytes of buffers."""
    of_workers: int
    """Bytes of the workers besides."""
    resources: Resources

    def groups(self, todo: list[ShuffledFile]) -> Iterator[Group]:
        """Yield the rows of some files at a time, when all parts are mapped."""
        self._map_parts()
        sizes = bytes_of_files(self.shuffled.files, self.pieces.num_lookups, self.inputs)
        # One file must fit at least; with lists its bytes are known only now.
        check_cap("pack", self.resources, max(sizes, default=0) + self.of_workers, here=True)
        groups = list(groups_within(self.room, todo, lambda file: sizes[file.index]))
        bytes_of_groups = (sum(sizes[file.index] for file in group) for group in groups)
        memory = np.empty(max(bytes_of_groups, default=0), np.uint8)
        for group in groups:
            yield group, self._gathered(group, memory), group is groups[-1]
            # They are written by now, so rows and files never take the disk both in full.
            self.pieces.free(_spans(group))

    def _map_parts(self) -> None:
        """Write the rows of all parts that no run has yet."""
        sizes = bytes_of_parts(self.inputs)
        memory = np.empty(0, np.uint8)
        total = self.inputs.columns.num_samples
        gaps = self.pieces.missing(len(self.shuffled.parts))
        mapped = total - sum(self.shuffled.parts[number][0].num_samples for gap in gaps for number in gap)
        for gap in gaps:
            for numbers in groups_within(self.room, gap, sizes.__getitem__):
                needed = sum(sizes[number] for number in numbers)
                if memory.nbytes < needed:
                    del memory  # before the larger one is made
                    memory = np.empty(needed, np.uint8)
                self._map_run(range(numbers[0], numbers[-1] + 1), memory)
                mapped += sum(self.shuffled.parts[number][0].num_samples for number in numbers)
                self.resources.progress("pack", mapped, 2 * total)

    def _map_run(self, numbers: range, memory: NDArray[np.uint8]) -> None:
        """Write the rows of consecutive parts."""
        workers = self.resources.workers
        parts = self.shuffled.parts[numbers.start : numbers.stop]
        rows, lookups = count_rows(parts, self.shuffled, self.inputs, workers)
        buffers = Buffers.of_files(rows, lookups, self.inputs, memory)
        ranges = self.shuffled.key_ranges(self.shuffled.files)
        scatter_parts(parts, ranges, self.shuffled, self.inputs, buffers, workers)
        arrays = PieceArrays(buffers.keys, buffers.rows, buffers.bags)
        cuts = np.linspace(0, rows.size, _WRITES_PER_WORKER * threads_here(workers) + 1).astype(int).tolist()
        with self.pieces.writing(numbers, arrays, rows, lookups) as writer:
            tasks = (cut for cut in itertools.pairwise(cuts) if cut[0] < cut[1])
            for _ in run_tasks(writer.write, tasks, workers=workers, shares_memory=True):
                pass

    def _gathered(self, group: list[ShuffledFile], memory: NDArray[np.uint8]) -> Buffers:
        """Read the rows of a group of files from all runs."""
        buffers = Buffers.of_group(group, self.pieces.num_lookups, self.inputs, memory)
        ends = _ends(group, len(self.shuffled.files), buffers)
        tasks = ((run, _spans(group), buffers, ends) for run in self.pieces.runs)
        for _ in run_tasks(_read_run, tasks, workers=self.resources.workers, shares_memory=True):
            pass
        assert (buffers.next_row == ends).all(), "the runs lack rows of a file"
        # The bags of a file's rows follow one another in the order of its rows.
        if self.inputs.lists:
            lengths = buffers.rows[:, self.inputs.layout.lengths].sum(axis=1, dtype=np.int64)
            buffers.bag_starts[:] = np.cumsum(lengths) - lengths
        return buffers


def _ends(group: list[ShuffledFile], num_files: int, buffers: Buffers) -> NDArray[np.int64]:
    """Return where the rows of each file of a group end: (num_files,)."""
    ends = np.full(num_files, -1, np.int64)
    for file in group:
        ends[file.index] = buffers.next_row[file.index] + file.num_samples
    return ends


def _spans(group: list[ShuffledFile]) -> list[range]:
    """Return the numbers of files as ranges: a resumed run has finished files between others."""
    numbered = enumerate(file.index for file in group)
    spans = (list(span) for _, span in itertools.groupby(numbered, lambda pair: pair[1] - pair[0]))
    return [range(span[0][1], span[-1][1] + 1) for span in spans]


def _read_run(run: Run, spans: list[range], buffers: Buffers, ends: NDArray[np.int64]) -> None:
    """Read the pieces of a group of files from one run."""
    with run.open() as reader:
        for files in spans:
            index = reader.index(files)
            counts, lookups = np.zeros((2, ends.size), np.int64)
            counts[files.start : files.stop] = np.diff(index.row_starts)
            lookups[files.start : files.stop] = np.diff(index.lookup_starts)
            # A damaged index must not lead to rows of others: the checksum of a piece comes after it is read.
            reader.check(bool((counts >= 0).all() and (lookups >= 0).all()), "its index runs backwards")
            rows, bags = buffers.reserve(counts, lookups)
            is_inside = (rows + counts <= ends)[files.start : files.stop].all()
            reader.check(bool(is_inside), "its index has more rows than its files")
            targets = [
                PieceArrays(
                    buffers.keys[rows[file] : rows[file] + counts[file]],
                    buffers.rows[rows[file] : rows[file] + counts[file]],
                    buffers.bags[bags[file] : bags[file] + lookups[file]],
                )
                for file in files
            ]
            reader.read(files, index, targets)
            reader.forget(index)
