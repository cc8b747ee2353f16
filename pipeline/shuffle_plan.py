"""Which output file each sample goes to, found in passes over tags and hashed keys.

The first pass counts keys by their top bits; the second collects only the keys of the bins where one
file ends and the next begins, which gives the exact first key of every file; the third counts what each
part sends to each file. Memory is a few MiB, whatever the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..stats.shuffle import (
    BIN_BITS,
    EVALUATION,
    HOT_ONLY,
    MIXED,
    NUM_BINS,
    count_bins,
    files_of_keys,
    find_in_bins,
    keys_and_kinds,
)
from .arrow_files import read_batch, values_of
from .encode import iterate_parts
from .manifest import FileEntry, Manifest
from .tasks import run_tasks

_LARGEST = np.uint64(2**64 - 1)
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
    """What the order of samples depends on."""

    plan: Manifest
    """Tags of all samples, in log order."""
    seed: int
    is_grouped: bool
    """Hot-only and mixed samples apart; else all training samples count as mixed."""
    samples_per_file: int
    """A multiple of the batch size; the last file of each kind may be shorter."""

    def keys_and_kinds(self, entry: FileEntry, first_sample: int) -> _Keys:
        """Key and kind of each sample of one file of tags."""
        is_hot = values_of(read_batch(self.plan, entry).column("is_hot"), np.uint8)
        keys, kinds = np.empty(is_hot.shape[0], np.uint64), np.empty(is_hot.shape[0], np.uint8)
        num_train = self.plan.totals["num_train_samples"]
        keys_and_kinds(self.seed, first_sample, num_train, is_hot, self.is_grouped, keys, kinds)
        return keys, kinds


@dataclass(frozen=True, slots=True)
class Part:
    """One input file's samples, and where they go."""

    entry: FileEntry
    """Of the tags; columns and samples have files of the same name."""
    first_sample: int
    counts: NDArray[np.int64]
    """(num_files,), this part's samples of each output file."""
    rows_before: NDArray[np.int64]
    """(num_files,), samples of earlier parts in each output file."""


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """Output files, the keys at which they begin, and what each part sends to each."""

    shuffle: Shuffle
    files: list[ShuffledFile]
    first_file_of_bin: NDArray[np.int64]
    """(3, NUM_BINS)."""
    last_keys: NDArray[np.uint64]
    """(num_files,), the largest key that belongs to each file."""
    parts: list[Part]

    def keys_and_files(
        self, entry: FileEntry, first_sample: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Of each sample of a part: its key and the index of its output file."""
        keys, files, _ = self._files(entry, first_sample)
        return keys, files

    def count_files(self, entry: FileEntry, first_sample: int) -> NDArray[np.int64]:
        """(num_files,): how many samples of a part go to each output file."""
        return self._files(entry, first_sample)[2]

    def _files(
        self, entry: FileEntry, first_sample: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
        keys, kinds = self.shuffle.keys_and_kinds(entry, first_sample)
        files, counts = np.empty(keys.shape[0], np.int64), np.zeros(len(self.files), np.int64)
        per_file = self.shuffle.samples_per_file
        files_of_keys(keys, kinds, self.first_file_of_bin, self.last_keys, per_file, files, counts)
        return keys, files, counts


def plan_shuffle(shuffle: Shuffle, *, workers: int = 0) -> ShufflePlan:
    """Divide all samples among output files; exact, and the same for any number of workers."""
    parts = [(entry, first) for first, entry in iterate_parts(shuffle.plan)]
    bins = np.zeros((3, NUM_BINS), np.int64)
    for keys, kinds in run_tasks(shuffle.keys_and_kinds, parts, workers=workers):
        count_bins(keys, kinds, bins)
    files = list(_divide(bins.sum(axis=1), shuffle.samples_per_file))
    first_files = _first_files(files, bins, shuffle.samples_per_file)
    last_keys = _last_keys(shuffle, files, bins, parts, workers)
    draft = ShufflePlan(shuffle, files, first_files, last_keys, [])
    before = np.zeros(len(files), np.int64)
    tasks = run_tasks(draft.count_files, parts, workers=workers)
    for (entry, first), counts in zip(parts, tasks, strict=True):
        draft.parts.append(Part(entry, first, counts, before))
        before = before + counts
    return draft


def _divide(num_samples: NDArray[np.int64], samples_per_file: int) -> Iterator[ShuffledFile]:
    index = 0
    for kind in (HOT_ONLY, MIXED, EVALUATION):
        for number, first in enumerate(range(0, int(num_samples[kind]), samples_per_file)):
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
            ranks = np.cumsum(bins[kind]) - bins[kind]
            first_files[kind] = np.minimum(indexes[0] + ranks // samples_per_file, indexes[-1])
    return first_files


def _last_keys(
    shuffle: Shuffle,
    files: list[ShuffledFile],
    bins: NDArray[np.int64],
    parts: list[tuple[FileEntry, int]],
    workers: int,
) -> NDArray[np.uint64]:
    """(num_files,): the key before the first of the next file of its kind, which is found exactly."""
    last_keys = np.full(len(files), _LARGEST, np.uint64)
    cuts = [file for file in files if file.number > 0 and file.kind != EVALUATION]
    is_marked, bin_and_offset = np.zeros((3, NUM_BINS), np.bool_), {}
    for file in cuts:
        ends = np.cumsum(bins[file.kind])
        rank = file.number * shuffle.samples_per_file
        cut_bin = int(np.searchsorted(ends, rank, side="right"))
        is_marked[file.kind, cut_bin] = True
        bin_and_offset[file.index] = cut_bin, rank - int(ends[cut_bin] - bins[file.kind, cut_bin])
    if cuts:
        keys_of_kinds = _keys_in_bins(shuffle, is_marked, parts, workers)
    for file in cuts:
        cut_bin, offset = bin_and_offset[file.index]
        keys = keys_of_kinds[file.kind]
        first_of_bin = np.searchsorted(keys, np.uint64(cut_bin) << np.uint64(64 - BIN_BITS))
        last_keys[file.index - 1] = keys[first_of_bin + offset] - np.uint64(1)
    return last_keys


def _keys_in_bins(
    shuffle: Shuffle, is_marked: NDArray[np.bool_], parts: list[tuple[FileEntry, int]], workers: int
) -> list[NDArray[np.uint64]]:
    """For each kind: the keys in its marked bins, ascending."""
    collected: list[list[NDArray[np.uint64]]] = [[], [], []]
    for keys, kinds in run_tasks(shuffle.keys_and_kinds, parts, workers=workers):
        found = np.empty(keys.shape[0], np.bool_)
        find_in_bins(keys, kinds, is_marked, found)
        for kind in (HOT_ONLY, MIXED):
            collected[kind].append(keys[found & (kinds == kind)])
    return [np.sort(np.concatenate([np.zeros(0, np.uint64), *keys])) for keys in collected]
