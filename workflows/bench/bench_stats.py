"""``hotset bench stats``: the kernels of the statistics, one core each, against plain Python and NumPy.

The log is drawn in memory: look-ups by a power law over one table, cut into batches. Contestants take turns
in one process; times are CPU seconds and each speed is the best of its rounds, because on a shared machine
noise only ever adds. Plain versions run on the first batches alone, and have to fetch as many rows as the
kernels do there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError
from ...stats.analysis.stack_distances import lru_misses
from ...stats.batches.row_slots import find_distinct
from ...stats.counting.hash_table import add_counts, new_table
from ...stats.staging.next_uses import next_uses
from ...stats.staging.staging_planner import StagingPlanner, cache_planner, lookahead_planner
from ...stats.staging.step_plans import RowStream
from .bench_harness import describe_machine
from .plain_peel import Incidence, peel_with_a_heap, peel_with_kernels
from .plain_policies import PLAIN

_NO_NULLS = np.zeros(0, np.uint8)
_LOOKUPS_PER_SAMPLE = 4
"""Of rows that are not certainly hot, about what a sample of Criteo's log has."""


@dataclass(frozen=True, kw_only=True)
class BenchStatsConfig:
    """The log that is drawn, and how it is measured."""

    lookups: int = 4_000_000
    """Look-ups in all."""

    rows: int = 10_000_000
    """Rows of the table."""

    skew: float = 0.9
    """Look-ups of the row of rank r go as r to the power of minus this."""

    batch_lookups: int = 4096
    """Look-ups of a batch, as many as a batch of some 2,000 samples has of cold rows."""

    slots: int = 500_000
    """Slots of the caches; some 1.5 % of the rows of Criteo's Kaggle log."""

    prefetch: int = 2
    """Batches that transfers may run ahead of the computation."""

    plain_batches: int = 60
    """Batches that the plain versions serve."""

    rounds: int = 3
    """Times each contestant has its turn."""

    seed: int = 0
    """Of the log."""

    def __post_init__(self) -> None:
        for name in ("lookups", "rows", "batch_lookups", "slots", "plain_batches", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.prefetch < 0 or self.skew <= 0:
            raise ConfigError("prefetch must be 0 or more, and skew above 0")
        if self.slots < min(self.batch_lookups, self.rows):
            raise ConfigError(
                f"{self.slots} slots may be too few for a batch of {self.batch_lookups} look-ups",
                hint="give as many --slots as --batch-lookups, or more",
            )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A kernel and what one would write without it."""

    name: str
    about: str
    """What the plain version is, for people."""
    kernel: Callable[[], object]
    num_lookups: int
    """Look-ups that ``kernel`` goes through."""
    plain: Callable[[], object]
    num_plain_lookups: int
    """Look-ups that ``plain`` goes through."""


def bench_stats(config: BenchStatsConfig) -> dict[str, Any]:
    """Measure every kernel.

    Returns:
        By name ``lookups_per_second`` of a core, that of the plain version, and their ``ratio``.
    """
    log = _Log(config)
    comparisons = [*log.policies(), log.counting(), log.peeling()]
    seconds: dict[str, list[tuple[float, float]]] = {one.name: [] for one in comparisons}
    for one in comparisons:
        one.kernel()  # compiles
    for _ in range(config.rounds):
        for one in comparisons:
            seconds[one.name].append((_cpu_seconds(one.kernel), _cpu_seconds(one.plain)))
    result = {}
    for one in comparisons:
        kernel, plain = (min(turn[side] for turn in seconds[one.name]) for side in (0, 1))
        speeds = one.num_lookups / kernel, one.num_plain_lookups / plain
        result[one.name] = {"lookups_per_second": speeds[0], "plain_lookups_per_second": speeds[1]} | {
            "ratio": speeds[0] / speeds[1],
            "plain": one.about,
        }
    return {"config": asdict(config), "distinct_rows": log.num_distinct, "kernels": result} | {
        "machine": describe_machine()
    }


def _cpu_seconds(function: Callable[[], object]) -> float:
    before = time.process_time()
    function()
    return max(time.process_time() - before, 1e-9)


class _Log:
    """The look-ups, in batches, numbered by rank."""

    def __init__(self, config: BenchStatsConfig) -> None:
        self._config = config
        rng = np.random.default_rng(config.seed)
        shares = np.arange(1, config.rows + 1, dtype=np.float64) ** -config.skew
        ranks = np.searchsorted(np.cumsum(shares) / shares.sum(), rng.random(config.lookups))
        self._lookups = np.minimum(ranks, config.rows - 1).astype(np.int64)
        cuts = range(config.batch_lookups, config.lookups, config.batch_lookups)
        found = [find_distinct(batch) for batch in np.split(self._lookups, cuts)]
        self._batches = [rows for rows, _ in found]
        self._stream = RowStream.of(self._batches, [np.bincount(places) for _, places in found])
        self._ranks = np.arange(config.rows)
        self.num_distinct = int(self._stream.rows.size)
        """Summed over batches."""

    def policies(self) -> list[Comparison]:
        """Every policy with a plain twin, and LRU at every size."""
        about = {
            "lookahead": "Python, dictionaries and a heap",
            "lru": "Python, an ordered dictionary",
            "lfu": "NumPy, every slot for each batch",
            "dataset": "NumPy, every slot for each batch",
            "lru curve": "Python, a Fenwick tree",
        }
        head = self._batches[: self._config.plain_batches]
        num_slots, num_rows = self._config.slots, self._config.rows
        comparisons = []
        for name, plain in PLAIN.items():
            self._refuse_other_fetches(name, head)
            kernel = self._curve if name == "lru curve" else self._policy(name)
            comparisons.append(
                Comparison(
                    name,
                    about[name],
                    kernel,
                    self._config.lookups,
                    lambda plain=plain: plain(head, num_slots, num_rows),  # type: ignore[misc]
                    min(len(head) * self._config.batch_lookups, self._config.lookups),
                )
            )
        return comparisons

    def _policy(self, name: str) -> Callable[[], object]:
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

    def _refuse_other_fetches(self, name: str, head: Sequence[NDArray[np.int64]]) -> None:
        """Kernel and plain version fetch as many rows, where both run at prefetch depth 0."""
        config, stream = self._config, RowStream.of(head)
        if name == "lru curve":
            misses = lru_misses(stream.offsets, stream.rows, config.rows)
            fetched = int(misses[min(config.slots, config.rows)])
        else:
            uses = next_uses(stream.offsets, stream.rows, config.rows)
            plans = _planner(name, config, self._ranks, 0).plan(replace(stream, next_uses=uses))
            fetched = int(plans.num_misses.sum())
        plain = PLAIN[name](head, config.slots, config.rows)
        assert fetched == plain, f"{name} fetches {fetched} rows, its plain version {plain}"

    def counting(self) -> Comparison:
        """Exact counts of 32-bit categories, one after the other into a hash table."""
        categories = (self._lookups * 2654435761 % 2**32).astype(np.uint32)
        num_used = int(np.unique(categories).size)

        def kernel() -> None:
            add_counts(categories, _NO_NULLS, 0, new_table(num_used), 0, num_used + 1)

        def plain() -> None:
            np.unique(categories, return_counts=True)

        return Comparison("counting", "NumPy, unique", kernel, categories.size, plain, categories.size)

    def peeling(self) -> Comparison:
        """The order in which rows are dropped, from the incidence of rows and samples."""
        whole = Incidence.of(self._lookups, _LOOKUPS_PER_SAMPLE)
        head = self._lookups[: self._config.plain_batches * self._config.batch_lookups]
        part = Incidence.of(head, _LOOKUPS_PER_SAMPLE)
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
    warm = {"warmup_ratio": 0.0 if name == "lru" else 1.0, "warm_rows": ranks}
    options: dict[str, Any] = {"prefetch": prefetch, "rank_of_row": ranks} | warm
    return cache_planner(name, config.rows, config.slots, **options)  # type: ignore[arg-type]


def show_stats(result: dict[str, Any], console: Console) -> None:
    """A row a kernel."""
    table = Table(box=None, pad_edge=False)
    table.add_column("one core", no_wrap=True)
    for heading in ("M look-ups/s", "plain", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("plain version", no_wrap=True)
    for name, found in result["kernels"].items():
        speeds = (f"{found[key] / 1e6:.2f}" for key in ("lookups_per_second", "plain_lookups_per_second"))
        table.add_row(name, *speeds, f"{found['ratio']:.0f} x", found["plain"])
    console.print(table)
    config = result["config"]
    console.print(
        f"{config['lookups']:,} look-ups of {config['rows']:,} rows, skew {config['skew']:g}, "
        f"{result['distinct_rows']:,} distinct in batches of {config['batch_lookups']:,}; "
        f"{config['slots']:,} slots, prefetch {config['prefetch']}"
    )


CONFIG, measure, show = BenchStatsConfig, bench_stats, show_stats
