"""Where to write a line's name so that it touches neither a line nor another name.

Each line offers places above, below and beside its points; the one farthest from everything else in the
picture is taken. Quadratic in points, of which charts have a few hundred.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Points = Sequence[tuple[float, float]]

_CHARACTER, _LINE = 6.7, 14.0
"""Size of a character of the labels' font, and of a line of it (pixels)."""
_STEP = 6.0
"""Lines are taken as points no farther apart (pixels)."""
_SHORT = 12
"""Points of a line that is not much more than a few dots."""
_ENOUGH = 26.0
"""More room than this is no better (pixels)."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The plot's axes: what lies at its edges, and its size in pixels."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float
    height: float
    log_x: bool = True
    log_y: bool = False

    def to_pixels(self, x: float, y: float) -> tuple[float, float]:
        """Distance from the left and from the top."""
        across = _share(x, self.x, is_log=self.log_x)
        return self.width * across, self.height * (1 - _share(y, self.y, is_log=self.log_y))


def _share(value: float, ends: tuple[float, float], *, is_log: bool) -> float:
    low, high, at = (math.log(max(v, 1e-12)) if is_log else v for v in (*ends, value))
    return (at - low) / (high - low) if high > low else 0.5


@dataclass(frozen=True, slots=True)
class Label:
    """A name and the middle of where it stands, in pixels from the left and the top of the plot."""

    name: str
    x: float
    y: float


def place_labels(
    lines: Mapping[str, Points], names: Sequence[str], frame: Frame, obstacles: Points = ()
) -> list[Label]:
    """A place for the name of each line.

    Args:
        lines: per line its points, from left to right.
        names: lines to label, the most important first; those without points are left out.
        frame: of the plot.
        obstacles: other points to keep away from.
    """
    dense = {
        name: _densified([frame.to_pixels(*point) for point in points]) for name, points in lines.items()
    }
    every = np.concatenate(
        [*dense.values(), np.array([frame.to_pixels(*p) for p in obstacles]).reshape(-1, 2)]
    )
    found: list[Label] = []
    for name in names:
        if not dense.get(name, np.empty(0)).size:
            continue
        half = len(name) * _CHARACTER / 2
        best: tuple[float, Label] | None = None
        others = np.concatenate([np.full((1, 2), 1e9), *(d for other, d in dense.items() if other != name)])
        for x, y in dense[name][::2]:
            alone = min(0.3 * float(np.hypot(*(others - (x, y)).T).min()), _ENOUGH)
            for dx, dy in _around(half, is_short=len(dense[name]) < _SHORT):
                at = Label(name, float(x + dx), float(y + dy))
                room = _room(at, half, every, found, frame)
                score = (room if room > 2 else 8 * room - 40) + alone
                if best is None or score > best[0] + 1:
                    best = score, at
        if best is not None:
            found.append(best[1])
    return found


def _around(half: float, *, is_short: bool) -> list[tuple[float, float]]:
    """Where a label may stand from its point; farther off too where there are few points to choose from."""
    near = [(0.0, 12.0), (half + 8, 0.0), (half + 6, 11.0), (-half - 6, 11.0)]
    found = near + [(-dx, -dy) for dx, dy in near]
    return (
        found + [(1.1 * dx, dy + up) for dx, dy in found for up in (-26, -14, 14, 26)] if is_short else found
    )


def _room(at: Label, half: float, every: NDArray[np.float64], placed: list[Label], frame: Frame) -> float:
    """Pixels from a label to the nearest thing, or to the edge it crosses; negative where they touch."""
    edges = min(at.x - half, frame.width - at.x - half, at.y - _LINE / 2, frame.height - at.y - _LINE / 2)
    if edges < 0:
        return edges - 100
    across, down = np.abs(every[:, 0] - at.x) - half, np.abs(every[:, 1] - at.y) - _LINE / 2
    room = float(np.maximum(across, down).min(initial=_ENOUGH))
    for other in placed:
        halves = half + len(other.name) * _CHARACTER / 2
        room = min(room, max(abs(at.x - other.x) - halves, abs(at.y - other.y) - _LINE))
    return room


def _densified(points: list[tuple[float, float]]) -> NDArray[np.float64]:
    """(num_points, 2), no farther apart than _STEP."""
    found = points[:1]
    for (x0, y0), (x1, y1) in pairwise(points):
        steps = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / _STEP))
        found += [(x0 + (x1 - x0) * k / steps, y0 + (y1 - y0) * k / steps) for k in range(1, steps + 1)]
    return np.array(found, np.float64).reshape(-1, 2)
