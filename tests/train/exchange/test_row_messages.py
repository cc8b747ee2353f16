"""Rows of several widths arrive at each rank by width, in the order of the ranks they come from."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.train.exchange.row_messages import RowMessages
from hotset.train.ranks.ranks import Ranks
from hotset.train.ranks.thread_ranks import run_thread_ranks


@pytest.mark.parametrize("dims", [(3,), (2, 5)])
def test_rows_arrive_by_width_and_rank(dims: tuple[int, ...]) -> None:
    counts = np.array([[[0, 2, 1], [3, 0, 0], [1, 1, 0]], [[0, 1, 4], [0, 0, 2], [2, 0, 0]]])[: len(dims)]

    def rows(width: int, source: int, target: int) -> np.ndarray:
        count = counts[width, source, target]
        return np.full((count, dims[width]), 100 * source + 10 * target + width, np.float32)

    def work(ranks: Ranks) -> int:
        messages = RowMessages(ranks, dims)
        own = ranks.rank
        for _ in range(2):
            under_way = messages.send(
                [np.concatenate([rows(width, own, to) for to in range(3)]) for width in range(len(dims))],
                [tuple(each[own].tolist()) for each in counts],
                [tuple(each[:, own].tolist()) for each in counts],
            )
            for width, found in enumerate(under_way.wait()):
                wanted = np.concatenate([rows(width, source, own) for source in range(3)])
                np.testing.assert_array_equal(found, wanted)
        return messages.sent_bytes

    sent = sum(run_thread_ranks(3, work))
    assert sent == 2 * 4 * sum(dim * int(each.sum()) for dim, each in zip(dims, counts, strict=True))
