"""The homes of the rows of each step: where a row lives when the step begins, and where from then on.

Homes that stay are known beforehand. Those that move follow a plan of the whole epoch
(`placements.moving_homes`). A row that no step has used yet lives nowhere: each rank that uses it computes
its initial value, and the home that the step gives it takes the first optimizer step.

Steps are read twice: ahead, where their staging is planned, and where they are run. Each pass follows the
homes by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...stats.exchange.home_moves import NO_HOME

BeforeAndAfter = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""(num_rows of the step,) each; `NO_HOME` before the first use of a row."""


class EpochHomes(Protocol):
    """The homes of the rows of one width, epoch by epoch."""

    may_move: bool
    """Whether a row may ever change its home."""

    def plan_epoch(self, numbers: Iterable[int]) -> None:
        """Plan the next epoch.

        Args:
            numbers: its batches: a list where their order is known, else anything that is not iterated.
        """

    def begin_epoch(self) -> None:
        """Let the steps of `take` be those of the next epoch that was planned."""

    def mark_used(self, keys_N: NDArray[np.int64]) -> None:
        """Take rows as used before the first step; they live where they live then."""


class StepHomes(EpochHomes, Protocol):
    """The homes of the rows of one width, step by step."""

    def expect(self, number: int, keys_U: NDArray[np.int32]) -> BeforeAndAfter:
        """Return the homes of the rows of a step of the epoch that was planned last, steps in their order.

        Steps may be left out if no other step uses their rows. A row that has no home before may be said to
        have the one that it gets.

        Args:
            number: of the training batch.
            keys_U: (num_rows of the step,), ascending.
        """

    def take(self, number: int, keys_U: NDArray[np.int32]) -> BeforeAndAfter:
        """Return the homes of the rows of the next step to run."""


class FixedHomes:
    """Homes that stay.

    Args:
        homes_K: (num_keys,); the rank of each row.
    """

    may_move = False

    def __init__(self, homes_K: NDArray[np.uint8]) -> None:
        self._homes_K = homes_K
        self._is_used_K = np.zeros(homes_K.size, np.bool_)

    def plan_epoch(self, numbers: Iterable[int]) -> None:
        """Plan nothing."""

    def begin_epoch(self) -> None:
        """Begin nothing."""

    def expect(self, number: int, keys_U: NDArray[np.int32]) -> BeforeAndAfter:
        """Return the homes, before and after."""
        homes_U = self._homes_K[keys_U]
        return homes_U, homes_U

    def take(self, number: int, keys_U: NDArray[np.int32]) -> BeforeAndAfter:
        """Return the homes, which unused rows have only after the step."""
        homes_U = self._homes_K[keys_U]
        before_U = np.where(self._is_used_K[keys_U], homes_U, np.uint8(NO_HOME)).astype(np.uint8)
        self._is_used_K[keys_U] = True
        return before_U, homes_U

    def mark_used(self, keys_N: NDArray[np.int64]) -> None:
        """Let the rows have their homes before the first step, too."""
        self._is_used_K[keys_N] = True
