"""Batches of one rank for TorchRec: replicated ids, distinct sharded ids and their places.

Ids are ranks, so a number of rows divides each table: the first ones are *hot* here and replicated on every
rank, the others are *cold* and sharded. The number may differ from the ``num_hot`` of the shards. All ranks
read the whole batch and take consecutive samples of it, and so they know without a message whether any of
them looks up a cold row. If none does, the batch is hot-only and no rank calls the sharded tables, whose
exchange would wait for the others.

TorchRec sends one vector for each id that it is given, so it is given the distinct cold ids of a rank. The
bags name them by their place among these vectors.

Shapes: B samples of the rank, F features and T tables with cold rows of one embedding dimension, P = F * B
bags (feature after feature, sample after sample), N hot and M cold lookups, C distinct cold rows, K dense
features.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError, require_at_least
from ...pipeline.folders.totals import by_feature, for_features
from ...stats.batch_rows import part_of_rank
from ...stats.kernel import read_only
from ..config_parts import Pooling
from ..data.batch import Batch, EmbeddingTable
from ..data.dataset import Split, batches_of
from ..data.shards import ShardSet
from ..model.shapes import tables_by_dim
from ..threads import BackgroundIterator
from .kernels import (
    DividedTables,
    SampleLookups,
    divide_lookups,
    has_cold,
    new_lookups,
    new_workspace,
)

# ruff: noqa: N815  (tensors carry shape suffixes)


@dataclass(frozen=True, slots=True)
class RowsOfDim:
    """The tables of one embedding dimension, and how their rows are divided."""

    embedding_dim: int
    tables: tuple[int, ...]
    """Positions among the tables of the shards."""
    features: tuple[int, ...]
    """Positions among the features of the shards."""
    first_hot_T: tuple[int, ...]
    """Where the replicated rows of each of ``tables`` begin in the matrix of all of them."""
    num_hot: int
    """Rows of that matrix."""
    cold_tables: tuple[str, ...]
    """Names of the tables with sharded rows, in the order of the shards."""
    num_cold_T: tuple[int, ...]
    """Sharded rows of each of ``cold_tables``."""
    is_mean_F: tuple[bool, ...]
    """Whether the rows of a bag are averaged, for each of ``features``."""


@dataclass(frozen=True)
class ReplicatedRows:
    """How many rows of each table every rank holds.

    Args:
        tables: those of the shards.
        num_replicated: the first rows of each table, replicated; the others are sharded.
        pooling: of features with lists.

    Raises:
        ConfigError: not one number for each table, or a number that is not in [0, num_rows].
    """

    tables: tuple[EmbeddingTable, ...]
    num_replicated: tuple[int, ...]
    pooling: Pooling = "sum"
    groups: tuple[RowsOfDim, ...] = field(init=False)
    """One for each embedding dimension, in the order of their first table."""
    divided: tuple[DividedTables, ...] = field(init=False, repr=False, compare=False)
    """Each of ``groups`` as the kernel reads it."""

    def __post_init__(self) -> None:
        if len(self.num_replicated) != len(self.tables):
            raise ConfigError(
                f"num_replicated has {len(self.num_replicated)} numbers, "
                f"and the log {len(self.tables)} tables"
            )
        for table, number in zip(self.tables, self.num_replicated, strict=True):
            if not 0 <= number <= table.num_rows:
                raise ConfigError(
                    f"num_replicated of table {table.name!r} must be in [0, {table.num_rows}], got {number}"
                )
        dims = [table.embedding_dim for table in self.tables]
        groups = [self._group(dim, chosen) for dim, chosen in tables_by_dim(dims).items()]
        object.__setattr__(self, "groups", tuple(groups))
        object.__setattr__(self, "divided", tuple(self._divided(group) for group in groups))

    def has_cold(self, batch: Batch) -> bool:
        """Return whether a sample looks up a row that is not replicated."""
        one_hot, lists = self._limits
        if has_cold(read_only(np.ascontiguousarray(batch.ids_BF)), one_hot):
            return True
        return any((bags.ids_N >= limit).any() for bags, limit in zip(batch.bags, lists, strict=True))

    @cached_property
    def _limits(self) -> tuple[NDArray[np.int32], list[int]]:
        """Replicated rows of the table of each one-hot feature, and of each feature with lists."""
        limits = for_features(self.tables, self.num_replicated)
        pairs = list(zip(limits, by_feature(self.tables), strict=True))
        one_hot = [limit for limit, feature in pairs if not feature.is_multi_hot]
        return np.array(one_hot, np.int32), [limit for limit, feature in pairs if feature.is_multi_hot]

    def _group(self, dim: int, chosen: tuple[int, ...]) -> RowsOfDim:
        own = for_features(self.tables, range(len(self.tables)))
        features = tuple(feature for feature, table in enumerate(own) if table in chosen)
        is_list = [feature.is_multi_hot for feature in by_feature(self.tables)]
        hot_T = [self.num_replicated[table] for table in chosen]
        cold = {
            self.tables[table].name: self.tables[table].num_rows - hot
            for table, hot in zip(chosen, hot_T, strict=True)
            if self.tables[table].num_rows > hot
        }
        return RowsOfDim(
            dim,
            chosen,
            features,
            tuple(sum(hot_T[:place]) for place in range(len(hot_T))),
            sum(hot_T),
            tuple(cold),
            tuple(cold.values()),
            tuple(self.pooling == "mean" and is_list[feature] for feature in features),
        )

    def _divided(self, group: RowsOfDim) -> DividedTables:
        is_list = [feature.is_multi_hot for feature in by_feature(self.tables)]
        columns = [
            -1 - is_list[:each].count(True) if is_list[each] else is_list[:each].count(False)
            for each in group.features
        ]
        counts_T = [max(1, len(self.tables[table].features)) for table in group.tables]
        return DividedTables(
            np.array(columns, np.int64),
            np.cumsum([0, *counts_T]),
            np.array([self.num_replicated[table] for table in group.tables], np.int64),
            np.array([self.tables[table].num_rows for table in group.tables], np.int64),
        )


@dataclass(frozen=True, slots=True)
class GroupLookups:
    """The lookups of a rank's samples in the tables of one embedding dimension."""

    embedding_dim: int
    hot_ids_N: torch.Tensor
    """Rows of the replicated matrix, int64, bag after bag."""
    hot_offsets_P1: torch.Tensor
    """Where the hot lookups of each bag begin, and the end of the last, int64."""
    cold_ids_C: torch.Tensor
    """Distinct sharded rows, int64: from the first one of their table, ascending, table after table."""
    cold_lengths_T: torch.Tensor
    """Distinct sharded rows of each table that has such rows, int32."""
    cold_places_M: torch.Tensor
    """Position in ``cold_ids_C`` of each cold lookup, int64, bag after bag."""
    cold_offsets_P1: torch.Tensor
    """Where the cold lookups of each bag begin, and the end of the last, int64."""
    mean_lengths_FB: torch.Tensor | None = None
    """By what the sum of each bag is divided, float32: its whole length, or 1; None: nothing is averaged."""
    cold_tables: tuple[str, ...] = ()
    """Names of the tables with sharded rows."""
    used_hot_U: torch.Tensor | None = None
    """Distinct rows of the replicated matrix that any rank looks up, int64, ascending; None: nobody asked."""

    @property
    def keyed_jagged(self) -> Any:
        """The distinct rows as a KeyedJaggedTensor of one sample, for an EmbeddingCollection."""
        from torchrec import KeyedJaggedTensor

        return KeyedJaggedTensor(list(self.cold_tables), self.cold_ids_C, lengths=self.cold_lengths_T)


@dataclass(frozen=True, slots=True)
class RankBatch:
    """The samples of one rank of a training batch.

    TorchRec's pipelines can move it: it has their ``to``, ``record_stream`` and ``pin_memory``.
    """

    step: int
    """Position of the batch in the run's order, from 0."""
    number: int
    """Training batch of the shards."""
    is_hot_only: bool
    """Whether no rank looks up a sharded row."""
    num_samples: int
    """Samples of this rank."""
    global_samples: int
    """Samples of all ranks."""
    label_B: torch.Tensor
    """Labels, float32."""
    dense_BK: torch.Tensor
    """Dense features, float32."""
    groups: tuple[GroupLookups, ...]
    """One for each embedding dimension, as in `ReplicatedRows`."""
    of_samples: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """(B,) each, where the log has it: other labels and weight, float32; group, int64; has_group, bool."""

    def to(self, device: torch.device, non_blocking: bool = False) -> RankBatch:
        """Return the batch on a device."""
        moved: RankBatch = _with_tensors(self, lambda tensor: tensor.to(device, non_blocking=non_blocking))
        return moved

    def pin_memory(self) -> RankBatch:
        """Return the batch in page-locked memory of the host."""
        pinned: RankBatch = _with_tensors(self, torch.Tensor.pin_memory)
        return pinned

    def record_stream(self, stream: Any) -> None:
        """Keep the memory of the batch until a stream has used it."""

        def record(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(stream)
            return tensor

        _with_tensors(self, record)


def _with_tensors(held: Any, change: Any) -> Any:
    """Return a copy of a batch, or of a part of it, whose tensors are changed."""
    if isinstance(held, torch.Tensor):
        return change(held)
    if isinstance(held, tuple):
        return tuple(_with_tensors(each, change) for each in held)
    if isinstance(held, Mapping):
        return {name: _with_tensors(each, change) for name, each in held.items()}
    if isinstance(held, (RankBatch, GroupLookups)):
        return replace(
            held, **{each.name: _with_tensors(getattr(held, each.name), change) for each in fields(held)}
        )
    return held


def _as_tensor(values: NDArray[Any]) -> torch.Tensor:
    # Torch hardly knows unsigned numbers; groups are only compared.
    return torch.from_numpy(values.view(np.int64) if values.dtype == np.uint64 else values)


class RankBatches:
    """The batches of one rank in the order of a run, made ahead in a thread.

    Every rank reads whole batches and takes its part. Iterate it once, and close it where that may end early.

    Args:
        shards: read by one thread.
        rows: which rows are replicated.
        numbers: batch of each step; None: all in the order in which they are stored.
        split: training batches, or those of a part of the evaluation samples.
        rank: number of this process.
        world_size: number of processes.
        first_step: steps that are left out, because they were trained on already.
        depth: batches made ahead.
        is_pinned: whether batches are in page-locked memory, from which a GPU copies while it computes.

    Raises:
        ConfigError: a rank that is not below ``world_size``, an unknown split, or rows of other tables.
    """

    def __init__(
        self,
        shards: ShardSet,
        rows: ReplicatedRows,
        numbers: Iterable[int] | None = None,
        *,
        split: Split = "train",
        rank: int = 0,
        world_size: int = 1,
        first_step: int = 0,
        depth: int = 3,
        is_pinned: bool = False,
    ) -> None:
        require_at_least("world_size", world_size, 1)
        require_at_least("first_step", first_step, 0)
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank must be in [0, {world_size}), got {rank}")
        if [table.num_rows for table in rows.tables] != [table.num_rows for table in shards.tables]:
            raise ConfigError(f"the replicated rows are not of the tables of {shards.manifest.folder}")
        self._rows = rows
        self._ranks = rank, world_size
        self._is_pinned = is_pinned
        read, stored = batches_of(shards, split)
        steps = enumerate(stored if numbers is None else numbers)
        made = self._made(read, islice(steps, first_step, None))
        self._ahead = BackgroundIterator(made, depth, "rank batches")

    def __iter__(self) -> Iterator[RankBatch]:
        return iter(self._ahead)

    def close(self) -> None:
        """Stop the thread at its next batch."""
        self._ahead.close()

    def _made(self, read: Callable[[int], Batch], steps: Iterable[tuple[int, int]]) -> Generator[RankBatch]:
        for step, number in steps:
            made = rank_batch(read(number), self._rows, *self._ranks, number, step)
            yield made.pin_memory() if self._is_pinned else made


def rank_batch(
    batch: Batch,
    rows: ReplicatedRows,
    rank: int,
    world_size: int,
    number: int = 0,
    step: int = 0,
    *,
    has_used: bool = False,
) -> RankBatch:
    """Return a rank's part of a whole batch, whose ids are known to be in their tables.

    Args:
        batch: the samples of all ranks.
        rows: which rows are replicated.
        rank: below ``world_size``.
        world_size: number of ranks.
        number: training batch of the shards.
        step: position of the batch in the run's order.
        has_used: whether to find the replicated rows that any rank looks up.
    """
    own = batch.cut(*part_of_rank(batch.num_samples, rank, world_size))
    lookups = _sample_lookups(own)
    groups = tuple(
        _divide(lookups, group, tables) for group, tables in zip(rows.groups, rows.divided, strict=True)
    )
    is_hot_only = all(not group.cold_ids_C.numel() for group in groups)
    if has_used:
        used = used_rows(batch, rows)
        groups = tuple(replace(group, used_hot_U=own_U) for group, own_U in zip(groups, used, strict=True))
    # The samples of other ranks matter only where this one has no cold lookup.
    if is_hot_only and world_size > 1:
        is_hot_only = not rows.has_cold(batch)
    return RankBatch(
        step=step,
        number=number,
        is_hot_only=is_hot_only,
        num_samples=own.num_samples,
        global_samples=batch.num_samples,
        label_B=own.label_B,
        dense_BK=own.dense_BK,
        groups=groups,
        of_samples={name: _as_tensor(values) for name, values in own.of_samples.items()},
    )


def used_rows(batch: Batch, rows: ReplicatedRows) -> list[torch.Tensor]:
    """Return the distinct replicated rows of a whole batch, (U,) of each embedding dimension, ascending."""
    lookups = [ids_N for _, ids_N, _ in batch.features(rows.tables)]
    of_feature = for_features(rows.tables, range(len(rows.tables)))
    found = []
    for group in rows.groups:
        first_of = dict(zip(group.tables, group.first_hot_T, strict=True))
        is_used_R = np.zeros(group.num_hot, np.bool_)
        for feature in group.features:
            table = of_feature[feature]
            ids_N = lookups[feature]
            is_used_R[ids_N[ids_N < rows.num_replicated[table]] + np.int64(first_of[table])] = True
        found.append(torch.from_numpy(np.flatnonzero(is_used_R)))
    return found


def _sample_lookups(batch: Batch) -> SampleLookups:
    """Return the lookups of a batch as the kernel reads them."""
    ids = [bags.ids_N for bags in batch.bags]
    firsts = np.cumsum([0, *(each.size for each in ids)])
    offsets_FB1 = np.empty((len(ids), batch.num_samples + 1), np.int64)
    for feature, bags in enumerate(batch.bags):
        np.add(bags.offsets_B1, firsts[feature], out=offsets_FB1[feature])
    ids_L = np.concatenate(ids) if ids else np.empty(0, np.int32)
    return SampleLookups(read_only(np.ascontiguousarray(batch.ids_BF)), ids_L, offsets_FB1)


def _divide(lookups: SampleLookups, group: RowsOfDim, tables: DividedTables) -> GroupLookups:
    """Return the lookups of one embedding dimension."""
    num_samples = lookups.ids_BF.shape[0]
    lengths_F = np.full(tables.column_F.size, num_samples)
    is_list_F = tables.column_F < 0
    if is_list_F.any():
        starts_F, stops_F = lookups.list_offsets_FB1[-1 - tables.column_F[is_list_F]][:, [0, -1]].T
        lengths_F[is_list_F] = stops_F - starts_F
    lengths_T = np.add.reduceat(lengths_F, tables.first_feature_T1[:-1])
    divided = new_lookups(int(lengths_F.sum()), num_samples * lengths_F.size, lengths_T.size)
    num_distinct = divide_lookups(lookups, tables, new_workspace(tables, lengths_T), divided)
    has_cold_T = tables.num_hot_T < tables.num_rows_T
    return GroupLookups(
        group.embedding_dim,
        torch.from_numpy(divided.hot_ids_N[: divided.hot_offsets_P1[-1]]),
        torch.from_numpy(divided.hot_offsets_P1),
        torch.from_numpy(divided.cold_ids_C[:num_distinct]),
        torch.from_numpy(divided.num_cold_T[has_cold_T]),
        torch.from_numpy(divided.cold_places_M[: divided.cold_offsets_P1[-1]]),
        torch.from_numpy(divided.cold_offsets_P1),
        _mean_lengths(lookups, group, tables),
        group.cold_tables,
    )


def _mean_lengths(lookups: SampleLookups, group: RowsOfDim, tables: DividedTables) -> torch.Tensor | None:
    """Return by what the sum of each bag is divided, (F, B); None where nothing is averaged."""
    if not any(group.is_mean_F):
        return None
    lengths_FB = np.ones((len(group.features), lookups.ids_BF.shape[0]), np.float32)
    for feature, is_mean in enumerate(group.is_mean_F):
        if is_mean:
            np.maximum(
                np.diff(lookups.list_offsets_FB1[-1 - tables.column_F[feature]]),
                1,
                out=lengths_FB[feature],
                casting="unsafe",
            )
    return torch.from_numpy(lengths_FB)
