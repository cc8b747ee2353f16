"""Scatter samples to output files: the first half of `pack`.

The parts of columns/, samples/ and plan/ are read in any order and by any thread. Each part reserves rows of
every file and fills them. Which of a file's rows a sample gets does not matter, because files are sorted by
key later. A row is int32 words; floats are stored by their bits.

The output file of each sample follows from two passes over tags and hashed keys. The first counts keys by
their top bits. The second collects only the keys of the bins where one file ends and the next begins, which
gives the exact first key of every file. Memory is a few MiB; with so many bins and files that their keys take
more, the second pass is repeated for some files at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ...stats.shuffle import (
    BIN_BITS,
    EVALUATION,
    HOT_ONLY,
    MIXED,
    NUM_BINS,
    bins_of,
    choose_keys,
    copy_bags,
    files_of_keys,
    keys_and_kinds,
    order_of_keys,
    place_bags,
    scatter_rows,
)
from ..errors import MIB, ManifestError, hint_to_rewrite, hint_to_verify
from ..folders.manifest import FileEntry, Manifest
from ..folders.totals import (
    ColumnsTotals,
    PlannedTable,
    PlanTotals,
    SamplesFacts,
    SamplesTotals,
    multi_hot,
    one_hot,
)
from ..formats.arrow_files import OpenedParts, num_words, values_of, write_words
from ..formats.columns import transform_columns
from ..formats.ids import PartIds
from ..runtime.tasks import groups_within, run_tasks, thread_buffer

_LARGEST = np.uint64(2**64 - 1)
_ROOM_BYTES = 64 * MIB
_BYTES_PER_KEY = 24
"""Bytes of a key that is collected: itself in pieces, joined, and sorted."""
PASSES = 3
"""Passes over the inputs that a log of any size may take."""
_Keys = tuple[NDArray[np.uint64], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class ShuffledFile:
    """An output file: the ``number``-th of its kind."""

    index: int
    """Among all files."""
    kind: int
    number: int
    num_samples: int


@dataclass(frozen=True, slots=True)
class Shuffle:
    """The settings that the order of samples depends on."""

    plan: Manifest
    """Tags of all samples, in log order."""
    seed: int
    is_grouped: bool
    """Hot-only and mixed samples apart; else all training samples count as mixed."""
    samples_per_file: int
    """A multiple of the batch size; the last file of each kind may be shorter."""
    opened: OpenedParts = field(default_factory=OpenedParts)
    """Parts that were read before."""

    def keys_and_kinds(self, entry: FileEntry, first_sample: int) -> _Keys:
        """Key and kind of each sample of one file of tags; raise ManifestError for a tag above 1."""
        is_hot = values_of(self.opened.read(self.plan, entry).column("is_hot"), np.uint8)
        if is_hot.max(initial=0) > 1:
            raise ManifestError(
                f"{self.plan.folder / entry.path} is damaged: a tag is {is_hot.max()}, want 0 or 1",
                hint=hint_to_rewrite(self.plan.folder),
            )
        keys = np.empty(is_hot.shape[0], np.uint64)
        kinds = np.empty(is_hot.shape[0], np.uint8)
        num_train = PlanTotals.of(self.plan).num_train_samples
        keys_and_kinds(self.seed, first_sample, num_train, is_hot, self.is_grouped, keys, kinds)
        return keys, kinds


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """The keys of some files: a range for each kind."""

    first: NDArray[np.uint64]
    """(3,), the smallest key of each kind."""
    last: NDArray[np.uint64]
    """(3,), the largest; below the smallest for a kind of which there is no file."""


@dataclass(frozen=True, slots=True)
class ChosenSamples:
    """Samples of one part; valid until the thread chooses others."""

    positions: NDArray[np.int32]
    """(num_chosen,), in the part, ascending."""
    keys: NDArray[np.uint64]
    """(num_chosen,)."""
    files: NDArray[np.int64]
    """(num_chosen,), the output file of each."""
    counts: NDArray[np.int64]
    """(num_files,), how many go to each file."""

    def within(self, is_wanted: NDArray[np.bool_]) -> ChosenSamples:
        """Return those that go to some of the files, ``is_wanted``: (num_files,)."""
        if not self.counts[~is_wanted].any():
            return self
        kept = is_wanted[self.files]
        counts = np.where(is_wanted, self.counts, 0)
        return ChosenSamples(self.positions[kept], self.keys[kept], self.files[kept], counts)


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """Output files, and the keys at which they begin."""

    shuffle: Shuffle
    files: list[ShuffledFile]
    first_file_of_bin: NDArray[np.int64]
    """(3, NUM_BINS)."""
    last_keys: NDArray[np.uint64]
    """(num_files,), the largest key that belongs to each file."""
    parts: list[tuple[FileEntry, int]]
    """Files of tags and the number of their first sample; columns and samples have files of the same name."""

    def key_ranges(self, group: Sequence[ShuffledFile]) -> KeyRanges:
        """Return the ranges of keys that hold all samples of some files, and of the files between them."""
        ranges = KeyRanges(np.ones(3, np.uint64), np.zeros(3, np.uint64))
        for file in sorted(group, key=lambda file: file.index, reverse=True):
            first = np.uint64(file.number * self.shuffle.samples_per_file)
            last = first + np.uint64(file.num_samples - 1)
            if file.kind != EVALUATION:
                first = self.last_keys[file.index - 1] + np.uint64(1) if file.number else np.uint64(0)
                last = self.last_keys[file.index]
            # From the last file of a kind down to its first.
            if ranges.last[file.kind] < ranges.first[file.kind]:
                ranges.last[file.kind] = last
            ranges.first[file.kind] = first
        return ranges

    def choose(self, entry: FileEntry, first_sample: int, ranges: KeyRanges) -> ChosenSamples:
        """Find the samples of a part whose keys are in ``ranges``, and their files."""
        keys, kinds = self.shuffle.keys_and_kinds(entry, first_sample)
        positions = thread_buffer("chosen", keys.shape, np.int32)
        num_chosen = choose_keys(keys, kinds, ranges.first, ranges.last, positions)
        keys = keys[:num_chosen]
        files = thread_buffer("files", keys.shape, np.int64)
        counts = np.zeros(len(self.files), np.int64)
        per_file = self.shuffle.samples_per_file
        files_of_keys(
            keys, kinds[:num_chosen], self.first_file_of_bin, self.last_keys, per_file, files, counts
        )
        return ChosenSamples(positions[:num_chosen], keys, files, counts)


def plan_shuffle(shuffle: Shuffle, *, workers: int = 0, room_bytes: int = _ROOM_BYTES) -> ShufflePlan:
    """Divide all samples among output files; exact, and the same for any number of workers."""
    parts = [(entry, first) for first, entry in shuffle.plan.parts()]
    # First pass: how many keys of each kind have the same top bits.
    bins = np.zeros((3, NUM_BINS), np.int64)
    for keys, kinds in run_tasks(shuffle.keys_and_kinds, parts, workers=workers, shares_memory=True):
        bins += np.bincount(bins_of(keys, kinds), minlength=bins.size).reshape(bins.shape)
    # Counts alone decide how many files there are and, up to the bin, where each begins.
    files = list(_divide(bins.sum(axis=1), shuffle.samples_per_file))
    first_files = _first_files(files, bins, shuffle.samples_per_file)
    # Second pass: the exact key at which each file ends, from the keys of the bins where one does.
    last_keys = np.full(len(files), _LARGEST, np.uint64)

    def bytes_of(cut: _Cut) -> int:
        return _BYTES_PER_KEY * int(bins[cut.file.kind, cut.bin])

    for cuts in groups_within(room_bytes, _cuts(shuffle, files, bins), bytes_of):
        _find_last_keys(shuffle, cuts, parts, workers, last_keys)
    return ShufflePlan(shuffle, files, first_files, last_keys, parts)


def _divide(num_samples: NDArray[np.int64], samples_per_file: int) -> Iterator[ShuffledFile]:
    index = 0
    for kind in (HOT_ONLY, MIXED, EVALUATION):
        for number, first in enumerate(range(0, int(num_samples[kind]), samples_per_file)):
            # Only the last file of a kind is short, so that every batch but its last is whole.
            count = min(samples_per_file, int(num_samples[kind]) - first)
            yield ShuffledFile(index, kind, number, count)
            index += 1


def _first_files(
    files: list[ShuffledFile], bins: NDArray[np.int64], samples_per_file: int
) -> NDArray[np.int64]:
    """(3, NUM_BINS): the file that the first key of each bin belongs to; all of evaluation, its first."""
    first_files = np.zeros((3, NUM_BINS), np.int64)
    for kind in (HOT_ONLY, MIXED, EVALUATION):
        indexes = [file.index for file in files if file.kind == kind]
        if indexes:
            # The first key of a bin has as many keys before it as the bins before have together.
            ranks = np.cumsum(bins[kind]) - bins[kind]
            first_files[kind] = np.minimum(indexes[0] + ranks // samples_per_file, indexes[-1])
    return first_files


@dataclass(frozen=True, slots=True)
class _Cut:
    """The beginning of a training file that is not the first of its kind."""

    file: ShuffledFile
    bin: int
    """The bin its first key is in."""
    offset: int
    """Keys of its kind and bin before it."""


def _cuts(shuffle: Shuffle, files: list[ShuffledFile], bins: NDArray[np.int64]) -> Iterator[_Cut]:
    for kind in (HOT_ONLY, MIXED):
        ends = np.cumsum(bins[kind])
        for file in files:
            if file.kind == kind and file.number > 0:
                # The rank of the file's first key, the bin with this rank, the keys before it in there.
                rank = file.number * shuffle.samples_per_file
                cut_bin = int(np.searchsorted(ends, rank, side="right"))
                yield _Cut(file, cut_bin, rank - int(ends[cut_bin] - bins[kind, cut_bin]))


def _find_last_keys(
    shuffle: Shuffle,
    cuts: list[_Cut],
    parts: list[tuple[FileEntry, int]],
    workers: int,
    last_keys: NDArray[np.uint64],
) -> None:
    """Write to ``last_keys``, (num_files,), the key before the first of each cut's file."""
    # Collect only the keys of bins where a file ends, sorted; keys beyond them are never held.
    is_marked = np.zeros((3, NUM_BINS), np.bool_)
    for cut in cuts:
        is_marked[cut.file.kind, cut.bin] = True
    keys_of_kinds = _keys_in_bins(shuffle, is_marked, parts, workers)
    for cut in cuts:
        # Keys of other marked bins are among these: start counting at the first key of this one.
        keys = keys_of_kinds[cut.file.kind]
        first_of_bin = np.searchsorted(keys, np.uint64(cut.bin) << np.uint64(64 - BIN_BITS))
        last_keys[cut.file.index - 1] = keys[first_of_bin + cut.offset] - np.uint64(1)


def _keys_in_bins(
    shuffle: Shuffle, is_marked: NDArray[np.bool_], parts: list[tuple[FileEntry, int]], workers: int
) -> list[NDArray[np.uint64]]:
    """For each kind: the keys in its marked bins, ascending."""
    collected: list[list[NDArray[np.uint64]]] = [[], [], []]
    for keys, kinds in run_tasks(shuffle.keys_and_kinds, parts, workers=workers, shares_memory=True):
        found = is_marked.take(bins_of(keys, kinds))
        # Evaluation is not shuffled: its files are cut in log order, and no key of it is needed.
        for kind in (HOT_ONLY, MIXED):
            collected[kind].append(keys[found & (kinds == kind)])
    return [np.sort(np.concatenate([np.zeros(0, np.uint64), *keys])) for keys in collected]


TAG = 0
"""Word of the tag: 1 where all lookups of the sample hit hot rows."""
LABEL = 1
"""Word of the first label, see `arrow_files`; 0 in a log without labels."""
_FIRST_DENSE = 2


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The words of a row.

    They are the tag, the label, dense values, lengths of bags, columns of samples and ids of one-hot tables.
    """

    num_dense: int
    """Dense features."""
    num_lists: int
    """Multi-hot tables, whose ids are outside the rows."""
    num_one_hot: int
    """Tables that every sample looks up once."""
    sample_columns: tuple[str, ...] = ()
    """Names of the columns of samples besides the label."""

    @property
    def dense(self) -> slice:
        """Words of the dense values, bits of float32."""
        return slice(_FIRST_DENSE, _FIRST_DENSE + self.num_dense)

    @property
    def lengths(self) -> slice:
        """Words of the lengths of bags, one for each multi-hot table."""
        return slice(self.dense.stop, self.dense.stop + self.num_lists)

    @property
    def of_samples(self) -> dict[str, slice]:
        """Words of each column of samples, by its name."""
        stops = [*itertools.accumulate(map(num_words, self.sample_columns), initial=self.lengths.stop)]
        words = [slice(*bounds) for bounds in itertools.pairwise(stops)]
        return dict(zip(self.sample_columns, words, strict=True))

    @property
    def ids(self) -> slice:
        """Words of the ids of one-hot tables."""
        first = self.lengths.stop + sum(map(num_words, self.sample_columns))
        return slice(first, first + self.num_one_hot)

    @property
    def width(self) -> int:
        """Words of a row."""
        return int(self.ids.stop)


@dataclass(frozen=True)
class PackInputs:
    """The folders `pack` reads, and what it needs of them."""

    columns: Manifest
    samples: Manifest
    plan: Manifest
    opened: OpenedParts = field(default_factory=OpenedParts)
    """Parts that were read before."""

    @property
    def log(self) -> ColumnsTotals:
        """What the columns say of the log."""
        return ColumnsTotals.of(self.columns)

    @cached_property
    def tables(self) -> tuple[PlannedTable, ...]:
        """Tables as the plan has them."""
        return PlanTotals.of(self.plan).tables

    @cached_property
    def lists(self) -> list[str]:
        """Names of multi-hot features."""
        return [feature.name for feature in multi_hot(self.tables)]

    @cached_property
    def layout(self) -> RowLayout:
        """Layout of a packed sample in its row."""
        num_one_hot = len(one_hot(self.tables))
        return RowLayout(len(self.log.dense), len(self.lists), num_one_hot, self.log.sample_columns)

    @property
    def words_per_sample(self) -> int:
        """Words of a row and, rounded up, of the bags of an average sample."""
        facts = [self.samples.facts_of(SamplesFacts, entry) for entry in self.samples.files]
        num_lookups = sum(sum(map(sum, found.lookups.values())) for found in facts)
        return self.layout.width + -(-num_lookups // max(1, self.samples.num_samples))

    def read_ids(self, name: str) -> PartIds:
        """Read the ids of one part; whether they are inside their tables is for the caller to check."""
        batch = self.opened.read(self.samples, self.samples.entry(name))
        return PartIds.read(batch, SamplesTotals.of(self.samples).tables)

    def check_parts(self) -> None:
        """Raise ManifestError where the folders are not of the same parts and tables: kernels trust that."""
        # The parts of all three folders go together by name and number of samples.
        wanted = [(entry.path, entry.num_samples) for _, entry in self.plan.parts()]
        for folder in (self.columns, self.samples):
            found = [(entry.path, entry.num_samples) for _, entry in folder.parts()]
            if found != wanted:
                raise ManifestError(
                    f"{folder.folder} and {self.plan.folder} have other parts: "
                    f"{len(found)} and {len(wanted)} files, or of other lengths",
                    hint=hint_to_verify(self.plan.folder),
                )
        # Ids of one vocabulary would point anywhere in the tables of another.
        tables = [
            [(table.name, table.num_rows, table.is_multi_hot, table.features) for table in found]
            for found in (SamplesTotals.of(self.samples).tables, self.tables)
        ]
        if tables[0] != tables[1]:
            raise ManifestError(
                f"{self.samples.folder} and {self.plan.folder} have other tables",
                hint=hint_to_verify(self.plan.folder),
            )


def starts_of(counts: Sequence[int]) -> list[int]:
    """Return where each file of a group begins in a buffer, by what each puts there."""
    return list(itertools.accumulate(counts[:-1], initial=0))


def bytes_of_file(num_samples: int, num_lookups: int, inputs: PackInputs) -> int:
    """Return the bytes of an output file in the buffers; ``num_lookups`` in multi-hot tables."""
    return num_samples * (4 * inputs.layout.width + (16 if inputs.lists else 8)) + 4 * num_lookups


def bytes_of_files(
    files: Sequence[ShuffledFile], lookups_of_files: NDArray[np.int64], inputs: PackInputs
) -> list[int]:
    """Return `bytes_of_file` of each output file; ``lookups_of_files``: (num_files,)."""
    return [bytes_of_file(file.num_samples, int(lookups_of_files[file.index]), inputs) for file in files]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackSizes:
    """The sizes that decide how `pack` reads its inputs, in bytes."""

    inputs: int
    """Files of the three folders."""
    rows: int
    """Rows of all samples in the buffers."""
    largest_part: int
    """Rows of the largest part."""
    room: int
    """Buffers that memory has room for."""
    cache: int
    """Files that memory has room for next to the buffers."""

    @property
    def num_passes(self) -> int:
        """Passes over the inputs that the room asks for, one for each group of files that it holds."""
        return -(-self.rows // max(1, self.room))

    @property
    def is_two_phases(self) -> bool:
        """Whether reading the inputs once pays for writing and reading the rows once more."""
        # Few passes, or such as read memory, are faster.
        return self.num_passes > PASSES and self.inputs > self.cache and self.can_map

    @property
    def can_map(self) -> bool:
        """Whether a run of parts, which has one at least, fits in the room."""
        return self.largest_part <= self.room


def bytes_of_parts(inputs: PackInputs) -> list[int]:
    """Return the bytes of each part's rows in the buffers, in the order of the plan."""
    return [_bytes_of_part(inputs, entry.path) for _, entry in inputs.plan.parts()]


def _bytes_of_part(inputs: PackInputs, name: str) -> int:
    entry = inputs.samples.entry(name)
    lookups = inputs.samples.facts_of(SamplesFacts, entry).lookups
    return bytes_of_file(entry.num_samples, sum(map(sum, lookups.values())), inputs)


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
        """Return the positions of some rows in the order of their keys, which are distinct."""
        return order_of_keys(self.keys[rows])

    @classmethod
    def of_group(
        cls,
        group: list[ShuffledFile],
        lookups_of_files: NDArray[np.int64],
        inputs: PackInputs,
        memory: NDArray[np.uint8],
    ) -> Buffers:
        """Lay out the buffers of whole files, see `of_files`."""
        rows_of_files = np.full(lookups_of_files.shape, -1, np.int64)
        rows_of_files[[file.index for file in group]] = [file.num_samples for file in group]
        return cls.of_files(rows_of_files, lookups_of_files, inputs, memory)

    @classmethod
    def of_files(
        cls,
        rows_of_files: NDArray[np.int64],
        lookups_of_files: NDArray[np.int64],
        inputs: PackInputs,
        memory: NDArray[np.uint8],
    ) -> Buffers:
        """Lay out buffers in ``memory``, which the next ones overwrite.

        Args:
            rows_of_files: (num_files,), rows that each file gets; -1 for a file of another group.
            lookups_of_files: (num_files,), ids of multi-hot tables that each file gets.
            inputs: the layout of a row.
            memory: ``bytes_of_file`` of the rows and ids of each file together, or more.
        """
        is_held = rows_of_files >= 0
        held_rows = np.where(is_held, rows_of_files, 0)
        held_lookups = np.where(is_held, lookups_of_files, 0)
        num_rows = int(held_rows.sum())
        num_starts = num_rows if inputs.lists else 0
        num_lookups = int(held_lookups.sum())
        # Words of 64 bits are first, so that all numbers are aligned.
        width = inputs.layout.width
        ends = np.cumsum([0, 8 * num_rows, 8 * num_starts, 4 * width * num_rows, 4 * num_lookups])
        keys, bag_starts, rows, bags = (memory[start:stop] for start, stop in itertools.pairwise(ends))
        # Files are contiguous in the buffers, so a file's next free row starts at the sum of those
        # before.
        next_row = np.where(is_held, np.cumsum(held_rows) - held_rows, -1)
        next_lookup = np.where(is_held, np.cumsum(held_lookups) - held_lookups, -1)
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

        The lock is held for the copy and the sums only; parts then fill their rows in parallel.
        """
        with self.lock:
            first_rows = self.next_row.copy()
            first_lookups = self.next_lookup.copy()
            is_here = first_rows >= 0
            self.next_row[is_here] += counts[is_here]
            self.next_lookup[is_here] += lookups[is_here]
        return first_rows, first_lookups


Group = tuple[list[ShuffledFile], Buffers, bool]
"""Files, their rows, which are valid until the next group is asked for, and whether it is the last one."""


def count_list_lookups(shuffled: ShufflePlan, inputs: PackInputs, workers: int) -> NDArray[np.int64]:
    """Count the lookups in multi-hot tables of the samples of each output file: (num_files,)."""
    # Bags differ in length, so buffers can be sized only after all lengths were added up once.
    parts = shuffled.parts if inputs.lists else []
    _, lookups = count_rows(parts, shuffled, inputs, workers)
    return lookups


def count_rows(
    parts: Sequence[tuple[FileEntry, int]], shuffled: ShufflePlan, inputs: PackInputs, workers: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the samples of some parts by output file, and their lookups in multi-hot tables: (num_files,)."""
    total = np.zeros((2, len(shuffled.files)), np.int64)
    ranges = shuffled.key_ranges(shuffled.files)
    tasks = ((entry, first, shuffled, inputs, ranges) for entry, first in parts)
    for counts in run_tasks(_count_part, tasks, workers=workers, shares_memory=True):
        total += counts
    return total[0], total[1]


def _count_part(
    entry: FileEntry, first_sample: int, shuffled: ShufflePlan, inputs: PackInputs, ranges: KeyRanges
) -> NDArray[np.int64]:
    chosen = shuffled.choose(entry, first_sample, ranges)
    lookups = np.zeros_like(chosen.counts)
    if inputs.lists:
        lookups = _bag_lengths(inputs.read_ids(entry.path), chosen)[1]
    return np.stack([chosen.counts, lookups])


def _bag_lengths(ids: PartIds, chosen: ChosenSamples) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the length of each chosen sample's bags, (num_tables, num_chosen), and their sum by file."""
    lengths = thread_buffer("lengths", (len(ids.lists), chosen.positions.shape[0]), np.int32)
    lookups = np.zeros(chosen.counts.shape, np.int64)
    for of_table, (offsets, _) in zip(lengths, ids.lists.values(), strict=True):
        of_table[:] = np.diff(offsets)[chosen.positions]
        lookups += np.bincount(chosen.files, of_table, lookups.size).astype(np.int64)
    return lengths, lookups


def scatter_samples(
    group: list[ShuffledFile],
    shuffled: ShufflePlan,
    lookups_of_files: NDArray[np.int64],
    inputs: PackInputs,
    memory: NDArray[np.uint8],
    workers: int,
) -> Buffers:
    """Collect the rows of a group of files in ``memory``, in the layout of `Buffers.of_group`."""
    buffers = Buffers.of_group(group, lookups_of_files, inputs, memory)
    scatter_parts(shuffled.parts, shuffled.key_ranges(group), shuffled, inputs, buffers, workers)
    return buffers


def scatter_parts(
    parts: Sequence[tuple[FileEntry, int]],
    ranges: KeyRanges,
    shuffled: ShufflePlan,
    inputs: PackInputs,
    buffers: Buffers,
    workers: int,
) -> None:
    """Copy the samples of some parts into buffers, as far as their files are held and keys in ``ranges``."""
    # Parts are threads' tasks: all write to the same buffers, each into rows that it reserved.
    tasks = ((entry, first, shuffled, inputs, ranges, buffers) for entry, first in parts)
    for _ in run_tasks(_scatter_part, tasks, workers=workers, shares_memory=True):
        pass


def _scatter_part(
    entry: FileEntry,
    first_sample: int,
    shuffled: ShufflePlan,
    inputs: PackInputs,
    ranges: KeyRanges,
    buffers: Buffers,
) -> None:
    """Copy one part's samples into the buffers, without those of other groups."""
    # In one of many passes few samples are wanted: only these are read, checked and transformed. A resumed
    # run may have files between those of the group that are finished.
    chosen = shuffled.choose(entry, first_sample, ranges).within(buffers.next_row >= 0)
    if not chosen.counts.any():
        return
    # Reserve before anything is filled: from here on the part owns its rows and needs no lock.
    columns = inputs.opened.read(inputs.columns, inputs.columns.entry(entry.path))
    ids = inputs.read_ids(entry.path)
    lengths, lookups = _bag_lengths(ids, chosen)
    next_row, next_lookup = buffers.reserve(chosen.counts, lookups)
    # Everything but the ids, column by column: the kernel turns columns into rows as it scatters them.
    layout = inputs.layout
    positions = chosen.positions
    values = thread_buffer("columns", (layout.ids.start, positions.shape[0]), np.int32)
    as_floats = values.view(np.float32)
    is_hot = values_of(inputs.opened.read(inputs.plan, entry).column("is_hot"), np.uint8)
    values[TAG] = is_hot[positions]
    values[LABEL] = 0
    # Columns of samples; the label has its place whatever the log has.
    words_of = {**({"label": slice(LABEL, LABEL + 1)} if inputs.log.has_label else {}), **layout.of_samples}
    for name, words in words_of.items():
        write_words(name, columns.column(name), positions, values[words])
    transform_columns(inputs.log, columns, positions, as_floats[layout.dense])
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
    ids.check_ids(inputs.samples.folder / entry.path, largest)


def _scatter_bags(
    ids: PartIds,
    chosen: ChosenSamples,
    next_row: NDArray[np.int64],
    next_lookup: NDArray[np.int64],
    lengths: NDArray[np.int32],
    buffers: Buffers,
) -> None:
    """Copy the bags of one part's samples into the buffers; ``lengths`` as of `_bag_lengths`."""
    # The bags of a sample are contiguous, ordered by table.
    next_in_bags = thread_buffer("places", chosen.files.shape, np.int64)
    place_bags(lengths, chosen.files, next_row, next_lookup, next_in_bags, buffers.bag_starts)
    for (offsets, flat), of_table in zip(ids.lists.values(), lengths, strict=True):
        copy_bags(flat, offsets[chosen.positions], of_table, buffers.bags, next_in_bags)
        next_in_bags += of_table
