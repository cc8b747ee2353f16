"""The number of distinct rows a batch looks up: its expectation, and a buffer that is large enough.

Lookups are taken as independent draws, so a row of probability p is needed in a batch of n with probability
1 - (1 - p)**n. Rows of equal probability count together (a log has few distinct counts): any log's tables
take a few thousand numbers. The distance of real batches from independent draws is measured, not assumed:
`mean_unique_rows` counts them in a stream of ids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..batches.distinct_rows import find_distinct


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


def expected_unique_rows(
    probabilities: NDArray[np.float64], num_draws: float, num_rows: NDArray[np.int64] | None = None
) -> float:
    """Return the expected number of distinct rows among ``num_draws`` independent draws.

    Args:
        probabilities: (num_classes,), probability of each row.
        num_draws: draws, 0 or more.
        num_rows: (num_classes,), rows that share each probability; default one each.

    Error:
        Exact for independent draws; float64 sums.
    """
    needed = presence(probabilities, num_draws)
    return float(needed.sum() if num_rows is None else needed @ num_rows)


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
