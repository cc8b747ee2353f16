"""From the settings of a run to the placement of each row width, slots shared out by bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..stats.row_bytes import row_bytes
from .batch import BatchIds, IdReader, Table
from .config import TrainConfig
from .fae import Fae
from .loader import Shards
from .placements import AllFast, Hybrid, HybridDedup, Placement
from .staging import Cache, Lookahead

_PLAIN: dict[str, type[Placement]] = {kind.name: kind for kind in (AllFast, Hybrid, HybridDedup, Fae)}


def choose_placement(config: TrainConfig, shards: Shards) -> Callable[[Sequence[Table]], Placement]:
    """What makes the placement of the tables of one row width."""
    if config.placement in _PLAIN:
        return _PLAIN[config.placement]

    def staged(tables: Sequence[Table]) -> Placement:
        num_slots = staging_slots(config, shards, tables)
        if config.placement == "lookahead":
            window = config.window if config.plan == "online" else None
            return Lookahead(tables, num_slots, config.prefetch, window)
        return Cache(
            tables,
            num_slots + sum(table.num_hot for table in tables),
            config.prefetch,
            config.cache_policy,
            config.cache_batches,
            config.cache_warmup,
            count_lookups(shards, [shards.tables.index(table) for table in tables]),
        )

    return staged


def staging_slots(config: TrainConfig, shards: Shards, tables: Sequence[Table]) -> int:
    """Staging slots of the tables of one row width: the budget in proportion to the bytes of cold rows.

    Without a budget as many bytes as the hot rows take. At least one, and no more than there are cold rows.
    """

    def total(tables: Sequence[Table], count: Callable[[Table], int]) -> int:
        return sum(count(t) * row_bytes(t.embedding_dim, config.embedding_optimizer) for t in tables)

    def num_cold(table: Table) -> int:
        return table.num_rows - table.num_hot

    budget: int | None = config.staging_bytes
    if budget is None:
        budget = total(shards.tables, lambda table: table.num_hot)
    share = total(tables, num_cold) / max(total(shards.tables, num_cold), 1)
    num_slots = int(budget * share) // row_bytes(tables[0].embedding_dim, config.embedding_optimizer)
    return max(1, min(num_slots, sum(map(num_cold, tables))))


def count_lookups(shards: Shards, tables: Sequence[int]) -> NDArray[np.int64]:
    """(rows of these tables,): look-ups of each row in the training part, table after table."""
    reader = IdReader(shards.tables, tables)
    counts: list[NDArray[Any]] = [np.zeros(shards.tables[table].num_rows, np.int64) for table in tables]
    for number in range(shards.num_training_batches):
        ids: BatchIds = reader.read(shards.training_batch(number))
        bags_N = np.arange(ids.ids_N.size) if ids.bags_N is None else ids.bags_N
        features_N = bags_N % ids.num_features
        for feature, of_table in enumerate(counts):
            of_table += np.bincount(ids.ids_N[features_N == feature], minlength=of_table.size)
    return np.concatenate(counts)
