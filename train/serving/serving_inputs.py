"""Turns raw values of a log into inputs of this folder's model.

Needs NumPy and xxhash, and nothing else. `hotset export` copies this file into every folder that it writes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import xxhash

FEATURES = "features.json"
"""The file that describes the features, in the same folder."""
IS_MISSING = "is_missing"
LENGTH = "length"


class ServingInputs:
    """Builds the inputs of the model.

    Args:
        folder: folder of the exported model; by default that of this file.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        folder = Path(__file__).parent if folder is None else Path(folder)
        features = json.loads((folder / FEATURES).read_text(encoding="utf-8"))
        self.dense: list[dict[str, Any]] = features["dense"]
        self.one_hot = [each for each in features["sparse"] if not each["is_list"]]
        self.multi_hot = [each for each in features["sparse"] if each["is_list"]]
        self.missing = frozenset(features.get("missing", ()))

    def for_onnx(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Return the inputs by name.

        Args:
            columns: values by column, named as in the log; every column as long as the others. None, "",
                NaN and the schema's words for it are missing; a list-valued feature has a list in each row,
                None where it is missing.

        Raises:
            KeyError: a column is not there.
            ValueError: a value is not of the kind that the feature has, or a column is shorter than another.
        """
        # A value that is not there would pass for the category 0.
        lengths = {name: len(columns[name]) for name in self._names()}
        num_samples = max(lengths.values(), default=0)
        for name, length in lengths.items():
            if length != num_samples:
                raise ValueError(f"column {name!r} has {length} values, and another one {num_samples}")
        # Dense values; those that are missing stay NaN, which the graph turns into 0.
        dense = np.full((num_samples, len(self.dense)), np.nan)
        for position, feature in enumerate(self.dense):
            for row, value in enumerate(columns[feature["column"]]):
                if not _is_missing(value) and str(value) not in self.missing:
                    dense[row, position] = float(value)
        # Features with one value: a category, and whether it is missing, as 0 is a category too.
        categories = np.zeros((num_samples, len(self.one_hot)), np.int64)
        is_missing = np.zeros((num_samples, len(self.one_hot)), np.bool_)
        for position, feature in enumerate(self.one_hot):
            for row, value in enumerate(columns[feature["column"]]):
                category = self._category_of(feature, value)
                categories[row, position] = category or 0
                is_missing[row, position] = category is None
        inputs: dict[str, Any] = {"dense": dense, "categories": categories, IS_MISSING: is_missing}
        for feature in self.multi_hot:
            inputs |= self._bag_inputs(feature, columns[feature["column"]])
        return inputs

    def _category_of(self, feature: Mapping[str, Any], value: Any) -> int | None:
        if str(value) in self.missing:
            return None
        ways = (feature.get("unit"), feature.get("format"), feature.get("zone"))
        return category_of(feature["kind"], value, *ways)

    def _bag_inputs(self, feature: Mapping[str, Any], bags: Sequence[Any]) -> dict[str, Any]:
        # A missing list has one missing element.
        found = [
            [None] if _is_missing(bag) else [self._category_of(feature, value) for value in bag]
            for bag in bags
        ]
        # Bags are padded to the longest, and to one place at least.
        longest = max([1, *map(len, found)])
        categories = np.zeros((len(found), longest), np.int64)
        is_missing = np.zeros((len(found), longest), np.bool_)
        for row, bag in enumerate(found):
            categories[row, : len(bag)] = [category or 0 for category in bag]
            is_missing[row, : len(bag)] = [category is None for category in bag]
        name = bag_name(feature["name"])
        lengths = np.array(list(map(len, found)), np.int64)
        return {name: categories, f"{name}.{IS_MISSING}": is_missing, f"{name}.{LENGTH}": lengths}

    def _names(self) -> list[str]:
        """Return the columns that are read."""
        return [feature["column"] for feature in (*self.dense, *self.one_hot, *self.multi_hot)]

    def for_torch(self, columns: Mapping[str, Sequence[Any]]) -> tuple[Any, ...]:
        """Return the inputs as torch takes them: call the module with ``*inputs``; see `for_onnx`."""
        import torch

        named = {name: torch.from_numpy(array) for name, array in self.for_onnx(columns).items()}
        names = [bag_name(feature["name"]) for feature in self.multi_hot]
        return (
            named["dense"],
            named["categories"],
            named[IS_MISSING],
            [named[name] for name in names],
            [named[f"{name}.{IS_MISSING}"] for name in names],
            [named[f"{name}.{LENGTH}"] for name in names],
        )


def category_of(
    kind: str, value: Any, unit: str | None = None, format: str | None = None, zone: str | None = None
) -> int | None:
    """Return a value as a signed 64-bit category; None where missing.

    Args:
        kind: ``integer``, ``unsigned``, ``hex8``, ``text``, ``hour`` or ``weekday``.
        value: as it is in the log.
        unit: of a time that is a number since 1970.
        format: how a time is written, as `datetime.strptime` takes it.
        zone: time zone of hours and weekdays, such as Asia/Shanghai; UTC without it.

    Raises:
        ValueError: it is not of the kind.
    """
    if _is_missing(value):
        return None
    # Times become an hour, or a weekday from Monday, 1, to Sunday, 7.
    if kind in ("hour", "weekday"):
        time = _time_of(value, unit, format).astimezone(ZoneInfo(zone) if zone else UTC)
        return time.hour if kind == "hour" else time.isoweekday()
    # Text is hashed as `preprocess` hashes it; numbers are their own category.
    if kind == "text":
        category = xxhash.xxh3_64_intdigest(str(value).encode())
    elif kind == "hex8" and isinstance(value, str):
        category = int(value, 16)
    else:
        category = int(value)
        if category != value and not isinstance(value, str):
            raise ValueError(f"{value!r} is no integer")
    # Two's complement: integers from 2**63 on are compared as negative ones.
    return (category + 2**63) % 2**64 - 2**63


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, an empty text, or NaN.

    pandas has NaN in place of either.
    """
    return value is None or (isinstance(value, str | float) and (value == "" or value != value))


def _utc_mark(found: re.Match[str]) -> str:
    return "Z" if found[1] else ""


def _time_of(value: Any, unit: str | None, format: str | None) -> datetime:
    """Return a time; those without a zone are in UTC."""
    if unit is not None:
        ticks = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
        try:
            seconds = math.floor(Decimal(str(value)) / ticks)
        except ArithmeticError:
            raise ValueError(f"{value!r} is no number") from None
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    if format is not None:
        time = datetime.strptime(str(value), format)
    else:
        # What `preprocess` reads besides ISO 8601: slashes, parts of one digit, UTC by its name.
        text = re.sub(r" ?(Z|UTC|GMT)?(\[.*\])?$", _utc_mark, str(value), flags=re.I)
        text = re.sub(r"(?<![\d.,])\d(?!\d)", r"0\g<0>", text.replace("/", "-"))
        time = datetime.fromisoformat(re.sub(r" (?=[+-])", "", text))
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def bag_name(feature: str) -> str:
    """Return a unique input name for a list-valued feature."""
    return f"bag.{feature}"
