"""The cheapest home of each row at each step, where homes may move: found from the last step to the first.

A row has one home at a time, the rank that holds its weights and optimizer state. In a step, each user that
is not the home receives the row's vector before the step and returns a gradient after it. The home may move
to one of the users: in that step the user receives the state beside the vector it receives anyway, and the
others send their gradients to it. With users S, home p before the step and h after it, in units of numbers:

    vector (|S| - [p in S])  +  state [h != p]  +  vector (|S| - [h in S])

Rows are independent of each other, so the cheapest homes of one are a shortest path over W homes a step,
which dynamic programming finds exactly. A value R(h) is what the steps behind will cost if the row lives at h
after this one. Three numbers of each step are enough to walk the path forward later: the best user to move
to, the homes from which it does not pay to move, and the best home if the row has none yet. A row's first use
costs nothing beforehand, since every user computes its initial values, and its first home is free: it need
not be a user.

A move to a rank that is no user would cost a vector more, and never pays: the row can as well move in the
step in which that rank uses it.

Source:
    Bellman's recursion. Without state the path reaches the lower bound of `volume`, because a user that needs
    the row in its next step, too, takes it for free.

Shapes: U entries of a stream, K rows of a range, N rows, W ranks.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cpu_prefetch import prefetch
from ..hashing import mix64_pair
from ..kernel import inlined_kernel, kernel
from .rank_masks import Masks, mask_type

NO_HOME = 255
"""The home of a row that no step has used yet."""
_MOST_NUMBERS = 2**15 - 1
"""Values of a row differ by at most a vector and a state, and take 16 bits."""

_FAR = 1 << 62
"""Above every value."""
_NO_USER = 1 << 40
"""Added to the value of a rank that does not use a row; above every value of one that does."""
_MOST_DISTANCES = 64
"""Homes behind a row's first one."""
_AHEAD = 64
"""Entries between asking memory for a row's values and their use."""


class MoveCosts(NamedTuple):
    """The costs of crossings between ranks, in numbers of 4 bytes."""

    vector: int
    """Cost of a row's vector or gradient."""
    state: int
    """Cost of its optimizer state, which crosses where the home moves."""


class HomeChoices(NamedTuple):
    """The choices that the steps behind leave to each entry of a stream."""

    best_U: NDArray[np.uint8]
    """The user that is the best home if the row moves."""
    stays_U: Masks
    """The homes from which it does not pay to move."""
    first_U: NDArray[np.uint8]
    """The best home if the row has none yet."""


class RowRange(NamedTuple):
    """The rows that one pass over a stream looks at, and their values."""

    first_row: int
    values_KW: NDArray[np.int16]
    """(num_rows of the range, num_ranks); zeros at the last step, changed."""


def move_costs(vector: int, state: int) -> MoveCosts:
    """Return the costs of a row of ``vector`` numbers with ``state`` numbers of optimizer state.

    Raises:
        ValueError: the numbers are too many for values of 16 bits.
    """
    if vector < 1 or state < 0 or vector + state > _MOST_NUMBERS:
        raise ValueError(f"cannot plan rows of {vector} numbers with {state} of state")
    return MoveCosts(vector, state)


@inlined_kernel
def _choose_backward(
    order: NDArray[np.int64],
    offsets: NDArray[np.int64],
    rows: NDArray[np.int32],
    masks: Masks,
    costs: MoveCosts,
    part: RowRange,
    choices: HomeChoices,
    num_ranks: int,
) -> None:
    values_KW = part.values_KW
    vector = np.int64(costs.vector)
    for step in range(order.shape[0] - 1, -1, -1):
        stop = offsets[order[step] + 1]
        for i in range(offsets[order[step]], stop):
            # Rows of cold tables lie anywhere, so memory is asked for their values some entries ahead.
            later = np.int64(rows[min(i + _AHEAD, stop - 1)]) - part.first_row
            prefetch(values_KW, np.uint64(later * num_ranks))
            key = np.int64(rows[i])
            row = key - part.first_row
            # Rows of other ranges belong to other passes.
            if row < 0 or row >= values_KW.shape[0]:
                continue
            mask = np.uint64(masks[i])
            # Among equally good homes the row's hash decides, so that ranks get equally many: below the value
            # stands how far a home is behind the row's first one. No branch, so that ranks are looked at
            # side by side.
            turn = np.int64(mix64_pair(np.uint64(0), np.uint64(key)) % np.uint64(num_ranks))
            lowest = np.int64(_FAR)
            lowest_first = np.int64(_FAR)
            for home in range(num_ranks):
                is_user = np.int64(mask >> np.uint64(home) & np.uint64(1))
                distance = np.int64(home) - turn
                if distance < 0:
                    distance += num_ranks
                value = (np.int64(values_KW[row, home]) - is_user * vector) * _MOST_DISTANCES + distance
                lowest_first = min(lowest_first, value)
                lowest = min(lowest, value + (np.int64(1) - is_user) * _NO_USER)
            best = turn + lowest % _MOST_DISTANCES
            if best >= num_ranks:
                best -= num_ranks
            first = turn + lowest_first % _MOST_DISTANCES
            if first >= num_ranks:
                first -= num_ranks
            moved = np.int64(lowest // _MOST_DISTANCES + costs.state)
            # What this step and those behind it cost from each home before it.
            stays = np.uint64(0)
            smallest = np.int64(_FAR)
            for rank in range(num_ranks):
                saved = np.int64(mask >> np.uint64(rank) & np.uint64(1)) * vector
                value = np.int64(values_KW[row, rank]) - saved
                stays |= np.uint64(value <= moved) << np.uint64(rank)
                value = min(value, moved) - saved
                values_KW[row, rank] = value
                smallest = min(smallest, value)
            # Only differences matter; without a common part they stay small.
            for rank in range(num_ranks):
                values_KW[row, rank] -= smallest
            choices.best_U[i] = best
            choices.stays_U[i] = stays
            choices.first_U[i] = first


@kernel
def choose_homes_backward(
    order: NDArray[np.int64],
    offsets: NDArray[np.int64],
    rows: NDArray[np.int32],
    masks: Masks,
    costs: MoveCosts,
    part: RowRange,
    choices: HomeChoices,
) -> None:
    """Write the choices of every entry whose row is in the range. Exact.

    Args:
        order: (num_steps,), the batch of each step.
        offsets: (num_batches + 1,), where the rows of each batch begin.
        rows: (num_entries,), keys, in each batch distinct.
        masks: (num_entries,), the ranks that use each, at least one.
        costs: of the rows, all of one width.
        part: the range; its values are those of the steps behind.
        choices: (num_entries,) each, written.
    """
    # With a constant number of ranks the compiler unrolls the loops over them.
    num_ranks = part.values_KW.shape[1]
    if num_ranks == 2:
        _choose_backward(order, offsets, rows, masks, costs, part, choices, 2)
    elif num_ranks == 4:
        _choose_backward(order, offsets, rows, masks, costs, part, choices, 4)
    elif num_ranks == 8:
        _choose_backward(order, offsets, rows, masks, costs, part, choices, 8)
    else:
        _choose_backward(order, offsets, rows, masks, costs, part, choices, num_ranks)


@kernel
def _follow_choices(
    rows_U: NDArray[np.int32],
    choices: HomeChoices,
    home_N: NDArray[np.uint8],
    before_U: NDArray[np.uint8],
    after_U: NDArray[np.uint8],
) -> None:
    """Move homes as chosen. Exact."""
    for i in range(rows_U.shape[0]):
        home = home_N[rows_U[i]]
        before_U[i] = home
        if home == NO_HOME:
            home = choices.first_U[i]
        elif not np.uint64(choices.stays_U[i]) >> np.uint64(home) & np.uint64(1):
            home = choices.best_U[i]
        after_U[i] = home
        home_N[rows_U[i]] = home


def follow_choices(
    rows: NDArray[np.int32], choices: HomeChoices, homes: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the home of each row of a step before and after it, and remember the latter.

    Args:
        rows: (num_entries,), keys of the step's rows, below the length of ``homes``.
        choices: of these entries.
        homes: (num_rows,), `NO_HOME` where a row was not used yet; changed.
    """
    before_U = np.empty(rows.shape[0], np.uint8)
    after_U = np.empty(rows.shape[0], np.uint8)
    _follow_choices(rows, choices, homes, before_U, after_U)
    return before_U, after_U


def unset_choices(num_entries: int, num_ranks: int) -> HomeChoices:
    """Allocate the choices of a stream."""
    return HomeChoices(
        np.empty(num_entries, np.uint8),
        np.empty(num_entries, mask_type(num_ranks)),
        np.empty(num_entries, np.uint8),
    )
