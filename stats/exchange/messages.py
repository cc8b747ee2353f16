"""The rows that one rank sends and receives in a step, listed by the other rank.

Every rank makes its lists from the same batch, so a receiver knows what each message holds, row by row, and
nothing is asked. Before the step the owner of a row sends its vector to each user; after it each user sends
one summed gradient to the owner. Lists are positions among the step's distinct rows, ascending, so that both
sides list the rows of a message in the same order.

Shapes: U rows of a step, W ranks.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .volume import StepRows

_LISTS = 4
_VECTORS_OUT, _VECTORS_IN, _GRADIENTS_OUT, _GRADIENTS_IN = range(_LISTS)


class RowLists(NamedTuple):
    """Rows to or from each rank, those of rank r at ``positions[starts_W1[r]:starts_W1[r + 1]]``."""

    starts_W1: NDArray[np.int64]
    positions: NDArray[np.int32]
    """(num_messages,); positions among the distinct rows of the step."""

    def of(self, rank: int) -> slice:
        """The part of ``positions`` to or from a rank."""
        return slice(int(self.starts_W1[rank]), int(self.starts_W1[rank + 1]))


class RankMessages(NamedTuple):
    """The rows that one rank sends and receives in a step."""

    vectors_out: RowLists
    vectors_in: RowLists
    gradients_out: RowLists
    gradients_in: RowLists


@kernel
def _list_messages(
    step: StepRows, rank: int, ends_LW: NDArray[np.int64], positions: NDArray[np.int32], writes: bool
) -> None:
    """Count the rows of each list, or write them from where ``ends_LW`` says. Exact."""
    own = np.uint64(1) << np.uint64(rank)
    for i in range(step.masks_U.shape[0]):
        mask = np.uint64(step.masks_U[i])
        owner = step.owners_U[i]
        # The owner sends vectors to the other users and gets their gradients; a user does the reverse.
        if owner == rank:
            for other in range(ends_LW.shape[1]):
                if other != rank and mask >> np.uint64(other) & np.uint64(1):
                    if writes:
                        positions[ends_LW[_GRADIENTS_IN, other]] = i
                        if not step.is_first_U[i]:
                            positions[ends_LW[_VECTORS_OUT, other]] = i
                    ends_LW[_VECTORS_OUT, other] += not step.is_first_U[i]
                    ends_LW[_GRADIENTS_IN, other] += 1
        elif mask & own != np.uint64(0):
            if writes:
                positions[ends_LW[_GRADIENTS_OUT, owner]] = i
                if not step.is_first_U[i]:
                    positions[ends_LW[_VECTORS_IN, owner]] = i
            ends_LW[_VECTORS_IN, owner] += not step.is_first_U[i]
            ends_LW[_GRADIENTS_OUT, owner] += 1


def list_messages(step: StepRows, rank: int, num_ranks: int) -> RankMessages:
    """Return what ``rank`` sends and receives in a step.

    Args:
        step: its rows, the same on every rank; owners and users below ``num_ranks``.
        rank: whose lists these are.
        num_ranks: of them all.
    """
    counts_LW = np.zeros((_LISTS, num_ranks), np.int64)
    _list_messages(step, rank, counts_LW, np.empty(0, np.int32), False)
    # Lists lie one after another: the running sums of their lengths are where they begin.
    starts = np.concatenate([[0], np.cumsum(counts_LW)])
    positions = np.empty(starts[-1], np.int32)
    _list_messages(step, rank, starts[:-1].reshape(_LISTS, num_ranks).copy(), positions, True)
    lists = []
    for first in range(0, _LISTS * num_ranks, num_ranks):
        bounds = starts[first : first + num_ranks + 1]
        lists.append(RowLists(bounds - bounds[0], positions[int(bounds[0]) : int(bounds[-1])]))
    return RankMessages(*lists)
