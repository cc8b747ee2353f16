"""Expected traffic of a device: distinct rows of batches, and rows that an epoch loads.

Distinct rows of a batch: lookups are modelled as independent draws, so a row of probability p is needed in a
batch of n with probability 1 - (1 - p)**n. Rows of equal probability count together (a log has few distinct
counts), so any log's tables take a few thousand numbers. `mean_unique_rows` counts the rows of real batches,
to measure their distance from independent draws. A buffer size that is large enough follows from the same
numbers.

Rows that one epoch loads into a staging area, from the counts of rows alone: a log is trained in a random
order, so the lookups of a row that has ``c`` of them are any ``c`` of its samples, and the chance that a
window of samples meets the row follows from ``c``. (Independent draws would treat a row that is looked up
once as one of many that might have been, and see it return.) An epoch starts with an empty area, so every row
is loaded at least once. Measured against the step plans of whole epochs (Criteo Kaggle, 110,000 real samples
in batches of 512; 300,000 generated ones in batches of 512 and 2,048; slots for 2 to 32% of the rows): 0.997
to 1.005 times the rows that lookahead loads, 0.91 to 1.02 times those of a cache that evicts the least
frequently used one.

Source:
    Erdogan et al., SCARS, arXiv 2411.01611, for expected unique rows; the formulas are derived from linearity
    of expectation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .batch_rows import find_distinct


@dataclass(frozen=True, slots=True)
class AccessRates:
    """Rows of one or more tables, grouped by how likely one sample is to look each up."""

    rates: NDArray[np.float64]
    """(num_classes,), descending; probability in [0, 1] that one sample looks up a row of the class."""
    num_rows: NDArray[np.int64]
    """(num_classes,); rows of each class."""

    @classmethod
    def of_counts(cls, counts: Sequence[NDArray[np.int64]], num_samples: int) -> AccessRates:
        """Return the rows of several tables by their lookups in ``num_samples`` samples, but for unseen ones.

        Args:
            counts: per table (num_rows,), lookups, any order. In a list-valued feature a row counts as
                often as it is looked up; rates above 1 are cut to 1.
        """
        found = [np.unique(count[count > 0], return_counts=True) for count in counts]
        if not found:
            return cls(np.empty(0), np.empty(0, np.int64))
        # Tables share counts: merge the classes of equal count, and turn them round, the likeliest first.
        values = np.concatenate([value for value, _ in found])
        merged, inverse = np.unique(values, return_inverse=True)
        num_rows = np.zeros(merged.shape[0], np.int64)
        np.add.at(num_rows, inverse, np.concatenate([rows for _, rows in found]))
        rates = np.minimum(merged[::-1] / max(1, num_samples), 1.0)
        return cls(rates, num_rows[::-1].copy())

    @property
    def lookups_per_sample(self) -> float:
        """Expected lookups of one sample."""
        return float(self.rates @ self.num_rows)

    def split(self, num_top: int) -> tuple[AccessRates, AccessRates]:
        """Return the ``num_top`` likeliest rows, and the others; a class may be divided between the two."""
        before = np.cumsum(self.num_rows) - self.num_rows
        top = np.clip(num_top - before, 0, self.num_rows)
        rest = self.num_rows - top
        return (
            AccessRates(self.rates[top > 0], top[top > 0]),
            AccessRates(self.rates[rest > 0], rest[rest > 0]),
        )


def presence(probabilities: NDArray[np.float64], num_draws: float) -> NDArray[np.float64]:
    """Return the probability that each row is drawn: ``1 - (1 - p)**n``, without cancellation.

    Args:
        probabilities: (num_rows,), probability that a draw is the row, in [0, 1].
        num_draws: draws, 0 or more; need not be whole.
    """
    if num_draws < 0:
        raise ValueError(f"num_draws must be 0 or more, got {num_draws}")
    if num_draws == 0:
        return np.zeros(probabilities.shape[0])
    with np.errstate(divide="ignore"):
        return -np.expm1(num_draws * np.log1p(-probabilities))


def buffer_rows(expected: float, overflow_probability: float) -> int:
    """Return how many rows a buffer needs so that distinct rows of a batch rarely exceed it.

    Args:
        expected: expected number of distinct rows.
        overflow_probability: chance at most that they exceed it, in (0, 1].

    Error:
        Chernoff's bound in the form ``P(U > E + x) <= exp(-x**2 / (2 (E + x / 3)))``, which holds for
        negatively associated indicators; solved for x from above.

    Source:
        Dubhashi and Ranjan (1998), proposition 7; Bernstein's form of the bound.
    """
    if not 0 < overflow_probability <= 1:
        raise ValueError(f"overflow_probability must be in (0, 1], got {overflow_probability}")
    nats = -math.log(overflow_probability)
    return math.ceil(expected + math.sqrt(2 * expected * nats) + 2 / 3 * nats)


def mean_unique_rows(rows: NDArray[np.int64], lookups_per_batch: int) -> float:
    """Return the distinct rows of a batch, the mean over consecutive whole batches of a stream; exact.

    Args:
        rows: (num_lookups,), rows of all tables numbered as one, each at least 0, in order.
        lookups_per_batch: lookups of a batch; what is left over at the end is not counted.

    Raises:
        ValueError: the stream is shorter than one batch.
    """
    num_batches = rows.shape[0] // lookups_per_batch
    if num_batches == 0:
        raise ValueError(f"{rows.shape[0]} lookups are less than one batch of {lookups_per_batch}")
    batches = rows[: num_batches * lookups_per_batch].reshape(num_batches, lookups_per_batch)
    return float(np.mean([find_distinct(batch)[0].shape[0] for batch in batches]))


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
        count as the middle one, which is within 0.012 for integers.
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
        """Return the rows that Belady's algorithm loads, including each first use.

        Belady evicts the row with the farthest next use, so a row stays if its next use is within a window:
        as many batches as it takes until the rows that stay fill the slots. An evicted row keeps its slot
        until the transfers of ``prefetch`` further batches are finished.

        In passes, no row stays after its batch.

        Error:
            A lower bound, as tight as the module says: slots suffice on average and in the middle of the
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
        """Return the rows that a cache of the most frequent rows loads, including each first use.

        The slots that a batch's rare rows leave free hold the most frequent rows, which are loaded once; the
        others are loaded by each batch that looks them up.

        Error:
            See the module; `lfu` learns the counts gradually, from 70% of the slots filled with them.
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
        # All gaps between uses of a row have one distribution, and so has the gap before the first use: it is
        # longer than x if the first x batches do not use the row. They are summed by classes of length.
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
