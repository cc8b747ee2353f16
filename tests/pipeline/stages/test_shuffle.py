"""The parts of a packed row follow one another and leave no word out.

Parts reserve rows of a file that no other part gets, whatever the order they come in.

Which file each sample goes to, against a sort of all keys.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from hotset.pipeline.folders.manifest import FileEntry, Manifest
from hotset.pipeline.folders.output import Output
from hotset.pipeline.folders.totals import PlanTotals, TaggedSamples
from hotset.pipeline.formats.arrow_files import write_batch
from hotset.pipeline.stages.shuffle import (
    LABEL,
    TAG,
    Buffers,
    RowLayout,
    Shuffle,
    ShufflePlan,
    plan_shuffle,
    starts_of,
)
from hotset.stats.shuffle import EVALUATION, HOT_ONLY, MIXED, keys_and_kinds
from hotset.tests.support.naive.naive_stages import shuffled


@pytest.mark.parametrize("counts", [(13, 0, 26), (0, 2, 0), (3, 1, 4), (0, 0, 0)])
def test_the_parts_of_a_row_follow_one_another(counts: tuple[int, int, int]) -> None:
    layout = RowLayout(*counts)
    words = list(range(layout.width))
    parts = [words[part] for part in (layout.dense, layout.lengths, layout.ids)]
    assert [TAG, LABEL, *parts[0], *parts[1], *parts[2]] == words
    assert tuple(len(part) for part in parts) == counts


@pytest.mark.parametrize(("counts", "starts"), [([5], [0]), ([2, 0, 3], [0, 2, 2]), ([0, 4], [0, 0])])
def test_files_of_a_group_lie_one_behind_the_other(counts: list[int], starts: list[int]) -> None:
    assert starts_of(counts) == starts


def test_reserved_rows_never_overlap_and_fill_each_file(rng: np.random.Generator) -> None:
    # Three files in the group, of which the second holds nothing, and one of another group.
    wanted = rng.integers(0, 5, (40, 4))
    wanted[:, 1] = 0
    totals = wanted.sum(axis=0)
    firsts = np.array([0, totals[0], -1, totals[0]])
    nothing = np.empty(0, np.int32)
    buffers = Buffers(
        rows=nothing.reshape(0, 1),
        keys=np.empty(0, np.uint64),
        bag_starts=np.empty(0, np.int64),
        bags=nothing,
        next_row=firsts.copy(),
        next_lookup=2 * firsts,
        lock=Lock(),
    )
    with ThreadPoolExecutor(4) as pool:
        reserved = list(pool.map(lambda counts: buffers.reserve(counts, 2 * counts), wanted))
    taken = sorted(
        row
        for (rows, _), counts in zip(reserved, wanted, strict=True)
        for file in (0, 1, 3)
        for row in range(rows[file], rows[file] + counts[file])
    )
    assert taken == list(range(totals[0] + totals[3]))
    assert all((lookups[[0, 1, 3]] == 2 * rows[[0, 1, 3]]).all() for rows, lookups in reserved)
    assert all(rows[2] == -1 for rows, _ in reserved) and buffers.next_row[2] == -1


SEED = 3


@dataclass(frozen=True)
class NoConfig:
    """The tags are given, not computed."""


def plan_of(folder: Path, is_hot: NDArray[np.uint8], num_train: int, num_parts: int) -> Manifest:
    """A folder of tags in parts of unequal length, some of them empty."""
    output = Output.begin("split", 1, NoConfig(), [], folder)
    cuts = np.sort(np.random.default_rng(num_parts).integers(0, len(is_hot) + 1, num_parts - 1))
    for number, part in enumerate(np.split(is_hot, cuts)):
        with output.writing(f"part{number:03}.arrow", len(part)) as path:
            write_batch(path, {"is_hot": pa.array(part)})
    tags = TaggedSamples(hot=0, mixed=0, evaluation=0, evaluation_hot=0)
    totals = PlanTotals(
        tables=(), row_bytes=4, num_rows=0, num_hot_rows=0, num_train_samples=num_train, samples=tags
    )
    return output.seal(totals)


def naive_files(
    is_hot: NDArray[np.uint8], num_train: int, is_grouped: bool, samples_per_file: int
) -> list[tuple[int, int, list[int]]]:
    """Kind, number and sample numbers in order of each output file."""
    kinds = [HOT_ONLY if is_grouped and hot else MIXED for hot in is_hot[:num_train]]
    files = []
    for kind in (HOT_ONLY, MIXED, EVALUATION):
        numbers = [i for i in range(num_train) if kinds[i] == kind]
        order = list(range(num_train, len(is_hot))) if kind == EVALUATION else shuffled(numbers, SEED)
        for number, first in enumerate(range(0, len(order), samples_per_file)):
            files.append((kind, number, order[first : first + samples_per_file]))
    return files


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("is_grouped", [True, False])
@pytest.mark.parametrize(
    ("num_samples", "num_train", "num_parts", "samples_per_file"),
    [
        (0, 0, 1, 4),
        (1, 1, 1, 4),
        (9, 9, 3, 4),
        (9, 0, 3, 4),
        (500, 400, 7, 1),
        (500, 400, 7, 50),
        (500, 401, 40, 64),
        (500, 400, 3, 10_000),
    ],
)
def test_every_sample_goes_where_a_sort_puts_it(
    tmp_path: Path,
    num_samples: int,
    num_train: int,
    num_parts: int,
    samples_per_file: int,
    is_grouped: bool,
    workers: int,
    rng: np.random.Generator,
) -> None:
    is_hot = (rng.random(num_samples) < 0.6).astype(np.uint8)
    plan = plan_of(tmp_path, is_hot, num_train, num_parts)
    found = plan_shuffle(Shuffle(plan, SEED, is_grouped, samples_per_file), workers=workers)
    narrow = plan_shuffle(found.shuffle, workers=workers, room_bytes=50)
    np.testing.assert_array_equal(narrow.last_keys, found.last_keys)
    wanted = naive_files(is_hot, num_train, is_grouped, samples_per_file)
    assert [(f.index, f.kind, f.number, f.num_samples) for f in found.files] == [
        (index, kind, number, len(order)) for index, (kind, number, order) in enumerate(wanted)
    ]
    members: list[list[int]] = [[] for _ in wanted]
    for entry, first_sample in found.parts:
        every = found.choose(entry, first_sample, found.key_ranges(found.files))
        files = every.files.copy()
        assert every.positions.tolist() == list(range(entry.num_samples))
        for sample, file in enumerate(files.tolist(), first_sample):
            members[file].append(sample)
        np.testing.assert_array_equal(every.counts, np.bincount(files, minlength=len(members)))
        _check_groups(found, entry, first_sample, files)
    assert members == [sorted(order) for _, _, order in wanted]


def _check_groups(found: ShufflePlan, entry: FileEntry, first_sample: int, files: NDArray[np.int64]) -> None:
    """Hold the samples chosen for some files against those of all files; ``files``: (num_samples,)."""
    keys, _ = found.shuffle.keys_and_kinds(entry, first_sample)
    # The first two files, the last two, every third one, and none.
    for group in (found.files[:2], found.files[-2:], found.files[::3], []):
        is_wanted = np.zeros(len(found.files), np.bool_)
        is_wanted[[file.index for file in group]] = True
        wanted = np.flatnonzero(is_wanted[files])
        chosen = found.choose(entry, first_sample, found.key_ranges(group)).within(is_wanted)
        assert chosen.positions.tolist() == wanted.tolist()
        np.testing.assert_array_equal(chosen.keys, keys[wanted])
        np.testing.assert_array_equal(chosen.files, files[wanted])
        np.testing.assert_array_equal(chosen.counts, np.bincount(files[wanted], minlength=len(found.files)))


def test_files_that_end_in_one_bin_are_cut_at_the_exact_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Keys in few bins: every file begins in the middle of one, and several files in the same."""

    def crowded(
        seed: int,
        first_sample: int,
        num_train: int,
        is_hot: NDArray[np.uint8],
        is_grouped: bool,
        keys: NDArray[np.uint64],
        kinds: NDArray[np.uint8],
    ) -> None:
        keys_and_kinds(seed, first_sample, num_train, is_hot, is_grouped, keys, kinds)
        keys[kinds != EVALUATION] >>= np.uint64(14)  # the order stays

    monkeypatch.setattr("hotset.pipeline.stages.shuffle.keys_and_kinds", crowded)
    is_hot = (rng.random(300) < 0.6).astype(np.uint8)
    plan = plan_of(tmp_path, is_hot, 250, 4)
    found = plan_shuffle(Shuffle(plan, SEED, True, 9), workers=1)
    members: list[list[int]] = [[] for _ in found.files]
    for entry, first_sample in found.parts:
        chosen = found.choose(entry, first_sample, found.key_ranges(found.files))
        for sample, file in enumerate(chosen.files.tolist(), first_sample):
            members[file].append(sample)
    assert members == [sorted(order) for _, _, order in naive_files(is_hot, 250, True, 9)]
