"""Infer from the first rows of a log whether a column holds times, whose hour and weekday are features.

A moment itself never comes back, so it teaches a model nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import ConfigError
from ..raw.column_values import Spans, read_column
from ..raw.text_fields import BAD, GOOD
from ..raw.times import TICKS, is_temporal
from ..schema.schema import TIME_KINDS
from ..schema.schema_file import write_time_entry
from ..schema.schema_names import check_name

_MIN_TIMES = 100
"""Distinct integers from which on they may be times, and rows from which on a constant is no accident."""
_EARLIEST, _LATEST = 1_000_000_000, 2_000_000_000
"""Seconds of the years 2001 and 2033, between which integers may be times."""
_TELLING = re.compile(r"(^|[^a-z])(ts|time|date|datetime|timestamp|epoch|when)([^a-z]|$)|time$|stamp$")


@dataclass(frozen=True, slots=True)
class InferredTimes:
    """The kinds that a column of times may become."""

    features: tuple[tuple[str, str], ...]
    """Name and kind of each feature: the hour, the weekday, or both; none where neither changes."""
    unit: str | None
    """Unit of times that are integers."""
    is_certain: bool
    """Whether the column is surely one of times; integers may as well be something else."""
    note: str


def infer_times(name: str, values: Any, names: Sequence[str]) -> InferredTimes | None:
    """Return what a column of times may become; None where it holds none.

    Args:
        name: of the column.
        values: of its first rows, as `plain` gives them.
        names: of all columns, with which the features' names must not collide.
    """
    # Text and Arrow's own types tell what they are, integers only by their size.
    unit = None
    if not _are_times(values):
        unit = _unit_of(values)
        if unit is None:
            return None

    # A feature that never changes is left out, such as the hour of dates.
    found = {kind: _values_of(values, kind, unit) for kind in TIME_KINDS}
    num_times = found["hour"].shape[0]
    changing = [
        kind
        for kind in TIME_KINDS
        if np.unique(found[kind]).shape[0] > 1 or (num_times < _MIN_TIMES and found[kind].any())
    ]
    # Each feature is named after the column and its kind, unless that name is taken.
    features = tuple((_free_name(f"{name}_{kind}", names), kind) for kind in changing)
    try:
        for feature, _ in features:
            check_name(feature)
    except ConfigError:  # the name of the column is too long to have more behind it
        features = ()
    # Integers are times for sure where they never go back or their name says so.
    is_certain = unit is None or _is_ascending(values) or bool(_TELLING.search(name.lower()))
    if not features:
        return InferredTimes((), unit, is_certain, "times with the same hour and weekday in every row")
    if is_certain:
        return InferredTimes(features, unit, True, f"{' and '.join(changing)} of times, in UTC")
    entry = write_time_entry(features, unit)
    return InferredTimes(features, unit, False, f"if these are Unix times, write: {entry}")


def _are_times(values: Any) -> bool:
    """Return whether every value is written as a time, or has a type of times."""
    if not isinstance(values, Spans) and not is_temporal(values.type):
        return False
    states = read_column(values, "hour").states
    return bool((states == GOOD).any() and not (states == BAD).any())


def _values_of(values: Any, kind: str, unit: str | None) -> NDArray[Any]:
    """Return the hours or weekdays of the times that are there."""
    found = read_column(values, kind, unit)
    times: NDArray[Any] = found.values[found.states == GOOD]
    return times


def _unit_of(values: Any) -> str | None:
    """Return the unit in which integers are times of our years; None where there is none, or too few."""
    if not isinstance(values, Spans) and not pa.types.is_integer(values.type):
        return None
    # Few distinct integers could be anything; many within our years are hardly chance.
    found = read_column(values, "integer")
    numbers = found.values[found.states == GOOD].view(np.int64)
    if (found.states == BAD).any() or np.unique(numbers).shape[0] < _MIN_TIMES:
        return None
    for unit, ticks in TICKS.items():
        if numbers.min() >= _EARLIEST * ticks and numbers.max() < _LATEST * ticks:
            return unit
    return None


def _is_ascending(values: Any) -> bool:
    """Return whether times never go back, as in a log; numbers of users do."""
    found = read_column(values, "integer")
    numbers = found.values[found.states == GOOD].view(np.int64)
    return bool((np.diff(numbers) >= 0).all())


def _free_name(name: str, names: Sequence[str]) -> str:
    while name in names:
        name += "_"
    return name
