"""Lookups read out of batches, table by table."""

from __future__ import annotations

import numpy as np
import torch

from hotset.train.data.batch import Batch, EmbeddingTable, FeatureBags, IdReader

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


def test_a_bag_may_be_all_there_is() -> None:
    ids = IdReader(TABLES, [1]).read(BATCH)
    assert ids.ids_N.tolist() == [7, 8, 0]
    assert ids.bags_N is not None and ids.bags_N.tolist() == [0, 0, 2]
