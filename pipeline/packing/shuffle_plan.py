"""Which output file each sample goes to, found in passes over tags and hashed keys.

The first pass counts keys by their top bits; the second collects only the keys of the bins where one
file ends and the next begins, which gives the exact first key of every file. Memory is a few MiB; where
bins and files are so many that their keys take more, the second pass is repeated for some files at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...stats.shuffle import (
    BIN_BITS,
    EVALUATION,
    HOT_ONLY,
    MIXED,
    NUM_BINS,
    choose_keys,
    count_bins,
    files_of_keys,
    find_in_bins,
    keys_and_kinds,
)
from ..errors import ManifestError
from ..folders.manifest import FileEntry, Manifest
from ..folders.stage_totals import PlanTotals
from ..formats.arrow_files import values_of
from ..formats.opened_parts import OpenedParts
from ..runtime.memory import groups_within
from ..runtime.tasks import run_tasks
from ..runtime.thread_buffers import thread_buffer
from ..sizes import MIB
from ..stage_commands import hint_to_rewrite

_LARGEST = np.uint64(2**64 - 1)
_ROOM_BYTES = 64 * MIB
_BYTES_PER_KEY = 24
"""Bytes of a key that is collected: itself in pieces, joined, and sorted."""
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

    def parts_for(self, kinds: set[int]) -> list[tuple[FileEntry, int]]:
        """Parts that may hold samples of the kinds given."""
        num_train = PlanTotals.of(self.shuffle.plan).num_train_samples
        return [
            (entry, first)
            for entry, first in self.parts
            if (first < num_train and kinds != {EVALUATION})
            or (first + entry.num_samples > num_train and EVALUATION in kinds)
        ]


def plan_shuffle(shuffle: Shuffle, *, workers: int = 0, room_bytes: int = _ROOM_BYTES) -> ShufflePlan:
    """Divide all samples among output files; exact, and the same for any number of workers."""
    parts = [(entry, first) for first, entry in shuffle.plan.parts()]
    # First pass: how many keys of each kind have the same top bits.
    bins = np.zeros((3, NUM_BINS), np.int64)
    for keys, kinds in run_tasks(shuffle.keys_and_kinds, parts, workers=workers, shares_memory=True):
        count_bins(keys, kinds, bins)
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
    """Where a training file begins that is not the first of its kind."""

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
        found = np.empty(keys.shape[0], np.bool_)
        find_in_bins(keys, kinds, is_marked, found)
        # Evaluation is not shuffled: its files are cut in log order, and no key of it is needed.
        for kind in (HOT_ONLY, MIXED):
            collected[kind].append(keys[found & (kinds == kind)])
    return [np.sort(np.concatenate([np.zeros(0, np.uint64), *keys])) for keys in collected]
