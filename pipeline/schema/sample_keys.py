"""Keys of a schema file for the columns of samples that are no features: labels, time, weight and group."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError
from .schema import KINDS, SAMPLE_TIME, TIME_CODES, TIME_UNITS, LabelRule, Pairs, quoted, shown

_LABEL_FORMS = '"NAME", { column = "NAME", above = 3 } or { column = "NAME", positive = ["yes"] }'


def read_labels(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a schema that say what the labels are: of ``label``, or of ``labels``."""
    value = keys.get("labels")
    if value is not None and "label" in keys:
        raise ConfigError(
            "label and labels exclude each other", hint="leave label out: the first of labels is trained on"
        )
    if value is not None and (not isinstance(value, list) or not value):
        raise ConfigError(f"labels must be a list of columns, got {shown(value)}")
    rules = tuple(map(_label, value or ([keys["label"]] if "label" in keys else [])))
    if not rules:
        return {"label": None, "labels": ()}
    first = {"label": rules[0].column, "positive": rules[0].positive, "above": rules[0].above}
    return first | {"labels": rules if value else ()}


def _label(value: Any) -> LabelRule:
    table = {"column": value} if isinstance(value, str) else value
    refused = ConfigError(f"label must be {_LABEL_FORMS}, got {shown(value)}")
    if not isinstance(table, dict) or not table.keys() <= {"column", "above", "positive"}:
        raise refused
    if not (isinstance(table.get("column"), str) and len(table) < 3):
        raise refused
    above, positive = table.get("above"), table.get("positive", [])
    if "above" in table and not _is_number(above):
        raise ConfigError(f"above of label must be a number, got {shown(above)}")
    are_values = isinstance(positive, list) and all(
        isinstance(each, str) or _is_number(each) for each in positive
    )
    if not are_values or (not positive and "positive" in table):
        raise ConfigError(f"positive of label must be a list of texts and numbers, got {shown(positive)}")
    values = tuple(each if isinstance(each, str) else _plain_number(each) for each in positive)
    return LabelRule(table["column"], values, None if above is None else float(above))


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _plain_number(value: int | float) -> int | float:
    """Return a whole number as an integer, so that 1 and 1.0 are one setting."""
    return int(value) if value == int(value) else value


def read_weight(keys: Mapping[str, Any]) -> str | None:
    """Return the column of ``weight``; None without that key."""
    value = keys.get("weight")
    if value is not None and not is_name(value):
        raise ConfigError(f"weight must be the name of a column, got {shown(value)}")
    return value


def read_group(keys: Mapping[str, Any], kinds: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the column of ``group`` and its kind.

    Args:
        keys: with ``"user"``, or ``{ column = "user", kind = "text" }``, under ``group``.
        kinds: columns of the features that have one category a sample, and their kinds.
    """
    value = keys.get("group")
    if value is None:
        return None
    if is_name(value):
        found = {kind for column, kind in kinds if column == value and kind in KINDS}
        if len(found) != 1:
            written = f'group = {{ column = {quoted(value)}, kind = "text" }}'
            raise ConfigError(
                f"group must say the kind of column {value!r}, which no feature decides",
                hint=f"write {written}, or one of {', '.join(KINDS)}",
            )
        return value, found.pop()
    is_right = isinstance(value, dict) and value.keys() == {"column", "kind"} and is_name(value["column"])
    if not is_right or value["kind"] not in KINDS:
        wanted = 'the name of a column, or { column = "NAME", kind = "text" }'
        raise ConfigError(f"group must be {wanted}, got {shown(value)}", hint=f"kinds are {', '.join(KINDS)}")
    return value["column"], value["kind"]


TIME_FORMAT = "codes such as %Y-%m-%d %H:%M:%S"
"""What a format of times is, for messages."""
_CODES_OF_DATE = (("Y", "y"), ("m", "b", "B"), ("d",))
_CODES_OF_HOUR = (("H", "I"),)


def check_time_format(format: str, kind: str, where: str) -> None:
    """Raise ConfigError where a format has an unknown code, or lacks what a kind of time needs."""
    codes = re.findall(r"%(.?)", format, re.DOTALL)
    for code in codes:
        if code not in TIME_CODES or not code:
            known = " ".join(f"%{each}" for each in TIME_CODES)
            raise ConfigError(f"{where}: format has an unknown code {shown('%' + code)}", hint=f"use {known}")
    date = () if kind == "hour" and not {"Y", "y", "d"} & set(codes) else _CODES_OF_DATE
    for wanted in (*date, *(_CODES_OF_HOUR if kind == "hour" else ())):
        if not set(wanted) & set(codes):
            names = " or ".join(f"%{each}" for each in wanted)
            raise ConfigError(f"{where}: format {shown(format)} lacks {names}, which the kind {kind} needs")


def read_time(keys: Mapping[str, Any]) -> tuple[tuple[str, str] | None, Pairs]:
    """Return the column of ``time`` and the unit of its numbers, and the format of its texts."""
    value = keys.get("time")
    if value is None:
        return None, ()
    # Both forms are checked as a table from here on.
    table = {"column": value} if isinstance(value, str) else value
    is_right = isinstance(table, dict) and {"column"} <= table.keys() <= {"column", "unit", "format"}
    if not is_right or len(table) > 2 or not is_name(table["column"]):
        raise ConfigError(
            'time must be the name of a column, or { column = "NAME", unit = "s" }, '
            f'or {{ column = "NAME", format = "%Y/%m/%d" }}, got {shown(value)}'
        )
    if "format" in table:
        if not is_name(table["format"]):
            raise ConfigError(f"format of time must be {TIME_FORMAT}, got {shown(table['format'])}")
        check_time_format(table["format"], "time", "time")
        return (table["column"], ""), ((SAMPLE_TIME, table["format"]),)
    unit = table.get("unit", "")
    if "unit" in table and unit not in TIME_UNITS:
        raise ConfigError(f"unit of time must be one of {', '.join(TIME_UNITS)}, got {shown(unit)}")
    return (table["column"], unit), ()


def is_name(value: Any) -> bool:
    """Return whether this is a text that is not empty."""
    return isinstance(value, str) and bool(value)
