"""Dataclasses that stand in a manifest as JSON objects: written as they are declared, read with checks.

Raw dictionaries end here: a stage hands a record to its output, and a reader gets one back or an error that
names the key. The order of the fields is that of the keys. A field that has a default is left out of the JSON
while it has that value, so that a manifest holds nothing about what a log does not have.
"""

from __future__ import annotations

import math
import types
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import lru_cache
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

_KEY = "key"
_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", dict: "an object"}
_MOST = 2**63 - 1
"""The largest whole number: kernels and Arrow take 64 bits."""


def stored_as(key: str) -> Any:
    """A field that has no default and is called ``key`` in the JSON."""
    return field(metadata={_KEY: key})


R = TypeVar("R", bound="JsonRecord")


class RecordError(ValueError):
    """A JSON value that is not what a record wants; the message begins with its key."""


def require_range(key: str, value: int | None, least: int, most: int | None = None) -> None:
    """Raise RecordError where the value of ``key`` is below ``least`` or above ``most``; None is unset."""
    if value is None or (least <= value and (most is None or value <= most)):
        return
    is_open = most is None or (most == _MOST and value < least)
    wanted = f"{least} or more" if is_open else f"{least} to {most}"
    raise RecordError(f"{key} is {value}, want {wanted}")


class JsonRecord:
    """Base of the dataclasses that a manifest holds."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object."""
        assert is_dataclass(self)
        values = {own: getattr(self, own.name) for own in fields(self)}
        return {_key_of(own): _plain(value) for own, value in values.items() if value != _default_of(own)}

    def extended(self, kind: type[R], **more: Any) -> R:
        """Return a record of ``kind`` with the fields of this one and ``more``."""
        assert is_dataclass(self)
        return kind(**({own.name: getattr(self, own.name) for own in fields(self)} | more))

    def refuse_nonsense(self, where: str) -> None:
        """Raise RecordError where a value is of the right type, but none that a stage writes.

        Args:
            where: the key of the record, and a point where it has one; messages begin with it.
        """

    @classmethod
    def from_json(cls, value: object, where: str = "") -> Self:
        """Read a JSON object; keys that are no fields are left alone.

        Args:
            where: the key of the object itself, for messages.

        Raises:
            RecordError: a key is missing, or its value is of another type or out of range.
        """
        if not isinstance(value, dict):
            raise RecordError(f"{where or 'it'} is {_shown(value)}, want an object")
        read: dict[str, Any] = {}
        record: type = cls
        # A key that is missing takes the field's default; other keys may come from a later version.
        for name, key, kind, default in _fields_of(record):
            path = f"{where}.{key}" if where else key
            if key in value:
                read[name] = read_value(value[key], kind, path)
            elif default is MISSING:
                raise RecordError(f"{path} is missing")
        found = cls(**read)
        found.refuse_nonsense(f"{where}." if where else "")
        return found


@lru_cache
def _fields_of(cls: type) -> tuple[tuple[str, str, Any, Any], ...]:
    """Name, key, type and default of each field."""
    assert is_dataclass(cls)
    kinds = get_type_hints(cls)
    return tuple((own.name, _key_of(own), kinds[own.name], _default_of(own)) for own in fields(cls))


def _key_of(own: Field[Any]) -> str:
    return str(own.metadata.get(_KEY, own.name))


def _default_of(own: Field[Any]) -> Any:
    return own.default if own.default_factory is MISSING else own.default_factory()


def _plain(value: Any) -> Any:
    if isinstance(value, JsonRecord):
        return value.to_json()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def read_value(value: object, kind: Any, path: str) -> Any:
    """Return ``value`` as ``kind``, one of the types that records have; raise RecordError where it is none.

    Args:
        path: the key of the value, for messages.
    """
    origin = get_origin(kind)
    inner = get_args(kind)
    # Optional fields are the only unions that records have.
    if origin in (types.UnionType, Union):
        return None if value is None else read_value(value, inner[0], path)
    if origin is tuple:
        return _read_array(value, inner, path)
    if origin is dict:
        if not isinstance(value, dict):
            raise RecordError(f"{path} is {_shown(value)}, want an object")
        return {key: read_value(each, inner[1], f"{path}.{key}") for key, each in value.items()}
    if origin is Literal:
        if value not in inner:
            raise RecordError(f"{path} is {_shown(value)}, want one of {', '.join(map(str, inner))}")
        return value
    if issubclass(kind, JsonRecord):
        return kind.from_json(value, path)
    # JSON has no difference between 1 and 1.0, but true is no number.
    is_right = type(value) is kind or (kind is float and type(value) is int)
    if not is_right:
        raise RecordError(f"{path} is {_shown(value)}, want {_NAMES[kind]}")
    # All numbers in manifests are numbers of something: none is negative, none needs more than 64 bits.
    if type(value) is int:
        require_range(path, value, 0, _MOST)
    elif isinstance(value, float) and not math.isfinite(value):
        raise RecordError(f"{path} is {value}, want a finite number")
    return value


def _read_array(value: object, inner: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    """An array of any length where ``inner`` is ``(kind, ...)``, else of one value for each kind."""
    if not isinstance(value, list):
        raise RecordError(f"{path} is {_shown(value)}, want an array")
    # One kind for any number of values, or a kind for each.
    kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
    if len(value) != len(kinds):
        raise RecordError(f"{path} has {len(value)} values, want {len(kinds)}")
    return tuple(
        read_value(each, kind, f"{path}[{number}]")
        for number, (each, kind) in enumerate(zip(value, kinds, strict=True))
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
