"""How long each part of a step takes: measured constants, weighed by what cells of a sweep took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .nonnegative_fit import fit_relative
from .step_graph import step_seconds
from .step_work import StepWork, WorkConstants, features_of

_LEAST_SECONDS = 1e-7
_CONTENTIONS = tuple(number / 20 for number in range(21))
_LEAST_SHARE = 0.02
"""Share of its step that the error of a part is relative to, beside the part itself."""
_UNSEEN = {
    "lookup": (0.0, 0.0, 0.0, 0.0, 1.0, 0.0),
    "exchange": (0.0, 1.0, 1.0, 1.0, 0.0),
    "reduce": (0.0, 0.0, 1.0, 1.0, 0.0),
    "update": (0.0, 0.0, 0.0, 0.0, 1.0, 0.0),
    "beside transfers": (0.0, 1.0, 0.0, 0.0),
}
"""Weights of features that no cell had: copies, moves and messages take the time they were measured to."""
SUMMED_PARTS = ("lookup", "bottom", "interaction", "top", "backward", "exchange", "reduce", "update", "idle")
"""Parts of the loop that have seconds of their own; the others are waits."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One cell of a sweep."""

    work: StepWork
    seconds: float
    parts: Mapping[str, float]
    """Seconds by part; ``beside load`` and ``beside transfers`` for the work of other threads."""


@dataclass(frozen=True, slots=True)
class PartTimes:
    """Predicted seconds of a step."""

    seconds: float
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class PartModel:
    """The fitted times of the parts."""

    constants: WorkConstants
    weights: Mapping[str, Sequence[float]]
    """By part, one for each of its features."""
    contention: float
    """Share of the work beside the loop that the loop loses."""

    def predict(self, work: StepWork) -> PartTimes:
        """Predict one step."""
        parts = _seconds(features_of(work, self.constants), self.weights)
        return PartTimes(_whole(parts, self.contention, is_ahead=work.is_ahead), parts)


def fit_parts(cells: Sequence[MeasuredStep], constants: WorkConstants) -> PartModel:
    """Fit the parts to measured cells, then what the loop loses to the threads beside it.

    Args:
        cells: at least one.
        constants: measured before.
    """
    features = [features_of(cell.work, constants) for cell in cells]
    weights: dict[str, list[float]] = {}
    for part in features[0]:
        own = np.stack([found[part] for found in features])
        fitted = _fit_part(part, own, cells)
        # A feature that is zero in all cells gets no weight from them, and may still count in a prediction.
        is_seen = own.any(axis=0)
        weights[part] = np.where(is_seen, fitted, _UNSEEN.get(part, np.zeros(fitted.size))).tolist()
    return PartModel(constants, weights, _fit_contention(features, weights, cells))


def _fit_part(part: str, features: NDArray[np.float64], cells: Sequence[MeasuredStep]) -> NDArray[np.float64]:
    seconds = np.array([max(cell.parts.get(part, 0.0), _LEAST_SECONDS) for cell in cells])
    whole = np.array([cell.seconds for cell in cells])
    # Only cells that have the part say how long it takes.
    is_there = features.any(axis=1) & (seconds > _LEAST_SECONDS)
    if not is_there.any():
        return np.zeros(features.shape[1])
    # Small parts need only be right to a share of the step.
    return fit_relative(features[is_there], seconds[is_there], _LEAST_SHARE * whole[is_there])


def _fit_contention(
    features: Sequence[Mapping[str, NDArray[np.float64]]],
    weights: Mapping[str, Sequence[float]],
    cells: Sequence[MeasuredStep],
) -> float:
    """Return the contention with the least median error; tried in steps of 5%, as it is flat there."""
    parts = [_seconds(found, weights) for found in features]

    def median_error(contention: float) -> float:
        # Logarithms, so that half and twice are equally wrong.
        ratios = [
            _whole(own, contention, is_ahead=cell.work.is_ahead) / cell.seconds
            for own, cell in zip(parts, cells, strict=True)
        ]
        return float(np.median(np.abs(np.log(ratios))))

    return min(_CONTENTIONS, key=median_error)


def _seconds(
    features: Mapping[str, NDArray[np.float64]], weights: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    return {part: float(np.asarray(weights[part]) @ found) for part, found in features.items()}


def _whole(parts: Mapping[str, float], contention: float, *, is_ahead: bool) -> float:
    """Return the seconds of a step with these parts."""
    loop = sum(parts[part] for part in SUMMED_PARTS)
    # A loop that waits for its transfers loses nothing to them.
    load, transfers = parts["beside load"], parts["beside transfers"]
    return step_seconds(loop, load, transfers, contention=contention, is_ahead=is_ahead)
