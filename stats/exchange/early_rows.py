"""Vectors that may travel a step early: those of rows that the step before does not use.

A row changes in the steps that use it alone, so its vector is the same before and after a step that does
not. Its home knows all of its uses; a rank that only looks it up now and then does not, and takes the mark
from a plan of all ranks.

Shapes: U rows of a step, V rows of the step before it, S steps, N rows of these, M with those before them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel, read_only
from .home_moves import NO_HOME
from .rank_steps import RankSteps


@kernel
def _mark_unused(
    keys_U: NDArray[np.int32],
    before_U: NDArray[np.uint8],
    earlier_V: NDArray[np.int32],
    is_early_U: NDArray[np.bool_],
) -> None:
    place = np.int64(0)
    for i in range(keys_U.shape[0]):
        # Both lists ascend, so one pass over them finds what they have in common.
        while place < earlier_V.shape[0] and earlier_V[place] < keys_U[i]:
            place += 1
        is_used = place < earlier_V.shape[0] and earlier_V[place] == keys_U[i]
        is_early_U[i] = before_U[i] != NO_HOME and not is_used


def early_rows(
    keys: NDArray[np.int32], before: NDArray[np.uint8], earlier: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return which rows of a step have a vector that may travel during the step before, (num_rows,). Exact.

    The marks are those of `rank_steps.mark_early`, found without memory for every row.

    Args:
        keys: (num_rows,), of all rows of the step, ascending.
        before: (num_rows,), where each lives when the step begins; `NO_HOME` at its first use.
        earlier: (num_rows of the step before,), its rows, ascending.
    """
    is_early_U = np.empty(keys.size, np.bool_)
    _mark_unused(keys, before, earlier, is_early_U)
    return is_early_U


@kernel
def _first_stale(
    keys_M: NDArray[np.int32],
    starts_S2: NDArray[np.int64],
    before_N: NDArray[np.uint8],
    is_early_N: NDArray[np.uint8],
    rank: int,
) -> int:
    num_before = starts_S2[1]
    for step in range(starts_S2.shape[0] - 2):
        place, first = starts_S2[step], starts_S2[step + 1]
        for i in range(first, starts_S2[step + 2]):
            while place < first and keys_M[place] < keys_M[i]:
                place += 1
            is_used = place < first and keys_M[place] == keys_M[i]
            if is_used and is_early_N[i - num_before] and before_N[i - num_before] == rank:
                return step
    return -1


def first_stale_step(steps: RankSteps, rank: int, earlier: NDArray[np.int32]) -> int | None:
    """Return the first step that would send a vector before its update; None if none does. Exact.

    All uses of a row concern the rank where it lives, so the home of a row finds each wrong mark.

    Args:
        steps: of the rank, checked.
        rank: whose they are.
        earlier: (num_rows,), rows of the step before the first of these that concern the rank, ascending.
    """
    # The rows of the step before stand in front of those of each step.
    keys_M = np.concatenate([earlier, steps.keys_N])
    starts_S2 = np.concatenate([[0], steps.starts_S1 + earlier.size])
    before_N, is_early_N = read_only(steps.before_N), read_only(steps.is_early_N)
    found = int(_first_stale(keys_M, starts_S2, before_N, is_early_N, rank))
    return None if found < 0 else found


def last_keys(steps: RankSteps, earlier: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the rows of the last step, for `first_stale_step` of the part that follows.

    Args:
        steps: of a rank.
        earlier: rows of the step before, where there are no steps.
    """
    if not steps.num_steps:
        return earlier
    return steps.keys_N[steps.starts_S1[-2] :].copy()
