"""Lookups of a batch by torch's own functions, and a log whose features share tables."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from hotset.pipeline.folders.totals import by_feature
from hotset.tests.support.shard_factory import ShardSpec
from hotset.train.data.batch import Batch
from hotset.train.data.shards import ShardSet
from hotset.train.model.shapes import tables_by_dim

SPEC = ShardSpec(
    num_rows=(50, 40, 40, 40, 30, 30),
    num_hot=(5, 9, 9, 9, 4, 4),
    multi_hot=(2, 3),
    same_table=(2, 3, 5),
    table_dims=(4, 4, 2),
    num_hot_only=40,
    num_mixed=150,
    batch_size=16,
    skew=1.2,
)
"""A table of one feature, one of three, two of which are lists, and one of two with another width."""


def naive_embeddings(
    tables_ND: dict[str, torch.Tensor], batch: Batch, shards: ShardSet
) -> list[torch.Tensor]:
    """(B, F, d) of each width, feature by feature."""
    of_feature = {}
    for name, ids_N, offsets_B1 in batch.features(shards.tables):
        table = next(each for each in shards.tables if name in {one.name for one in by_feature([each])})
        weights_ND = tables_ND[table.name]
        ids = torch.from_numpy(ids_N.astype(np.int64))
        if offsets_B1 is None:
            of_feature[name] = weights_ND[ids]
        else:
            offsets = torch.from_numpy(offsets_B1.astype(np.int64))
            of_feature[name] = embedding_bag(ids, weights_ND, offsets, mode="sum", include_last_offset=True)
    features = by_feature(shards.tables)
    widths = tables_by_dim([feature.embedding_dim for feature in features])
    return [
        torch.stack([of_feature[features[number].name] for number in numbers], dim=1)
        for numbers in widths.values()
    ]
