"""A slow twin of peeling, for the tests of the kernel, the stage and the whole."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

Samples = list[list[int]]
"""Rows that each sample looks up, perhaps twice."""


def naive_entries(samples: Samples, num_rows: int) -> list[int]:
    """Lone rows by falling number of lone rows in their sample, then all others; ties from the last row."""
    seen = [{s for s, rows in enumerate(samples) if row in rows} for row in range(num_rows)]
    lone = {row for row in range(num_rows) if len(seen[row]) == 1}

    def key(row: int) -> tuple[int, int]:
        return (-len(lone & set(samples[min(seen[row])])) if row in lone else 0), -row

    return sorted(range(num_rows), key=key)


def naive_peel(
    samples: Samples, width_of_row: Sequence[int], widths: Sequence[int], first: int, stop: int | None = None
) -> list[int]:
    """Drop the row of least worth, searched for among all, until none is left."""
    num_rows = len(width_of_row)
    stop = num_rows if stop is None else stop
    alive = {s: set(rows) for s, rows in enumerate(samples) if all(row < stop for row in rows)}
    stamps = itertools.count()
    came = {row: next(stamps) for row in naive_entries(samples, num_rows)}
    left = {row: sum(row in rows for rows in alive.values()) for row in range(first, stop)}
    dropped: list[int] = []
    while left:
        row = min(
            left,
            key=lambda row: (Fraction(left[row], widths[width_of_row[row]]), width_of_row[row], came[row]),
        )
        dropped.append(row)
        del left[row]
        for sample in [s for s, rows in alive.items() if row in rows]:
            for other in sorted(alive.pop(sample)):
                if other in left:
                    left[other] -= 1
                    came[other] = next(stamps)
                    if left[other] == 0:
                        dropped.append(other)
                        del left[other]
    return dropped
