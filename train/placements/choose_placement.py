"""From the settings of a run to the placement of each row width, slots shared out by bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.ranking.row_bytes import row_bytes
from ...stats.ranking.staging_slots import share_slots
from ..config import TrainConfig
from ..data.batch import BatchIds, IdReader, Table
from ..data.shards import Shards
from ..model.dlrm_shape import tables_by_width
from .fae import Fae
from .placements import AllFast, Hybrid, HybridDedup, Placement
from .staging_placements import Cache, Lookahead

_PLAIN: dict[str, type[Placement]] = {kind.name: kind for kind in (AllFast, Hybrid, HybridDedup, Fae)}

MOST_LOOKUPS = 1 << 28
"""Of an epoch's mixed batches, that are planned as a whole unless asked for: some 60 bytes for each distinct
cold row of a batch, 1-2 GB here. A few batches known ahead move nearly the same bytes."""


def choose_placement(config: TrainConfig, shards: Shards) -> Callable[[Sequence[Table]], Placement]:
    """What makes the placement of the tables of one row width."""
    if config.placement in _PLAIN:
        return _PLAIN[config.placement]

    slots = staging_slots(config, shards)

    def staged(tables: Sequence[Table]) -> Placement:
        num_slots = slots[tables[0].embedding_dim]
        if config.placement == "lookahead":
            return Lookahead(tables, num_slots, config.prefetch, known_window(config, shards))
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


def known_window(config: TrainConfig, shards: Shards) -> int | None:
    """Batches that lookahead knows ahead; None: the epoch."""
    num_lookups = int(shards.manifest.totals["samples"]["mixed"]) * len(shards.tables)
    is_large = config.plan == "auto" and num_lookups > MOST_LOOKUPS
    return config.window if config.plan == "online" or is_large else None


def staging_slots(config: TrainConfig, shards: Shards) -> dict[int, int]:
    """Staging slots of each row width, shared out as `hotset schedule` does.

    Without a budget as many bytes as the hot rows take.
    """
    widths = tables_by_width([table.embedding_dim for table in shards.tables])
    sizes = [row_bytes(dim, config.embedding_optimizer) for dim in widths]
    every = [sum(shards.tables[table].num_rows for table in tables) for tables in widths.values()]
    hot = [sum(shards.tables[table].num_hot for table in tables) for tables in widths.values()]
    cold = [num_rows - num_hot for num_rows, num_hot in zip(every, hot, strict=True)]
    return dict(zip(widths, share_slots(staging_bytes(config, shards), cold, sizes), strict=True))


def staging_bytes(config: TrainConfig, shards: Shards) -> int:
    """The budget of staging slots, given or as many bytes as the hot rows take."""
    if config.staging_bytes is not None:
        return config.staging_bytes
    return sum(t.num_hot * row_bytes(t.embedding_dim, config.embedding_optimizer) for t in shards.tables)


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
