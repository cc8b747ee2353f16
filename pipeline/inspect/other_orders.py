"""Hot rows under orders that the folder's ids do not follow: by frequency, by peeling, by FAE's sample.

Ids are ranks in one order; another is had without encoding again, as the level (the first budget that makes
a row hot) of every row. Peeling holds the log's cold lookups in memory, so it is left out, and said to be,
where the log is long or what it reads is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...stats.drift import count_rows
from ...stats.ranking.ranking import levels_by_count
from ..errors import ConfigError
from ..folders.discard import is_discarded
from ..folders.manifest import FileEntry, Manifest
from ..folders.stage_totals import SamplesTotals, VocabularyTotals
from ..formats.lookups import ONE_EACH, read_lookups
from ..hot_rows.hot_curve import Levels
from ..ranking.peel_order import peel_order
from ..runtime.resources import DEFAULT_RESOURCES, Resources, silent
from ..runtime.tasks import run_tasks
from ..schema.feature_settings import FeatureSettings
from ..stages.rank import PEEL_FLOOR, RankConfig, counted_samples, rank_tables
from .training_trace import choose_samples, largest_key

FAE_SHARE = 0.05
"""Share of the log that FAE counts."""
MAX_PEELED_SAMPLES = 5_000_000
"""Peeling takes about 1.5 s CPU and 250 MB for a million samples of Criteo's."""


def sampled_levels(
    samples: Manifest,
    row_bytes: Sequence[int],
    budgets: Sequence[int],
    num_train: int,
    *,
    share: float = FAE_SHARE,
    seed: int = 0,
    workers: int = 0,
) -> Levels:
    """Levels where the counts of a sample of the training part decide, as in FAE's released code."""
    num_rows = [table.num_rows for table in SamplesTotals.of(samples).tables]
    first_row_T = np.cumsum([0, *num_rows])
    counts_R = np.zeros(int(first_row_T[-1]), np.int32)
    # Only training samples are drawn from, as FAE does.
    tasks = (
        (samples, entry, first, min(num_train - first, entry.num_samples), seed, largest_key(share))
        for first, entry in samples.parts()
        if first < num_train
    )
    for drawn in run_tasks(_draw_ids, tasks, workers=workers):
        for ids, first in zip(drawn, first_row_T, strict=False):
            count_rows(ids, counts_R[first:])
    return _levels(counts_R, row_bytes, num_rows, budgets, seed)


def counted_levels(
    counts: Sequence[NDArray[np.int64]], row_bytes: Sequence[int], budgets: Sequence[int]
) -> Levels:
    """Levels where exact counts decide, for a folder whose ids are in another order."""
    # The kernel counts in 32 bits; beyond that rows tie, which only the very first could.
    counts_R = np.concatenate([np.minimum(count, 2**31 - 1).astype(np.int32) for count in counts])
    return _levels(counts_R, row_bytes, [count.shape[0] for count in counts], budgets, 0)


def _levels(
    counts_R: NDArray[np.int32],
    row_bytes: Sequence[int],
    num_rows: Sequence[int],
    budgets: Sequence[int],
    seed: int,
) -> Levels:
    first_row_T = np.cumsum([0, *num_rows], dtype=np.int64)
    widths = np.array(row_bytes, np.int64)
    sizes = np.array(budgets, np.int64)
    return np.split(levels_by_count(counts_R, first_row_T, widths, sizes, seed), first_row_T[1:-1])


def peeled_levels(
    folder: Path,
    vocabulary: Manifest,
    row_bytes: Sequence[int],
    budgets: Sequence[int],
    resources: Resources = DEFAULT_RESOURCES,
) -> Levels | str:
    """Levels by peeling, for a folder ranked by frequency; or why there are none."""
    num_train = VocabularyTotals.of(vocabulary).num_train_samples
    # Reasons not to peel are told in the report instead of the curve.
    if num_train > MAX_PEELED_SAMPLES:
        return f"the log has {num_train:,} training samples, peeling is shown up to {MAX_PEELED_SAMPLES:,}"
    if not num_train:
        return "no sample of the log trains"
    if is_discarded(folder / "columns"):
        return "the columns were discarded"
    columns = Manifest.read(folder / "columns")
    counts = Manifest.read_sealed(folder / "counts")
    if counts is None:
        return "there are no counts"
    try:
        config = RankConfig.of(vocabulary)
        names = [table.name for table in VocabularyTotals.of(vocabulary).tables]
        # Peeling weighs samples against bytes, so it has to know the widths where they differ.
        if len(set(row_bytes)) > 1:
            config = replace(config, peel_row_bytes=FeatureSettings(zip(names, row_bytes, strict=True)))
        # Peeling starts from the order by frequency, as in the stage; the counts are all it needs.
        tables = rank_tables(config, counts, replace(resources, progress=silent))
        peeled = peel_order(tables, row_bytes, PEEL_FLOOR, columns, counted_samples(counts), resources)
    except ConfigError as error:  # too little memory
        return str(error)
    # Peeling tells the position of each row; the level is the first budget that the bytes up to there fit.
    places = [np.empty(table.num_rows, np.int64) for table in tables]
    for table, place in zip(tables, places, strict=True):
        table.write_places(place)
    new_places: list[NDArray[np.int32]] = [peeled.new_places[place] for place in places]
    width_of_place = np.zeros(peeled.new_places.shape[0], np.int64)
    for moved, width in zip(new_places, row_bytes, strict=True):
        width_of_place[moved] = width
    level_of_place = np.searchsorted(np.array(budgets, np.int64), np.cumsum(width_of_place)).astype(np.uint8)
    return [level_of_place[moved] for moved in new_places]


def _draw_ids(
    samples: Manifest, entry: FileEntry, first: int, stop: int, seed: int, largest: np.uint64
) -> list[NDArray[np.int32]]:
    """Per table, the lookups of the samples of one file that are drawn."""
    chosen, _ = choose_samples(first, stop, seed, largest)
    tables = read_lookups(samples, entry, 0, stop)
    return [
        # One lookup per sample: samples are positions of ids. Otherwise bag after bag.
        table.ids[chosen]
        if table.offsets is ONE_EACH
        else np.concatenate([table.ids[:0], *(table.of_samples(i, i + 1).ids for i in chosen.tolist())])
        for table in tables
    ]
