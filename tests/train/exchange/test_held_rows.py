"""The rows of a rank as tables of their own."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.train.data.batch import EmbeddingTable
from hotset.train.exchange.held_rows import HeldRows

NUM_ROWS = (5, 0, 9)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_each_row_is_held_once_and_keeps_its_order(num_ranks: int, rng: np.random.Generator) -> None:
    owners = rng.integers(0, num_ranks, sum(NUM_ROWS)).astype(np.uint8)
    tables = [EmbeddingTable(f"C{n}", rows, rows // 2, 4) for n, rows in enumerate(NUM_ROWS)]
    every = [HeldRows(NUM_ROWS, owners, rank) for rank in range(num_ranks)]
    for number, table in enumerate(tables):
        ids = [held.ids.of_table(number) for held in every]
        assert sorted(np.concatenate(ids).tolist()) == list(range(table.num_rows))
        for held, own in zip(every, ids, strict=True):
            cut = held.cut(tables)[number]
            assert cut.num_rows == own.size and cut.num_hot == np.count_nonzero(own < table.num_hot)
            first = int(held.first_key_F1[number])
            assert (owners[first + own] == held.rank).all() and (np.diff(own) > 0).all()


def test_served_rows_are_named_by_their_numbers_here(rng: np.random.Generator) -> None:
    owners = rng.integers(0, 2, sum(NUM_ROWS)).astype(np.uint8)
    held = HeldRows(NUM_ROWS, owners, 1)
    chosen = held.keys_R[rng.random(held.keys_R.size) < 0.6].astype(np.int32)
    served = held.served(chosen)
    assert served.counts_U.tolist() == [1] * chosen.size
    tables = np.repeat(np.arange(3), np.diff(served.first_F1))
    ids = held.ids.of(tables, served.rows_U.astype(np.int64))
    np.testing.assert_array_equal(held.first_key_F1[tables] + ids, chosen)
