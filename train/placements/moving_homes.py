"""Homes of rows that move, each epoch as its order of batches makes cheapest.

The rows of all batches and the ranks that use them are read once, into a file without a name. From them and
the order of an epoch follow its homes (`stats.exchange.home_moves`): a choice for each row of each batch, in
3 bytes for up to 8 ranks. Every rank makes the same plan. Its choices may be followed in any order, so where
the order of batches is decided as the run goes (fae) a guessed one serves: what it misses are bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...stats.exchange.home_moves import NO_HOME, HomeChoices, MoveCosts, follow_choices
from ...stats.exchange.home_plan import RowUses, plan_order
from ...stats.exchange.rank_masks import mask_type
from ..exchange.rank_reader import RankReader
from ..exchange.step_homes import BeforeAndAfter
from ..spill.mapped_arrays import SpooledArrays, mapped_zeros

_ROOM_BYTES = 64 << 20
"""Memory for one array of an epoch's plan; a larger one is in a file without a name."""


def read_uses(reader: RankReader, num_batches: int, folder: Path) -> RowUses:
    """Read the distinct rows of all training batches of a width, and the ranks that use them.

    Args:
        reader: of the batches.
        num_batches: of them.
        folder: where they are kept, in a file without a name.

    Raises:
        HotsetError: the disk has no room for them.
    """
    keys = SpooledArrays(folder, alignment=1)
    masks = SpooledArrays(folder, alignment=1)
    counts = np.zeros(num_batches + 1, np.int64)
    for number in range(num_batches):
        batch = reader.read(number)
        keys.append(batch.keys_U)
        masks.append(batch.masks_U)
        counts[number + 1] = batch.keys_U.size
    return RowUses(
        np.cumsum(counts),
        keys.map_joined(np.int32),
        masks.map_joined(mask_type(reader.num_ranks)),
        reader.num_rows,
        reader.num_ranks,
    )


class MovingHomes:
    """The homes of the rows of one width that move by plan.

    Args:
        uses: of all training batches.
        first_homes_K: (num_keys,); where rows live before the first step.
        costs: of vectors and states.
        guess: (num_batches,); order to plan for where that of an epoch is not known.
        folder: of plans that are too large for memory.
    """

    may_move = True

    def __init__(
        self,
        uses: RowUses,
        first_homes_K: NDArray[np.uint8],
        costs: MoveCosts,
        guess: NDArray[np.int64],
        folder: Path,
    ) -> None:
        self._uses = uses
        self._first_homes_K = first_homes_K
        self._costs = costs
        self._guess = guess
        self._folder = folder
        self._epochs: deque[HomeChoices] = deque()
        """Epochs that were planned, and not begun."""
        # Plans are followed twice: by those who plan staging ahead, and by the steps themselves.
        self._ahead: HomeChoices | None = None
        self._ahead_K = np.full(uses.num_rows, NO_HOME, np.uint8)
        self._run: HomeChoices | None = None
        self._run_K = np.full(uses.num_rows, NO_HOME, np.uint8)

    def plan_epoch(self, numbers: Iterable[int]) -> None:
        """Choose the homes of an epoch of these batches, in a list; of all in the guessed order otherwise."""
        order = np.array(numbers, np.int64) if isinstance(numbers, list) else self._guess
        num_entries = self._uses.keys.size

        def zeros(dtype: type[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
            return mapped_zeros(self._folder, num_entries, dtype, _ROOM_BYTES)

        choices = HomeChoices(zeros(np.uint8), zeros(mask_type(self._uses.num_ranks)), zeros(np.uint8))
        plan_order(self._uses, order, self._costs, choices)
        self._ahead = choices
        self._epochs.append(choices)

    def begin_epoch(self) -> None:
        """Follow the choices of the next epoch."""
        self._run = self._epochs.popleft()

    def expect(self, number: int, keys_U: NDArray[np.int32]) -> BeforeAndAfter:
        """Return the homes of a step of the epoch that was planned last."""
        assert self._ahead is not None, "an epoch is planned before its steps are"
        return self._followed(self._ahead, number, keys_U, self._ahead_K)

    def take(self, number: int, keys_U: NDArray[np.int32]) -> BeforeAndAfter:
        """Return the homes of the rows of the next step to run."""
        assert self._run is not None, "an epoch begins before its steps"
        return self._followed(self._run, number, keys_U, self._run_K)

    def mark_used(self, keys_N: NDArray[np.int64]) -> None:
        """Let the rows live where they begin, also before the first step that uses them."""
        for homes_K in (self._ahead_K, self._run_K):
            homes_K[keys_N] = self._first_homes_K[keys_N]

    def _followed(
        self, choices: HomeChoices, number: int, keys_U: NDArray[np.int32], homes_K: NDArray[np.uint8]
    ) -> BeforeAndAfter:
        # All ranks follow a plan of these rows.
        entries = self._uses.of_batch(number)
        assert np.array_equal(self._uses.keys[entries], keys_U), "a batch has other rows than planned"
        return follow_choices(keys_U, HomeChoices(*(each[entries] for each in choices)), homes_K)
