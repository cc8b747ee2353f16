"""What a placement moves in an epoch, from its step plans alone: no row is touched.

The plans are those a run makes, so the counts are those of the run, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...stats.ranking.row_bytes import row_bytes
from ..config import TrainConfig
from ..data.batch import IdReader
from ..data.shards import Shards
from ..model.dlrm_shape import tables_by_width
from .choose_placement import choose_placement
from .placements import AllFast, Hybrid, HybridDedup
from .staging_placements import PlanQueue, Staging


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of one epoch each way."""

    bytes_to_fast: int
    bytes_to_slow: int
    bytes_made: int
    """Of rows that were made on the fast tier at their first use instead of fetched."""
    num_shortened: int = 0
    """Transfers that wait longer than the prefetch depth wants."""
    num_split: int = 0
    """Batches of more cold rows than slots."""

    def __add__(self, other: Moved) -> Moved:
        names = self.__dataclass_fields__
        return Moved(*(getattr(self, name) + getattr(other, name) for name in names))


NOTHING_MOVED = Moved(0, 0, 0)


def simulate_epoch(shards: Shards, config: TrainConfig, order: Sequence[int]) -> Moved:
    """What the placement of ``config`` moves while it trains on the batches ``order``, and home after it.

    Raises:
        ValueError: the placement is fae, whose switches depend on the test loss.
    """
    make, moved = choose_placement(config, shards), NOTHING_MOVED
    for dim, chosen in tables_by_width([table.embedding_dim for table in shards.tables]).items():
        placement, reader = make([shards.tables[table] for table in chosen]), IdReader(shards.tables, chosen)
        if isinstance(placement, Staging):
            num_bytes = row_bytes(dim, config.embedding_optimizer)
            moved += _staged(shards, placement, reader, order, num_bytes)
        elif isinstance(placement, Hybrid):
            moved += _in_place(shards, placement, reader, order, 4 * dim)
        elif not isinstance(placement, AllFast):
            raise ValueError(f"the placement {config.placement} cannot be simulated")
    return moved


def _staged(
    shards: Shards, placement: Staging, reader: IdReader, order: Sequence[int], num_bytes: int
) -> Moved:
    queue = PlanQueue(placement, placement.planner())
    for number in order:
        if placement.serves_hot_only or not shards.is_hot_only[number]:
            queue.add(placement.cold_lookups(reader.read(shards.training_batch(number))))
    queue.finish()
    to_fast = to_slow = made = num_shortened = num_split = 0
    for plans in queue.chunks:
        fetched = int(plans.rows_to_fast(makes_first_uses=True).sum())
        to_fast += fetched
        made += int(plans.rows_to_fast(makes_first_uses=False).sum()) - fetched
        to_slow += int(plans.rows_to_slow().sum())
        num_shortened += int(np.count_nonzero(plans.is_shortened))
        num_split += int(np.count_nonzero(plans.is_split))
    to_slow += queue.flush.write_back.num_rows
    return Moved(to_fast * num_bytes, to_slow * num_bytes, made * num_bytes, num_shortened, num_split)


def _in_place(
    shards: Shards, placement: Hybrid, reader: IdReader, order: Sequence[int], vector_bytes: int
) -> Moved:
    num_vectors = 0
    for number in order:
        ids = reader.read(shards.training_batch(number))
        if isinstance(placement, HybridDedup):
            in_place = placement.plan(ids, is_hot_only=False).in_place
            assert in_place is not None
            num_vectors += in_place.rows_N.size
        else:
            num_vectors += ids.num_bags
    return Moved(num_vectors * vector_bytes, num_vectors * vector_bytes, 0)
