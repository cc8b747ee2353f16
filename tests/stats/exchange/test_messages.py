"""Messages between ranks: two sides of one list, and all that crosses."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.exchange.home_moves import NO_HOME
from hotset.stats.exchange.messages import RowLists, list_messages
from hotset.stats.exchange.rank_masks import mask_type
from hotset.stats.exchange.volume import StepRows, count_crossings


@st.composite
def drawn_step(draw: st.DrawFn) -> tuple[StepRows, int]:
    """Rows with users and homes as plans have them, and the number of ranks."""
    num_ranks = draw(st.sampled_from([1, 2, 3, 8, 9]))
    rank = st.integers(0, num_ranks - 1)
    rows = []
    for _ in range(draw(st.integers(0, 6))):
        users = draw(st.frozensets(rank, min_size=1))
        before = draw(st.just(NO_HOME) | rank)
        # A row moves to a user only; its first home is free.
        after = draw(rank if before == NO_HOME else st.sampled_from(sorted({before, *users})))
        rows.append((sum(1 << user for user in users), before, after))
    masks_U, before_U, after_U = (np.array([row[i] for row in rows], np.uint64) for i in range(3))
    return (
        StepRows(
            np.arange(len(rows), dtype=np.int32),
            masks_U.astype(mask_type(num_ranks)),
            before_U.astype(np.uint8),
            after_U.astype(np.uint8),
        ),
        num_ranks,
    )


def listed(lists: RowLists, rank: int) -> list[tuple[int, bool]]:
    part = lists.of(rank)
    return list(zip(lists.positions[part].tolist(), lists.is_move[part].tolist(), strict=True))


@given(drawn_step())
@settings(max_examples=50)
def test_sender_and_receiver_list_the_same_rows(drawn: tuple[StepRows, int]) -> None:
    step, num_ranks = drawn
    every = [list_messages(step, rank, num_ranks) for rank in range(num_ranks)]
    rows = list(zip(*(each.tolist() for each in step), strict=True))
    num_vectors = num_gradients = num_moves = 0
    for sender in range(num_ranks):
        for receiver in range(num_ranks):
            vectors = [
                (i, after == receiver)
                for i, (_, mask, before, after) in enumerate(rows)
                if before == sender != receiver and mask >> receiver & 1
            ]
            gradients = [
                (i, False)
                for i, (_, mask, _, after) in enumerate(rows)
                if after == receiver != sender and mask >> sender & 1
            ]
            assert listed(every[sender].vectors_out, receiver) == vectors
            assert listed(every[receiver].vectors_in, sender) == vectors
            assert listed(every[sender].gradients_out, receiver) == gradients
            assert listed(every[receiver].gradients_in, sender) == gradients
            num_vectors += len(vectors)
            num_gradients += len(gradients)
            num_moves += sum(is_move for _, is_move in vectors)
    counted = count_crossings(step, 0, np.full(len(rows), -9, np.int32))
    assert (counted.vectors, counted.gradients, counted.moves) == (num_vectors, num_gradients, num_moves)
