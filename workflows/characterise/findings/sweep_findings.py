"""What a sweep says: how speed follows each factor, and which published observations hold on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..cells import Cell
from ..grid import FACTORS, value_of
from ..run_cell import CellRecord
from .placement_speeds import best_placements, placement_speeds, speed_of

_FLAT = 0.1
"""Elasticities nearer to zero than this are called flat."""
_LINEAR = 0.15
"""A slope so near to one is called linear."""
_SATURATED = 0.9
_DEPENDS = 1.2
"""The best speed over the worst from which speed depends on a factor."""
_DEPTH = 2
"""Hidden layers of the MLPs whose width is a factor."""
_LEAST_POINTS = 3
HOLDS = "holds here"
FAILS = "does not hold here"
UNSEEN = "cannot be seen here"


@dataclass(frozen=True, slots=True)
class Elasticity:
    """How samples per second follow a factor, the others as in `Cell`."""

    factor: str
    slope: float
    """``d log speed / d log factor`` over all its values."""
    error: float
    """Half of its 95% interval, from the residuals; infinite for two points."""
    points: tuple[tuple[float, float], ...]
    """Value and samples per second, ascending."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A published observation, and what was measured."""

    text: str
    verdict: str
    measured: str


def points_of(records: Sequence[CellRecord], factor: str) -> list[tuple[float, float]]:
    """Return value and speed of the cells that differ from the base in this factor alone."""
    found = {}
    for record in records:
        others = (each for each in FACTORS if each != factor)
        is_single = record.cell.ranks == 1 and all(
            value_of(record.cell, each) == value_of(Cell(), each) for each in others
        )
        # Zero has no logarithm: a skew of 0 is left out, and so are values that are no numbers.
        value = _number(value_of(record.cell, factor))
        if is_single and not record.cell.preset and value > 0:
            found[value] = speed_of(record)
    return sorted(found.items())


def _number(value: object) -> float:
    """Return the value of a factor as a number; of two hidden layers their width, and 0 where it has none."""
    if isinstance(value, tuple):
        return float(value[0]) if len(value) == _DEPTH else 0.0
    return float(value) if isinstance(value, int | float) else 0.0


def elasticities(records: Sequence[CellRecord]) -> list[Elasticity]:
    """Return the elasticity of each factor that is a number and has three values at least."""
    found = []
    for factor in FACTORS:
        points = points_of(records, factor)
        if len(points) >= _LEAST_POINTS:
            found.append(Elasticity(factor, *_slope(points), tuple(points)))
    return found


def _slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope of a line through the logarithms, and half of its 95% interval."""
    x, y = np.log(np.array(points)).T
    # A line through centered points has one unknown, its slope; its error follows from what is left.
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    residual = y - y.mean() - slope * x
    degrees = len(points) - 2
    deviation = math.sqrt(float(residual @ residual) / degrees / float(x @ x)) if degrees else math.inf
    return slope, 2 * deviation


def saturation_batch(records: Sequence[CellRecord]) -> tuple[float, float] | None:
    """Return the least batch with 90% of the best speed, and the largest batch; None with too few."""
    points = points_of(records, "batch_size")
    if len(points) < _LEAST_POINTS:
        return None
    best = max(speed for _, speed in points)
    return next(batch for batch, speed in points if speed >= _SATURATED * best), points[-1][0]


def longest_parts(records: Sequence[CellRecord]) -> dict[tuple[int, int], str]:
    """Return the longest part of the loop by dense features and tables."""
    found = {}
    base = Cell()
    for record in records:
        cell = record.cell
        others = [each for each in FACTORS if each not in ("num_dense", "num_tables")]
        is_plain = cell.ranks == 1 and not cell.preset
        if is_plain and all(value_of(cell, each) == value_of(base, each) for each in others):
            found[cell.num_dense, cell.num_tables] = max(record.parts, key=lambda part: record.parts[part])
    return dict(sorted(found.items()))


def observations(records: Sequence[CellRecord]) -> list[Observation]:
    """Return the published observations, each with a verdict from these cells."""
    by_factor = {each.factor: each for each in elasticities(records)}
    found = [
        _judge(
            "Efficiency depends on dense features, sparse features and MLP",
            [by_factor.get(name) for name in ("num_dense", "num_tables", "mlp")],
            lambda each: _range(each) >= _DEPENDS,
        ),
        _saturation(records),
        _rows(by_factor.get("rows_of_table"), placement_speeds(records).get("base", {})),
        _pooling(by_factor.get("pooling")),
        _placements(records),
    ]
    # What these cells cannot tell is listed as well, so that nobody takes it for confirmed.
    reasons = {
        "A GPU gains more with dense features and MLPs, less with sparse features": "it needs a GPU",
        "Larger batches cost quality unless rates are tuned again": (
            "the labels of cells are drawn: `hotset bench batch-quality` tells it of a log"
        ),
        "One Big Basin against its CPU cluster: 2.25x, 0.85x, 0.67x": (
            "arithmetic alone: at 7.3 times the power, 4.3x and 2.8x of efficiency are 14 and 24 CPU servers"
        ),
    }
    found.append(_exchange(records))
    return found + [Observation(text, UNSEEN, reason) for text, reason in reasons.items()]


def _exchange(records: Sequence[CellRecord]) -> Observation:
    text = "The exchange takes over 60% of a step on 32 GPUs"
    # With a codec or fewer bytes it would say something else; ranks of one machine are no GPUs either.
    shares = [
        (each.parts.get("exchange", 0.0) + each.parts.get("reduce", 0.0)) / each.step_seconds
        for each in records
        if each.cell.ranks > 1 and each.cell.codec == "none"
    ]
    if not shares:
        return Observation(text, UNSEEN, "no cell has several ranks")
    ranks = max(each.cell.ranks for each in records)
    told = (
        f"on {ranks} ranks of this machine {min(shares):.0%} to {max(shares):.0%} of a step, dense included"
    )
    return Observation(text, UNSEEN, told)


def _range(each: Elasticity) -> float:
    """Return the best speed over the worst."""
    speeds = [speed for _, speed in each.points]
    return max(speeds) / min(speeds)


def _judge(
    text: str, slopes: Sequence[Elasticity | None], holds: Callable[[Elasticity], bool]
) -> Observation:
    # A verdict needs all factors that the observation names.
    measured = [each for each in slopes if each is not None]
    if len(measured) < len(slopes):
        return Observation(text, UNSEEN, "too few cells")
    told = ", ".join(f"{each.factor} {each.slope:+.2f} ± {each.error:.2f}" for each in measured)
    return Observation(text, HOLDS if all(map(holds, measured)) else FAILS, f"elasticity: {told}")


def _rows(found: Elasticity | None, speeds: Mapping[str, float]) -> Observation:
    """Judge the rows of tables.

    Args:
        found: of the rows of a table.
        speeds: samples per second of one model by placement.
    """
    text = "Speed is flat in the rows of tables until they leave a tier"
    judged = _judge(text, [found], lambda each: abs(each.slope) <= _FLAT)
    best = best_placements({"base": speeds}).get("base")
    if judged.verdict == UNSEEN or best is None or "all-fast" not in speeds:
        return judged
    # The step where they leave it: the best of the placements that hold a part of the rows.
    step = speeds[best] / speeds["all-fast"]
    return replace(
        judged,
        measured=f"{judged.measured}; then {best} has {step:.2f} of the speed, both tiers in host memory",
    )


def _saturation(records: Sequence[CellRecord]) -> Observation:
    text = "Speed rises with the batch, then saturates"
    found = saturation_batch(records)
    if found is None:
        return Observation(text, UNSEEN, "too few cells")
    batch, largest = found
    speeds = dict(points_of(records, "batch_size"))
    # It rises if the least batch is slower, and saturates if larger ones than the one found were tried.
    rises = min(speeds.values()) < _SATURATED * max(speeds.values()) and min(speeds) < batch
    told = f"90% of the best speed from {batch:,.0f} samples on; up to {largest:,.0f} were tried"
    return Observation(text, HOLDS if rises and batch < largest else FAILS, told)


def _pooling(found: Elasticity | None) -> Observation:
    text = "Lookups per feature cost linearly"
    if found is None:
        return Observation(text, UNSEEN, "too few cells")
    # A feature with one lookup is no list: nothing is added up, which is other work.
    lists = [(value, speed) for value, speed in found.points if value > 1]
    if len(lists) < _LEAST_POINTS:
        return Observation(text, UNSEEN, "too few cells")
    # Seconds of a sample beyond those that no lookup causes, which a line through all lists gives.
    values, speeds = np.array(lists).T
    seconds = 1 / speeds
    each, fixed = np.polyfit(values, seconds, 1)
    rest = seconds - fixed
    if (rest <= 0).any() or each <= 0:
        return Observation(text, FAILS, "seconds of lists do not grow along a line")
    # With the fixed part taken off, a linear cost has slope one between logarithms.
    slope, _ = _slope(list(zip(values.tolist(), rest.tolist(), strict=True)))
    verdict = HOLDS if abs(slope - 1) <= _LINEAR else FAILS
    return Observation(
        text, verdict, f"of lists: slope {slope:.2f} beyond the fixed part, {1e6 * each:.2f} µs per lookup"
    )


def _placements(records: Sequence[CellRecord]) -> Observation:
    text = "No placement is best for every model"
    best = best_placements(placement_speeds(records))
    if len(best) < _LEAST_POINTS:
        return Observation(text, UNSEEN, "too few cells")
    counts = {name: list(best.values()).count(name) for name in sorted(set(best.values()))}
    told = ", ".join(f"{name} in {count}" for name, count in counts.items())
    return Observation(text, HOLDS if len(counts) > 1 else FAILS, f"best of {len(best)} models: {told}")
