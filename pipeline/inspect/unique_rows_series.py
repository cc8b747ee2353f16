"""Different rows of a batch, predicted from counts and measured in the log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from ...stats.traffic import AccessRates, EpochUses, mean_unique_rows
from ..folders.manifest import FileEntry, Manifest
from ..folders.stage_totals import VocabularyTotals
from ..formats.arrow_files import fixed_lists, read_batch
from ..ranking.vocabulary_files import read_tables

_MAX_FILES = 16


BatchFigure = Literal["num_lookups", "expected", "measured"]
"""Figures of a `UniqueRowsRow`."""


class UniqueRowsRow(TypedDict):
    """Distinct rows of a batch of one size."""

    batch_size: int
    expected: float
    measured: float
    num_lookups: int


def unique_rows_by_batch_size(folder: Path, batch_sizes: Sequence[int]) -> list[UniqueRowsRow]:
    """Expected and measured different rows of a batch of each size, all one-hot tables together.

    Measured over consecutive training samples in log order, in at most 16 files spread over the log; a size
    that no file holds is left out.

    Returns:
        ``batch_size``, ``expected``, ``measured``, ``num_lookups`` of each.

    Raises:
        ManifestError: the folder has not been preprocessed as far as its samples.
    """
    vocabulary, samples = (Manifest.read(folder / name) for name in ("vocabulary", "samples"))
    totals = VocabularyTotals.of(vocabulary)
    num_train = totals.num_train_samples
    # Lists are left out: the prediction knows tables with one lookup per sample only.
    is_one_hot = [not table.is_multi_hot for table in totals.tables]
    counts = [count for count, keep in zip(read_tables(vocabulary, "count"), is_one_hot, strict=True) if keep]
    rates = AccessRates.of_counts(counts, num_train)
    bases = np.cumsum([0, *(count.shape[0] for count in counts)])[:-1]
    parts = [(first, entry) for first, entry in samples.parts() if first < num_train]
    # Spread over the log instead of the first files: what is looked up changes from day to day.
    chosen = parts[:: -(-len(parts) // _MAX_FILES)]
    found: list[UniqueRowsRow] = []
    for size in batch_sizes:
        measured = [_measure(samples, entry, num_train - first, bases, size) for first, entry in chosen]
        of_files = [one for one in measured if one is not None]
        if of_files:
            expected = EpochUses.of_rates(rates, num_train, size).rows_per_batch
            mean = float(np.mean(of_files))
            lookups = size * len(counts)
            found.append({"batch_size": size, "expected": expected, "measured": mean, "num_lookups": lookups})
    return found


def _measure(
    samples: Manifest, entry: FileEntry, num_train: int, bases: NDArray[np.int64], batch_size: int
) -> float | None:
    num_samples = min(entry.num_samples, num_train)
    if num_samples < batch_size:
        return None
    ids = fixed_lists(read_batch(samples, entry).column("ids"), bases.shape[0], np.int32)[:num_samples]
    return mean_unique_rows((ids + bases).ravel(), batch_size * bases.shape[0])
