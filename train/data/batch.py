"""Batches and their look-ups, as arrays of the host.

Shapes: B samples, F features of a model or of one row width, K dense features, N look-ups, P = B * F bags.
A bag is the look-ups of one feature in one sample; features with one look-up a sample need no list of bags.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.batches.bags import scatter_bags


@dataclass(frozen=True, slots=True)
class Table:
    """One embedding table as the shards know it."""

    name: str
    num_rows: int
    num_hot: int
    embedding_dim: int
    is_multi_hot: bool = False


@dataclass(frozen=True, slots=True)
class Bags:
    """The look-ups of one multi-hot feature."""

    offsets_B1: NDArray[np.int32]
    """Where each sample's ids begin, and the end of the last."""
    ids_N: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of samples."""

    label_B: torch.Tensor
    """float32, each 0 or 1."""
    dense_BK: torch.Tensor
    """float32."""
    ids_BF: NDArray[np.int32]
    """Of the one-hot features, in the order of the tables."""
    is_hot_B: NDArray[np.uint8] | None
    """1 where all look-ups of a sample are hot; evaluation batches only."""
    is_hot_only: bool
    """Whether every look-up is of a hot row; False for evaluation batches."""
    bags: tuple[Bags, ...] = ()
    """Of the multi-hot features, in the order of the tables."""

    @property
    def num_samples(self) -> int:
        return int(self.ids_BF.shape[0])


@dataclass(frozen=True, slots=True)
class BatchIds:
    """The look-ups of a batch in the tables of one row width, in sample order, then feature order."""

    ids_N: NDArray[np.int32]
    bags_N: NDArray[np.int64] | None
    """Bag ``sample * F + feature`` of each look-up, ascending; None where look-up i is bag i."""
    num_samples: int
    num_features: int

    @classmethod
    def of_matrix(cls, ids_BF: NDArray[np.int32]) -> BatchIds:
        """One look-up a feature and sample."""
        return cls(np.ascontiguousarray(ids_BF).reshape(-1), None, ids_BF.shape[0], ids_BF.shape[1])

    @property
    def num_bags(self) -> int:
        return self.num_samples * self.num_features


class IdReader:
    """Takes the look-ups of some tables out of batches.

    Args:
        tables: all tables of the shards.
        chosen: positions in ``tables`` of those wanted, ascending.
    """

    def __init__(self, tables: Sequence[Table], chosen: Sequence[int]) -> None:
        is_multi_hot = [table.is_multi_hot for table in tables]
        # The place of each chosen table among those of its kind.
        self._places = [
            (is_multi_hot[table], is_multi_hot[:table].count(is_multi_hot[table])) for table in chosen
        ]
        self._is_one_hot = not any(is_multi for is_multi, _ in self._places)
        columns = [place for _, place in self._places]
        self._takes_all = self._is_one_hot and len(columns) == is_multi_hot.count(False)

    def read(self, batch: Batch) -> BatchIds:
        """The look-ups of the chosen tables."""
        if self._takes_all:
            return BatchIds.of_matrix(batch.ids_BF)
        if self._is_one_hot:
            return BatchIds.of_matrix(batch.ids_BF[:, [place for _, place in self._places]])
        return self._read_bags(batch)

    def _read_bags(self, batch: Batch) -> BatchIds:
        num_samples, num_features = batch.num_samples, len(self._places)
        lengths_BF = np.ones((num_samples, num_features), np.int64)
        for feature, (is_multi_hot, place) in enumerate(self._places):
            if is_multi_hot:
                lengths_BF[:, feature] = np.diff(batch.bags[place].offsets_B1)
        lengths_P = lengths_BF.reshape(-1)
        starts_P = np.cumsum(lengths_P) - lengths_P
        ids_N = np.empty(int(lengths_P.sum()), np.int32)
        for feature, (is_multi_hot, place) in enumerate(self._places):
            if is_multi_hot:
                bags = batch.bags[place]
                scatter_bags(bags.offsets_B1, bags.ids_N, starts_P, feature, num_features, ids_N)
            else:
                ids_N[starts_P[feature::num_features]] = batch.ids_BF[:, place]
        bags_N = np.repeat(np.arange(lengths_P.size), lengths_P)
        return BatchIds(ids_N, bags_N, num_samples, num_features)
