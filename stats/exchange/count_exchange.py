"""Counts what crosses between ranks in an epoch, by the scheme of homes, from the lookups alone.

No row is touched and no message is sent: the counts are those of the plan that a run would follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .fixed_homes import count_uses, homes_by_use, stay_at, striped_homes
from .home_moves import (
    NO_HOME,
    HomeChoices,
    follow_choices,
    move_costs,
    unset_choices,
)
from .home_plan import RowUses, plan_order
from .ranked_epoch import RankedEpoch
from .volume import NOTHING, Crossings, StepRows, count_crossings, least_crossings

Homes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ExchangeCounts:
    """Messages of an epoch between all ranks, each of one row."""

    striped: Crossings
    """Homes striped by key; first uses are computed where they are used."""
    by_use: Crossings
    """Homes at the rank that uses the row in most steps."""
    moving: Crossings
    """Homes that move by plan."""
    least: int
    """Vectors and gradients that no exact scheme can do without."""
    rows_of_ranks: NDArray[np.int64]
    """(num_ranks,); rows that live at each rank after the epoch, where homes move."""
    planning_seconds: float
    """CPU seconds to plan moving homes, once the rows of each step and their users are known."""

    @property
    def deduplicated(self) -> int:
        """Vectors and gradients where homes are striped and first uses are fetched, too."""
        # Every gradient that crosses belongs to a vector that crossed.
        return 2 * self.striped.gradients


def count_exchange(epoch: RankedEpoch, embedding_dim: int, state_width: int) -> ExchangeCounts:
    """Count the messages of an epoch that begins with unused rows.

    Args:
        epoch: its steps.
        embedding_dim: numbers of a row's vector.
        state_width: numbers of its optimizer state.
    """
    # Three ways to give rows a home, each followed over the same epoch, and the least that any could send.
    striped = striped_homes(epoch.num_rows, epoch.num_ranks)
    by_use = _homes_by_use(epoch)
    begin = time.thread_time()
    choices = plan_homes(epoch, embedding_dim, state_width)
    planning_seconds = time.thread_time() - begin

    def follow(entries: slice, homes: Homes) -> tuple[Homes, Homes]:
        return follow_choices(epoch.keys[entries], HomeChoices(*(each[entries] for each in choices)), homes)

    moving, homes = _walk(epoch, follow)
    return ExchangeCounts(
        striped=_walk(epoch, lambda entries, homes: stay_at(epoch.keys[entries], striped, homes))[0],
        by_use=_walk(epoch, lambda entries, homes: stay_at(epoch.keys[entries], by_use, homes))[0],
        moving=moving,
        least=_least(epoch),
        rows_of_ranks=np.bincount(homes[homes != NO_HOME], minlength=epoch.num_ranks),
        planning_seconds=planning_seconds,
    )


def plan_homes(epoch: RankedEpoch, embedding_dim: int, state_width: int) -> HomeChoices:
    """Return for each entry the homes that make the rest of the epoch cheapest."""
    choices = unset_choices(epoch.keys.size, epoch.num_ranks)
    uses = RowUses(epoch.offsets, epoch.keys, epoch.masks, epoch.num_rows, epoch.num_ranks)
    plan_order(uses, np.arange(epoch.num_steps), move_costs(embedding_dim, state_width), choices)
    return choices


def _homes_by_use(epoch: RankedEpoch) -> Homes:
    uses_KW = np.zeros((epoch.num_rows, epoch.num_ranks), np.uint32)
    count_uses(epoch.keys, epoch.masks, 0, uses_KW)
    return homes_by_use(uses_KW, np.zeros(epoch.num_ranks, np.int64))


def _walk(epoch: RankedEpoch, move: Callable[[slice, Homes], tuple[Homes, Homes]]) -> tuple[Crossings, Homes]:
    """Count the crossings of all steps; ``move`` returns the homes of a step's rows before and after it."""
    # No row has a home or a step yet: the epoch begins with unused rows.
    homes = np.full(epoch.num_rows, NO_HOME, np.uint8)
    last_steps = np.full(epoch.num_rows, -2, np.int32)
    total = NOTHING
    for number, entries in enumerate(epoch.steps()):
        step = StepRows(epoch.keys[entries], epoch.masks[entries], *move(entries, homes))
        total += count_crossings(step, number, last_steps)
    return total, homes


def _least(epoch: RankedEpoch) -> int:
    users = np.zeros(epoch.num_rows, epoch.masks.dtype)
    steps = epoch.steps()
    return sum(least_crossings(epoch.keys[entries], epoch.masks[entries], users) for entries in steps)
