"""Which ranks use a row: shares by sample position, one bit for each rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.batches.batch_lookups import of_bags
from hotset.stats.batches.lookups_by_row import group_lookups
from hotset.stats.exchange.rank_masks import mask_type, rank_masks, ranks_of_samples


@given(st.data(), st.integers(1, 40), st.sampled_from([1, 2, 4, 9, 17, 64]), st.integers(1, 3))
@settings(max_examples=50)
def test_a_mask_has_the_ranks_of_all_samples_that_look_up_the_row(
    data: st.DataObject, batch_size: int, num_ranks: int, shares_of_rank: int
) -> None:
    num_samples = data.draw(st.integers(0, batch_size))
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=2 * num_samples, max_size=2 * num_samples))
    bags_N = np.repeat(np.arange(2 * num_samples), np.array(lengths, np.int64))
    ids = data.draw(st.lists(st.integers(0, 4), min_size=bags_N.size, max_size=bags_N.size))
    lookups = group_lookups(of_bags(np.array(ids, np.int32), bags_N, np.array([5, 5])))
    ranks_B = ranks_of_samples(num_samples, batch_size, shares_of_rank * num_ranks, num_ranks)
    masks = rank_masks(lookups, ranks_B[bags_N // 2], num_ranks)
    users: dict[tuple[int, int], set[int]] = {}
    for bag, row in zip(bags_N.tolist(), ids, strict=True):
        users.setdefault((bag % 2, row), set()).add(int(ranks_B[bag // 2]))
    # Rows come by table, then by id.
    assert masks.tolist() == [sum(1 << rank for rank in users[row]) for row in sorted(users)]
    assert masks.dtype == mask_type(num_ranks)


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "num_shares", "num_ranks", "wanted"),
    [
        (8, 8, 4, 4, [0, 0, 1, 1, 2, 2, 3, 3]),
        (8, 8, 4, 2, [0, 0, 0, 0, 1, 1, 1, 1]),
        (3, 8, 4, 4, [0, 0, 1]),
        (5, 5, 2, 2, [0, 0, 0, 1, 1]),
        (3, 3, 8, 8, [0, 2, 5]),
        (0, 4, 2, 1, []),
    ],
)
def test_shares_are_equal_parts_of_a_whole_batch(
    num_samples: int, batch_size: int, num_shares: int, num_ranks: int, wanted: list[int]
) -> None:
    assert ranks_of_samples(num_samples, batch_size, num_shares, num_ranks).tolist() == wanted


def test_a_rank_computes_the_same_shares_whatever_their_number_of_samples() -> None:
    # Share 3 of 8 is computed by rank 1 of 4, in a whole batch and in a short one.
    whole = ranks_of_samples(80, 80, 8, 4)
    assert whole[30:40].tolist() == [1] * 10
    assert ranks_of_samples(37, 80, 8, 4).tolist() == whole[:37].tolist()


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="6 shares cannot be divided among 4 ranks"):
        ranks_of_samples(4, 8, 6, 4)
    with pytest.raises(ValueError, match="a batch of 8 has 9 samples"):
        ranks_of_samples(9, 8, 4, 4)
    for num_ranks in (0, 65):
        with pytest.raises(ValueError, match=f"want 1 to 64 ranks, got {num_ranks}"):
            mask_type(num_ranks)
