"""Batches as dictionaries, whose ids anybody may have made: each is checked before a kernel reads it.

Shapes: B samples, F one-hot features, N lookups of a multi-hot feature.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError
from ...stats.batch_rows import first_stray_lookup
from ..data.batch import Batch, EmbeddingTable, FeatureBags
from ..data.shard_dataset import offsets_name


class DictionaryReader:
    """Reads the lookups of some tables out of dictionaries, as `ShardDataset` hands them out.

    Args:
        tables: all tables of the shards.
    """

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        self._tables = tuple(tables)

    def read(self, features: Mapping[str, Any]) -> Batch:
        """Return the lookups of a batch, without its labels and dense features.

        Args:
            features: for each table its ids by name, (B,) integers; of a multi-hot one the ids of all
                samples, (N,), and under ``NAME_offsets`` where those of each begin, (B + 1,).

        Raises:
            ConfigError: a feature is missing, has another shape or type, or an id that its table has not.
        """
        columns: list[NDArray[np.int32]] = []
        bags: list[FeatureBags] = []
        num_samples: dict[str, int] = {}
        is_hot_only = True
        names = {table.name for table in self._tables}
        for table in self._tables:
            # Ids are refused as they came, before a kernel reads them or they are cut to int32.
            found_N = _integers(features, table.name)
            _refuse_stray(found_N, table)
            ids_N = np.ascontiguousarray(found_N, np.int32)
            is_hot_only &= first_stray_lookup(ids_N[:, None], np.array([table.num_hot])) < 0
            if table.is_multi_hot:
                name = offsets_name(table.name)
                offsets_B1 = _integers(features, name)
                _refuse_offsets(offsets_B1, ids_N.size, name)
                bags.append(FeatureBags(offsets_B1.astype(np.int32), ids_N))
                num_samples[table.name] = offsets_B1.size - 1
            else:
                _refuse_lists(features, table.name, names)
                columns.append(ids_N)
                num_samples[table.name] = ids_N.size
        # All features are of the same samples.
        first, *others = num_samples.items()
        for name, count in others:
            if count != first[1]:
                raise ConfigError(f"{name!r} has {count} samples, and {first[0]!r} has {first[1]}")
        ids_BF = np.stack(columns, axis=1) if columns else np.empty((first[1], 0), np.int32)
        no_values = torch.empty(0)
        return Batch(no_values, no_values, ids_BF, None, is_hot_only, tuple(bags))


def _refuse_lists(features: Mapping[str, Any], name: str, names: Collection[str]) -> None:
    """Raise ConfigError where a feature of one id per sample comes with lists, which look like samples."""
    offsets = offsets_name(name)
    if offsets in features and offsets not in names:
        raise ConfigError(f"the batch has {offsets!r}, and feature {name!r} has one id per sample, not lists")


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


def _refuse_offsets(offsets_B1: NDArray[Any], num_lookups: int, name: str) -> None:
    """Raise ConfigError unless offsets divide the lookups into bags."""
    is_right = (
        offsets_B1.size > 0
        and offsets_B1[0] == 0
        and offsets_B1[-1] == num_lookups
        and bool((offsets_B1[1:] >= offsets_B1[:-1]).all())
    )
    if not is_right:
        raise ConfigError(f"{name!r} must ascend from 0 to {num_lookups}, the number of its ids")
