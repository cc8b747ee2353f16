"""Schemas as TOML: read with every mistake named, written in one canonical form, fingerprinted by content.

A setting is what stands in a config: the name of a built-in schema, or the text of a schema file. Texts
that say the same have one fingerprint, wherever the file lies and whatever its comments are.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import xxhash

from .errors import ConfigError
from .schema import KINDS, SCHEMAS, Schema, schema_named

_KEYS = ("format", "separator", "header", "fields", "label", "dense", "sparse")
_CSV_ONLY = ("separator", "header", "fields")
_FINGERPRINT = re.compile(r"toml:[0-9a-f]{32}")
_MAX_NAME_BYTES = 200


def setting_of(word: str) -> str:
    """What a user named, a built-in schema or a .toml file, as a setting.

    Raises:
        ConfigError: there is no such schema, or the file cannot be read or is no schema.
    """
    if word in SCHEMAS or not word.endswith(".toml"):
        schema_named(word)
        return word
    try:
        text = Path(word).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"schema {word} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"schema {word} is not UTF-8 text") from error
    return write_schema(read_schema(text, word))


def schema_of(setting: str) -> Schema:
    """The schema a setting stands for; raises ConfigError where it is none."""
    return read_schema(setting) if "\n" in setting else schema_named(setting)


def identity_of(setting: str) -> str:
    """How a manifest names a setting: a built-in schema by name, any other by the hash of what it says."""
    if "\n" not in setting:
        return setting
    says = json.dumps(asdict(schema_of(setting)), sort_keys=True, separators=(",", ":"))
    return f"toml:{xxhash.xxh3_128_hexdigest(says.encode())}"


def is_fingerprint(setting: str) -> bool:
    """Whether this is what `identity_of` gives for a schema that is not built in."""
    return _FINGERPRINT.fullmatch(setting) is not None


def read_schema(text: str, source: str = "the schema") -> Schema:
    """Parse a TOML schema.

    Args:
        text: keys as `write_schema` writes them.
        source: what to call it in messages.

    Raises:
        ConfigError: the first thing wrong, in one line.
    """
    try:
        keys = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{source} is no TOML: {' '.join(str(error).split())}") from error
    try:
        return _schema(keys)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}", hint=error.hint) from None


def _schema(keys: dict[str, Any]) -> Schema:
    for key in keys:
        if key not in _KEYS:
            raise ConfigError(f"unknown key {key!r}", hint=_nearest(key, _KEYS))
    if keys.get("format") not in ("csv", "parquet"):
        raise ConfigError(f"format must be csv or parquet, got {_shown(keys.get('format'))}")
    if keys["format"] == "parquet":
        for key in _CSV_ONLY:
            if key in keys:
                raise ConfigError(f"{key} is for csv, and the format is parquet")
    label = keys.get("label")
    if label is not None and not isinstance(label, str):
        raise ConfigError(f"label must be the name of a column, got {_shown(label)}")
    dense, sparse = _names(keys, "dense"), _sparse(keys)
    _refuse_twice([*([label] if label is not None else []), *dense, *sparse])
    fields = _fields(keys)
    schema = Schema(
        dense=dense,
        sparse=tuple(sparse),
        kinds=tuple(sparse.values()),
        label=label,
        format=keys["format"],
        separator=_separator(keys.get("separator", ",")),
        fields=fields,
    )
    if fields:
        find_columns(schema.columns(has_label=True), fields, "fields")
    return schema


def _sparse(keys: dict[str, Any]) -> dict[str, str]:
    sparse = keys.get("sparse", {})
    if not isinstance(sparse, dict):
        raise ConfigError(f'sparse must be a table of column = "kind", got {_shown(sparse)}')
    if not sparse:
        raise ConfigError("sparse names no column", hint='under [sparse], write a line: column = "text"')
    for name, kind in sparse.items():
        check_name(name)
        if isinstance(kind, list) or (isinstance(kind, str) and kind.startswith("list")):
            raise ConfigError(f"column {name!r} is list-valued, which is not supported yet")
        if kind not in KINDS:
            nearest = _nearest(kind, KINDS) if isinstance(kind, str) else None
            raise ConfigError(
                f"column {name!r} must be one of {', '.join(KINDS)}, got {_shown(kind)}", hint=nearest
            )
    return sparse


def _names(keys: dict[str, Any], key: str) -> tuple[str, ...]:
    names = keys.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{key} must be a list of column names, got {_shown(names)}")
    for name in names:
        check_name(name)
    return tuple(names)


def check_name(name: str) -> None:
    """A column's name becomes a file's, and `label` is the name of the label everywhere."""
    if name == "label":
        raise ConfigError("a column that is not the label cannot be called 'label'")
    if not name or "/" in name or "\0" in name or len(name.encode()) > _MAX_NAME_BYTES:
        raise ConfigError(
            f"column {_shown(name)} cannot be the name of a file: "
            f"want 1 to {_MAX_NAME_BYTES} bytes, no slash and no NUL",
            hint="rename it in the log",
        )


def _refuse_twice(names: list[str]) -> None:
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ConfigError(f"column {name!r} is named twice")


def _fields(keys: dict[str, Any]) -> tuple[str, ...]:
    has_header, fields = keys.get("header", True), keys.get("fields", [])
    if not isinstance(has_header, bool):
        raise ConfigError(f"header must be true or false, got {_shown(has_header)}")
    if not isinstance(fields, list) or not all(isinstance(name, str) and name for name in fields):
        raise ConfigError(f"fields must be a list of column names, got {_shown(fields)}")
    if has_header and fields:
        raise ConfigError("fields is for a log with header = false")
    if not has_header and not fields:
        raise ConfigError("a log with header = false needs fields, the names of all its columns in order")
    _refuse_twice(fields)
    return tuple(fields)


def _separator(separator: Any) -> str:
    is_byte = isinstance(separator, str) and len(separator) == 1 and separator.isascii()
    if not is_byte or separator in '"\r\n':
        raise ConfigError(f"separator must be one ASCII character, got {_shown(separator)}")
    return str(separator)


def find_columns(wanted: Iterable[str], fields: Iterable[str], source: str) -> list[int]:
    """The place of each wanted column among ``fields``.

    Raises:
        ConfigError: ``source`` has no such column, or two of that name.
    """
    fields = list(fields)
    places = {name: place for place, name in enumerate(fields)}
    for name in wanted:
        if name not in places:
            hint = _nearest(name, fields) or f"it has {_shown(fields)}"
            raise ConfigError(f"{source} has no column {name!r}", hint=hint)
        if fields.count(name) > 1:
            raise ConfigError(f"{source} has two columns {name!r}")
    return [places[name] for name in wanted]


def _nearest(word: str, words: Iterable[str]) -> str | None:
    found = get_close_matches(word, list(words), n=1)
    return f"did you mean {found[0]!r}?" if found else None


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."


def write_schema(schema: Schema, notes: dict[str, str] | None = None) -> str:
    """A schema as TOML that `read_schema` gives back; ``notes`` become comments behind sparse columns."""
    notes = notes or {}
    lines = [f"format = {_quoted(schema.format)}"]
    if schema.format == "csv":
        lines += [f"separator = {_quoted(schema.separator)}", f"header = {str(not schema.fields).lower()}"]
    if schema.fields:
        lines.append(_list("fields", schema.fields))
    if schema.label is not None:
        lines.append(f"label = {_quoted(schema.label)}")
    lines += [_list("dense", schema.dense), "", "[sparse]"]
    for name, kind in schema.kind_of.items():
        note = f"  # {notes[name]}" if name in notes else ""
        lines.append(f"{_key(name)} = {_quoted(kind)}{note}")
    return "\n".join(lines) + "\n"


def _list(key: str, names: Iterable[str]) -> str:
    return f"{key} = [{', '.join(map(_quoted, names))}]"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are TOML's too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
