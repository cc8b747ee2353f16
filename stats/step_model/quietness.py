"""Whether measurements were disturbed: by other programs, by a clock that changes, or by their own spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST_OTHER_CPU = 0.1
"""Share of a core that other programs may take."""
MOST_SPREAD = 0.15
"""Interquartile range of the probe over its median."""
MOST_DRIFT = 0.1
"""Relative change of the probe from the first third of a run to its last."""
_LEAST_PROBES = 6


@dataclass(frozen=True, slots=True)
class Series:
    """Repeated measurements of one thing."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    repetitions: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Series:
        """Summarize values, at least one."""
        low, median, high = np.quantile(np.array(values, np.float64), [0.25, 0.5, 0.75])
        return cls(float(median), float(low), float(high), len(values))

    @property
    def spread(self) -> float:
        """Interquartile range over the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


def disturbances(probe: Sequence[float], other_cpu: float | None) -> list[str]:
    """Return what disturbed a run, in words; nothing for a quiet one.

    Args:
        probe: seconds of one and the same piece of work, repeated over the whole run, in order.
        other_cpu: CPU seconds of all other programs per second of the run; None where it is not known.
    """
    found = []
    if other_cpu is not None and other_cpu > MOST_OTHER_CPU:
        found.append(f"other programs took {other_cpu:.2f} of a core")
    if len(probe) < _LEAST_PROBES:
        found.append(f"the run was too short to tell: {len(probe)} repetitions of the probe")
        return found
    # Short disturbances spread the repetitions.
    spread = Series.of(probe).spread
    if spread > MOST_SPREAD:
        found.append(f"one piece of work took times that spread by {spread:.0%}")
    # A slow change may hide in the spread, so the two ends of the run are compared as well.
    third = len(probe) // 3
    drift = float(np.median(probe[-third:]) / np.median(probe[:third])) - 1
    if abs(drift) > MOST_DRIFT:
        found.append(f"it took {drift:+.0%} at the end, so the clock or the load changed")
    return found
