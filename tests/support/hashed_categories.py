"""Categories that collide in hash tables, and what tables hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotset.stats.kernel import read_only

ALL_VALID = read_only(np.zeros(0, np.uint8))
_INVERSE = pow(0x9E3779B97F4A7C15, -1, 2**64)
COLLIDING = [(number * _INVERSE) % 2**64 for number in range(12)]
"""64-bit categories whose first probe is the same entry."""


def bitmap(is_valid: list[bool]) -> NDArray[np.uint8]:
    """Return an Arrow validity bitmap."""
    return read_only(np.packbits(np.array(is_valid, np.bool_), bitorder="little"))


def entries_of(table: NDArray[np.uint64]) -> dict[int, int]:
    """Return the number of each category in a table of two-word entries."""
    return {int(category): int(number) for category, number in table if number != 0}
