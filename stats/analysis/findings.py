"""Single numbers read off a curve: where it reaches a share, and where more stops paying."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def first_to_reach(sizes: Sequence[int], shares: Sequence[float], wanted: float) -> int | None:
    """Return the smallest of the rising ``sizes`` whose share is at least ``wanted``; None where none is."""
    return next((size for size, share in zip(sizes, shares, strict=True) if share >= wanted), None)


def share_at(sizes: Sequence[int], shares: Sequence[float], size: float) -> float:
    """Return the share at ``size``, between the points of a curve by logarithm; at most the last one."""
    return float(np.interp(np.log2(max(size, 1)), np.log2(sizes), shares))


def gain_of_doubling(sizes: Sequence[int], shares: Sequence[float], size: float) -> float:
    """Return how much the share rises from ``size`` to twice that, between points by logarithm.

    Args:
        sizes: rising, above 0.
        shares: at those sizes; beyond the last one nothing is gained.
        size: where to look.
    """
    at, doubled = np.interp(np.log2([size, 2 * size]), np.log2(sizes), shares)
    return float(doubled - at)


def gain_of_one_more(sizes: Sequence[int], shares: Sequence[float], size: float, more: float) -> float:
    """Return how much the share rises from ``size`` to ``size + more``."""
    at, after = np.interp(np.log2([size, size + more]), np.log2(sizes), shares)
    return float(after - at)


def where_doubling_stops_paying(
    sizes: Sequence[int], shares: Sequence[float], least_gain: float
) -> int | None:
    """Return the smallest size after the steepest part of a curve that, doubled, gains under ``least_gain``.

    A curve that begins flat (too little for anything) has not stopped there, and one may leap at its end,
    where the last rows fit: the search begins at the greatest gain of a size that can be doubled twice. None
    where every doubling pays.
    """
    gains = [gain_of_doubling(sizes, shares, size) for size in sizes if 4 * size <= sizes[-1]]
    steepest = int(np.argmax(gains)) if gains else 0
    paying = zip(sizes[steepest:], gains[steepest:], strict=False)
    return next((size for size, gain in paying if gain < least_gain), None)
