"""Place the name of each line so that it touches neither a line nor another name.

Each line offers positions above, below and beside its points; the one farthest from everything else in the
chart is taken. Takes time quadratic in the points, of which charts have a few hundred.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Points = Sequence[tuple[float, float]]

CHARACTER_WIDTH = 6.7
_LINE_HEIGHT = 14.0
"""Size of a character of the labels' font (pixels)."""
_STEP = 6.0
"""Distance between the points that stand for a line (pixels)."""
_SHORT = 12
"""Points below which a line is little more than a few dots."""
_ENOUGH = 26.0
"""Room beyond which more room is no better (pixels)."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A plot's axes: the values at its edges, and its size in pixels."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float
    height: float
    log_x: bool = True
    log_y: bool = False

    def to_pixels(self, x: float, y: float) -> tuple[float, float]:
        """Return the distances from the left and from the top."""
        across = _share(x, self.x, is_log=self.log_x)
        return self.width * across, self.height * (1 - _share(y, self.y, is_log=self.log_y))


def _share(value: float, ends: tuple[float, float], *, is_log: bool) -> float:
    """Return the position of ``value`` between ``ends``, in [0, 1]."""
    low, high, inside = (math.log(max(v, 1e-12)) if is_log else v for v in (*ends, value))
    return (inside - low) / (high - low) if high > low else 0.5


@dataclass(frozen=True, slots=True)
class Label:
    """A name and its middle, in pixels from the left and the top of the plot."""

    name: str
    x: float
    y: float


def place_labels(
    lines: Mapping[str, Points], names: Sequence[str], frame: Frame, obstacles: Points = ()
) -> list[Label]:
    """Return a position for the name of each line.

    Args:
        lines: per line its points, from left to right.
        names: lines to label, the most important first; those without points are left out.
        frame: of the plot.
        obstacles: other points to keep away from.
    """
    points_of = {
        name: _densified([frame.to_pixels(*point) for point in points]) for name, points in lines.items()
    }
    others = np.array([frame.to_pixels(*point) for point in obstacles]).reshape(-1, 2)
    every = np.concatenate([*points_of.values(), others])
    placed: list[Label] = []
    for name in names:
        if points_of.get(name, np.empty(0)).size:
            placed.append(_best_label(name, points_of, every, placed, frame))
    return placed


def _best_label(
    name: str,
    points_of: Mapping[str, NDArray[np.float64]],
    every: NDArray[np.float64],
    placed: list[Label],
    frame: Frame,
) -> Label:
    """Return the label of a line at the best of all positions around its points."""
    half = len(name) * CHARACTER_WIDTH / 2
    own = points_of[name]
    far_away = np.full((1, 2), 1e9)  # so that a line alone in its chart has a distance to others too
    others = np.concatenate([far_away, *(points for other, points in points_of.items() if other != name)])
    best: Label | None = None
    best_score = -math.inf
    for x, y in own[::2]:
        # A point where the line runs alone tells best which line the name belongs to.
        alone = min(0.3 * float(np.hypot(*(others - (x, y)).T).min()), _ENOUGH)
        for dx, dy in _around(half, is_short=len(own) < _SHORT):
            label = Label(name, float(x + dx), float(y + dy))
            room = _room(label, half, every, placed, frame)
            # Touching something weighs eight times as much as room; a later position must win by a pixel.
            score = (room if room > 2 else 8 * room - 40) + alone
            if best is None or score > best_score + 1:
                best = label
                best_score = score
    assert best is not None
    return best


def _around(half: float, *, is_short: bool) -> list[tuple[float, float]]:
    """Return offsets of a label from its point; farther ones too where there are few points."""
    near = [(0.0, 12.0), (half + 8, 0.0), (half + 6, 11.0), (-half - 6, 11.0)]
    found = near + [(-dx, -dy) for dx, dy in near]
    return (
        found + [(1.1 * dx, dy + up) for dx, dy in found for up in (-26, -14, 14, 26)] if is_short else found
    )


def _room(label: Label, half: float, every: NDArray[np.float64], placed: list[Label], frame: Frame) -> float:
    """Return the pixels from a label to the nearest point, label or edge; negative where it touches one."""
    # Beyond an edge is worse than touching anything.
    edges = min(
        label.x - half,
        frame.width - label.x - half,
        label.y - _LINE_HEIGHT / 2,
        frame.height - label.y - _LINE_HEIGHT / 2,
    )
    if edges < 0:
        return edges - 100
    # Boxes keep apart if they are apart in one of both directions.
    across = np.abs(every[:, 0] - label.x) - half
    down = np.abs(every[:, 1] - label.y) - _LINE_HEIGHT / 2
    room = float(np.maximum(across, down).min(initial=_ENOUGH))
    for other in placed:
        halves = half + len(other.name) * CHARACTER_WIDTH / 2
        room = min(room, max(abs(label.x - other.x) - halves, abs(label.y - other.y) - _LINE_HEIGHT))
    return room


def _densified(points: list[tuple[float, float]]) -> NDArray[np.float64]:
    """Return the points of a line with others between, (num_points, 2), no farther apart than _STEP."""
    found = points[:1]
    for (x0, y0), (x1, y1) in pairwise(points):
        steps = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / _STEP))
        found += [(x0 + (x1 - x0) * k / steps, y0 + (y1 - y0) * k / steps) for k in range(1, steps + 1)]
    return np.array(found, np.float64).reshape(-1, 2)
