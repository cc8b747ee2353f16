"""``hotset bench stats``: the kernels of the statistics on one core, against reference implementations.

The log is drawn in memory: lookups of one table by a power law, split into batches. Kernels and their
references in Python or NumPy take turns in one process. Times are CPU seconds, and each speed is the best of
its rounds, because on a shared machine noise only ever adds time. References run on the first batches alone,
and must fetch as many rows as the kernels do there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError, require_at_least
from ...stats.batches.distinct_rows import find_distinct
from ...stats.staging.next_uses import next_uses
from ...stats.staging.staging_planner import StagingPlanner, cache_planner, lookahead_planner
from ...stats.staging.step_plans import RowStream
from ..machine_facts import describe_machine
from .measuring.comparison import Comparison
from .measuring.counting_comparisons import counting_comparisons
from .measuring.rounds import take_turns
from .reference_peel import Incidence, peel_with_a_heap, peel_with_kernels
from .reference_policies import REFERENCE_POLICIES
from .stack_distances import lru_misses

_LOOKUPS_PER_SAMPLE = 4
"""Lookups per sample of rows that are not certainly hot, about as many as in Criteo's log."""


@dataclass(frozen=True, kw_only=True)
class BenchStatsConfig:
    """Settings of the benchmark of kernels: the log, the caches and the rounds."""

    lookups: int = 4_000_000
    """Lookups of the whole log."""

    rows: int = 10_000_000
    """Rows of the table."""

    skew: float = 0.9
    """Exponent of the power law: the row of rank r gets lookups in proportion to r ** -skew."""

    batch_lookups: int = 4096
    """Lookups per batch, about as many as 2,000 samples have of cold rows."""

    slots: int = 500_000
    """Slots of the caches, about 1.5% of the rows of Criteo's Kaggle log."""

    prefetch: int = 2
    """Batches by which transfers may run ahead of the computation."""

    plain_batches: int = 60
    """Batches that the reference implementations process."""

    rounds: int = 3
    """Rounds in which each kernel and each reference run once."""

    seed: int = 0
    """Seed of the log."""

    def __post_init__(self) -> None:
        for name in ("lookups", "rows", "batch_lookups", "slots", "plain_batches", "rounds"):
            require_at_least(name, getattr(self, name), 1)
        if self.prefetch < 0 or self.skew <= 0:
            raise ConfigError("prefetch must be 0 or more, and skew above 0")
        if self.slots < min(self.batch_lookups, self.rows):
            raise ConfigError(
                f"{self.slots} slots may be too few for a batch of {self.batch_lookups} lookups",
                hint="give as many --slots as --batch-lookups, or more",
            )


def bench_stats(config: BenchStatsConfig) -> dict[str, Any]:
    """Measure every kernel and its reference.

    Returns:
        By name ``lookups_per_second`` of a core, that of the reference, and their ``ratio``; of counting also
        the speed of what bounds it, and ``times_bound``, how much longer counting takes.
    """
    log = _Log(config)
    comparisons = [*log.policies(), *log.counting(), log.peeling()]
    for one in comparisons:  # compiles
        one.kernel()
        if one.bound is not None:
            one.bound()
    # Kernel and reference take one turn together, so that a slow moment hits both.
    seconds = take_turns({one.name: one.seconds for one in comparisons}, config.rounds)
    result = {one.name: one.describe(seconds[one.name]) for one in comparisons}
    return {"config": asdict(config), "distinct_rows": log.num_distinct, "kernels": result} | {
        "machine": describe_machine()
    }


class _Log:
    """A log in memory: the rank of each looked-up row, in batches."""

    def __init__(self, config: BenchStatsConfig) -> None:
        self._config = config
        rng = np.random.default_rng(config.seed)
        # Inverse transform sampling: a uniform number falls into the share of one rank.
        shares = np.arange(1, config.rows + 1, dtype=np.float64) ** -config.skew
        ranks = np.searchsorted(np.cumsum(shares) / shares.sum(), rng.random(config.lookups))
        self._lookups = np.minimum(ranks, config.rows - 1).astype(np.int64)
        # Policies see each row of a batch once, with the number of its lookups.
        starts = range(config.batch_lookups, config.lookups, config.batch_lookups)
        found = [find_distinct(batch) for batch in np.split(self._lookups, starts)]
        self._batches = [rows for rows, _ in found]
        self._stream = RowStream.of(self._batches, [np.bincount(positions) for _, positions in found])
        self._ranks = np.arange(config.rows)
        self.num_distinct = int(self._stream.rows.size)
        """Distinct rows per batch, summed over batches."""

    def policies(self) -> list[Comparison]:
        """Return every policy with its reference, and LRU at every size."""
        about = {
            "lookahead": "Python, dictionaries and a heap",
            "lru": "Python, an ordered dictionary",
            "lfu": "NumPy, every slot for each batch",
            "dataset": "NumPy, every slot for each batch",
            "lru curve": "Python, a Fenwick tree",
        }
        # The references are too slow for all batches; speeds are per lookup, so a part will do.
        head = self._batches[: self._config.plain_batches]
        num_slots = self._config.slots
        num_rows = self._config.rows
        comparisons = []
        for name, reference in REFERENCE_POLICIES.items():
            self._check_fetches(name, head)
            kernel = self._curve if name == "lru curve" else self._policy(name)
            comparisons.append(
                Comparison(
                    name,
                    about[name],
                    kernel,
                    self._config.lookups,
                    partial(reference, head, num_slots, num_rows),
                    min(len(head) * self._config.batch_lookups, self._config.lookups),
                )
            )
        return comparisons

    def _policy(self, name: str) -> Callable[[], object]:
        """Return a run of one policy's planner over the whole log."""
        # Planning is timed with all that a run needs for it: a new planner, and for look-ahead the next uses.
        config = self._config

        def run() -> None:
            planner = _planner(name, config, self._ranks, config.prefetch)
            stream = self._stream
            if name == "lookahead":
                uses = next_uses(stream.offsets, stream.rows, config.rows)
                stream = replace(stream, next_uses=uses)
            planner.plan(stream)
            planner.finish()

        return run

    def _curve(self) -> NDArray[np.int64]:
        return lru_misses(self._stream.offsets, self._stream.rows, self._config.rows)

    def _check_fetches(self, name: str, head: Sequence[NDArray[np.int64]]) -> None:
        """Assert that kernel and reference fetch as many rows, both at prefetch depth 0."""
        config = self._config
        stream = RowStream.of(head)
        # LRU at every size has its fetches in one curve; the other policies are planned.
        if name == "lru curve":
            misses = lru_misses(stream.offsets, stream.rows, config.rows)
            fetched = int(misses[min(config.slots, config.rows)])
        else:
            uses = next_uses(stream.offsets, stream.rows, config.rows)
            plans = _planner(name, config, self._ranks, 0).plan(replace(stream, next_uses=uses))
            fetched = int(plans.num_misses.sum())
        wanted = REFERENCE_POLICIES[name](head, config.slots, config.rows)
        assert fetched == wanted, f"{name} fetches {fetched} rows, its reference {wanted}"

    def counting(self) -> list[Comparison]:
        """Return counting the lookups, in tables of several kinds."""
        return counting_comparisons(self._lookups, np.random.default_rng(self._config.seed))

    def peeling(self) -> Comparison:
        """Return peeling: the order in which rows are dropped, from the incidence of rows and samples."""
        whole = Incidence.of(self._lookups, _LOOKUPS_PER_SAMPLE)
        head = self._lookups[: self._config.plain_batches * self._config.batch_lookups]
        part = Incidence.of(head, _LOOKUPS_PER_SAMPLE)
        # Ties may be broken differently, so only the set of dropped rows can be compared.
        assert sorted(peel_with_kernels(part).tolist()) == sorted(peel_with_a_heap(part))
        return Comparison(
            "peel",
            "Python, sets and a heap",
            lambda: peel_with_kernels(whole),
            self._lookups.size,
            lambda: peel_with_a_heap(part),
            head.size,
        )


def _planner(name: str, config: BenchStatsConfig, ranks: NDArray[np.int64], prefetch: int) -> StagingPlanner:
    if name == "lookahead":
        return lookahead_planner(config.rows, config.slots, prefetch=prefetch)
    # All but LRU fill their free slots with the most frequent rows after the first batch.
    warm = {"warmup_ratio": 0.0 if name == "lru" else 1.0, "warm_rows": ranks}
    options: dict[str, Any] = {"prefetch": prefetch, "rank_of_row": ranks} | warm
    return cache_planner(name, config.rows, config.slots, **options)  # type: ignore[arg-type]


def show_stats(result: dict[str, Any], console: Console) -> None:
    """Print a row per kernel."""
    table = Table(box=None, pad_edge=False)
    table.add_column("one core", no_wrap=True)
    for heading in ("M lookups/s", "reference", "ratio", "bound"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("reference implementation", no_wrap=True)
    # Speeds of one core, and how much faster the kernel is on the same log.
    for name, found in result["kernels"].items():
        speeds = (f"{found[key] / 1e6:.2f}" for key in ("lookups_per_second", "plain_lookups_per_second"))
        bound = (
            f"{found['bound_lookups_per_second'] / 1e6:.2f}" if "bound_lookups_per_second" in found else ""
        )
        table.add_row(name, *speeds, f"{found['ratio']:.2f}x", bound, found["plain"])
    console.print(table)
    config = result["config"]
    console.print(
        f"{config['lookups']:,} lookups of {config['rows']:,} rows, skew {config['skew']:g}, "
        f"{result['distinct_rows']:,} distinct in batches of {config['batch_lookups']:,}; "
        f"{config['slots']:,} slots, prefetch {config['prefetch']}"
    )


CONFIG = BenchStatsConfig
measure = bench_stats
show = show_stats
