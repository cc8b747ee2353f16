"""How long each part of a step takes: measured constants, weighed by what cells of a sweep took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .nonnegative_fit import fit_relative
from .step_features import ALONE, DIVIDED, TILE_PARTS, features_of, idle_features, wasted_seconds
from .step_graph import step_seconds
from .step_work import StepWork, WorkConstants

_LEAST_SECONDS = 1e-7
_CONTENTIONS = tuple(number / 10 for number in range(11))
_NEAR = 0.25
"""Contentions so near to the first one found are tried again."""
_LEAST_OWN = 0.2
"""Share of its loop that a step has to itself at least, whatever runs beside it."""
_BESIDE = ("beside load", "beside transfers")
_UNSEEN = {
    "lookup": (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0),
    "exchange": (0.0, 1.0, 1.0, 1.0, 0.0),
    "reduce": (0.0, 0.0, 1.0, 1.0, 0.0),
    "update": (0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0),
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
    alone_seconds: float
    """Of these, those in which one of several threads works and the others have nothing to do."""


@dataclass(frozen=True, slots=True)
class PartModel:
    """The fitted times of the parts."""

    constants: WorkConstants
    weights: Mapping[str, Sequence[float]]
    """By part, one for each of its features."""
    contention: float
    """Share of the work beside the loop that all of its threads lose together: each of them its part."""

    def predict(self, work: StepWork) -> PartTimes:
        """Predict one step; its parts are as if nothing ran beside them."""
        features = features_of(work, self.constants)
        parts = _seconds(features, work, self.weights)
        parts["exchange"] += self.constants.link_seconds(work.exchanged_bytes, 0.0)
        parts["reduce"] += self.constants.link_seconds(work.reduced_bytes / 2, work.reduced_bytes / 2)
        alone = _alone_seconds(features, work, self.weights)
        return PartTimes(_whole(parts, self.contention, work, alone), parts, alone)


def fit_parts(cells: Sequence[MeasuredStep], constants: WorkConstants) -> PartModel:
    """Fit the parts to measured cells, with what the loop loses to the threads beside it.

    Args:
        cells: at least one.
        constants: measured before.
    """
    features = [features_of(cell.work, constants) for cell in cells]
    beside = {part: _fit_part(part, features, cells) for part in _BESIDE}
    # How long one thread works alone follows from the times of parts, as they are about.
    about = {part: _fit_part(part, features, cells) for part in (*ALONE, *TILE_PARTS)}
    about["idle"] = _fit_idle(features, about, cells)
    first = _fit_contention(_CONTENTIONS, beside | about, features, cells, constants)
    # Those times had in them what the loop lost, so once it is known they are told again.
    near = [each for each in _CONTENTIONS if abs(each - first[1].contention) < _NEAR]
    again = _fit_contention(near, first[1].weights, features, cells, constants)
    return min(first, again, key=lambda found: found[0])[1]


def _fit_contention(
    contentions: Sequence[float],
    about: Mapping[str, Sequence[float]],
    features: Sequence[Mapping[str, NDArray[np.float64]]],
    cells: Sequence[MeasuredStep],
    constants: WorkConstants,
) -> tuple[float, PartModel]:
    """Fit the parts of the loop with each contention; return the least error of the cells, and its model.

    Errors are counted from their middle.

    Args:
        contentions: to try.
        about: weights of the parts beside the loop, and of those in `ALONE` as they are about.
        features: of each cell.
        cells: at least one.
        constants: measured before.
    """
    beside = {part: about[part] for part in _BESIDE}
    alone = [_alone_seconds(found, cell.work, about) for found, cell in zip(features, cells, strict=True)]
    best: tuple[float, PartModel] | None = None
    # Measured parts of the loop contain what it lost, so each contention has parts of its own.
    for contention in contentions:
        own = [_without_loss(cell, contention, each) for cell, each in zip(cells, alone, strict=True)]
        weights = beside | {
            part: _fit_part(part, features, own) for part in features[0] if part not in beside
        }
        weights["idle"] = _fit_idle(features, weights, own)
        # Parts are fitted one by one to the middle of what they took, and the middle of a sum is more than
        # the sum of these. How much more says nothing of this contention, so only the rest is compared.
        errors = np.log(_ratios(features, weights, cells, contention))
        error = float(np.mean(np.abs(errors - np.median(errors))))
        if best is None or error < best[0]:
            best = error, PartModel(constants, weights, contention)
    assert best is not None
    return best


def _loss_of(cell: MeasuredStep, contention: float, alone: float) -> float:
    """Return the seconds that the loop of a step lost to the threads beside it."""
    parts, work = cell.parts, cell.work
    load, transfers = (parts.get(part, 0.0) for part in _BESIDE)
    loop = sum(parts.get(part, 0.0) for part in SUMMED_PARTS)
    # While the loop waits for the others it loses nothing to them.
    beside = work.is_read_ahead * load + work.is_ahead * transfers
    return contention / work.threads * max(beside - alone, 0.0) * min(loop / cell.seconds, 1.0)


def _without_loss(cell: MeasuredStep, contention: float, alone: float) -> MeasuredStep:
    """Return the cell as if nothing had run beside its loop: all parts lost alike."""
    loop = sum(cell.parts.get(part, 0.0) for part in SUMMED_PARTS)
    loss = _loss_of(cell, contention, alone)
    share = max(1 - loss / max(loop, _LEAST_SECONDS), _LEAST_OWN)
    return replace(cell, parts={part: share * seconds for part, seconds in cell.parts.items()})


def _fit_part(
    part: str, features: Sequence[Mapping[str, NDArray[np.float64]]], cells: Sequence[MeasuredStep]
) -> list[float]:
    return _fit(part, np.stack([found[part] for found in features]), cells)


def _fit_idle(
    features: Sequence[Mapping[str, NDArray[np.float64]]],
    weights: Mapping[str, Sequence[float]],
    cells: Sequence[MeasuredStep],
) -> list[float]:
    """Fit idling, which follows from the times of the tiles, as they are predicted."""
    tiles = [_tile_seconds(found, weights) for found in features]
    own = [idle_features(cell.work, seconds) for cell, seconds in zip(cells, tiles, strict=True)]
    # What is wasted while the last tiles are computed is known, so the rest alone is fitted.
    rest = [
        replace(cell, parts={"idle": cell.parts.get("idle", 0.0) - wasted_seconds(cell.work, seconds)})
        for cell, seconds in zip(cells, tiles, strict=True)
    ]
    return _fit("idle", np.stack(own), rest)


def _fit(part: str, features: NDArray[np.float64], cells: Sequence[MeasuredStep]) -> list[float]:
    seconds = np.array([max(cell.parts.get(part, 0.0), _LEAST_SECONDS) for cell in cells])
    whole = np.array([cell.seconds for cell in cells])
    # Only cells that have the part say how long it takes.
    is_there = features.any(axis=1) & (seconds > _LEAST_SECONDS)
    fitted = np.zeros(features.shape[1])
    if is_there.any():
        # Errors are shares of the step: as shares of the part itself those of what is too little count less
        # than those of what is too much, so the less steady a part is, the more would it be underestimated.
        fitted = fit_relative(features[is_there], seconds[is_there], (whole - seconds)[is_there])
    # A feature that is zero in all cells gets no weight from them, and may still count in a prediction.
    is_seen = features.any(axis=0)
    weights: list[float] = np.where(is_seen, fitted, _UNSEEN.get(part, np.zeros(fitted.size))).tolist()
    return weights


def _ratios(
    features: Sequence[Mapping[str, NDArray[np.float64]]],
    weights: Mapping[str, Sequence[float]],
    cells: Sequence[MeasuredStep],
    contention: float,
) -> NDArray[np.float64]:
    """Return the predicted seconds of whole steps over those measured."""
    ratios = [
        _whole(
            _seconds(found, cell.work, weights),
            contention,
            cell.work,
            _alone_seconds(found, cell.work, weights),
        )
        / cell.seconds
        for found, cell in zip(features, cells, strict=True)
    ]
    return np.array(ratios)


def _tile_seconds(
    features: Mapping[str, NDArray[np.float64]], weights: Mapping[str, Sequence[float]]
) -> float:
    return sum(float(np.asarray(weights[part]) @ features[part]) for part in TILE_PARTS)


def _seconds(
    features: Mapping[str, NDArray[np.float64]], work: StepWork, weights: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    tiles = _tile_seconds(features, weights)
    every = {**features, "idle": idle_features(work, tiles)}
    found = {part: float(np.asarray(weights[part]) @ own) for part, own in every.items()}
    found["idle"] += wasted_seconds(work, tiles)
    return found


def _alone_seconds(
    features: Mapping[str, NDArray[np.float64]], work: StepWork, weights: Mapping[str, Sequence[float]]
) -> float:
    """Return how long one of several threads works alone in a step, or as long as others idle in it."""
    if work.threads == 1:
        return 0.0

    def seconds(part: str, numbers: Sequence[int]) -> float:
        return sum(weights[part][number] * float(features[part][number]) for number in numbers)

    # Few ranges of rows leave threads without one; the others end theirs at the same time.
    divided = work.lookup_room * seconds("lookup", DIVIDED["lookup"])
    divided += work.update_room * seconds("update", DIVIDED["update"])
    # Idling is the mean over threads: all of it lies where some of them have nothing to do.
    tiles = _tile_seconds(features, weights)
    idle = float(np.asarray(weights["idle"]) @ idle_features(work, tiles)) + wasted_seconds(work, tiles)
    idle *= work.threads / (work.threads - 1)
    return sum(seconds(part, ALONE[part]) for part in ALONE) + divided + idle


def _whole(parts: Mapping[str, float], contention: float, work: StepWork, alone: float) -> float:
    """Return the seconds of a step with these parts."""
    loop = sum(parts[part] for part in (*SUMMED_PARTS, "load"))
    # A loop that waits for its transfers loses nothing to them.
    load, transfers = parts["beside load"], parts["beside transfers"]
    return step_seconds(
        loop,
        load,
        transfers,
        contention=contention / work.threads,
        alone=alone,
        is_ahead=work.is_ahead,
        is_read_ahead=work.is_read_ahead,
    )
