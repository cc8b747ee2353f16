"""Facts of the tables for TorchRec's planner and FBGEMM's benchmarks, from the counts of the training part.

``planner.json`` has for each table what `ParameterConstraints` and `CacheStatistics` of TorchRec ask for, and
the distribution of its lookups as FBGEMM describes it, with the error of that fit. ``planner_inputs.py``,
beside it, makes TorchRec's objects of them without hotset.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.curves import ZipfFit, falling, fit_zipf
from ...stats.traffic import presence
from ..errors import ConfigError
from ..folders.manifest import Manifest
from ..folders.stage_totals import ShardsTotals
from ..formats.stage_settings import ShardSettings
from ..ranking.vocabulary_files import read_tables

PLANNER_FILE = "planner.json"
PLANNER_PROGRAM = "planner_inputs.py"
LOAD_FACTORS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
"""Shares of a table's rows in a cache, for which its miss rate is given."""


_PROGRAM = '''"""Makes the inputs of TorchRec's planner of planner.json; needs torchrec, not hotset."""

import json
from bisect import bisect_right
from pathlib import Path

from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams, CacheStatistics


class CountedStatistics(CacheStatistics):
    """Statistics of one table from its exact counts."""

    def __init__(self, table):
        self._table = table

    @property
    def expected_lookups(self):
        return self._table["expected_lookups"]

    @property
    def cacheability(self):
        return self._table["cacheability"]

    def expected_miss_rate(self, clf):
        factors, rates = zip(*self._table["miss_rates"])
        place = min(max(bisect_right(factors, clf), 1), len(factors) - 1)
        low, high = factors[place - 1], factors[place]
        part = min(max((clf - low) / (high - low), 0.0), 1.0)
        return rates[place - 1] + part * (rates[place] - rates[place - 1])


def constraints(folder=Path(__file__).parent):
    """Return ParameterConstraints by table, for EmbeddingShardingPlanner(constraints=...)."""
    found = json.loads((Path(folder) / "planner.json").read_text())
    return {
        name: ParameterConstraints(
            pooling_factors=[table["pooling_factor"]],
            batch_sizes=[found["batch_size"]],
            cache_params=CacheParams(load_factor=table["load_factor"], stats=CountedStatistics(table)),
        )
        for name, table in found["tables"].items()
    }
'''


def write_planner_files(shards: Manifest, out: Path) -> None:
    """Write `PLANNER_FILE` and `PLANNER_PROGRAM` into ``out``.

    Raises:
        ConfigError: the vocabulary, which has the counts, is not beside the shards.
    """
    totals = ShardsTotals.of(shards)
    folder = shards.folder.parent / "vocabulary"
    vocabulary = Manifest.read(folder)
    batch_size = ShardSettings.of(shards).batch_size
    num_samples = totals.samples.hot_only + totals.samples.mixed
    tables: dict[str, Any] = {}
    for table, dim, counts in zip(
        totals.tables, totals.embedding_dims, read_tables(vocabulary, "count"), strict=True
    ):
        if counts.size != table.num_rows:
            raise ConfigError(f"{folder} is not the vocabulary of {shards.folder}")
        # Both statistics want the most frequent rows first, whatever order the ids follow.
        lookups = falling(counts)
        pooling_factor = float(lookups.sum()) / num_samples if num_samples else 0.0
        fit = fit_zipf(lookups)
        tables[table.name] = {
            "num_embeddings": table.num_rows,
            "embedding_dim": dim,
            "pooling_factor": pooling_factor,
            "load_factor": table.num_hot / table.num_rows,
            **cache_statistics(lookups, batch_size * pooling_factor),
            "fbgemm": _distribution(fit, table.num_rows, int(lookups.sum())),
        }
    found = {"batch_size": batch_size, "samples": num_samples, "tables": tables}
    (out / PLANNER_FILE).write_text(json.dumps(found, indent=1) + "\n")
    (out / PLANNER_PROGRAM).write_text(_PROGRAM)


def cache_statistics(counts: NDArray[np.int64], lookups_per_batch: float) -> dict[str, Any]:
    """Return what TorchRec asks of a table's lookups, as if those of a batch were drawn by their counts.

    Args:
        counts: (num_rows,); lookups of each row, descending.
        lookups_per_batch: of the table.

    Returns:
        ``expected_lookups``, distinct rows of a batch; ``miss_rates``, pairs of a share of the rows and the
        share of those distinct rows that are not among the most frequent ones; ``cacheability``, the area
        below them, from 0 for one row that serves all to 1.
    """
    total = int(counts.sum())
    probabilities = counts / total if total else np.zeros(counts.size)
    # The most frequent rows come first: a running sum has the distinct rows that a cache of them serves.
    distinct = np.cumsum(presence(probabilities, lookups_per_batch))
    expected = float(distinct[-1]) if distinct.size else 0.0
    # What such a cache does not serve of the distinct rows of a batch is its miss rate.
    rates = []
    for factor in LOAD_FACTORS:
        cached = int(factor * counts.size)
        hit = float(distinct[cached - 1]) if cached else 0.0
        rates.append(1 - hit / expected if expected else 0.0)
    pairs = [[factor, max(rate, 0.0)] for factor, rate in zip(LOAD_FACTORS, rates, strict=True)]
    return {
        "expected_lookups": expected,
        "miss_rates": pairs,
        "cacheability": float(np.trapezoid([rate for _, rate in pairs], LOAD_FACTORS)),
    }


def _distribution(fit: ZipfFit, num_rows: int, num_lookups: int) -> dict[str, Any]:
    """Return a fit by the names that FBGEMM has, and its errors."""
    return {
        "heavy_hitters": list(fit.heavy_hitters),
        "zipf_q": fit.q,
        "zipf_s": fit.s,
        "max_index": num_rows - 1,
        "num_indices": num_lookups,
        "fit_error": fit.error,
        "worst_coverage_error": fit.worst_coverage_error,
    }
