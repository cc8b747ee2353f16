"""Counts the bytes that a placement moves in an epoch.

The step plans are those that a run makes, so the counts are exactly those of the run. No row is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...stats.lookahead.step_plans import RowTraffic
from ...stats.ranking.row_bytes import row_bytes
from ...train.config import TrainConfig
from ...train.data.batch import IdReader
from ...train.data.shards import Shards
from ...train.model.shapes import tables_by_dim
from ...train.placements.choose_placement import build_placements
from ...train.placements.placements import AllFast, Hybrid, HybridDedup
from ...train.placements.staging import PlanQueue, StagingPlacement


@dataclass(frozen=True, slots=True)
class EpochTraffic:
    """Bytes of one epoch each way."""

    bytes_to_fast: int
    bytes_to_slow: int
    bytes_made: int
    """Bytes of rows that were initialized on the fast tier at their first use instead of fetched."""
    num_shortened: int = 0
    """Transfers that wait for a later batch than the prefetch depth requires."""
    num_split: int = 0
    """Batches of more cold rows than slots."""

    @property
    def num_bytes(self) -> int:
        """Bytes moved either way."""
        return self.bytes_to_fast + self.bytes_to_slow

    def __add__(self, other: EpochTraffic) -> EpochTraffic:
        names = self.__dataclass_fields__
        return EpochTraffic(*(getattr(self, name) + getattr(other, name) for name in names))


NOTHING_MOVED = EpochTraffic(0, 0, 0)


def simulate_epoch(shards: Shards, config: TrainConfig, order: Sequence[int]) -> EpochTraffic:
    """Count what a placement moves while it trains on ``order``.

    Writing all rows back at the end counts.

    Raises:
        ValueError: the placement is fae, whose switches depend on the test loss.
    """
    moved = NOTHING_MOVED
    widths = tables_by_dim([table.embedding_dim for table in shards.tables])
    # Each table group has its own tiers and plans.
    for dim, placement in build_placements(config, shards).items():
        reader = IdReader(shards.tables, widths[dim])
        if isinstance(placement, StagingPlacement):
            num_bytes = row_bytes(dim, config.row_optimizer(shards.embedding_optimizer))
            moved += _staged(shards, placement, reader, order, num_bytes)
        elif isinstance(placement, Hybrid):
            moved += _in_place(shards, placement, reader, order, 4 * dim)
        elif not isinstance(placement, AllFast):
            raise ValueError(f"the placement {config.placement} cannot be simulated")
    return moved


def _staged(
    shards: Shards, placement: StagingPlacement, reader: IdReader, order: Sequence[int], num_bytes: int
) -> EpochTraffic:
    queue = PlanQueue(placement, placement.planner())
    for number in order:
        # A placement that stages cold rows alone has nothing to plan for a hot-only batch.
        if placement.stages_hot_only or not shards.is_hot_only[number]:
            queue.add(placement.find_cold_rows(reader.read(shards.training_batch(number))))
    queue.finish()
    # First uses are initialized on the fast tier: they are loaded, but not fetched.
    rows = RowTraffic(rows_to_slow=queue.flush.write_back.num_rows)
    for plans in queue.chunks:
        rows.add(plans)
    return EpochTraffic(
        bytes_to_fast=rows.rows_to_fast * num_bytes,
        bytes_to_slow=rows.rows_to_slow * num_bytes,
        bytes_made=rows.rows_made * num_bytes,
        num_shortened=rows.shortened,
        num_split=rows.split,
    )


def _in_place(
    shards: Shards, placement: Hybrid, reader: IdReader, order: Sequence[int], vector_bytes: int
) -> EpochTraffic:
    num_vectors = 0
    for number in order:
        ids = reader.read(shards.training_batch(number))
        # One vector per distinct row of a batch, or one per bag.
        if isinstance(placement, HybridDedup):
            num_vectors += reader.by_row(ids).num_rows
        else:
            num_vectors += ids.num_bags
    return EpochTraffic(num_vectors * vector_bytes, num_vectors * vector_bytes, 0)
