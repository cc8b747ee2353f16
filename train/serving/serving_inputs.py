"""Turns raw values of a log into inputs of this folder's model.

Needs NumPy and xxhash, and nothing else. `hotset export` copies this file into every folder that it writes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
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
        self.missing: list[str] = features["missing"]
        self.dense: list[dict[str, Any]] = features["dense"]
        self.one_hot = [each for each in features["sparse"] if not each["is_list"]]
        self.multi_hot = [each for each in features["sparse"] if each["is_list"]]

    def for_onnx(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Return the inputs by name.

        Args:
            columns: values by column, named as in the log; every column as long as the others. None, "" and
                NaN are missing; a list-valued feature has a list in each row, None where it is missing, or
                the text of one where the log has text.

        Raises:
            KeyError: a column is not there.
            ValueError: a value is not of the kind that the feature has, a list has more elements than the
                model takes, or a column is shorter than another.
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
                dense[row, position] = dense_of(feature["kind"], value, self.missing)
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
        ways = (feature.get("unit"), feature.get("format"), feature.get("zone"))
        return category_of(feature["kind"], value, *ways, self.missing)

    def _bag_inputs(self, feature: Mapping[str, Any], bags: Sequence[Any]) -> dict[str, Any]:
        found = [self._bag_of(feature, bag) for bag in bags]
        most = feature.get("most_elements")
        if most is not None and max(map(len, found), default=0) > most:
            raise ValueError(f"a list of {feature['name']!r} has more than {most} elements")
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

    def _bag_of(self, feature: Mapping[str, Any], bag: Any) -> list[int | None]:
        # Text holds a list where the log's text does; a missing list has one missing element.
        elements: Any = bag
        if isinstance(bag, str | bytes) and feature.get("separator"):
            text = bag.encode() if isinstance(bag, str) else bag
            is_missing = any(text == word.encode() for word in self.missing)
            elements = read_list(b"" if is_missing else text, feature)
        elif _is_missing(bag):
            return [None]
        elif isinstance(bag, str | bytes) or not hasattr(bag, "__iter__"):
            raise ValueError(f"a feature with lists takes a list in each row, and not {bag!r}")
        return [self._category_of(feature, value) for value in elements]

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
    kind: str,
    value: Any,
    unit: str | None = None,
    format: str | None = None,
    zone: str | None = None,
    missing: Collection[str] = (),
) -> int | None:
    """Return a value as a signed 64-bit category; None where missing. The category that `predict` reads.

    Args:
        kind: ``integer``, ``unsigned``, ``hex8``, ``text``, ``hour`` or ``weekday``.
        value: as it is in the log: a text, its bytes, a number, or a time.
        unit: of a time that is a number since 1970.
        format: of a time, in codes of strptime.
        zone: of hours and weekdays; by default UTC.
        missing: texts that stand for a missing value.

    Raises:
        ValueError: it is not of the kind.
    """
    value = _plain(value)
    if isinstance(value, _NUMBERS) and kind not in _LIMITS and unit is None:
        # Of numbers, only days such as 20240131 are no numbers.
        if kind in ("text", "hex8") or format is None or type(value) is not int:
            raise _no(kind, value)
    if value is None or _is_word(value, missing):
        return None
    # Times become an hour, or a weekday from Monday, 1, to Sunday, 7.
    if kind in ("hour", "weekday"):
        seconds = _seconds_of(value, unit, format)
        seconds += _offset(seconds, zone) if zone else 0
        return seconds % 86_400 // 3600 if kind == "hour" else (seconds // 86_400 + 3) % 7 + 1
    # Text is hashed as `preprocess` hashes it; numbers are their own category.
    if kind == "text" and isinstance(value, bytes):
        category = xxhash.xxh3_64_intdigest(value)
    elif kind == "hex8" and isinstance(value, bytes) and re.fullmatch(rb"[0-9a-fA-F]{8}", value):
        category = int(value, 16)
    elif kind in _LIMITS:
        category = _whole(_truth(value), *_LIMITS[kind], _INTEGER)
    else:
        raise _no(kind, value)
    # Two's complement: integers from 2**63 on are compared as negative ones.
    return (category + 2**63) % 2**64 - 2**63


def dense_of(kind: str, value: Any, missing: Collection[str] = ()) -> float:
    """Return a dense value as `predict` reads it; NaN where missing.

    Args:
        kind: ``integer`` or ``float``, or ``float32`` for a float that is not transformed.
        value: a number, a text or its bytes.
        missing: texts that stand for a missing value.

    Raises:
        ValueError: it is not of the kind, or infinite.
    """
    value = _plain(value)
    if value is None or _is_word(value, missing):
        return math.nan
    value = _truth(value)
    if kind == "integer":
        return _whole(value, -(2**31), 2**31 - 1, _DENSE_INTEGER)
    is_number = isinstance(value, _NUMBERS) or (isinstance(value, bytes) and _DECIMAL.fullmatch(value))
    try:
        found = float(value) if is_number else math.inf
    except OverflowError:
        found = math.inf
    if math.isinf(found) or (kind == "float32" and abs(found) >= _ABOVE_FLOAT32):
        raise _no(kind, value)
    return found


_NUMBERS = (int, float, Decimal)
_LIMITS = {"integer": (-(2**63), 2**63 - 1), "unsigned": (0, 2**64 - 1)}
_ABOVE_FLOAT32 = float.fromhex("0x1.ffffffp127")
"""Numbers from here on are rounded to an infinite float32."""
# A category has no digit after a leading 0, because 7 and 007 would be one; a dense value may have.
_INTEGER = re.compile(rb"-?(?!0[0-9])[0-9]+(\.0*)?")
_DENSE_INTEGER = re.compile(rb"-?[0-9]+(\.0*)?")
_DECIMAL = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def _no(kind: str, value: Any) -> ValueError:
    shown = value.decode(errors="replace") if isinstance(value, bytes) else value
    return ValueError(f"{shown!r} is no value of the kind {kind}")


def _plain(value: Any) -> Any:
    """Return a value as bytes, a number of Python or a time; None where it is missing."""
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else value
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, str | UUID):
        value = str(value).encode()
    is_missing = value == b"" or (isinstance(value, _NUMBERS) and value != value)
    return None if is_missing else value


def _truth(value: Any) -> Any:
    """Return the texts true and false, in any letters, as 1 and 0; anything else as it is."""
    return {b"true": 1, b"false": 0}.get(value.lower(), value) if isinstance(value, bytes) else value


def _is_word(value: Any, missing: Collection[str]) -> bool:
    """Return whether a value is one of the words for a missing one, or the number that one is."""
    if isinstance(value, bytes):
        return any(value == word.encode() for word in missing)
    is_number = isinstance(value, _NUMBERS) and not isinstance(value, bool)
    return is_number and any(_is_number(word, value) for word in missing)


def _is_number(word: str, value: Any) -> bool:
    """Return whether a text is a number."""
    return bool(_DECIMAL.fullmatch(word.encode())) and Decimal(word) == Decimal(value)


def _whole(value: Any, least: int, most: int, form: re.Pattern[bytes]) -> int:
    """Return a whole number; raise ValueError for anything else."""
    if isinstance(value, bytes) and form.fullmatch(value):
        found = int(value.partition(b".")[0])
    elif isinstance(value, float) and abs(value) > 2**53:
        raise _no("integer", value)  # floats beyond are not exact
    elif isinstance(value, _NUMBERS) and math.isfinite(value) and value == int(value):
        found = int(value)
    else:
        raise _no("integer", value)
    if not least <= found <= most:
        raise _no("integer", value)
    return found


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_ZONES = (b"utc", b"gmt", b"z")
_DATE = re.compile(rb"([0-9]{4})([-/])([0-9]{1,2})\2([0-9]{1,2})")
_CLOCK = re.compile(rb"[ tT]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:[.,][0-9]+)?)?")
_OFFSET = re.compile(rb"([+-])([0-9]{2})(:?)([0-9]{0,2})")
_MONTHS = b"january february march april may june july august september october november december".split()
_DAYS = b"monday tuesday wednesday thursday friday saturday sunday".split()
_WORDS = {"b": _MONTHS, "B": _MONTHS, "a": _DAYS, "A": _DAYS, "p": [b"am", b"pm"]}
_DIGITS = {"Y": (4, 4), "y": (2, 2), "f": (1, 9)}
"""Fewest and most digits of codes of a format; of the others 1 and 2."""
_MOST = {"H": 23, "I": 12, "m": 12, "d": 31, "M": 59, "S": 59}


def _seconds_of(value: Any, unit: str | None, format: str | None) -> int:
    """Return the seconds since 1970 of a time, rounded down; without a zone it is in UTC."""
    if isinstance(value, np.datetime64):
        return int(value.astype("datetime64[s]").astype(np.int64))
    if isinstance(value, date):
        time = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        since: timedelta = (time.replace(tzinfo=UTC) if time.tzinfo is None else time) - _EPOCH
        return int(since // timedelta(seconds=1))
    if unit is not None:
        return _ticks_of(value) // _TICKS[unit]
    if isinstance(value, int) and not isinstance(value, bool) and format is not None:
        value = str(value).encode()
    if not isinstance(value, bytes):
        raise _no("time", value)
    try:
        return _read_time(value) if format is None else _read_formatted(value, format)
    except ValueError:
        raise _no("time", value) from None


def _ticks_of(value: Any) -> int:
    """Return a number of 64 bits, rounded down."""
    if isinstance(value, bytes) and _DECIMAL.fullmatch(value):
        # Digits are exact, and numbers with an exponent are read as floats are.
        value = Decimal(value.decode()) if re.fullmatch(rb"-?[0-9]+(\.[0-9]*)?", value) else float(value)
    if isinstance(value, bool | bytes) or not isinstance(value, _NUMBERS) or not math.isfinite(value):
        raise _no("time", value)
    found = math.floor(value)
    if not -(2**63) <= found < 2**63:
        raise _no("time", value)
    return found


def _days_of(year: int, month: int, day: int) -> int:
    return date(year, month, day).toordinal() - _EPOCH.toordinal()


def _read_offset(text: bytes, position: int) -> tuple[int, int]:
    """Return the seconds east of UTC, and the position after them; raise ValueError where there are none."""
    for word in _ZONES:
        if text[position : position + len(word)].lower() == word:
            return 0, position + len(word)
    found = _OFFSET.match(text, position)
    if found is None or int(found[2]) > 23 or int(found[4] or 0) > 59:
        raise ValueError
    if (found[3] or found[4]) and len(found[4]) != 2:
        raise ValueError
    east = int(found[2]) * 3600 + int(found[4] or 0) * 60
    return (-east if found[1] == b"-" else east), found.end()


def _read_time(text: bytes) -> int:
    """Return the seconds since 1970 of ``YYYY-M-D``, perhaps with a clock time and an offset."""
    found = _DATE.match(text)
    if found is None:
        raise ValueError
    seconds = _days_of(int(found[1]), int(found[3]), int(found[4])) * 86_400
    position = found.end()
    if position == len(text):
        return seconds
    found = _CLOCK.match(text, position)
    if found is None or int(found[1]) > 23 or int(found[2]) > 59 or int(found[3] or 0) > 59:
        raise ValueError
    seconds += int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3] or 0)
    position = found.end()
    if text[position : position + 1] == b" " and position + 1 < len(text):
        position += 1
    # An offset, and perhaps the name of its zone in brackets; such a name alone is that of UTC.
    rest, east = text[position:], None
    if rest and not rest.startswith(b"["):
        east, position = _read_offset(text, position)
        rest = text[position:]
    is_named = rest.startswith(b"[") and rest.endswith(b"]")
    if rest and not (is_named and (east is not None or rest[1:-1].lower() in _ZONES)):
        raise ValueError
    return seconds - (east or 0)


def _read_formatted(text: bytes, format: str) -> int:
    """Return the seconds since 1970 of a time in a format; each code takes as much as it may have."""
    parts = {"Y": 1970, "m": 1, "d": 1, "H": 0, "M": 0, "S": 0, "z": 0, "I": 0, "p": -1}
    position = 0
    for step in re.findall(r"%.|.", format, re.DOTALL):
        code = step[1] if len(step) == 2 and step != "%%" else ""
        if code in ("z", "Z"):
            value, position = _read_offset(text, position)
            if code == "Z" and value:
                raise ValueError
            parts["z"] = value if code == "z" else parts["z"]
        elif code:
            value, position = _read_part(text, position, code)
            # The year and the month have two ways to be written.
            parts[{"y": "Y", "b": "m", "B": "m"}.get(code, code)] = value
        else:
            # A blank stands for any number of them, as it does in Python.
            mark = re.escape(step[-1].encode()) + (b"+" if step == " " else b"")
            found = re.compile(mark).match(text, position)
            if found is None:
                raise ValueError
            position = found.end()
    if position != len(text):
        raise ValueError
    hour = parts["I"] % 12 + 12 * (parts["p"] == 1) if parts["I"] else parts["H"]
    days = _days_of(parts["Y"], parts["m"], parts["d"])
    return days * 86_400 + hour * 3600 + parts["M"] * 60 + parts["S"] - parts["z"]


def _read_part(text: bytes, position: int, code: str) -> tuple[int, int]:
    """Return the value of a code of a format, and the position after it."""
    if code in _WORDS:
        for number, word in enumerate(_WORDS[code]):
            # A month or day is written out, or as its first three letters.
            for length in (len(word), 3):
                if length <= len(word) and text[position : position + length].lower() == word[:length]:
                    return number + (code in "bB"), position + length
        raise ValueError
    least, most = _DIGITS.get(code, (1, 2))
    found = re.compile(rb"[0-9]{%d,%d}" % (least, most)).match(text, position)
    if found is None:
        raise ValueError
    value = int(found[0])
    if code == "y":
        value += 1900 if value > 68 else 2000
    if value > _MOST.get(code, value) or (code == "I" and value == 0):
        raise ValueError
    return value, found.end()


def _offset(seconds: int, zone: str) -> int:
    """Return how many seconds the clocks of a zone are ahead of UTC, that of a near year for far ones."""
    moment = min(max(seconds, -62_100_000_000), 253_300_000_000)
    ahead = datetime.fromtimestamp(moment, ZoneInfo(zone)).utcoffset()
    return 0 if ahead is None else ahead // timedelta(seconds=1)


def bag_name(feature: str) -> str:
    """Return a unique input name for a list-valued feature."""
    return f"bag.{feature}"


def _is_missing(bag: Any) -> bool:
    return not isinstance(bag, Sequence | np.ndarray) and _plain(bag) is None


_BLANKS = b" \t\n\r"
_BRACKETS = {b"[": b"]", b"{": b"}", b"(": b")"}
_QUOTES = (b'"', b"'")
_NULLS = (b"null", b"NULL", b"None", b"nan", b"NaN")
_ESCAPE = re.compile(rb"((?:\\u[0-9a-fA-F]{4})+)|\\(U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_CONTROLS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f"}


def read_list(text: bytes, form: Mapping[str, Any]) -> list[bytes]:
    """Return the elements of a list in text, empty where they are missing.

    Args:
        text: of one field.
        form: ``separator``, and perhaps ``weight_separator``, ``brackets`` and ``trim``, as in the schema.

    Raises:
        ValueError: an element is a list, or has no weight where all must have one.
    """
    separator, weight_separator = (form.get(key, "").encode() for key in ("separator", "weight_separator"))
    has_brackets, trims = bool(form.get("brackets")), bool(form.get("trim"))
    found = _split_brackets(text, separator, weight_separator) if has_brackets else text.split(separator)
    elements = []
    for part in found:
        element = part
        if weight_separator and part:
            element, mark, weight = part.rpartition(weight_separator)
            if not mark or not _DECIMAL.fullmatch(weight.strip(_BLANKS)):
                raise ValueError(f"{part.decode(errors='replace')!r} has no weight")
        element = element.strip(_BLANKS) if has_brackets or trims else element
        elements.append(_unquoted(element) if has_brackets and element else element)
    return elements


def _unquoted(element: bytes) -> bytes:
    """Return an element of a list in brackets without its quotes; raise ValueError for a list."""
    if element[:1] in _BRACKETS:
        raise ValueError(f"{element.decode(errors='replace')!r} is a list in a list")
    if len(element) >= 2 and element[:1] in _QUOTES and element[-1:] == element[:1]:
        return _ESCAPE.sub(_meaning, element[1:-1])
    return b"" if element in _NULLS else element


def _meaning(found: re.Match[bytes]) -> bytes:
    # JSON writes a character above 0xFFFF as a pair of surrogates, which UTF-16 joins.
    if found[1]:
        return bytes.fromhex(found[1].decode().replace("\\u", "")).decode("utf-16-be", "replace").encode()
    code = found[2]
    if len(code) > 1:
        return chr(int(code[1:], 16) % 0x110000).encode("utf-8", "replace")
    return _CONTROLS.get(code, code)


def _split_brackets(text: bytes, separator: bytes, weight_separator: bytes) -> list[bytes]:
    """Return the elements of a list that may have brackets around it; separators in quotes are text."""
    text = text.strip(_BLANKS)
    is_list = len(text) >= 2 and _BRACKETS.get(text[:1]) == text[-1:]
    if is_list:
        text = text[1:-1].strip(_BLANKS)
        if not text:
            return []
    # A blank as the separator may be there any number of times; nothing follows a last separator.
    skips_empty = len(separator) == 1 and separator in _BLANKS
    found = []
    position = 0
    while True:
        end = _end_of_element(text, position, separator, weight_separator)
        part = text[position:end].strip(_BLANKS)
        is_last = end >= len(text)
        if part or not text or not (skips_empty or (is_last and position > 0)):
            found.append(part)
        if is_last:
            return found
        position = end + len(separator)


def _end_of_element(text: bytes, first: int, separator: bytes, weight_separator: bytes) -> int:
    """Return where an element ends: before a separator that is not inside of quotes."""

    def is_at(place: int, mark: bytes) -> bool:
        return bool(mark) and text.startswith(mark, place)

    def after_blanks(place: int) -> int:
        while place < len(text) and text[place] in _BLANKS and not is_at(place, separator):
            place += 1
        return place

    position = after_blanks(first)
    # Quotes count where they open an element, and close it or what comes before its weight.
    if text[position : position + 1] in _QUOTES:
        end = position + 1
        while end < len(text) and text[end] != text[position]:
            end += 2 if text[end : end + 1] == b"\\" else 1
        end = after_blanks(end + 1)
        if end == len(text) or is_at(end, weight_separator) or is_at(end, separator):
            position = end
    found = text.find(separator, position)
    return len(text) if found < 0 else found
