"""The rows that cross between ranks where homes move by plan, expected from how often each row is looked up.

The plan is the cheapest path over homes (`stats.exchange.home_moves`), and what it costs depends on the order
in which ranks use a row, so there is no short formula. Rows are drawn instead: of each number of lookups some
rows are looked up at random samples, their homes are planned as those of a log, and what crosses is counted.

Rows of up to 64 lookups have exactly so many; the others are used by each rank in each step with the
probability of `access_rates.presence`, and counts within 10 % of each other are drawn as one. Of a row that
is used in many steps the first ones are drawn and count for all.

Error:
    Each class has 16,384 drawn uses or more; the sum over all rows of a log is within 1 % of its expectation.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..exchange.home_moves import (
    NO_HOME,
    HomeChoices,
    MoveCosts,
    RowRange,
    choose_homes_backward,
    unset_choices,
)
from ..exchange.rank_masks import Masks, mask_type
from ..exchange.volume import count_bits
from ..kernel import kernel
from .access_rates import presence

_MOST_EXACT = 64
"""Most lookups of a row that are drawn one by one."""
_USES_OF_CLASS = 1 << 14
_MOST_STEPS = 1 << 14
"""Steps of a row that are drawn."""
_RATIO = 1.1
"""Between the counts of rows that are drawn as one class."""


class MovingRows(NamedTuple):
    """Messages of an epoch between all ranks, where homes move by plan."""

    rows: float
    """Vectors and gradients."""
    moves: float
    """Optimizer states beside vectors."""


class _Drawn(NamedTuple):
    """Drawn rows of some classes: which ranks use each, step after step."""

    rows: NDArray[np.int32]
    """(num_uses,); number of each drawn row, ascending."""
    masks: Masks
    """(num_uses,); the ranks that use it in a step, in the order of steps."""
    weights: NDArray[np.float64]
    """(num_drawn,); rows of the log that each stands for."""


def expected_moving(
    lookups: NDArray[np.int64],
    num_samples: int,
    batch_size: int,
    num_ranks: int,
    costs: MoveCosts,
    seed: int = 0,
) -> MovingRows:
    """Return what is to be expected of an epoch whose samples are divided equally.

    Args:
        lookups: (num_rows,), how often each row is looked up in the epoch.
        num_samples: of the epoch.
        batch_size: samples of a step; the last one may have fewer.
        num_ranks: ranks that share each of them, at least 2.
        costs: of vectors and optimizer states.
        seed: of what is drawn.
    """
    if num_samples < 1:
        return MovingRows(0.0, 0.0)
    # What crosses of each drawn row, from the cheapest homes of its own steps.
    drawn = _draw(lookups, num_samples, batch_size, num_ranks, np.random.default_rng(seed))
    num_uses = drawn.rows.size
    choices = unset_choices(num_uses, num_ranks)
    # Every use is a batch by itself: of a row they are in order, and rows do not touch each other.
    part = RowRange(0, np.zeros((drawn.weights.size, num_ranks), np.int16))
    order = np.arange(num_uses)
    choose_homes_backward(order, np.arange(num_uses + 1), drawn.rows, drawn.masks, costs, part, choices)
    sums_2 = np.zeros(2)
    _add_crossings(drawn.rows, drawn.masks, choices, drawn.weights, sums_2)
    return MovingRows(*sums_2.tolist())


@kernel
def _add_crossings(
    rows_U: NDArray[np.int32],
    masks_U: Masks,
    choices: HomeChoices,
    weights_K: NDArray[np.float64],
    sums_2: NDArray[np.float64],
) -> None:
    """Add the weighted rows that cross, and those that move. Exact, but for the rounding of the sums."""
    home = NO_HOME
    for i in range(rows_U.shape[0]):
        # Uses of a row lie together; each begins without a home.
        is_first = i == 0 or rows_U[i] != rows_U[i - 1]
        mask = np.uint64(masks_U[i])
        num_users = count_bits(mask)
        weight = weights_K[rows_U[i]]
        if is_first:
            home = choices.first_U[i]
        else:
            sums_2[0] += weight * (num_users - np.int64(mask >> np.uint64(home) & np.uint64(1)))
            if not np.uint64(choices.stays_U[i]) >> np.uint64(home) & np.uint64(1):
                home = choices.best_U[i]
                sums_2[1] += weight
        sums_2[0] += weight * (num_users - np.int64(mask >> np.uint64(home) & np.uint64(1)))


def _draw(
    lookups: NDArray[np.int64],
    num_samples: int,
    batch_size: int,
    num_ranks: int,
    rng: np.random.Generator,
) -> _Drawn:
    """Draw rows of every class of counts."""
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    weights: list[NDArray[np.float64]] = []
    num_drawn = 0
    # A cell is a rank in a step; a short last step has those of the first ranks.
    num_cells = -(-num_samples * num_ranks // batch_size)
    for count, num_rows in _classes(lookups):
        if count <= min(_MOST_EXACT, num_samples):
            cells = _of_samples(int(count), num_samples, num_ranks / batch_size, rng)
            weight = 1.0
            cells_of_row = num_cells
        else:
            use = presence(np.array([min(count / num_samples, 1.0)]), batch_size / num_ranks)
            cells_of_row = min(num_cells, _MOST_STEPS * num_ranks)
            cells = _of_cells(float(use[0]), cells_of_row, rng)
            weight = num_cells / cells_of_row
        own = int(cells[:, 0].max(initial=-1)) + 1
        # A rank uses a row once in a step however often it looks it up, and a step has each rank once.
        uses = np.unique(cells[:, 0] * cells_of_row + cells[:, 1])
        parts.append((num_drawn + uses // cells_of_row, uses % cells_of_row))
        weights.append(np.full(own, weight * num_rows / max(own, 1)))
        num_drawn += own
    return _joined(parts, weights, num_ranks)


def _classes(lookups: NDArray[np.int64]) -> list[tuple[float, int]]:
    """Return lookups of a row, and how many rows have them, of each class of rows that are drawn alike."""
    counts, num_rows = np.unique(lookups[lookups > 0], return_counts=True)
    numbers = np.where(
        counts <= _MOST_EXACT,
        counts,
        _MOST_EXACT + 1 + np.log(np.maximum(counts, 1) / _MOST_EXACT) // math.log(_RATIO),
    )
    found = []
    for number in np.unique(numbers):
        is_own = numbers == number
        rows = int(num_rows[is_own].sum())
        found.append((float(counts[is_own] @ num_rows[is_own]) / rows, rows))
    return found


def _of_samples(
    count: int, num_samples: int, cells_of_sample: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return (num_lookups, 2) drawn row and cell, a step and a rank, of rows with so many lookups."""
    num_drawn = -(-_USES_OF_CLASS // count)
    if num_samples <= 8 * _MOST_EXACT:
        # Of few samples none is drawn twice.
        samples = rng.random((num_drawn, num_samples)).argsort(axis=1)[:, :count]
    else:
        samples = rng.integers(0, num_samples, (num_drawn, count))
    rows = np.repeat(np.arange(num_drawn), count)
    cells = (samples.reshape(-1) * cells_of_sample).astype(np.int64)
    return np.stack([rows, cells], axis=1)


def _of_cells(use: float, cells_of_row: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the same of rows that each cell uses with a probability."""
    uses_of_row = max(cells_of_row * use, 1.0)
    num_drawn = max(math.ceil(_USES_OF_CLASS / uses_of_row), 1)
    num_cells = num_drawn * cells_of_row
    # From one use to the next as many cells as a geometric distribution says.
    expected = num_cells * use
    gaps = rng.geometric(use, int(expected + 6 * math.sqrt(expected) + 16))
    cells = np.cumsum(gaps) - 1
    cells = cells[cells < num_cells]
    found = np.stack([cells // cells_of_row, cells % cells_of_row], axis=1)
    # A drawn row without a use counts, too.
    return found if found.size else np.zeros((1, 2), np.int64)


def _joined(
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
    weights: list[NDArray[np.float64]],
    num_ranks: int,
) -> _Drawn:
    """Join the uses of a row in a step to one, with a bit for each rank."""
    rows = np.concatenate([np.empty(0, np.int64), *(each for each, _ in parts)])
    cells = np.concatenate([np.empty(0, np.int64), *(each for _, each in parts)])
    steps, ranks = np.divmod(cells, num_ranks)
    # Uses are sorted by row, then step: one begins where either changes.
    is_new = np.ones(rows.size, np.bool_)
    is_new[1:] = (rows[1:] != rows[:-1]) | (steps[1:] != steps[:-1])
    starts = np.flatnonzero(is_new)
    bits = np.uint64(1) << ranks.astype(np.uint64)
    masks = np.bitwise_or.reduceat(bits, starts) if starts.size else np.empty(0, np.uint64)
    return _Drawn(
        rows[starts].astype(np.int32),
        masks.astype(mask_type(num_ranks)),
        np.concatenate([np.empty(0), *weights]),
    )
