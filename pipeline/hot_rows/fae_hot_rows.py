"""FAE's hot rows, from a vocabulary by sampled counts, and what they lose against exact counts.

The counter array, of which the paper looks at chunks, is taken in the order of categories: for hashed
categories a random one, which is the best case for its intervals. (Numbered by first appearance, as others
preprocess, the hot rows stand together and the chunks see too many or too few.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.ranking.fae_calibration import LARGE_TABLE_BYTES, ProfiledTable, estimate_bytes, find_threshold
from ...stats.ranking.frequency_ranking import runs_by_density, runs_of
from ...stats.ranking.hot_rows import num_hot_of_runs
from ..errors import ConfigError
from ..folders.manifest import Manifest
from ..formats.arrow_files import read_batch, values_of
from ..sizes import format_byte_size
from .hot_curve import Levels, hot_curves
from .hot_order import HotOrder, read_tables

MODES = ("fae-paper", "fae-code")


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Hot rows of each table, and how they came about."""

    num_hot: list[int]
    facts: dict[str, Any]


def calibrate(mode: str, vocabulary: Manifest, row_bytes: Sequence[int], budget_bytes: int) -> Calibrated:
    """FAE's hot rows.

    Args:
        mode: ``fae-paper``, a threshold whose upper estimate fits the budget, small tables whole; or
            ``fae-code``, the rows of most sampled look-ups, all tables together, until the budget is full.
        vocabulary: by sampled counts.
        row_bytes: per table.
        budget_bytes: of all hot rows.

    Raises:
        ConfigError: the vocabulary is in another order, or the small tables exceed the budget.
    """
    if vocabulary.totals.get("rank_by") != "sampled":
        found = vocabulary.totals.get("rank_by", "frequency")
        raise ConfigError(
            f"mode {mode} needs ids by sampled counts, {vocabulary.folder} has them by {found}",
            hint="rank with --rank-by sampled, then encode; preprocess --mode does both",
        )
    sampled = read_tables(vocabulary, "sampled")
    if mode == "fae-code":
        num_hot, _ = HotOrder(vocabulary, row_bytes).num_hot(budget_bytes)
        facts: dict[str, Any] = {}
    else:
        num_hot, facts = _by_threshold(vocabulary, sampled, row_bytes, budget_bytes)
    never_seen = sum(
        int(np.count_nonzero(counts[:hot] == 0)) for counts, hot in zip(sampled, num_hot, strict=True)
    )
    return Calibrated(num_hot, vocabulary.totals["sampling"] | facts | {"num_unsampled_hot_rows": never_seen})


def _by_threshold(
    vocabulary: Manifest, sampled: list[NDArray[np.int64]], row_bytes: Sequence[int], budget_bytes: int
) -> tuple[list[int], dict[str, Any]]:
    sizes = [counts.shape[0] * width for counts, width in zip(sampled, row_bytes, strict=True)]
    small = sum(size for size in sizes if size < LARGE_TABLE_BYTES)
    if small > budget_bytes:
        raise ConfigError(
            f"mode fae-paper keeps small tables whole: they take {format_byte_size(small)}, "
            f"hot_bytes is {format_byte_size(budget_bytes)}",
            hint=f"--hot-bytes {small} or more",
        )
    profiled = _profile(vocabulary, sampled, row_bytes, sizes)
    threshold = find_threshold(list(profiled.values()), budget_bytes - small)
    num_hot, num_covered = [], 0
    for number, counts in enumerate(sampled):
        if number not in profiled:
            num_hot.append(counts.shape[0])
            continue
        cut_off = profiled[number].cut_off(threshold)
        num_hot.append(int(np.searchsorted(-counts, -cut_off, side="right")))
        estimate = profiled[number].estimate(threshold)
        num_covered += estimate.low <= num_hot[-1] <= estimate.high
    estimated = estimate_bytes(list(profiled.values()), threshold)
    measured = sum(hot * width for hot, width in zip(num_hot, row_bytes, strict=True))
    facts = {
        "threshold": threshold,
        "num_large_tables": len(profiled),
        "num_covered_tables": num_covered,
        "estimated_bytes": [round(small + end) for end in (estimated.low, estimated.middle, estimated.high)],
        "is_covered": small + estimated.low <= measured <= small + estimated.high,
    }
    return num_hot, facts


def _profile(
    vocabulary: Manifest, sampled: list[NDArray[np.int64]], row_bytes: Sequence[int], sizes: Sequence[int]
) -> dict[int, ProfiledTable]:
    """The large tables by number."""
    rate, seed = vocabulary.config["sampling_rate"], vocabulary.config["sampling_seed"]
    counts, profiled = read_tables(vocabulary, "count"), {}
    for number, table in enumerate(vocabulary.totals["tables"]):
        if sizes[number] >= LARGE_TABLE_BYTES:
            counters = sampled[number][_by_category(vocabulary, table)]
            accesses = rate * int(counts[number].sum())
            profiled[number] = ProfiledTable.of(counters, row_bytes[number], accesses, seed + number)
    return profiled


def _by_category(vocabulary: Manifest, table: dict[str, Any]) -> NDArray[np.int64]:
    """The ids of a table in the order of categories."""
    entry = next(entry for entry in vocabulary.files if entry.path == f"{table['name']}.arrow")
    array = read_batch(vocabulary, entry).column("category")
    return np.argsort(values_of(array, array.type.to_pandas_dtype()), kind="stable")


def with_exact_counts(
    vocabulary: Manifest, samples: Manifest, row_bytes: Sequence[int], budget_bytes: int, *, workers: int
) -> dict[str, int]:
    """What exact counts would do with as many bytes: hot rows, and fully hot training samples."""
    counts = read_tables(vocabulary, "count")
    orders = [np.argsort(-each, kind="stable") for each in counts]
    runs = [runs_of(each[order]) for each, order in zip(counts, orders, strict=True)]
    num_hot, num_hot_rows = num_hot_of_runs(*runs_by_density(runs, row_bytes), row_bytes, budget_bytes)
    levels: Levels = []
    for order, hot in zip(orders, num_hot, strict=True):
        level = np.ones(order.shape[0], np.uint8)
        level[order[:hot]] = 0
        levels.append(level)
    num_train = vocabulary.totals["num_train_samples"]
    (curve,) = hot_curves(samples, [levels], 1, num_train, workers=workers)
    return {"num_hot_rows": num_hot_rows, "hot_samples": int(curve.samples[0])}
