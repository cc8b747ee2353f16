"""Rows that one epoch loads into a staging area, from the counts of rows alone.

A log is trained in a random order, so the lookups of a row that has ``c`` of them are any ``c`` of its
samples, and the chance that a window of samples meets the row follows from ``c`` alone. (Independent draws,
the usual picture, take a row that is looked up once for one of many that might have been, and see it come
back.) An epoch starts with an empty area, so every row is loaded at least once.

Measured against the step plans of whole epochs (Criteo Kaggle, 110,000 real samples in batches of 512;
300,000 generated ones in batches of 512 and 2,048; slots for 2 to 32% of the rows): 0.997 to 1.005 times the
rows that lookahead loads, 0.91 to 1.02 times those of a cache that evicts the least frequently used one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .access_rates import AccessRates

_GAP_CLASSES = 17
"""Classes of gaps by length: with 65 the loads differ by less than 0.2%."""


def absence(lookups: NDArray[np.float64], num_drawn: float, num_samples: float) -> NDArray[np.float64]:
    """Return the probability that none of a row's samples is among ``num_drawn`` of all of them.

    Args:
        lookups: (num_classes,), samples that look up a row of each class; need not be whole.
        num_drawn: samples drawn without replacement, at most ``num_samples``; need not be whole.
        num_samples: samples of the epoch.

    Error:
        The hypergeometric probability is a product of as many factors as the smaller of the two numbers; all
        are taken as the middle one, which is within 0.012 for whole numbers.
    """
    fewer = np.minimum(lookups, num_drawn)
    more = np.maximum(lookups, num_drawn)
    factor = 1 - more / np.maximum(num_samples - (fewer - 1) / 2, 1e-9)
    gone: NDArray[np.float64] = np.where(
        lookups + num_drawn > num_samples, 0.0, np.maximum(factor, 0.0) ** fewer
    )
    return gone


@dataclass(frozen=True, slots=True)
class EpochUses:
    """Rows of one epoch by the number of batches that look them up, expected."""

    num_uses: NDArray[np.float64]
    """(num_classes,), falling; batches that look up a row of the class, from 1 to ``num_batches``."""
    num_rows: NDArray[np.int64]
    """(num_classes,); rows of each class."""
    num_batches: float

    @classmethod
    def of_rates(cls, rates: AccessRates, num_samples: float, batch_size: int) -> EpochUses:
        """Return the uses of rows with ``rates`` in an epoch of ``num_samples`` samples."""
        num_samples = max(num_samples, 1.0)
        num_batches = max(num_samples / batch_size, 1.0)
        lookups = rates.rates * num_samples
        present = 1 - absence(lookups, min(float(batch_size), num_samples), num_samples)
        return cls(np.clip(num_batches * present, 1.0, num_batches), rates.num_rows, num_batches)

    @property
    def num_first_uses(self) -> int:
        """Distinct rows of the epoch."""
        return int(self.num_rows.sum())

    @property
    def rows_per_batch(self) -> float:
        """Expected distinct rows of a batch."""
        return float(self.num_uses @ self.num_rows) / self.num_batches

    def num_passes(self, num_slots: int) -> int:
        """Return how often a batch loads its rows: twice, in passes, where it has more than slots."""
        return 2 if self.rows_per_batch > num_slots else 1

    def lookahead_loads(self, num_slots: int, prefetch: int) -> float:
        """Return the rows that Belady's algorithm loads, each first use among them.

        Belady evicts the row with the farthest next use, so a row stays where its next use is near enough:
        within as many batches as make the rows that stay fill the slots. A row that leaves keeps its slot
        until the transfers of ``prefetch`` further batches are behind it.

        No row stays behind a batch in passes.

        Error:
            A lower bound, as near as the module says: slots suffice on average and in the middle of the
            epoch, but are not counted at each batch.
        """
        # No row has to leave where all have a slot.
        if num_slots >= self.num_first_uses:
            return float(self.num_first_uses)
        if self.num_passes(num_slots) > 1:
            return self.num_passes(num_slots) * self.rows_per_batch * self.num_batches

        def fits(window: float) -> bool:
            return self._occupied(window, prefetch) <= num_slots

        return self._loads(largest(fits, self.num_batches))

    def cache_loads(self, num_slots: int) -> float:
        """Return the rows that a cache loads which keeps the most frequent rows, each first use among them.

        What the slots of a batch's rare rows leave is taken by the most frequent rows, which are loaded once;
        the others are loaded by each batch that looks them up.

        Error:
            See the module; `lfu` learns the counts as it goes, from 70% of the slots filled with them.
        """
        if num_slots >= self.num_first_uses:
            return float(self.num_first_uses)
        if self.num_passes(num_slots) > 1:
            return self.num_passes(num_slots) * self.rows_per_batch * self.num_batches

        def fits(kept: float) -> bool:
            return kept + self._uses_beyond(kept) / self.num_batches <= num_slots

        kept = largest(fits, float(num_slots))
        return min(kept, float(self.num_first_uses)) + self._uses_beyond(kept)

    def _loads(self, window: float) -> float:
        """Return the loads of rows that stay where the next use is within ``window`` batches."""
        far = absence(self.num_uses, window, self.num_batches)
        return float((1 + (self.num_uses - 1) * far) @ self.num_rows)

    def _occupied(self, window: float, prefetch: int) -> float:
        """Return the slots that such rows take: the mean over the epoch, or those in its middle if more.

        A row takes a slot from its use to the next one where that is in the window, else for its own batch
        and the transfers after it. Fewer rows have uses on both sides of a batch near the ends of an epoch.
        """
        uses = self.num_uses
        num_batches = self.num_batches
        # The gaps between the uses of a row are alike, and so is the one before the first use: a gap is
        # longer than x where the first x batches do not use the row. They are taken by classes of length.
        edges = [0.0, *np.geomspace(1.0, max(window, 1.0), _GAP_CLASSES).tolist()]
        beyond = [absence(uses, edge, num_batches) for edge in edges]
        leaving = float((((uses - 1) * beyond[-1] + 1) @ self.num_rows) * (1 + prefetch))
        mean = middle = leaving / num_batches
        for start, stop, longer, longest in zip(edges, edges[1:], beyond, beyond[1:], strict=False):
            length = (start + stop + 1) / 2
            num_gaps = float(((uses - 1) * (longer - longest)) @ self.num_rows)
            # A gap of this length has so many places in the epoch, and in so many it spans the middle.
            places = max(num_batches - length, 1.0)
            mean += num_gaps * length / num_batches
            middle += num_gaps * min(length, places) / places
        return max(mean, middle)

    def _uses_beyond(self, kept: float) -> float:
        """Return the uses of all rows but the ``kept`` most frequent ones."""
        before = np.cumsum(self.num_rows) - self.num_rows
        beyond = self.num_rows - np.clip(kept - before, 0, self.num_rows)
        return float(self.num_uses @ beyond)


def largest(fits: Callable[[float], bool], limit: float) -> float:
    """Return the largest argument from 1 to ``limit`` that fits, to a thousandth, else 1."""
    if limit <= 1 or fits(limit):
        return max(limit, 1.0)
    low, high = 1.0, limit
    while high - low > 1e-3 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
