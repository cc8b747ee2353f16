"""The window of look-ahead: the number of batches known in advance.

Belady's choice is exact once the window reaches the nearest next use that is evicted. So the window grows
while most steps evict only rows without a known next use, and settles at 1.5 times that reach. A window
of a fixed length, or of a multiple of slots over loaded rows, is too short on large logs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

LEAST_WINDOW = 64
"""Batches known ahead at least."""
WINDOW_BYTES = 1 << 30
"""Memory that the rows of batches known ahead may take, all table groups together."""
ENTRY_BYTES = 12
"""Bytes of a distinct cold row of a batch known ahead: the row, its lookups, its next use."""
_FIRST_FACTOR = 6
"""The first window is this multiple of the slots over the rows of a batch."""
_GROWTH = 1.5
_MARGIN = 1.5
_STEPS_SEEN = 16
"""Steps that evict rows, after which the window is chosen again."""
_ENOUGH = 0.8
"""Share of them that evict a row with a known next use, from which on the window is long enough."""


class Window:
    """The number of batches to hold back, from what the steps planned so far evicted.

    Args:
        num_slots: staging slots.
        num_bytes: memory that the batches held back may take.
        least: batches held back at least.
    """

    def __init__(self, num_slots: int, num_bytes: int = WINDOW_BYTES, least: int = LEAST_WINDOW) -> None:
        self.most_entries = num_bytes // ENTRY_BYTES
        """Distinct rows of batches that may be held back."""
        self.num_batches: int | None = None
        """Batches to hold back; None until enough of them are known to say."""
        self.is_capped = False
        """Whether memory has ever made the window shorter than it was to be."""
        self._num_slots = num_slots
        self._least = least
        self._reaches: list[int] = []

    def is_covered(self, num_held: int, num_entries: int) -> bool:
        """Return whether the first of ``num_held`` batches with ``num_entries`` rows may be planned."""
        if self.num_batches is None and num_held > self._least:
            batches_in_slots = -(-_FIRST_FACTOR * self._num_slots * num_held // max(num_entries, 1))
            self.num_batches = max(self._least, batches_in_slots)
        return self.num_batches is not None and num_held > self.num_batches

    def cap(self, num_held: int) -> None:
        """Note that no more than ``num_held`` batches fit in memory."""
        self.is_capped = True
        self.num_batches = max(num_held - 1, 0)

    def follow(self, reaches: Iterable[int]) -> None:
        """Choose the window again, at regular intervals of steps.

        Args:
            reaches: for each step planned, how far ahead the nearest known next use of an evicted row is; 0
                where it evicted only rows without one, and less where it evicted none.
        """
        for reach in reaches:
            if reach >= 0:
                self._reaches.append(reach)
            if len(self._reaches) < _STEPS_SEEN:
                continue
            assert self.num_batches is not None, "steps are planned with a window"
            known = sorted(reach for reach in self._reaches if reach)
            if len(known) < _ENOUGH * _STEPS_SEEN:
                self.num_batches = math.ceil(_GROWTH * max(self.num_batches, 1))
            else:
                self.num_batches = max(self._least, math.ceil(_MARGIN * known[len(known) // 2]))
            self._reaches.clear()
