"""Counts what crosses between ranks in a step, from the homes of its rows, and the least that must cross.

A vector crosses for each user of a row that is not its home, except at the row's first use, whose initial
values every rank computes; a gradient crosses back from each. Where a home moves, the optimizer state crosses
beside the vector (`home_moves`).

The lower bound holds for every exact scheme that gives samples to ranks as ours does. The |S| partial
gradients of a row's users S must be combined, which takes |S| - 1 messages in any topology; then its new
value must reach every user of the next step S', |S'| - 1 messages, and one more where no user of S is in S'.
A first use needs no value. Optimizer state is not in the bound.

Shapes: U rows of a step.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..batches.lookups_by_row import LookupsByRow
from ..kernel import inlined_kernel, kernel
from .home_moves import NO_HOME
from .rank_masks import Masks


class StepRows(NamedTuple):
    """The distinct rows of a step, the ranks that use them, and their homes."""

    rows_U: NDArray[np.int32]
    """Keys, ascending."""
    masks_U: Masks
    """The ranks that use each; at least one."""
    before_U: NDArray[np.uint8]
    """The rank where each lives when the step begins; `NO_HOME` at its first use."""
    after_U: NDArray[np.uint8]
    """The rank that takes the optimizer step, where it lives from then on."""


@dataclass(frozen=True, slots=True)
class Crossings:
    """Messages between ranks, each of one row."""

    vectors: int
    """Vectors to users, those of rows that move among them."""
    gradients: int
    """Summed gradients to homes."""
    moves: int
    """Optimizer states beside vectors."""
    early: int
    """Vectors of rows that the step before did not update, which can cross while it is computed."""

    @property
    def rows(self) -> int:
        """Vectors and gradients together."""
        return self.vectors + self.gradients

    def num_numbers(self, vector: int, state: int) -> int:
        """Return the numbers of 4 bytes of all, for rows of ``vector`` numbers and ``state`` of state."""
        return self.rows * vector + self.moves * state

    def __add__(self, other: Crossings) -> Crossings:
        return Crossings(
            self.vectors + other.vectors,
            self.gradients + other.gradients,
            self.moves + other.moves,
            self.early + other.early,
        )


NOTHING = Crossings(0, 0, 0, 0)


@inlined_kernel
def count_bits(mask: np.uint64) -> np.int64:
    """Return the number of bits that are set."""
    # In pairs, then in fours, then in bytes, whose counts are added at once: no branch to be guessed wrong.
    pairs = mask - (mask >> np.uint64(1) & np.uint64(0x5555555555555555))
    fours = np.uint64(0x3333333333333333)
    pairs = (pairs & fours) + (pairs >> np.uint64(2) & fours)
    pairs = pairs + (pairs >> np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64(pairs * np.uint64(0x0101010101010101) >> np.uint64(56))


@kernel
def _count_crossings(
    step: StepRows, number: int, last_step_N: NDArray[np.int32], counts_4: NDArray[np.int64]
) -> None:
    vectors = np.int64(0)
    gradients = np.int64(0)
    moves = np.int64(0)
    early = np.int64(0)
    for i in range(step.rows_U.shape[0]):
        mask = np.uint64(step.masks_U[i])
        num_users = count_bits(mask)
        before = step.before_U[i]
        after = step.after_U[i]
        # A rank that is the home needs no message; of a row without one nothing is sent. No branch, since
        # homes are as good as drawn.
        has_home = np.int64(before != NO_HOME)
        others = num_users - np.int64(mask >> (np.uint64(before) & np.uint64(63)) & np.uint64(1))
        vectors += has_home * others
        moves += has_home * np.int64(before != after)
        # A vector can be sent before the step only where the step before did not change it.
        early += has_home * others * np.int64(last_step_N[step.rows_U[i]] != number - 1)
        gradients += num_users - np.int64(mask >> np.uint64(after) & np.uint64(1))
        last_step_N[step.rows_U[i]] = number
    counts_4[0] += vectors
    counts_4[1] += gradients
    counts_4[2] += moves
    counts_4[3] += early


def count_crossings(step: StepRows, number: int, last_steps: NDArray[np.int32]) -> Crossings:
    """Count what crosses in a step. Exact.

    Args:
        step: its rows.
        number: of the step, from 0, ascending from call to call.
        last_steps: (num_rows,), the last step that used each row, below -1 before the first; changed.
    """
    counts_4 = np.zeros(4, np.int64)
    _count_crossings(step, number, last_steps, counts_4)
    return Crossings(*counts_4.tolist())


@kernel
def _least_crossings(rows_U: NDArray[np.int32], masks_U: Masks, users_N: Masks) -> int:
    total = 0
    for i in range(rows_U.shape[0]):
        # The ranks that use the row in this step, and those of the last step that used it.
        mask = np.uint64(masks_U[i])
        last = np.uint64(users_N[rows_U[i]])
        num_users = int(count_bits(mask))
        # The best home is one of the users: the others send it their gradients, and get the vector from it.
        total += num_users - 1
        if last:
            total += num_users - 1
            # Where none of them used it last, it must come from another rank first.
            if not last & mask:
                total += 1
        users_N[rows_U[i]] = masks_U[i]
    return total


def least_crossings(rows: NDArray[np.int32], masks: Masks, users: Masks) -> int:
    """Return the vectors and gradients of a step that no exact scheme can do without. Exact.

    Args:
        rows: (num_entries,), keys of the step's rows.
        masks: (num_entries,), the ranks that use each.
        users: (num_rows,), the ranks of each row's last use, 0 before the first; changed.
    """
    return int(_least_crossings(rows, masks, users))


@kernel
def _count_remote(
    order_N: NDArray[np.int32],
    starts_U1: NDArray[np.int32],
    ranks_N: NDArray[np.uint8],
    homes_U: NDArray[np.uint8],
) -> int:
    remote = 0
    for i in range(homes_U.shape[0]):
        for k in range(starts_U1[i], starts_U1[i + 1]):
            if ranks_N[order_N[k]] != homes_U[i]:
                remote += 1
    return remote


def count_remote_lookups(lookups: LookupsByRow, ranks: NDArray[np.uint8], homes: NDArray[np.uint8]) -> int:
    """Return the lookups of a batch whose row lives at another rank, one vector each without deduplication.

    Args:
        lookups: of the batch by row.
        ranks: (num_lookups,), the rank of each lookup's sample.
        homes: (num_rows of the batch,), the rank where each distinct row lives.
    """
    return int(_count_remote(lookups.order_N, lookups.starts_U1, ranks, homes))
