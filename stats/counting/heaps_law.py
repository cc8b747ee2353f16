"""The number of distinct categories of a long log, estimated from a short sample of it.

The number grows with the log like a power of its length, and the power itself falls as the log gets longer.
Both are read off three prefixes of the sample. An estimate: within a factor of two for logs a hundred times
the sample's length with the skew of click logs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_LEAST_RATIO = 0.85
"""The power is not taken to fall faster than this with each doubling: prefixes are noisy."""


def distinct_at(num_lookups: float, distinct: Sequence[int], num_sampled: int) -> float:
    """Return the distinct categories expected among ``num_lookups``.

    Args:
        num_lookups: lookups of the log.
        distinct: (3,), among the first quarter, the first half, and all of the sample.
        num_sampled: lookups of the sample.

    Source:
        Heaps' law, D(n) = K n**b, with b falling geometrically in log n.
    """
    # Growth is measured twice, over the two last doublings of the sample.
    quarter, half, whole = (max(1, count) for count in distinct)
    if num_lookups <= num_sampled or num_sampled == 0:
        return min(whole, whole * num_lookups / max(1, num_sampled) + 1)
    early, late = math.log2(half / quarter), math.log2(whole / half)
    ratio = min(1.0, max(_LEAST_RATIO, late / early if early > 0 else 1.0))
    doublings = math.log2(num_lookups / num_sampled)
    # Each further doubling grows by the same factor less: Heaps' law, with an exponent that falls.
    power = late * ratio
    log2_growth = 0.0
    while doublings > 0:
        log2_growth += power * min(1.0, doublings)
        power *= ratio
        doublings -= 1
    return float(min(num_lookups, whole * 2**log2_growth))
