"""Lookups of batches that anybody may have made, and the batches of a step.

Ids are checked before a kernel reads them.

The loop may run on several ranks. As `DistributedDataParallel` does with layers, every rank keeps a replica
of the rows and trains on batches of its own. Before a step the ranks exchange their lookups and gradients,
and each updates all rows by the mean. Two groups of processes serve two threads: one reads batches ahead, one
takes the steps.

Shapes: B samples, F features, N lookups of a multi-hot feature, d embedding_dim of a table group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError
from ...pipeline.folders.totals import by_feature
from ...stats.batch_rows import first_stray_lookup
from ..config import TrainConfig
from ..config_parts import is_launched
from ..data.batch import Batch, EmbeddingTable, FeatureBags, LookupsOfBatch, join
from ..data.dataset import offsets_name
from ..data.shards import ShardSet
from ..ranks.ranks import OneRank, Ranks, TorchRanks, check_equal_settings, gather_arrays

Dictionary = TypeVar("Dictionary", bound=Mapping[str, Any])


def read_lookups(tables: Sequence[EmbeddingTable], features: Mapping[str, Any]) -> Batch:
    """Return the lookups of a dictionary of `ShardDataset`, without labels and dense features.

    Args:
        tables: all tables of the shards.
        features: for each table its ids by name, (B,) integers; of a multi-hot one the ids of all samples,
            (N,), and under ``NAME_offsets`` where those of each begin, (B + 1,).

    Raises:
        ConfigError: a feature is missing, has another shape or type, or an id that its table has not.
    """
    columns: list[NDArray[np.int32]] = []
    bags: list[FeatureBags] = []
    num_samples: dict[str, int] = {}
    is_hot_only = True
    features_of_log = by_feature(tables)
    names = {table.name for table in features_of_log}
    for table in features_of_log:
        # Ids are refused as they came, before a kernel reads them or they are cut to int32.
        found_N = _integers(features, table.name)
        _refuse_stray(found_N, table)
        ids_N = np.ascontiguousarray(found_N, np.int32)
        is_hot_only &= first_stray_lookup(ids_N[:, None], np.array([table.num_hot])) < 0
        name = offsets_name(table.name)
        if table.is_multi_hot:
            offsets_B1 = _integers(features, name)
            ends = offsets_B1[[0, -1]].tolist() if offsets_B1.size else []
            if ends != [0, ids_N.size] or (offsets_B1[1:] < offsets_B1[:-1]).any():
                raise ConfigError(f"{name!r} must ascend from 0 to {ids_N.size}, the number of its ids")
            bags.append(FeatureBags(offsets_B1.astype(np.int32), ids_N))
            num_samples[table.name] = offsets_B1.size - 1
            continue
        # Ids of lists resemble samples.
        if name in features and name not in names:
            raise ConfigError(
                f"the batch has {name!r}, and feature {table.name!r} has one id per sample, not lists"
            )
        columns.append(ids_N)
        num_samples[table.name] = ids_N.size
    # All features are of the same samples.
    first, *others = num_samples.items()
    for name, size in others:
        if size != first[1]:
            raise ConfigError(f"{name!r} has {size} samples, and {first[0]!r} has {first[1]}")
    ids_BF = np.stack(columns, axis=1) if columns else np.empty((first[1], 0), np.int32)
    no_values = torch.empty(0, dtype=torch.float32, device="cpu")
    return Batch(no_values, no_values, ids_BF, None, is_hot_only, tuple(bags))


def _integers(features: Mapping[str, Any], name: str) -> NDArray[Any]:
    """Return the integers under a name; raise ConfigError where there are none."""
    if name not in features:
        raise ConfigError(f"the batch has no {name!r}; it has {', '.join(map(repr, list(features)[:8]))}")
    value = features[name]
    found = value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ConfigError(f"{name!r} is {found.dtype} of shape {found.shape}, want a vector of integers")
    return found


def _refuse_stray(ids_N: NDArray[Any], table: EmbeddingTable) -> None:
    """Raise ConfigError where an id is not in its table."""
    # Compared in their own type: a large int64 could be a good int32 once it is cut.
    is_stray_N = (ids_N < 0) | (ids_N >= table.num_rows)
    if is_stray_N.any():
        stray = int(ids_N[is_stray_N.argmax()])
        raise ConfigError(f"feature {table.name!r} has the id {stray}, and its table {table.num_rows} rows")


class Held(Generic[Dictionary]):
    """The batches of one step.

    Args:
        dictionaries: as the caller has them.
        batches: their lookups.
        whole: those of all ranks; by default those of ``batches``.
        first: sample at which the first of ``batches`` begins in it.
    """

    def __init__(
        self,
        dictionaries: Sequence[Dictionary],
        batches: Sequence[Batch],
        whole: Batch | None = None,
        first: int = 0,
    ) -> None:
        self.dictionaries = dictionaries
        self.batches = batches
        self.whole = whole or join(batches)
        self.places = list(accumulate((batch.num_samples for batch in batches), initial=first))
        """Sample at which each batch begins, and the end of the last."""

    @classmethod
    def of(cls, tables: Sequence[EmbeddingTable], dictionaries: Sequence[Dictionary]) -> Held[Dictionary]:
        """Read the lookups of dictionaries; see `read_lookups`."""
        return cls(dictionaries, [read_lookups(tables, each) for each in dictionaries])


def is_same(batch: Batch, other: Batch) -> bool:
    """Return whether two batches have the same lookups."""
    if not np.array_equal(batch.ids_BF, other.ids_BF):
        return False
    return all(
        np.array_equal(bags.offsets_B1, others.offsets_B1) and np.array_equal(bags.ids_N, others.ids_N)
        for bags, others in zip(batch.bags, other.bags, strict=True)
    )


_TIMEOUT_SECONDS = 1800.0
"""Torch's default: one rank may evaluate while the others wait."""


@dataclass(frozen=True, slots=True)
class LoopRanks:
    """The ranks of a loop."""

    steps: Ranks
    """For what the loop itself exchanges."""
    ahead: Ranks
    """For the batches that another thread reads."""

    @property
    def num_ranks(self) -> int:
        return self.steps.num_ranks


def loop_ranks() -> LoopRanks:
    """Return the ranks of the caller's process group; one without such a group.

    Raises:
        ConfigError: this process was launched as a rank and has joined no group.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        own = [TorchRanks(_TIMEOUT_SECONDS, dist.new_group(backend="gloo")) for _ in range(2)]
        return LoopRanks(*own)
    if is_launched():
        raise ConfigError(
            "this process is one of several ranks, and has joined no process group",
            hint='call torch.distributed.init_process_group("gloo") before hotset.nn.Embeddings',
        )
    return LoopRanks(OneRank(), OneRank())


def check_equal_rows(ranks: Ranks, shards: ShardSet, config: TrainConfig, choices: object) -> None:
    """Raise RankError where another rank has other tables, or updates them in another way."""
    if ranks.num_ranks > 1:
        rows = {"data": shards.manifest.fingerprint, "tables": choices, "seed": config.seed}
        check_equal_settings(ranks, rows)


class SharedBatches:
    """Gives each rank the lookups of all, step by step; the end of one rank's batches is the end."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._is_over = False

    def held(self, dictionaries: Sequence[Dictionary], batches: Sequence[Batch]) -> Held[Dictionary]:
        """Return the batches of a step, with those of the other ranks.

        Raises:
            ConfigError: another rank has no more batches.
        """
        if self._ranks.num_ranks == 1:
            return Held(dictionaries, batches)
        found = self._gathered(join(batches))
        if None in found:
            raise ConfigError(
                f"rank {found.index(None)} has fewer batches than rank {self._ranks.rank}",
                hint="hotset.ShardDataset(data, rank=…, world_size=…) gives all ranks the same number",
            )
        of_ranks = [each for each in found if each is not None]
        first = sum(each.num_samples for each in of_ranks[: self._ranks.rank])
        return Held(dictionaries, batches, join(of_ranks), first)

    def end(self) -> None:
        """Tell the other ranks that this one has no more batches."""
        if self._ranks.num_ranks > 1 and not self._is_over:
            self._gathered(None)

    def _gathered(self, own: Batch | None) -> list[Batch | None]:
        # A rank that reads ahead may wait for one that has ended its loop: whoever hears of an end, ends.
        found = gather_batches(self._ranks, own)
        self._is_over = None in found
        return found


def gather_batches(ranks: Ranks, own: Batch | None) -> list[Batch | None]:
    """Return the lookups of each rank's batch, in the order of ranks; None where it has none."""
    arrays = [] if own is None else LookupsOfBatch(own.ids_BF, own.bags, own.is_hot_only).arrays()
    return [_batch_of(each) for each in gather_arrays(ranks, arrays)]


def _batch_of(arrays: Sequence[NDArray[Any]]) -> Batch | None:
    if not arrays:
        return None
    lookups = LookupsOfBatch.of(arrays)
    no_values = torch.empty(0, dtype=torch.float32, device="cpu")
    return Batch(no_values, no_values, lookups.ids_BF, None, lookups.is_hot_only, lookups.bags)


def gather_gradients(
    ranks: Ranks, grads: Sequence[NDArray[np.float32]], is_given_BF: NDArray[np.bool_]
) -> tuple[list[NDArray[np.float32]], NDArray[np.bool_]]:
    """Return gradients of the samples of all ranks, in the order of ranks.

    Args:
        ranks: all call this.
        grads: (B, F, d) of each table group.
        is_given_BF: which samples have a gradient, by feature.
    """
    *whole, flags = zip(*gather_arrays(ranks, [*grads, is_given_BF]), strict=True)
    return [np.concatenate(each) for each in whole], np.concatenate(flags)
