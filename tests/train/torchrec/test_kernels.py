"""The kernel divides lookups as plain operators of torch do, on drawn tables, lists and ranks."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.folders.totals import TableFeature, by_feature, for_features
from hotset.tests.support.naive.naive_rank_batches import naive_rank_batch
from hotset.train.data.batch import Batch, EmbeddingTable, FeatureBags
from hotset.train.torchrec.batches import GroupLookups, ReplicatedRows, rank_batch

SIZES = (1, 2, 7, 40, 3000, 5_000_000, 2**31 - 1)
"""Rows of tables: of one bit to three digits of the sort."""


@st.composite
def drawn_tables(draw: st.DrawFn) -> tuple[EmbeddingTable, ...]:
    tables = []
    for number in range(draw(st.integers(1, 4))):
        lists = draw(st.lists(st.booleans(), min_size=1, max_size=3))
        name = f"C{number}"
        features = tuple(
            TableFeature(name=f"{name}_{each}", is_multi_hot=is_list) for each, is_list in enumerate(lists)
        )
        table = EmbeddingTable(
            name,
            draw(st.sampled_from(SIZES)),
            0,
            draw(st.sampled_from((2, 4))),
            is_multi_hot=len(lists) > 1 or lists[0],
            features=features if len(lists) > 1 else (),
        )
        tables.append(table)
    return tuple(tables)


def draw_batch(tables: tuple[EmbeddingTable, ...], num_samples: int, rng: np.random.Generator) -> Batch:
    """Ids near the beginning of tables and anywhere in them, in lists of none to four."""
    columns = []
    bags = []
    limits = for_features(tables, [table.num_rows for table in tables])
    for feature, limit in zip(by_feature(tables), limits, strict=True):
        offsets = np.concatenate([[0], rng.integers(0, 5, num_samples).cumsum()]).astype(np.int32)
        count = int(offsets[-1]) if feature.is_multi_hot else num_samples
        near = rng.integers(0, min(limit, 6), count)
        ids = np.where(rng.random(count) < 0.7, near, rng.integers(0, limit, count)).astype(np.int32)
        if feature.is_multi_hot:
            bags.append(FeatureBags(offsets, ids))
        else:
            columns.append(ids)
    ids_BF = np.stack(columns, axis=1) if columns else np.empty((num_samples, 0), np.int32)
    label_B = torch.from_numpy(rng.integers(0, 2, num_samples).astype(np.float32))
    dense_BK = torch.from_numpy(rng.random((num_samples, 2), np.float32))
    return Batch(label_B, dense_BK, ids_BF, None, False, tuple(bags))


def check_same(found: GroupLookups, wanted: GroupLookups) -> None:
    for each in fields(GroupLookups):
        one, other = getattr(found, each.name), getattr(wanted, each.name)
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype and torch.equal(one, other), each.name
        else:
            assert one == other, each.name


@settings(max_examples=60)
@given(drawn_tables(), st.integers(0, 13), st.integers(1, 4), st.booleans(), st.data())
def test_parts_are_those_of_torch(
    tables: tuple[EmbeddingTable, ...], num_samples: int, world_size: int, is_mean: bool, data: st.DataObject
) -> None:
    share = data.draw(st.sampled_from((0.0, 0.5, 1.0, None)))
    num_replicated = tuple(
        data.draw(st.integers(0, min(table.num_rows, 6))) if share is None else int(share * table.num_rows)
        for table in tables
    )
    rows = ReplicatedRows(tables, num_replicated, "mean" if is_mean else "sum")
    batch = draw_batch(tables, num_samples, np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))))
    for rank in range(world_size):
        found = rank_batch(batch, rows, rank, world_size)
        wanted = naive_rank_batch(batch, rows, rank, world_size)
        assert (found.is_hot_only, found.num_samples) == (wanted.is_hot_only, wanted.num_samples)
        for one, other in zip(found.groups, wanted.groups, strict=True):
            check_same(one, other)


@pytest.mark.parametrize("num_rows", [2**11, 2**11 + 1, 2**22, 2**22 + 1])
def test_tables_at_the_ends_of_digits(num_rows: int, rng: np.random.Generator) -> None:
    tables = (EmbeddingTable("C1", num_rows, 0, 4),)
    ids = np.concatenate([rng.integers(0, num_rows, 60), [num_rows - 1, 0, 1, num_rows - 1]]).astype(np.int32)
    no_values = torch.zeros(ids.size, dtype=torch.float32)
    batch = Batch(no_values, no_values[:, None], ids[:, None], None, False)
    for num_hot in (0, 1, num_rows - 1):
        rows = ReplicatedRows(tables, (num_hot,))
        (found,) = rank_batch(batch, rows, 0, 1).groups
        check_same(found, naive_rank_batch(batch, rows, 0, 1).groups[0])
