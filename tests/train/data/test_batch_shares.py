"""Shares cover a batch by sample position, and those of a rank are what it is given."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError
from hotset.stats.exchange import ranks_of_samples
from hotset.train.data.batch_shares import BatchShares


@pytest.mark.parametrize(
    ("num_shares", "num_ranks"), [(1, 1), (4, 1), (4, 2), (4, 4), (6, 3), (24, 3), (8, 8)]
)
@pytest.mark.parametrize("num_samples", [0, 1, 5, 50, 99, 100])
def test_ranks_have_the_samples_of_their_shares(num_shares: int, num_ranks: int, num_samples: int) -> None:
    wanted = np.arange(num_samples) * num_shares // 100
    found: list[int] = []
    for rank in range(num_ranks):
        shares = BatchShares(100, num_shares, rank, num_ranks)
        first, stop = shares.own_part(num_samples)
        assert (ranks_of_samples(num_samples, 100, num_shares, num_ranks)[first:stop] == rank).all()
        for start, end in shares.bounds(stop - first):
            numbers = set(wanted[first + start : first + end].tolist())
            assert len(numbers) == (1 if num_samples else 0)
            found += range(first + start, first + end)
    assert found == list(range(num_samples))


def test_a_batch_of_one_share_is_taken_whole() -> None:
    assert BatchShares(100).bounds(0) == [(0, 0)]
    assert BatchShares(100).bounds(250) == [(0, 250)]


@pytest.mark.parametrize(("num_shares", "num_ranks"), [(3, 2), (6, 2), (12, 4), (1, 2)])
def test_shares_that_are_no_subtree_of_a_rank_are_refused(num_shares: int, num_ranks: int) -> None:
    with pytest.raises(ConfigError, match=f"{num_shares} shares cannot be divided among {num_ranks} ranks"):
        BatchShares(100, num_shares, 0, num_ranks)


def test_a_batch_is_cut_into_no_more_shares_than_it_has_samples() -> None:
    BatchShares(6, 6, 1, 3)
    with pytest.raises(ConfigError, match="a batch of 5 samples cannot be cut into 6 shares"):
        BatchShares(5, 6, 1, 3)
