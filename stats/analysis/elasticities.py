"""How speed follows a factor of a model: slopes between logarithms, with intervals, and verdicts from them.

An elasticity of -1 halves the speed where the factor doubles. Its interval covers 95 % under normal residuals
of a power law; few points make it wide, and a verdict then stays undecided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SUPPORTED = "supported"
CONTRADICTED = "contradicted"
UNDECIDED = "undecided"

_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)
"""Student's t at 97.5 % by degrees of freedom, from 1 up."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with half of its 95 % interval; infinite where nothing tells the error."""

    value: float
    error: float

    @property
    def low(self) -> float:
        """Lower end."""
        return self.value - self.error

    @property
    def high(self) -> float:
        """Upper end."""
        return self.value + self.error

    def lies_in(self, low: float, high: float) -> bool | None:
        """Whether all of it lies between two numbers; None where only a part does."""
        if low <= self.low and self.high <= high:
            return True
        return False if self.high < low or high < self.low else None


def log_slope(points: Sequence[tuple[float, float]]) -> Interval:
    """Return ``d log y / d log x`` of a power law through points (x, y), two or more, all above 0.

    Error:
        The interval of least squares, by Student's t; infinite for two points.
    """
    x, y = np.log(np.array(points, np.float64)).T
    # A line through centered points has one unknown, its slope; its error follows from the residuals.
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    degrees = len(points) - 2
    if not degrees:
        return Interval(slope, math.inf)
    residual = y - y.mean() - slope * x
    deviation = math.sqrt(float(residual @ residual) / degrees / float(x @ x))
    return Interval(slope, _T_95[min(degrees, len(_T_95)) - 1] * deviation)


def verdict(claims: Sequence[bool | None]) -> str:
    """Return the verdict on an observation that holds if all claims do; None is a claim left open."""
    if any(claim is False for claim in claims):
        return CONTRADICTED
    return SUPPORTED if claims and all(claims) else UNDECIDED
