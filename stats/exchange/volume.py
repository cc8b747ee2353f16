"""Counts what crosses between ranks in a step, from the owners of its rows, and the least that must cross.

A vector crosses for each user of a row that is not its owner, except at the row's first use, whose initial
values every rank computes; a gradient crosses back from each.

The lower bound holds for every exact scheme that gives samples to ranks as ours does. The |S| partial
gradients of a row's users S must be combined, which takes |S| - 1 messages in any topology; then its new
value must reach every user of the next step S', |S'| - 1 messages, and one more where no user of S is in S'.
A first use needs no value.

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
from .rank_masks import Masks


class StepRows(NamedTuple):
    """The distinct rows of a step, the ranks that use them, and their owners."""

    rows_U: NDArray[np.int32]
    """Keys, ascending."""
    masks_U: Masks
    """The ranks that use each; at least one."""
    owners_U: NDArray[np.uint8]
    """The rank that holds each and takes its optimizer step."""
    is_first_U: NDArray[np.bool_]
    """Whether no step before used the row, so that every rank computes its initial value."""


@dataclass(frozen=True, slots=True)
class Crossings:
    """Messages between ranks, each of one row."""

    vectors: int
    """Vectors to users."""
    gradients: int
    """Summed gradients to owners."""

    @property
    def rows(self) -> int:
        """Vectors and gradients together."""
        return self.vectors + self.gradients

    def __add__(self, other: Crossings) -> Crossings:
        return Crossings(self.vectors + other.vectors, self.gradients + other.gradients)


NOTHING = Crossings(0, 0)


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
def _count_crossings(step: StepRows, counts_2: NDArray[np.int64]) -> None:
    for i in range(step.rows_U.shape[0]):
        mask = np.uint64(step.masks_U[i])
        # An owner needs no message.
        others = count_bits(mask) - np.int64(mask >> np.uint64(step.owners_U[i]) & np.uint64(1))
        counts_2[0] += others * np.int64(not step.is_first_U[i])
        counts_2[1] += others


def count_crossings(step: StepRows) -> Crossings:
    """Count what crosses in a step. Exact.

    Args:
        step: its rows.
    """
    counts_2 = np.zeros(2, np.int64)
    _count_crossings(step, counts_2)
    return Crossings(*counts_2.tolist())


@kernel
def _least_crossings(rows_U: NDArray[np.int32], masks_U: Masks, users_N: Masks) -> int:
    total = 0
    for i in range(rows_U.shape[0]):
        # The ranks that use the row in this step, and those of the last step that used it.
        mask = np.uint64(masks_U[i])
        last = np.uint64(users_N[rows_U[i]])
        num_users = int(count_bits(mask))
        # The best owner is one of the users: the others send it their gradients, and get the vector from it.
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
    owners_U: NDArray[np.uint8],
) -> int:
    remote = 0
    for i in range(owners_U.shape[0]):
        for k in range(starts_U1[i], starts_U1[i + 1]):
            if ranks_N[order_N[k]] != owners_U[i]:
                remote += 1
    return remote


def count_remote_lookups(lookups: LookupsByRow, ranks: NDArray[np.uint8], owners: NDArray[np.uint8]) -> int:
    """Return the lookups of a batch whose row another rank holds, one vector each without deduplication.

    Args:
        lookups: of the batch by row.
        ranks: (num_lookups,), the rank of each lookup's sample.
        owners: (num_rows of the batch,), the rank that holds each distinct row.
    """
    return int(_count_remote(lookups.order_N, lookups.starts_U1, ranks, owners))
