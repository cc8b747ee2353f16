"""The rows that one rank sends and receives in a step, listed by the other rank.

Every rank makes its lists from the same plan, so a receiver knows what each message holds, row by row, and
nothing is asked. Before the step the home of a row sends its vector to each user; after it each user sends
one summed gradient to the row's home. Lists are positions among the step's distinct rows, ascending, so that
both sides list the rows of a message in the same order.

Shapes: U rows of a step, W ranks.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .home_moves import NO_HOME
from .volume import StepRows

_LISTS = 4
_VECTORS_OUT, _VECTORS_IN, _GRADIENTS_OUT, _GRADIENTS_IN = range(_LISTS)


class RowLists(NamedTuple):
    """Rows to or from each rank, those of rank r at ``positions[starts_W1[r]:starts_W1[r + 1]]``."""

    starts_W1: NDArray[np.int64]
    positions: NDArray[np.int32]
    """(num_messages,); positions among the distinct rows of the step."""
    is_move: NDArray[np.bool_]
    """(num_messages,); whether the receiver is the row's new home, and its optimizer state comes along."""

    def of(self, rank: int) -> slice:
        """The part of ``positions`` to or from a rank."""
        return slice(int(self.starts_W1[rank]), int(self.starts_W1[rank + 1]))


class RankMessages(NamedTuple):
    """The rows that one rank sends and receives in a step. Gradients never move a row."""

    vectors_out: RowLists
    vectors_in: RowLists
    gradients_out: RowLists
    gradients_in: RowLists


@kernel
def _count_messages(step: StepRows, rank: int, counts_LW: NDArray[np.int64]) -> None:
    """Count the rows of each list, (4, num_ranks). Exact."""
    own = np.uint64(1) << np.uint64(rank)
    for i in range(step.masks_U.shape[0]):
        mask = np.uint64(step.masks_U[i])
        before = step.before_U[i]
        after = step.after_U[i]
        # Before the step, vectors go from the row's home to the ranks that look it up; after it, gradients go
        # to its next home.
        others = mask & ~own
        is_user = mask & own != np.uint64(0)
        for other in range(counts_LW.shape[1]):
            if others >> np.uint64(other) & np.uint64(1):
                counts_LW[_VECTORS_OUT, other] += before == rank
                counts_LW[_GRADIENTS_IN, other] += after == rank
        if is_user and before != rank and before != NO_HOME:
            counts_LW[_VECTORS_IN, before] += 1
        if is_user and after != rank:
            counts_LW[_GRADIENTS_OUT, after] += 1


@kernel
def _list_messages(
    step: StepRows,
    rank: int,
    ends_LW: NDArray[np.int64],
    positions: NDArray[np.int32],
    is_move: NDArray[np.bool_],
) -> None:
    """Write the rows of each list from where ``ends_LW`` says. Exact."""
    own = np.uint64(1) << np.uint64(rank)
    for i in range(step.masks_U.shape[0]):
        mask = np.uint64(step.masks_U[i])
        before = step.before_U[i]
        after = step.after_U[i]
        # The same cases as in `_count_messages`, which has counted the entries of each list.
        others = mask & ~own
        is_user = mask & own != np.uint64(0)
        for other in range(ends_LW.shape[1]):
            if others >> np.uint64(other) & np.uint64(1):
                if before == rank:
                    # A row whose home moves goes along with its vector.
                    end = ends_LW[_VECTORS_OUT, other]
                    positions[end] = i
                    is_move[end] = after == other
                    ends_LW[_VECTORS_OUT, other] += 1
                if after == rank:
                    positions[ends_LW[_GRADIENTS_IN, other]] = i
                    ends_LW[_GRADIENTS_IN, other] += 1
        if is_user and before != rank and before != NO_HOME:
            end = ends_LW[_VECTORS_IN, before]
            positions[end] = i
            is_move[end] = after == rank
            ends_LW[_VECTORS_IN, before] += 1
        if is_user and after != rank:
            positions[ends_LW[_GRADIENTS_OUT, after]] = i
            ends_LW[_GRADIENTS_OUT, after] += 1


def list_messages(step: StepRows, rank: int, num_ranks: int) -> RankMessages:
    """Return what ``rank`` sends and receives in a step.

    Args:
        step: its rows, the same on every rank; homes and users below ``num_ranks``.
        rank: whose lists these are.
        num_ranks: of them all.
    """
    counts_LW = np.zeros((_LISTS, num_ranks), np.int64)
    _count_messages(step, rank, counts_LW)
    # Lists lie one after another: the running sums of their lengths are where they begin.
    starts = np.concatenate([[0], np.cumsum(counts_LW)])
    positions = np.empty(starts[-1], np.int32)
    is_move = np.zeros(starts[-1], np.bool_)
    _list_messages(step, rank, starts[:-1].reshape(_LISTS, num_ranks).copy(), positions, is_move)
    lists = []
    for first in range(0, _LISTS * num_ranks, num_ranks):
        bounds = starts[first : first + num_ranks + 1]
        part = slice(int(bounds[0]), int(bounds[-1]))
        lists.append(RowLists(bounds - bounds[0], positions[part], is_move[part]))
    return RankMessages(*lists)
