"""An epoch as several ranks see it: the distinct rows of each step, with the ranks that use them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .rank_masks import Masks


@dataclass(frozen=True, slots=True)
class RankedEpoch:
    """The steps of an epoch, one behind the other in flat arrays."""

    num_ranks: int
    num_samples: int
    offsets: NDArray[np.int64]
    """(num_steps + 1,); where the rows of each step begin."""
    keys: NDArray[np.int32]
    """(num_entries,); ascending in a step."""
    masks: Masks
    """(num_entries,); the ranks that use each."""
    lookups_of_rows: NDArray[np.int64]
    """(num_rows,); lookups of each row in the epoch."""
    remote_lookups: int
    """Lookups whose row lives at another rank, where homes are striped by key."""

    @property
    def num_rows(self) -> int:
        """Rows that keys number."""
        return int(self.lookups_of_rows.size)

    @property
    def num_steps(self) -> int:
        """Batches of the epoch."""
        return int(self.offsets.size) - 1

    def steps(self) -> list[slice]:
        """The entries of each step."""
        return [slice(first, last) for first, last in pairwise(self.offsets.tolist())]
