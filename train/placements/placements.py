"""Placements: where rows live, the step plan of each batch, and who gets which slots.

`all-fast` needs no plan. `hybrid` and `hybrid-dedup` keep every row on the slow tier and do the embedding
work there: one vector per bag each way, as DLRM and XDL do, or one per distinct row of a batch. `fae` keeps a
replica of the hot rows on the fast tier. `lookahead` and `cache` load cold rows into staging slots for the
batches that use them: `lookahead` keeps the hot rows on the fast tier permanently and stages the others by
what is known of the batches to come; `cache` keeps no row there permanently and decides by the past, as
FreqCache does.

A placement decides only what moves: on the CPU all of them give equal bits on the same order of batches.
Those that stage rows are in `staging`, and `fae` in its own module: they are imported where a config asks for
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import ByteSize
from ...stats.row_bytes import row_bytes, share_slots
from ..config import TrainConfig
from ..data.batch import EmbeddingTable, IdReader
from ..data.shards import Shards
from ..model.shapes import tables_by_dim
from ..rows.step_plan import BAGS_IN_PLACE, NOTHING_TO_MOVE, ROWS_IN_PLACE, Placement, StepPlan
from ..rows.tiers import Layout

if TYPE_CHECKING:
    from ..ranks.exchange import HeldRows


class AllFast(Placement):
    """Every row on the fast tier: the reference for the others."""

    name = "all-fast"

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        super().__init__(tables)
        self.fast = Layout.of(self.no_rows, self.num_rows)
        self.slow = Layout.of(self.no_rows, self.no_rows)

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        return NOTHING_TO_MOVE

    def plan_evaluation(self, *, is_stale: bool) -> StepPlan:
        return NOTHING_TO_MOVE


class Hybrid(Placement):
    """Every row on the slow tier; one vector per bag crosses each way."""

    name = "hybrid"

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        return BAGS_IN_PLACE

    def plan_evaluation(self, *, is_stale: bool) -> StepPlan:
        return self.plan(is_hot_only=False)


class HybridDedup(Hybrid):
    """Every row on the slow tier; one vector per distinct row crosses each way."""

    name = "hybrid-dedup"

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        return ROWS_IN_PLACE


_WITHOUT_SETTINGS: dict[str, type[Placement]] = {kind.name: kind for kind in (AllFast, Hybrid, HybridDedup)}
_PREFETCH = 2
"""Batches that are read ahead where no transfer is."""
MOST_STEPS_AHEAD = 12
"""Steps that are read ahead for the sake of transfers, at most; a larger prefetch depth has what it needs."""


def build_placements(
    config: TrainConfig, shards: Shards, held: Mapping[int, HeldRows] | None = None
) -> dict[int, Placement]:
    """Build the placement of each table group, of which a rank has the rows in ``held``."""
    config = with_staging(config, shards)
    groups = tables_by_dim([table.embedding_dim for table in shards.tables])
    return {
        dim: _build_placement(config, shards, dim, tables, held[dim] if held else None)
        for dim, tables in groups.items()
    }


def _build_placement(
    config: TrainConfig, shards: Shards, dim: int, chosen: Sequence[int], held: HeldRows | None
) -> Placement:
    tables = [shards.tables[table] for table in chosen]
    if held is not None:
        tables = held.cut(tables)
        # Rows cross between ranks once a step, so they cross between the tiers of a rank once, too.
        if config.placement == "hybrid":
            return HybridDedup(tables)
    if config.placement == "fae":
        from .fae import Fae

        return Fae(tables, sends="bags" if held is None else "rows")
    # These need no staging, and so nothing of the settings.
    if config.placement in _WITHOUT_SETTINGS:
        return _WITHOUT_SETTINGS[config.placement](tables)
    from .staging import Cache, HybridUva, Lookahead

    if config.placement == "hybrid-uva":
        return HybridUva(tables, shards.most_batch_samples)
    assert config.prefetch is not None, "with_staging comes first"
    num_slots = staging_slots(config, shards)[dim]
    if held is not None:
        num_slots = min(num_slots, max(sum(table.num_rows - table.num_hot for table in tables), 1))
    if config.placement == "lookahead":
        return Lookahead(tables, num_slots, config.prefetch)
    counts_N = count_row_lookups(shards, chosen)
    # A cache keeps no row on the fast tier permanently, so it gets the bytes of the hot rows too.
    return Cache(
        tables,
        num_slots + sum(table.num_hot for table in tables),
        config.prefetch,
        config.cache_policy,
        config.cache_batches,
        config.cache_warmup,
        counts_N if held is None else counts_N[held.keys_R],
    )


def spills(config: TrainConfig, shards: Shards) -> bool:
    """Return whether `lookahead` spills cold rows that do not fit in memory.

    They go to a file by next use. The other placements that keep rows in host memory map a file for the rest
    of them.
    """
    if config.placement != "lookahead" or config.slow_bytes is None:
        return False
    optimizer = config.row_optimizer(shards.embedding_optimizer)
    cold_bytes = sum(
        (table.num_rows - table.num_hot) * row_bytes(table.embedding_dim, optimizer)
        for table in shards.tables
    )
    return cold_bytes > config.slow_bytes


def num_planned_steps(config: TrainConfig, shards: Shards) -> int:
    """Return the step after which all rows are written back.

    It is the last one of all epochs. With a spill file, which orders cold rows by their next use, planning
    ends at ``--max-steps``.
    """
    whole = config.epochs * shards.num_training_batches
    most = config.recipe.max_steps
    return whole if most is None or not spills(config, shards) else min(whole, most)


def num_steps_ahead(config: TrainConfig, mixed_share: float = 1.0) -> int:
    """Return how many steps are read and planned ahead of the current one.

    Transfers run as many batches with transfers ahead as are prefetched, over those between them that need
    none; two more are the one being computed and the one being prepared.
    """
    assert config.prefetch is not None, "resolve chooses it"
    least = config.prefetch + 2
    # The other placements have a transfer for every batch, or none at all.
    if config.placement != "lookahead" or not mixed_share:
        return least
    return max(least, min(math.ceil((config.prefetch + 1) / mixed_share) + 1, MOST_STEPS_AHEAD))


def with_staging(config: TrainConfig, shards: Shards) -> TrainConfig:
    """Fill in the staging budget and the depth that ``config`` leaves open."""
    if config.placement not in ("lookahead", "cache"):
        return replace(config, prefetch=_PREFETCH if config.prefetch is None else config.prefetch)
    # What the user has given is left as it is.
    if config.staging_bytes is not None and config.prefetch is not None:
        return config
    from ...pipeline.formats.ids import cold_widths, staged_sizes
    from ...stats.lookahead.planner import deepest_prefetch, default_staging_bytes

    cold = cold_widths(shards.manifest, [table.num_hot for table in shards.tables])
    sizes = staged_sizes(shards.manifest, cold, config.row_optimizer(shards.embedding_optimizer))
    num_bytes = config.staging_bytes
    if num_bytes is None:
        num_bytes = ByteSize(default_staging_bytes(sizes, config.prefetch))
    prefetch = deepest_prefetch(sizes, num_bytes) if config.prefetch is None else config.prefetch
    return replace(config, staging_bytes=num_bytes, prefetch=prefetch)


def staging_slots(config: TrainConfig, shards: Shards) -> dict[int, int]:
    """Return staging slots of each table group, in proportion to its cold rows."""
    assert config.staging_bytes is not None, "with_staging comes first"
    groups = tables_by_dim([table.embedding_dim for table in shards.tables])
    optimizer = config.row_optimizer(shards.embedding_optimizer)
    sizes = [row_bytes(dim, optimizer) for dim in groups]
    # Every group gets slots in proportion to its cold rows.
    num_cold = [
        sum(shards.tables[table].num_rows - shards.tables[table].num_hot for table in tables)
        for tables in groups.values()
    ]
    return dict(zip(groups, share_slots(config.staging_bytes, num_cold, sizes), strict=True))


def count_row_lookups(shards: Shards, tables: Sequence[int]) -> NDArray[np.int64]:
    """Return each row's training lookups, (rows of these tables,), table after table."""
    reader = IdReader(shards.tables, tables)
    counts = [np.zeros(shards.tables[table].num_rows, np.int64) for table in tables]
    for number in range(shards.num_training_batches):
        ids = reader.read(shards.training_lookups(number))
        # Bags are numbered sample by sample, so the table of a lookup is its bag modulo their number.
        bags_N = ids.bags_of_tables
        bags_N = np.arange(ids.ids_N.size) if bags_N is None else bags_N
        tables_N = bags_N % len(tables)
        for table, of_table in enumerate(counts):
            of_table += np.bincount(ids.ids_N[tables_N == table], minlength=of_table.size)
    return np.concatenate(counts)
