"""The batches of a rank by plain operators of torch, and their speed next to the kernel's.

    python -m hotset.tests.support.naive.naive_rank_batches DIR [WORLD_SIZE]

prints samples of a rank per second of a core's time, of the kernel and of this program in turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from hotset.pipeline.folders.totals import for_features
from hotset.stats.batch_rows import part_of_rank
from hotset.train.data.batch import Batch
from hotset.train.data.shards import ShardSet
from hotset.train.torchrec.batches import GroupLookups, RankBatch, ReplicatedRows, RowsOfDim, rank_batch


def naive_rank_batch(
    batch: Batch, rows: ReplicatedRows, rank: int, world_size: int, number: int = 0, step: int = 0
) -> RankBatch:
    """Return a rank's part of a whole batch, whose ids are known to be in their tables."""
    first, stop = part_of_rank(batch.num_samples, rank, world_size)
    own = batch.cut(first, stop)
    limits = for_features(rows.tables, rows.num_replicated)
    lookups = list(batch.features(rows.tables))
    is_hot_only = all((ids < limit).all() for (_, ids, _), limit in zip(lookups, limits, strict=True))
    return RankBatch(
        step=step,
        number=number,
        is_hot_only=bool(is_hot_only),
        num_samples=own.num_samples,
        global_samples=batch.num_samples,
        label_B=own.label_B,
        dense_BK=own.dense_BK,
        groups=tuple(_naive_group(own, rows, group) for group in rows.groups),
    )


def _naive_group(batch: Batch, rows: ReplicatedRows, group: RowsOfDim) -> GroupLookups:
    lookups = list(batch.features(rows.tables))
    own = for_features(rows.tables, range(len(rows.tables)))
    ids, lengths = [], []
    for feature in group.features:
        _, ids_N, offsets_B1 = lookups[feature]
        ids.append(torch.from_numpy(ids_N.astype(np.int64)))
        lengths.append(
            torch.ones(batch.num_samples, dtype=torch.int64)
            if offsets_B1 is None
            else torch.from_numpy(np.diff(offsets_B1).astype(np.int64))
        )
    hot, cold, hot_lengths, cold_lengths = [], [], [], []
    distinct = {
        table: torch.unique(
            torch.cat(
                [each for each, feature in zip(ids, group.features, strict=True) if own[feature] == table]
            )
        )
        for table in group.tables
    }
    # Distinct cold rows of the tables one after the other.
    distinct = {table: each[each >= rows.num_replicated[table]] for table, each in distinct.items()}
    first_place = dict(
        zip(distinct, np.cumsum([0, *(len(each) for each in distinct.values())]), strict=False)
    )
    for feature, found_N, lengths_B in zip(group.features, ids, lengths, strict=True):
        table = own[feature]
        limit = rows.num_replicated[table]
        bags_N = torch.repeat_interleave(torch.arange(len(lengths_B)), lengths_B)
        is_hot_N = found_N < limit
        hot.append(found_N[is_hot_N] + group.first_hot_T[group.tables.index(table)])
        cold.append(torch.searchsorted(distinct[table], found_N[~is_hot_N]) + int(first_place[table]))
        hot_lengths.append(torch.bincount(bags_N[is_hot_N], minlength=len(lengths_B)))
        cold_lengths.append(torch.bincount(bags_N[~is_hot_N], minlength=len(lengths_B)))
    counted = [table for table in group.tables if rows.num_replicated[table] < rows.tables[table].num_rows]
    means = None
    if any(group.is_mean_F):
        means = torch.stack(
            [
                each.clamp(min=1) if is_mean else torch.ones_like(each)
                for each, is_mean in zip(lengths, group.is_mean_F, strict=True)
            ]
        ).float()
    return GroupLookups(
        group.embedding_dim,
        torch.cat(hot),
        _offsets(hot_lengths),
        torch.cat([each - rows.num_replicated[table] for table, each in distinct.items()]),
        torch.tensor([len(distinct[table]) for table in counted], dtype=torch.int32),
        torch.cat(cold),
        _offsets(cold_lengths),
        means,
        group.cold_tables,
    )


def _offsets(lengths: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.pad(torch.cat(list(lengths)).cumsum(0), (1, 0))


def speed(make: Callable[[Batch], RankBatch], batches: Sequence[Batch]) -> float:
    """Samples of the rank per second of this thread's CPU time."""
    start = time.thread_time()
    num_samples = sum(make(batch).num_samples for batch in batches)
    return num_samples / (time.thread_time() - start)


def main(data: str, world_size: int = 1) -> None:
    """Print the median of five rounds, for each rule of what is replicated."""
    torch.set_num_threads(1)
    shards = ShardSet.open(Path(data))
    batches = [shards.training_batch(number) for number in range(min(shards.num_training_batches, 128))]
    rules = {
        "nothing": [0] * len(shards.tables),
        "the hot rows": [table.num_hot for table in shards.tables],
        "everything": [table.num_rows for table in shards.tables],
    }
    for name, numbers in rules.items():
        rows = ReplicatedRows(shards.tables, tuple(numbers))
        rank_batch(batches[0], rows, 0, world_size)  # compiles
        of_rank: dict[str, Any] = {"rows": rows, "rank": 0, "world_size": world_size}
        kernel, plain = partial(rank_batch, **of_rank), partial(naive_rank_batch, **of_rank)
        rounds = [(speed(kernel, batches), speed(plain, batches[::8])) for _ in range(5)]
        fast, slow = (median(each) for each in zip(*rounds, strict=True))
        print(f"{name} replicated: kernel {fast / 1e6:.1f} M samples/s, torch {slow / 1e6:.2f} M")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
