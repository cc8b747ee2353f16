"""Replicated rows for training on several devices, from the batches of shards.

`count_uses` counts how ranks use rows in all training batches, or in `MOST_STEPS` of a longer epoch, drawn
evenly from hot-only and mixed ones. `replication_of` compares the rows to replicate that follow with other
ways to place rows, as `hotset advise --engine torchrec` prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import numpy as np

from ...stats.ranking.row_bytes import row_bytes
from ...stats.replication import (
    Network,
    RowUses,
    TableSize,
    Traffic,
    UseCounter,
    choose_prefixes,
    pooled_traffic,
    traffic_of,
)
from ..folders.manifest import Manifest
from ..folders.totals import ShardFacts, ShardSettings, ShardsTotals
from ..formats.ids import ONE_EACH, check_shards, lookups_of_batches
from ..runtime.tasks import DEFAULT_RESOURCES, Resources

MOST_STEPS = 256
"""Batches that are counted at most: 2 s CPU with 26 tables and batches of 8,192."""


def count_uses(
    shards: Manifest,
    num_ranks: int,
    *,
    most_steps: int = MOST_STEPS,
    resources: Resources = DEFAULT_RESOURCES,
) -> RowUses:
    """Count the ranks that use each row, in training batches of which each rank takes an equal part.

    Takes 8 bytes of memory per row.

    Raises:
        ManifestError: damaged shards.
    """
    check_shards(shards)
    facts = [(entry, shards.facts_of(ShardFacts, entry)) for _, entry in shards.parts()]
    # Hot-only batches first, so that even steps take as large a share of each kind.
    places = []
    for number, (_, found) in enumerate(facts):
        if found.kind != "evaluation":
            hot_only = set(found.hot_only_batches or ())
            places += [
                (found.kind == "mixed" and batch not in hot_only, number, batch)
                for batch in range(found.num_batches)
            ]
    places.sort()
    chosen = np.unique(np.linspace(0, len(places) - 1, min(most_steps, len(places))).astype(np.int64))
    counter = UseCounter([table.num_rows for table in ShardsTotals.of(shards).tables], num_ranks)
    wanted = sorted(places[place][1:] for place in chosen.tolist())
    done = 0
    for file, batches in groupby(wanted, lambda each: each[0]):
        numbers = [number for _, number in batches]
        for num_samples, tables in lookups_of_batches(facts[file][0], numbers, shards):
            arrays = [(own.ids, None if own.offsets is ONE_EACH else own.offsets) for own in tables]
            counter.add(num_samples, arrays)
        done += len(numbers)
        resources.progress("batches", done, len(wanted))
    return counter.found()


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
    device_counts: Sequence[int],
    *,
    device_bytes: int | None = None,
    network: Network | None = None,
    resources: Resources = DEFAULT_RESOURCES,
) -> list[dict[str, Any]]:
    """Compare ways to place the rows of shards on several devices.

    Args:
        shards: of the training.
        device_counts: numbers of devices.
        device_bytes: memory of each device for rows with their state; None: no limit.
        network: speeds between devices; None compares bytes.
        resources: where progress is shown.

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
    for num_ranks in device_counts:
        uses = count_uses(shards, num_ranks, resources=resources)
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
