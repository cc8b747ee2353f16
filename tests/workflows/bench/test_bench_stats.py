"""The benchmark of kernels runs, its references fetch what the kernels fetch, and it prints a table.

Also the tests of `reference_policies` and `reference_peel`.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.stats.staging.staging_planner import cache_planner
from hotset.stats.staging.step_plans import RowStream
from hotset.workflows.bench.bench_stats import BenchStatsConfig, bench_stats, show_stats
from hotset.workflows.bench.reference_policies import REFERENCE_POLICIES

_COUNTING = ("counting", "counting, 64 bits", "counting, small table")


def test_every_kernel_is_measured_against_a_reference_with_the_same_fetches() -> None:
    config = BenchStatsConfig(
        lookups=5000, rows=700, skew=0.6, batch_lookups=100, slots=150, plain_batches=20, rounds=1
    )
    result = bench_stats(config)
    assert list(result["kernels"]) == [*REFERENCE_POLICIES, *_COUNTING, "peel"]
    for found in result["kernels"].values():
        speed, reference = found["lookups_per_second"], found["plain_lookups_per_second"]
        assert min(speed, reference) > 0 and found["ratio"] == speed / reference
    printed = io.StringIO()
    show_stats(result, Console(file=printed, width=120))
    assert "5,000 lookups of 700 rows" in printed.getvalue() and "dataset" in printed.getvalue()


@pytest.mark.parametrize("policy", ["lfu", "dataset"])
@pytest.mark.parametrize("seed", range(5))
def test_references_break_ties_as_kernels_do(policy: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    batches = [rng.permutation(40)[:5] for _ in range(60)]
    options = {"prefetch": 0, "warmup_ratio": 1.0, "warm_rows": np.arange(40), "rank_of_row": np.arange(40)}
    planner = cache_planner(policy, 40, 12, **options)  # type: ignore[arg-type]
    misses = int(planner.plan(RowStream.of(batches)).num_misses.sum())
    assert REFERENCE_POLICIES[policy](batches, 12, 40) == misses


def test_a_config_refuses_nonsense() -> None:
    with pytest.raises(ConfigError, match="rounds must be 1 or more, got 0"):
        BenchStatsConfig(rounds=0)
    with pytest.raises(ConfigError, match="10 slots may be too few for a batch of 20 lookups"):
        BenchStatsConfig(slots=10, batch_lookups=20)
