"""Lookups read out of batches, table by table.

Shares cover a batch by sample position, and those of a rank are what it is given.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.folders.totals import TableFeature
from hotset.stats.exchange import ranks_of_samples
from hotset.train.data.batch import Batch, EmbeddingTable, FeatureBags, IdReader, MicroBatches

TABLES = [
    EmbeddingTable("C1", 9, 2, 4),
    EmbeddingTable("C2", 9, 2, 4, is_multi_hot=True),
    EmbeddingTable("C3", 9, 2, 8),
]
BATCH = Batch(
    torch.zeros(3),
    torch.zeros(3, 1),
    np.array([[1, 2], [3, 4], [5, 6]], np.int32),
    None,
    False,
    (FeatureBags(np.array([0, 2, 2, 3], np.int32), np.array([7, 8, 0], np.int32)),),
)


def test_bags_stand_between_their_sample_s_other_lookups() -> None:
    ids = IdReader(TABLES, [0, 1, 2]).read(BATCH)
    assert ids.ids_N.tolist() == [1, 7, 8, 2, 3, 4, 5, 0, 6]
    assert ids.bags_N is not None and ids.bags_N.tolist() == [0, 1, 1, 2, 3, 5, 6, 7, 8]
    assert (ids.num_samples, ids.num_features, ids.num_bags) == (3, 3, 9)


def test_one_hot_tables_need_no_bags() -> None:
    both = IdReader(TABLES, [0, 2]).read(BATCH)
    assert both.bags_N is None and both.ids_N.tolist() == [1, 2, 3, 4, 5, 6]
    assert both.ids_N.base is not None, "a view"
    assert IdReader(TABLES, [2]).read(BATCH).ids_N.tolist() == [2, 4, 6]


@pytest.mark.parametrize(("first", "stop"), [(0, 3), (0, 1), (1, 3), (2, 3), (1, 2), (3, 3)])
def test_bags_are_cut_with_their_samples(first: int, stop: int) -> None:
    bags = [[1, 2], [], [3, 4, 5]]
    offsets = np.cumsum([0, *map(len, bags)]).astype(np.int32)
    found = FeatureBags(offsets, np.array([1, 2, 3, 4, 5], np.int32)).cut(first, stop)
    ends = found.offsets_B1.tolist()
    assert [found.ids_N[a:b].tolist() for a, b in pairwise(ends)] == bags[first:stop]
    assert (ends[0], ends[-1]) == (0, found.ids_N.size)


def test_a_bag_may_be_all_there_is() -> None:
    ids = IdReader(TABLES, [1]).read(BATCH)
    assert ids.ids_N.tolist() == [7, 8, 0]
    assert ids.bags_N is not None and ids.bags_N.tolist() == [0, 0, 2]


def test_features_of_one_table_are_told_apart_by_bag_and_joined_by_row() -> None:
    shared = (TableFeature(name="C1"), TableFeature(name="C2", is_multi_hot=True))
    tables = [EmbeddingTable("T", 9, 2, 4, is_multi_hot=True, features=shared), EmbeddingTable("C3", 9, 2, 4)]
    reader = IdReader(tables, [0, 1])
    ids = reader.read(BATCH)
    assert ids.ids_N.tolist() == [1, 7, 8, 2, 3, 4, 5, 0, 6]
    assert ids.bags_N is not None and ids.bags_N.tolist() == [0, 1, 1, 2, 3, 5, 6, 7, 8]
    assert ids.bags_of_tables is not None and ids.bags_of_tables.tolist() == [0, 0, 0, 1, 2, 3, 4, 4, 5]
    lookups = reader.by_row(ids)
    assert lookups.rows_U.tolist() == [0, 1, 3, 5, 7, 8, 2, 4, 6] and lookups.first_F1.tolist() == [0, 6, 9]
    # Two one-hot features of one table need bags too: a row may have several lookups of a sample.
    pair = (TableFeature(name="C1"), TableFeature(name="C3"))
    ids = IdReader([EmbeddingTable("T", 9, 2, 4, is_multi_hot=True, features=pair)], [0]).read(BATCH)
    assert ids.bags_of_tables is not None and ids.bags_of_tables.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("num_shares", "num_ranks"), [(1, 1), (4, 1), (4, 2), (4, 4), (6, 3), (24, 3), (8, 8)]
)
@pytest.mark.parametrize("num_samples", [0, 1, 5, 50, 99, 100])
def test_ranks_have_the_samples_of_their_shares(num_shares: int, num_ranks: int, num_samples: int) -> None:
    wanted = np.arange(num_samples) * num_shares // 100
    found: list[int] = []
    for rank in range(num_ranks):
        shares = MicroBatches(100, num_shares, rank, num_ranks)
        first, stop = shares.own_part(num_samples)
        assert (ranks_of_samples(num_samples, 100, num_shares, num_ranks)[first:stop] == rank).all()
        for start, end in shares.bounds(stop - first):
            numbers = set(wanted[first + start : first + end].tolist())
            assert len(numbers) == (1 if num_samples else 0)
            found += range(first + start, first + end)
    assert found == list(range(num_samples))


def test_a_batch_of_one_share_is_taken_whole() -> None:
    assert MicroBatches(100).bounds(0) == [(0, 0)]
    assert MicroBatches(100).bounds(250) == [(0, 250)]


@pytest.mark.parametrize(("num_shares", "num_ranks"), [(3, 2), (6, 2), (12, 4), (1, 2)])
def test_shares_that_are_no_subtree_of_a_rank_are_refused(num_shares: int, num_ranks: int) -> None:
    with pytest.raises(
        ConfigError, match=f"{num_shares} micro-batches cannot be divided among {num_ranks} ranks"
    ):
        MicroBatches(100, num_shares, 0, num_ranks)


def test_a_batch_is_cut_into_no_more_shares_than_it_has_samples() -> None:
    MicroBatches(6, 6, 1, 3)
    with pytest.raises(ConfigError, match="a batch of 5 samples cannot be cut into 6 micro-batches"):
        MicroBatches(5, 6, 1, 3)
