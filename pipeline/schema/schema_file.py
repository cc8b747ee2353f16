"""Read and write schemas as TOML, fingerprinted by content.

Errors name every mistake, and writing gives one canonical form. A config's schema is the name of a built-in
schema, or the text of a schema file. Texts of equal content have one fingerprint, wherever the file is and
whatever its comments are.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import xxhash

from ..errors import ConfigError, first_line, local_path
from .known_logs import KNOWN_LOGS, KnownLog
from .schema import Schema, key_of, quoted, zone_named
from .schema_keys import FORMATS, UNSET, keys_of, read_keys

_FINGERPRINT = re.compile(r"toml:[0-9a-f]{32}")
_FIRST_KEYS = ("dense", "sparse", "kinds", "label", "format", "separator", "fields")
"""Fields that always count in a fingerprint; the others only where they are set, so that older ones stay."""


SCHEMAS: dict[str, Schema] = {}
"""Schemas of known logs that were read so far."""


def schema_named(name: str) -> Schema:
    """Return the schema of a known log; raises ConfigError with the names of all."""
    if name not in SCHEMAS:
        if name not in KNOWN_LOGS:
            raise ConfigError(
                f"no schema {name!r}", hint=f"use one of {', '.join(KNOWN_LOGS)}, or a .toml file"
            )
        SCHEMAS[name] = read_keys(KnownLog.read(name).schema, (*FORMATS, "criteo"))
    return SCHEMAS[name]


def setting_of(word: str) -> str:
    """Return the setting that a user named: a built-in schema, a .toml file, or the text of one.

    Raises:
        ConfigError: there is no such schema, or the file cannot be read or is not a schema.
    """
    if "\n" in word:
        return write_schema(read_schema(word))
    # What does not end in .toml can only be a name, and a wrong one is refused with the right ones.
    if word in KNOWN_LOGS or not word.endswith(".toml"):
        schema_named(word)
        return word
    # The setting holds the schema in its canonical form, so a run needs the file no longer.
    try:
        text = local_path(word).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"schema {word} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"schema {word} is not UTF-8 text") from error
    schema = read_schema(text, word)
    if schema.zone:
        zone_named(schema.zone)  # not where a schema is read: other machines may have no time zones
    return write_schema(schema)


def schema_of(setting: str) -> Schema:
    """Return the schema of a setting; raises ConfigError where it is none."""
    return _schema_of_text(setting) if "\n" in setting else schema_named(setting)


@lru_cache(maxsize=16)
def _schema_of_text(text: str) -> Schema:
    """Read a schema once: stages ask for it with every part."""
    return read_schema(text)


def schema_identity(setting: str) -> str:
    """Name a setting for a manifest: a built-in schema by name, any other by the hash of its content.

    ``min_count`` and ``embedding_dim`` are left out: no column depends on them.
    """
    if "\n" not in setting:
        return setting

    # Canonical JSON of what the schema sets: keys of later versions are left out where they are unset.
    content = asdict(schema_of(setting).without_settings)
    for key in content.keys() - set(_FIRST_KEYS):
        if content[key] == UNSET[key]:
            del content[key]
    for rule in content.get("labels", ()):
        if not rule["is_number"]:
            del rule["is_number"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"toml:{xxhash.xxh3_128_hexdigest(text.encode())}"


def is_fingerprint(setting: str) -> bool:
    """Return whether `schema_identity` gives this for a schema that is not built in."""
    return _FINGERPRINT.fullmatch(setting) is not None


def read_schema(text: str, source: str = "the schema") -> Schema:
    """Parse a TOML schema.

    Args:
        text: keys as `write_schema` writes them.
        source: name of the schema in messages.

    Raises:
        ConfigError: the first thing wrong, in one line.
    """
    try:
        keys = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{source} is not TOML: {' '.join(str(error).split())}") from error
    except ValueError as error:  # Python reads integers of at most 4300 digits
        raise ConfigError(f"{source} has a number that is too long: {first_line(error)[:80]}") from error
    # Every mistake is reported with the name of the schema before it.
    try:
        return read_keys(keys)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}", hint=error.hint) from None


def write_schema(schema: Schema, notes: Mapping[str, str] | None = None) -> str:
    """Write a schema as TOML that `read_schema` reads; ``notes`` become comments after the columns."""
    # Keys of the file itself come first: below [dense] or [sparse] they would belong to that table.
    lines, tables = [], []
    for key, value in keys_of(schema).items():
        if key not in ("dense", "sparse") or isinstance(value, list):
            lines.append(f"{key} = {toml_of(value)}")
            continue
        tables += ["", f"[{key}]"]
        for column, entry in value.items():
            note = f"  # {notes[column]}" if notes and column in notes else ""
            tables.append(f"{key_of(column)} = {toml_of(entry)}{note}")
    return "\n".join([*lines, *tables]) + "\n"


def toml_of(value: Any) -> str:
    """Write a value as TOML, on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_of(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_of, value))}]"
    return quoted(value) if isinstance(value, str) else str(value).lower()
