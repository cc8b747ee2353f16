"""The cheapest homes of an epoch, planned for a range of rows at a time.

The lookups of the batches are there once, batch after batch; an epoch is an order of them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .fixed_homes import count_uses, homes_by_use
from .home_moves import HomeChoices, MoveCosts, RowRange, choose_homes_backward
from .rank_masks import Masks, mask_type

_RANGE_BYTES = 256 << 20
"""Memory for the values, or the counts, of the rows that are looked at together."""
_VALUE_BYTES = 2
_COUNT_BYTES = 4


class RowUses(NamedTuple):
    """The distinct rows of each batch and the ranks that use them, batch after batch."""

    offsets: NDArray[np.int64]
    """(num_batches + 1,); where the rows of each batch begin."""
    keys: NDArray[np.int32]
    """(num_entries,); ascending in a batch."""
    masks: Masks
    """(num_entries,); the ranks that use each."""
    num_rows: int
    """Rows that keys number."""
    num_ranks: int

    def of_batch(self, number: int) -> slice:
        """The entries of a batch."""
        return slice(int(self.offsets[number]), int(self.offsets[number + 1]))


def plan_order(uses: RowUses, order: NDArray[np.int64], costs: MoveCosts, choices: HomeChoices) -> None:
    """Write for each entry the homes that make the rest of an epoch cheapest. Exact.

    Values take at most 256 MiB; each range of rows passes through the whole epoch.

    Args:
        uses: of the batches.
        order: (num_steps,), the batch of each step, none twice.
        costs: of the rows.
        choices: (num_entries,) each, written for the batches of ``order``.
    """
    most_rows = max(1, _RANGE_BYTES // (_VALUE_BYTES * uses.num_ranks))
    for first_row, stop in _ranges(uses.num_rows, most_rows):
        part = RowRange(first_row, np.zeros((stop - first_row, uses.num_ranks), np.int16))
        choose_homes_backward(order, uses.offsets, uses.keys, uses.masks, costs, part, choices)


def first_homes(uses: RowUses, rank: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return where rows live before their first use, and which of them may ever live at a rank.

    A row begins at the rank that uses it in most batches. From there it moves to ranks that use it alone.

    Args:
        uses: of the batches.
        rank: the one to tell the rows of.

    Returns:
        (num_rows,) each.
    """
    homes_K = np.empty(uses.num_rows, np.uint8)
    is_held_K = np.empty(uses.num_rows, np.bool_)
    rows_of_ranks = np.zeros(uses.num_ranks, np.int64)
    most_rows = max(1, _RANGE_BYTES // (_COUNT_BYTES * uses.num_ranks))
    for first_row, stop in _ranges(uses.num_rows, most_rows):
        uses_KW = np.zeros((stop - first_row, uses.num_ranks), np.uint32)
        count_uses(uses.keys, uses.masks, first_row, uses_KW)
        part = slice(first_row, stop)
        homes_K[part] = homes_by_use(uses_KW, rows_of_ranks, first_row)
        is_held_K[part] = (uses_KW[:, rank] > 0) | (homes_K[part] == rank)
    return homes_K, is_held_K


@kernel
def _add_users(keys_U: NDArray[np.int32], masks_U: Masks, users_K: Masks) -> None:
    for i in range(keys_U.shape[0]):
        users_K[keys_U[i]] |= masks_U[i]


def users_of_rows(uses: RowUses) -> Masks:
    """Return the ranks that ever use each row, (num_rows,). Exact."""
    users_K = np.zeros(uses.num_rows, mask_type(uses.num_ranks))
    _add_users(uses.keys, uses.masks, users_K)
    return users_K


def _ranges(num_rows: int, most_rows: int) -> list[tuple[int, int]]:
    return list(pairwise([*range(0, num_rows, most_rows), num_rows])) if num_rows else []
