"""Replicated rows for training on several devices, compared with other ways to place rows.

`hotset advise --engine torchrec` prints what `replication_of` finds, from the uses of rows that
`train.torchrec.sharding.count_uses` counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...stats.replication import (
    Network,
    RowUses,
    TableSize,
    Traffic,
    choose_prefixes,
    pooled_traffic,
    traffic_of,
)
from ...stats.row_bytes import row_bytes
from ..folders.manifest import Manifest
from ..folders.totals import ShardSettings, ShardsTotals


def table_sizes(shards: Manifest, optimizer: str) -> list[TableSize]:
    """Return the sizes of the tables, with rows that have the state of ``optimizer``."""
    totals = ShardsTotals.of(shards)
    return [
        TableSize(table.num_rows, dim, row_bytes(dim, optimizer), max(1, len(table.features)))
        for table, dim in zip(totals.tables, totals.embedding_dims, strict=True)
    ]


CHOSEN, DISTINCT, POOLED, FAE = "chosen split", "all sharded, distinct", "all sharded", "FAE: all hot rows"


def replication_of(
    shards: Manifest,
    of_devices: Sequence[RowUses],
    *,
    device_bytes: int | None = None,
    network: Network | None = None,
) -> list[dict[str, Any]]:
    """Compare ways to place the rows of shards on several devices.

    Args:
        shards: of the training.
        of_devices: uses of rows by each number of devices.
        device_bytes: memory of each device for rows with their state; None: no limit.
        network: speeds between devices; None compares bytes.

    Returns:
        For each number of devices ``devices``, ``batch_size``, ``num_batches`` that were counted,
        ``excess`` (the choice may be this share above the optimum), and ``splits``: name, num_replicated of
        each table, replicated_rows, and a `stats.replication.Traffic` as plain data with the bytes that
        leave a device, ``crossing_bytes``, on average over all steps.
    """
    network = network or Network()
    totals = ShardsTotals.of(shards)
    tables = table_sizes(shards, totals.embedding_optimizer)
    hot = [table.num_hot for table in totals.tables]
    found = []
    for uses in of_devices:
        num_ranks = uses.num_ranks
        limit = None if device_bytes is None else room_for_replicas(tables, num_ranks, device_bytes)
        choice = choose_prefixes(uses, tables, network, limit)
        nothing = [0] * len(tables)
        splits = [
            _split(
                CHOSEN,
                choice.num_replicated,
                traffic_of(uses, tables, choice.num_replicated, network),
                num_ranks,
            ),
            _split(DISTINCT, nothing, traffic_of(uses, tables, nothing, network), num_ranks),
            _split(POOLED, nothing, pooled_traffic(uses, tables, network), num_ranks),
            _split(FAE, hot, traffic_of(uses, tables, hot, network), num_ranks),
        ]
        found.append(
            {
                "devices": num_ranks,
                "batch_size": ShardSettings.of(shards).batch_size,
                "num_batches": uses.num_steps,
                "excess": choice.step_seconds / choice.bound_seconds - 1 if choice.bound_seconds else 0.0,
                "splits": splits,
            }
        )
    return found


def room_for_replicas(tables: Sequence[TableSize], num_ranks: int, device_bytes: int) -> int:
    """Return the bytes of a device that replicated rows may take.

    What divided rows leave of it; half of it where divided rows do not fit and are cached.
    """
    every = sum(table.row_bytes * table.num_rows for table in tables)
    if every > device_bytes * num_ranks or num_ranks == 1:
        return device_bytes // 2
    # A row that is replicated takes the place of a part of itself.
    return min(every, (device_bytes * num_ranks - every) // (num_ranks - 1))


def _split(name: str, num_replicated: Sequence[int], traffic: Traffic, num_ranks: int) -> dict[str, Any]:
    crossing = traffic.mean.crossing(num_ranks)
    return {
        "split": name,
        "num_replicated": list(num_replicated),
        "replicated_rows": sum(num_replicated),
        **asdict(traffic),
        "crossing_bytes": crossing.handed if num_ranks > 1 else 0.0,
    }
