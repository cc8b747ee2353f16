"""A trace of the shuffled training order, drawn from the whole log: the input of simulations of training.

The shuffled order is that of a hash of (seed, sample number), so its first samples are those with the lowest
keys: one pass over samples/ finds them, and no shards are needed. Memory grows with the trace.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...stats.shuffle import keys_and_kinds
from ..folders.manifest import FileEntry, Manifest
from ..folders.stage_totals import SamplesTotals
from ..formats.lookups import ONE_EACH, read_lookups
from ..runtime.resources import DEFAULT_RESOURCES, Resources
from ..runtime.tasks import run_tasks

MAX_LOOKUPS = 1 << 23
"""Most lookups of a trace: 64 MiB of row numbers, and as much again while they are put in order."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Lookups of consecutive samples in the order of training."""

    rows: NDArray[np.int64]
    """(num_lookups,), rows of all tables numbered through."""
    offsets: NDArray[np.int64]
    """(num_samples + 1,), where the lookups of each sample begin."""

    @property
    def num_samples(self) -> int:
        """Samples drawn."""
        return int(self.offsets.shape[0]) - 1

    def batch_starts(self, batch_size: int) -> NDArray[np.int64]:
        """(num_batches + 1,), where the lookups of each whole batch begin in ``rows``."""
        return self.offsets[:: max(1, batch_size)]


def draw_trace(
    samples: Manifest,
    num_train: int,
    num_wanted: int,
    resources: Resources = DEFAULT_RESOURCES,
    *,
    seed: int = 0,
) -> Trace:
    """Draw about the first ``num_wanted`` samples of the training part in the order of ``pack --seed``.

    Args:
        samples: written by `encode`.
        num_train: training samples; they come first in the log.
        num_wanted: fewer are drawn where the training part, or what a trace may hold, is smaller.
        seed: of the shuffle.
    """
    num_lookups = max(1, len(SamplesTotals.of(samples).tables))
    # Keys are uniform, so a share of the key range takes about that share of the samples.
    wanted = min(num_wanted, num_train, MAX_LOOKUPS // num_lookups)
    largest = largest_key(wanted / max(1, num_train))
    # Only files with training samples are read, the last of them up to where training ends.
    tasks = [
        (samples, entry, first, min(num_train - first, entry.num_samples), seed, largest)
        for first, entry in samples.parts()
        if first < num_train
    ]
    parts = []
    done = 0
    with closing(run_tasks(_draw_part, tasks, workers=resources.workers)) as drawn:
        for (*_, num_read, _, _), part in zip(tasks, drawn, strict=True):
            parts.append(part)
            done += num_read
            resources.progress("trace", done, num_train)
    keys, rows, lengths = (np.concatenate(found) for found in zip(_NOTHING, *parts, strict=True))
    # Samples in the order of their keys: take the lookups of each from where its file put them.
    order = np.argsort(keys, kind="stable")
    starts = np.cumsum(lengths) - lengths
    offsets = np.concatenate([[0], np.cumsum(lengths[order])])
    take = np.repeat(starts[order] - offsets[:-1], lengths[order]) + np.arange(offsets[-1])
    return Trace(rows[take], offsets)


def largest_key(share: float) -> np.uint64:
    """Return the key up to which keys of the shuffle belong to about ``share`` of the samples, in [0, 1]."""
    return np.uint64(2**64 - 1) if share >= 1 else np.uint64(int(share * 2**64))


def choose_samples(
    first: int, stop: int, seed: int, largest: np.uint64
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return which of the ``stop`` samples from number ``first`` on have no higher key, and their keys."""
    keys = np.empty(stop, np.uint64)
    kinds = np.empty(stop, np.uint8)
    keys_and_kinds(seed, first, first + stop, np.zeros(stop, np.uint8), False, keys, kinds)
    chosen = np.flatnonzero(keys <= largest)
    return chosen, keys[chosen]


_Part = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]
_NOTHING: _Part = (np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))


def _draw_part(
    samples: Manifest, entry: FileEntry, first: int, stop: int, seed: int, largest: np.uint64
) -> _Part:
    """Return keys, rows and numbers of lookups of the samples of one file with a key up to ``largest``."""
    chosen, keys = choose_samples(first, stop, seed, largest)
    tables = read_lookups(samples, entry, 0, stop)
    first_row_T = np.cumsum([0, *(table.num_rows for table in SamplesTotals.of(samples).tables)])
    # One lookup per table and sample: a matrix of rows, without a loop over samples.
    if all(table.offsets is ONE_EACH for table in tables):
        rows = np.stack([table.ids[chosen] for table in tables], axis=1) + first_row_T[:-1]
        return keys, rows.reshape(-1), np.full(chosen.shape[0], len(tables), np.int64)
    # With lists there are few enough samples for a loop: a trace is bounded by its lookups.
    bags = [
        [
            table.of_samples(sample, sample + 1).ids + base
            for table, base in zip(tables, first_row_T, strict=False)
        ]
        for sample in chosen.tolist()
    ]
    lengths = np.array([sum(map(len, bag)) for bag in bags], np.int64)
    return keys, np.concatenate([_NOTHING[1], *(ids for bag in bags for ids in bag)]), lengths
