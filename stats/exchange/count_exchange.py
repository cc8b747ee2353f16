"""Counts what crosses between ranks in an epoch, by the owners of rows, from the lookups alone.

No row is touched and no message is sent: the counts are those of the lists that a run would make.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .fixed_homes import count_uses, owners_by_use, striped_owners
from .ranked_epoch import RankedEpoch
from .volume import NOTHING, Crossings, StepRows, count_crossings, least_crossings


@dataclass(frozen=True, slots=True)
class ExchangeCounts:
    """Messages of an epoch between all ranks, each of one row."""

    striped: Crossings
    """Owners striped by key; first uses are computed where they are used."""
    by_use: Crossings
    """Owners are the ranks that use the row in most steps."""
    least: int
    """Vectors and gradients that no exact scheme can do without."""

    @property
    def deduplicated(self) -> int:
        """Vectors and gradients where owners are striped and first uses are fetched, too."""
        # Every gradient that crosses belongs to a vector that crossed.
        return 2 * self.striped.gradients


def count_exchange(epoch: RankedEpoch) -> ExchangeCounts:
    """Count the messages of an epoch that begins with unused rows."""
    uses_KW = np.zeros((epoch.num_rows, epoch.num_ranks), np.uint32)
    count_uses(epoch.keys, epoch.masks, 0, uses_KW)
    users = np.zeros(epoch.num_rows, epoch.masks.dtype)
    return ExchangeCounts(
        striped=_count(epoch, striped_owners(epoch.num_rows, epoch.num_ranks)),
        by_use=_count(epoch, owners_by_use(uses_KW, np.zeros(epoch.num_ranks, np.int64))),
        least=sum(least_crossings(epoch.keys[e], epoch.masks[e], users) for e in epoch.steps()),
    )


def _count(epoch: RankedEpoch, owners_K: NDArray[np.uint8]) -> Crossings:
    """Count the crossings of all steps."""
    is_used_K = np.zeros(epoch.num_rows, np.bool_)
    total = NOTHING
    for entries in epoch.steps():
        keys_U = epoch.keys[entries]
        step = StepRows(keys_U, epoch.masks[entries], owners_K[keys_U], ~is_used_K[keys_U])
        is_used_K[keys_U] = True
        total += count_crossings(step)
    return total
