"""Lookups read out of batches, table by table.

Shares cover a batch by sample position, and those of a rank are what it is given.

Orders of batches: from the seed, and recorded.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.pipeline.folders.totals import TableFeature
from hotset.stats.exchange import ranks_of_samples
from hotset.stats.shuffle import epoch_order
from hotset.train.data.batch import (
    BATCH_ORDER,
    Batch,
    CutOrder,
    EmbeddingTable,
    FeatureBags,
    IdReader,
    MicroBatches,
    RecordedOrder,
    SeededOrder,
    read_batch_order,
)

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


KINDS = np.arange(12) < 8


def test_epochs_follow_one_another() -> None:
    order = list(SeededOrder(KINDS, 3, 2, is_grouped=True).epochs())
    assert order == [epoch_order(KINDS, 3, epoch, spread=True).tolist() for epoch in range(2)]


def write_order(folder: Path, numbers: list[int]) -> Path:
    np.save(folder / BATCH_ORDER, np.array(numbers, np.int32))
    return folder


def test_an_order_is_cut_anywhere() -> None:
    whole = RecordedOrder(np.array([2, 0, 1, 1, 0, 2], np.int32), 2)
    for num_steps, wanted in (
        (1, [[2]]),
        (3, [[2, 0, 1]]),
        (4, [[2, 0, 1], [1]]),
        (9, [[2, 0, 1], [1, 0, 2]]),
    ):
        assert list(CutOrder(whole, num_steps).epochs()) == wanted


def test_a_recorded_order_is_replayed(tmp_path: Path) -> None:
    run = write_order(tmp_path, [2, 0, 1, 1, 2, 0])
    assert list(RecordedOrder.of_run(run, 3, 2).epochs()) == [[2, 0, 1], [1, 2, 0]]


@pytest.mark.parametrize("numbers", [[], [0, 1], [0, 1, 1], [0, 1, 3], [0, 1, -1], [0, 1, 2, 2]])
def test_an_order_of_other_shards_is_refused(numbers: list[int], tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="each of 3 batches 1 times"):
        RecordedOrder.of_run(write_order(tmp_path, numbers), 3, 1)


def test_a_run_without_an_order_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="cannot be read"):
        RecordedOrder.of_run(tmp_path, 3, 1)


HEADERS = (
    b"",
    b"damaged",
    b"{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    b"{'descr': '<i4', 'fortran_order': True, 'shape': (3, 1), }",
    b"{'descr': '<i4', 'fortran_order': False, 'shape': (4611686018427387904,), }",
    b"{'descr': '<i4', 'fortran_order': False, 'shape': (-1,), }",
    b"{'descr': '<i4', 'fortran_order': False, 'shape': (3,",
    b"{'descr': '<i4', 'fortran_order': False, 'shape': (3 + '",
)


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_a_file_that_is_no_order_is_refused(header: bytes, tmp_path: Path) -> None:
    values = np.arange(3, dtype=np.int32).tobytes()
    padded = b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117) + b"\n" if header else b""
    (tmp_path / BATCH_ORDER).write_bytes(padded + values)
    with pytest.raises(HotsetError, match=r"batch_order\.npy is damaged: it "):
        RecordedOrder.of_run(tmp_path, 3, 1)


@pytest.mark.parametrize("num_steps", [0, 1, 9, 10, 12345])
def test_an_order_of_any_length_is_read(num_steps: int, tmp_path: Path) -> None:
    numbers = np.arange(num_steps, dtype=np.int32)
    path = write_order(tmp_path, numbers.tolist()) / BATCH_ORDER
    np.testing.assert_array_equal(read_batch_order(path), numbers)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(HotsetError, match="it has "):
        read_batch_order(path)
