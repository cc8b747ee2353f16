"""Messages between ranks: two sides of one list, and all that crosses."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.exchange.messages import RowLists, list_messages
from hotset.stats.exchange.rank_masks import mask_type
from hotset.stats.exchange.volume import StepRows, count_crossings


@st.composite
def drawn_step(draw: st.DrawFn) -> tuple[StepRows, int]:
    """Rows with users and owners, and the number of ranks."""
    num_ranks = draw(st.sampled_from([1, 2, 3, 8, 9]))
    rank = st.integers(0, num_ranks - 1)
    rows = draw(st.lists(st.tuples(st.frozensets(rank, min_size=1), rank, st.booleans()), max_size=6))
    masks = [sum(1 << user for user in users) for users, _, _ in rows]
    return (
        StepRows(
            np.arange(len(rows), dtype=np.int32),
            np.array(masks, mask_type(num_ranks)),
            np.array([owner for _, owner, _ in rows], np.uint8),
            np.array([is_first for _, _, is_first in rows], np.bool_),
        ),
        num_ranks,
    )


def listed(lists: RowLists, rank: int) -> list[int]:
    found: list[int] = lists.positions[lists.of(rank)].tolist()
    return found


@given(drawn_step())
@settings(max_examples=50)
def test_sender_and_receiver_list_the_same_rows(drawn: tuple[StepRows, int]) -> None:
    step, num_ranks = drawn
    every = [list_messages(step, rank, num_ranks) for rank in range(num_ranks)]
    rows = list(zip(*(each.tolist() for each in step), strict=True))
    num_vectors = num_gradients = 0
    for owner in range(num_ranks):
        for user in range(num_ranks):
            gradients = [
                i
                for i, (_, mask, of_row, _) in enumerate(rows)
                if of_row == owner != user and mask >> user & 1
            ]
            vectors = [i for i in gradients if not rows[i][3]]
            assert listed(every[owner].vectors_out, user) == vectors
            assert listed(every[user].vectors_in, owner) == vectors
            assert listed(every[user].gradients_out, owner) == gradients
            assert listed(every[owner].gradients_in, user) == gradients
            num_vectors += len(vectors)
            num_gradients += len(gradients)
    counted = count_crossings(step)
    assert (counted.vectors, counted.gradients) == (num_vectors, num_gradients)
