"""FAE's hot rows, from a vocabulary by sampled counts, and what they lose against exact counts.

The counter array, of which the paper looks at chunks, is in the order of first appearance in the log, as
FAE's preprocessing numbers categories. Often used rows appear early and so stand together: a chunk has many
of them or none, and the intervals cover the truth less often than they say.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...stats.ranking.fae_sampling import (
    LARGE_TABLE_BYTES,
    ProfiledTable,
    estimate_bytes,
    find_threshold,
    is_permutation,
)
from ...stats.ranking.ranking import num_hot_of_runs, runs_by_density, runs_of
from ..errors import ConfigError, ManifestError
from ..folders.manifest import Manifest
from ..folders.stage_totals import CalibrationInfo, ExactHotRows, VocabularyTotals
from ..folders.table_info import VocabularyTable
from ..formats.stage_settings import SamplingSettings
from ..ranking.vocabulary_files import read_tables
from ..runtime.resources import Resources
from ..sizes import format_byte_size
from ..stage_commands import hint_to_rewrite
from .hot_curve import Levels, hot_curves
from .hot_order import HotOrder

MODES = ("fae-paper", "fae-code")
CALIBRATION_ROW_BYTES = 40
"""Memory for each row of a vocabulary: the order of every table by exact counts or its counters by first
appearance, levels, and three arrays of the largest table (bytes)."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The threshold of `fae-paper`, and how well its estimate fits."""

    share: float
    """Share of a table's lookups from which on a row is hot."""
    num_large_tables: int
    num_covered_tables: int
    """Large tables whose hot rows the estimate's interval covers."""
    estimated_bytes: tuple[int, int, int]
    """Low end, middle and high end of the estimate for all tables."""
    is_covered: bool
    """Whether that interval covers the bytes of the hot rows."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Hot rows of each table, and how they came about."""

    num_hot: list[int]
    num_drawn_samples: int
    """Samples whose lookups were counted."""
    threshold: Threshold | None
    """How a threshold chose them; None for rows taken until the budget was full."""
    num_unsampled_hot_rows: int
    """Hot rows that the sample never looked up."""

    def describe(self, hot_bytes: int, exact: ExactHotRows) -> CalibrationInfo:
        """The calibration as the manifest of a plan has it."""
        found = self.threshold
        return CalibrationInfo(
            num_drawn_samples=self.num_drawn_samples,
            threshold=None if found is None else found.share,
            num_large_tables=None if found is None else found.num_large_tables,
            num_covered_tables=None if found is None else found.num_covered_tables,
            estimated_bytes=None if found is None else found.estimated_bytes,
            is_covered=None if found is None else found.is_covered,
            num_unsampled_hot_rows=self.num_unsampled_hot_rows,
            hot_bytes=hot_bytes,
            exact=exact,
        )


def calibrate(mode: str, vocabulary: Manifest, row_bytes: Sequence[int], budget_bytes: int) -> Calibrated:
    """FAE's hot rows.

    Args:
        mode: ``fae-paper``, a threshold whose upper estimate fits the budget, small tables whole; or
            ``fae-code``, the rows of most sampled lookups, all tables together, until the budget is full.
        vocabulary: by sampled counts.
        row_bytes: per table.
        budget_bytes: of all hot rows.

    Raises:
        ConfigError: the vocabulary is in another order, or the small tables exceed the budget.
    """
    totals = VocabularyTotals.of(vocabulary)
    if totals.rank_by != "sampled" or totals.sampling is None:
        raise ConfigError(
            f"mode {mode} needs ids by sampled counts, {vocabulary.folder} has them by {totals.rank_by}",
            hint=_rank_by_sample(vocabulary.folder.parent),
        )
    sampled = read_tables(vocabulary, "sampled")
    threshold: Threshold | None = None
    if mode == "fae-code":
        num_hot, _ = HotOrder(vocabulary, row_bytes).num_hot(budget_bytes)
    else:
        num_hot, threshold = _by_threshold(vocabulary, sampled, row_bytes, budget_bytes)
    # Rows that are hot though the sample never met them: small tables are hot as a whole.
    never_seen = sum(
        int(np.count_nonzero(counts[:hot] == 0)) for counts, hot in zip(sampled, num_hot, strict=True)
    )
    return Calibrated(num_hot, totals.sampling.num_drawn_samples, threshold, never_seen)


def _by_threshold(
    vocabulary: Manifest, sampled: list[NDArray[np.int64]], row_bytes: Sequence[int], budget_bytes: int
) -> tuple[list[int], Threshold]:
    # Small tables are hot as a whole and leave the rest of the budget to the large ones.
    sizes = [counts.shape[0] * width for counts, width in zip(sampled, row_bytes, strict=True)]
    small = sum(size for size in sizes if size < LARGE_TABLE_BYTES)
    if small > budget_bytes:
        raise ConfigError(
            f"mode fae-paper keeps small tables whole: they take {format_byte_size(small)}, "
            f"hot_bytes is {format_byte_size(budget_bytes)}",
            hint=f"give --hot-bytes {small} or more",
        )
    profiled = _profile(vocabulary, sampled, row_bytes, sizes)
    threshold = find_threshold(list(profiled.values()), budget_bytes - small)
    num_hot = []
    num_covered = 0
    for number, counts in enumerate(sampled):
        if number not in profiled:
            num_hot.append(counts.shape[0])
            continue
        # Sampled counts fall with ids: the hot rows are those down to the cut-off.
        cut_off = profiled[number].cut_off(threshold)
        num_hot.append(int(np.searchsorted(-counts, -cut_off, side="right")))
        estimate = profiled[number].estimate(threshold)
        num_covered += estimate.low <= num_hot[-1] <= estimate.high
    # The estimate is of the large tables alone; the small ones add their exact bytes.
    estimated = estimate_bytes(list(profiled.values()), threshold)
    measured = sum(hot * width for hot, width in zip(num_hot, row_bytes, strict=True))
    found = Threshold(
        threshold,
        len(profiled),
        num_covered,
        (round(small + estimated.low), round(small + estimated.middle), round(small + estimated.high)),
        small + estimated.low <= measured <= small + estimated.high,
    )
    return num_hot, found


def _profile(
    vocabulary: Manifest, sampled: list[NDArray[np.int64]], row_bytes: Sequence[int], sizes: Sequence[int]
) -> dict[int, ProfiledTable]:
    """The large tables by number."""
    # The paper profiles counters in the order of first appearance, and ids are in the order of counts.
    sampling = SamplingSettings.of(vocabulary)
    rate = sampling.sampling_rate
    seed = sampling.sampling_seed
    counts = read_tables(vocabulary, "count")
    appearances = read_tables(vocabulary, "appearance")
    profiled = {}
    for number, table in enumerate(VocabularyTotals.of(vocabulary).tables):
        if sizes[number] >= LARGE_TABLE_BYTES:
            counters = np.empty_like(sampled[number])
            counters[_appearances(vocabulary, table, appearances[number])] = sampled[number]
            accesses = rate * int(counts[number].sum())
            profiled[number] = ProfiledTable.of(counters, row_bytes[number], accesses, seed + number)
    return profiled


def _appearances(vocabulary: Manifest, table: VocabularyTable, found: NDArray[np.int64]) -> NDArray[np.int64]:
    """(num_rows,), position of each row in the order of first appearance; checked, because it is an index."""
    if not is_permutation(found):
        raise ManifestError(
            f"{vocabulary.folder / table.name}.arrow: its positions in the order of first appearance are no "
            "order of its rows",
            hint=hint_to_rewrite(vocabulary.folder),
        )
    return found


def with_exact_counts(
    vocabulary: Manifest, samples: Manifest, row_bytes: Sequence[int], budget_bytes: int, *, workers: int
) -> ExactHotRows:
    """Find what exact counts make hot with as many bytes."""
    counts = read_tables(vocabulary, "count")
    # Ids are ranks by sampled counts here, so the order by exact counts is computed here.
    orders = [np.argsort(-each, kind="stable") for each in counts]
    runs = [runs_of(each[order]) for each, order in zip(counts, orders, strict=True)]
    # As many bytes as the sampling used, so that the two differ in the choice alone.
    num_hot, num_hot_rows = num_hot_of_runs(*runs_by_density(runs, row_bytes), row_bytes, budget_bytes)
    levels: Levels = []
    for order, hot in zip(orders, num_hot, strict=True):
        level = np.ones(order.shape[0], np.uint8)
        level[order[:hot]] = 0
        levels.append(level)
    num_train = VocabularyTotals.of(vocabulary).num_train_samples
    (curve,) = hot_curves(samples, [levels], 1, num_train, Resources(workers=workers))
    return ExactHotRows(num_hot_rows=num_hot_rows, hot_samples=int(curve.samples[0]))


def _rank_by_sample(directory: Path) -> str:
    """Return the commands that give ids by sampled counts, and the one that does all of it."""
    path = shlex.quote(str(directory))
    return (
        f"`hotset rank {path} --rank-by sampled --redo && hotset encode {path}` first; "
        "hotset preprocess does both by itself with --mode"
    )
