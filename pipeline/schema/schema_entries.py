"""Entries of a schema file under ``dense`` and ``[sparse]``: a column's kind, or a table of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from .schema import DENSE_KINDS, KINDS, TIME_KINDS, TIME_UNITS, TRANSFORMS
from .schema_names import check_name, nearest, refuse_twice, shown

_MAX_EMBEDDING_DIM = 1 << 16
DEFAULT_LIST_SEPARATOR = "|"


@dataclass(frozen=True, slots=True)
class Entry:
    """One feature as a schema file describes it."""

    column: str
    name: str
    """Name of the feature."""
    kind: str
    is_list: bool = False
    separator: str = DEFAULT_LIST_SEPARATOR
    """Character between the elements of a list in a CSV field."""
    transform: str = "log1p"
    min_count: int | None = None
    embedding_dim: int | None = None
    unit: str | None = None
    """Unit of times that are integers."""


def read_sparse(keys: Mapping[str, Any]) -> list[Entry]:
    """Return the entries under ``[sparse]``; raises ConfigError on the first mistake."""
    sparse = keys.get("sparse", {})
    if not isinstance(sparse, dict):
        raise ConfigError(f'sparse must be a table of column = "kind", got {shown(sparse)}')
    if not sparse:
        raise ConfigError("sparse names no column", hint='under [sparse], write a line: column = "text"')
    kinds = (*KINDS, *TIME_KINDS)
    return [
        _entry(column, entry, kinds, _SPARSE_KEYS, keys["format"])
        for column, value in sparse.items()
        for entry in _entries_of(value)
    ]


def _entries_of(value: Any) -> list[Any]:
    """Return the entries of one column: a list of tables is one feature each."""
    are_tables = isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)
    return list(value) if are_tables else [value]


def read_dense(keys: Mapping[str, Any]) -> list[Entry]:
    """Return the entries of ``dense``, a list or a table; raises ConfigError on the first mistake."""
    dense = keys.get("dense", [])
    # As a table a dense column has a kind and settings, as a list it is an integer.
    if isinstance(dense, dict):
        return [
            _entry(column, value, DENSE_KINDS, _DENSE_KEYS, keys["format"]) for column, value in dense.items()
        ]
    if not isinstance(dense, list) or not all(isinstance(name, str) for name in dense):
        raise ConfigError(
            f"dense must be a list of column names, or a table of column = kind, got {shown(dense)}"
        )
    refuse_twice(dense)
    return [_entry(column, "integer", DENSE_KINDS, _DENSE_KEYS, keys["format"]) for column in dense]


def _entry(
    column: str, value: Any, kinds: Sequence[str], checks: Mapping[str, Callable[[Any], str]], format: str
) -> Entry:
    # A kind alone is short for a table of this one key.
    found = value if isinstance(value, dict) else {"kind": value}
    for key in found:
        if key not in checks:
            raise ConfigError(f"column {column!r} has an unknown key {key!r}", hint=nearest(key, checks))

    # The kind first: a list written as a kind gets a hint.
    kind = found.get("kind")
    if kind not in kinds:
        hint = _hint_for(kind, kinds)
        raise ConfigError(
            f"column {column!r} must be one of {', '.join(kinds)}, got {shown(kind)}", hint=hint
        )

    # Then each key alone, then those that depend on others.
    for key, check in checks.items():
        wanted = check(found[key]) if key in found else ""
        if wanted:
            raise ConfigError(f"column {column!r}: {key} must be {wanted}, got {shown(found[key])}")
    is_list = bool(found.get("list", False))
    if "separator" in found and not (is_list and format == "csv"):
        raise ConfigError(f"column {column!r}: separator is for a list in a csv log")
    if kind in TIME_KINDS and is_list:
        raise ConfigError(f"column {column!r}: a list cannot have the kind {kind}")
    if "unit" in found and kind not in TIME_KINDS:
        raise ConfigError(f"column {column!r}: unit is for the kinds {' and '.join(TIME_KINDS)}")
    name = found.get("name", column)
    check_name(name)
    return Entry(
        column,
        name,
        str(kind),
        is_list,
        found.get("separator", DEFAULT_LIST_SEPARATOR),
        found.get("transform", "log1p"),
        found.get("min_count"),
        found.get("embedding_dim"),
        found.get("unit"),
    )


def _hint_for(kind: Any, kinds: Sequence[str]) -> str | None:
    if isinstance(kind, list) or (isinstance(kind, str) and kind.startswith("list")):
        return 'a list-valued column is written column = { kind = "text", list = true }'
    return nearest(kind, kinds) if isinstance(kind, str) else None


def is_separator(value: Any) -> bool:
    """Tell whether this can separate two fields, or two elements of a list."""
    is_byte = isinstance(value, str) and len(value) == 1 and value.isascii()
    return is_byte and value not in '"\r\n\0'


# Each check returns what is wanted where the value does not fit, else "".


def _want_name(value: Any) -> str:
    return "" if isinstance(value, str) else "a name"


def _want_flag(value: Any) -> str:
    return "" if isinstance(value, bool) else "true or false"


def _want_count(value: Any) -> str:
    return "" if type(value) is int and 1 <= value < 2**63 else "a whole number, 1 or more"


def _want_dim(value: Any) -> str:
    is_dim = type(value) is int and 1 <= value <= _MAX_EMBEDDING_DIM
    return "" if is_dim else f"a whole number from 1 to {_MAX_EMBEDDING_DIM}"


def _want_transform(value: Any) -> str:
    return "" if value in TRANSFORMS else " or ".join(TRANSFORMS)


def _want_separator(value: Any) -> str:
    return "" if is_separator(value) else "one ASCII character"


def _want_unit(value: Any) -> str:
    return "" if value in TIME_UNITS else f"one of {', '.join(TIME_UNITS)}"


def _want_anything(value: Any) -> str:
    return ""


_DENSE_KEYS = {"kind": _want_anything, "transform": _want_transform, "name": _want_name}
_SPARSE_KEYS = {
    "kind": _want_anything,
    "list": _want_flag,
    "separator": _want_separator,
    "min_count": _want_count,
    "embedding_dim": _want_dim,
    "name": _want_name,
    "unit": _want_unit,
}
