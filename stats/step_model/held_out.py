"""How wrong predictions are on cells that no constant was fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

NEAR = 1.1
"""Configurations nearer to each other than this have no order worth predicting."""
FAR = 2.0
"""Beyond this the order is easy."""


@dataclass(frozen=True, slots=True)
class PredictionError:
    """The error of predictions on held-out cells."""

    num_cells: int
    median_error: float
    """Median of ``|predicted / measured - 1|``."""
    p90_error: float
    """Its 90th percentile."""
    low_ratio: float
    """5th percentile of measured over predicted."""
    high_ratio: float
    """95th percentile of measured over predicted."""
    num_pairs: int
    """Pairs of cells whose measured times are between 10% and 2x apart."""
    pairs_in_order: float | None
    """Share of them that are predicted in the right order; None without pairs."""

    @classmethod
    def of(cls, measured: Sequence[float], predicted: Sequence[float]) -> PredictionError:
        """Compare seconds with seconds.

        Args:
            measured: of each cell, above 0; at least one.
            predicted: of the same cells.
        """
        found = np.array(measured)
        guessed = np.array(predicted)
        errors = np.abs(guessed / found - 1)
        ratios = found / guessed
        # Pairs that measure as good as equal have no order, and those far apart are too easy to count.
        in_order = []
        for first, second in combinations(range(found.size), 2):
            apart = found[second] / found[first]
            if NEAR <= max(apart, 1 / apart) <= FAR:
                # Equal predictions are no order, whichever of the two comes first.
                in_order.append((guessed[second] - guessed[first]) * (apart - 1) > 0)
        return cls(
            num_cells=int(found.size),
            median_error=float(np.median(errors)),
            p90_error=float(np.quantile(errors, 0.9)),
            low_ratio=float(np.quantile(ratios, 0.05)),
            high_ratio=float(np.quantile(ratios, 0.95)),
            num_pairs=len(in_order),
            pairs_in_order=float(np.mean(in_order)) if in_order else None,
        )
