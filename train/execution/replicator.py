"""FAE's replicator: a second copy of every hot row on the fast tier, copied whole at each switch.

Ids are ranks, so the hot rows of a table are a prefix of its slots on either tier and a copy is one
slice per table, weights and state. All hot rows are copied, changed or not, as the paper has it.

Source:
    Adnan et al., Accelerating Recommendation System Training by Leveraging Popular Choices (FAE),
    PVLDB 15 (2021), section 4.4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..rows.step_plan import HotCopy
from ..rows.tiers import Tier


class Replicator:
    """Copies of the rows that a fast and a slow tier both hold."""

    def __init__(self, fast: Tier, slow: Tier) -> None:
        self._fast = fast
        self._slow = slow
        self._slices = []
        for table in range(fast.layout.num_tables):
            on_fast = fast.layout.slots_of_table(table)
            start = slow.layout.slots_of_table(table).start
            if on_fast.stop > on_fast.start:
                self._slices.append((on_fast, slice(start, start + on_fast.stop - on_fast.start)))

    @property
    def num_rows_F(self) -> NDArray[np.int64]:  # noqa: N802
        """(num_tables,) hot rows, all of which a copy moves."""
        return self._fast.layout.last_F - self._fast.layout.first_F

    def copy(self, direction: HotCopy) -> None:
        """Overwrite the hot rows of one tier with those of the other."""
        for on_fast, on_slow in self._slices:
            # A row and its state move together.
            for fast, slow in (
                (self._fast.weights_SD, self._slow.weights_SD),
                (self._fast.state_SW, self._slow.state_SW),
            ):
                if direction == "to_fast":
                    fast[on_fast].copy_(slow[on_slow])
                else:
                    slow[on_slow].copy_(fast[on_fast])
