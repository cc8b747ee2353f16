"""Read and write schemas as TOML, fingerprinted by content.

Errors name every mistake, and writing gives one canonical form. A config's schema is the name of a built-in
schema, or the text of a schema file. Texts of equal content have one fingerprint, wherever the file is and
whatever its comments are. Entries under ``dense`` and ``[sparse]`` are a column's kind, or a table of keys.
"""

from __future__ import annotations

import codecs
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import xxhash

from ..errors import ConfigError, first_line
from .entries import BRACKETS, Entry, by_table, check_tables
from .known_logs import KNOWN_LOGS, KnownLog
from .sample_keys import (
    TIME_FORMAT,
    check_time_format,
    is_name,
    read_group,
    read_labels,
    read_time,
    read_weight,
)
from .schema import (
    DENSE_KINDS,
    KINDS,
    SAMPLE_TIME,
    TIME_KINDS,
    TIME_UNITS,
    TRANSFORMS,
    LabelRule,
    Schema,
    check_name,
    find_columns,
    key_of,
    nearest,
    quoted,
    refuse_twice,
    shown,
    taken_name,
    zone_named,
)

_MAX_EMBEDDING_DIM = 1 << 16
_MAX_SKIP = 10_000
_NO_QUOTE = "none"
_NO_ENCODING = re.compile("escape|idna|punycode")
"""Codecs of Python that are no encodings of files."""
_MARKS = ("separator", "quote", "escape")
FORMATS = ("csv", "parquet", "arrow", "orc", "json")
"""Formats of a log in a schema file; json is JSON Lines."""


def read_sparse(keys: Mapping[str, Any]) -> list[Entry]:
    """Return the entries under ``[sparse]``; raises ConfigError on the first mistake."""
    sparse = keys.get("sparse", {})
    if not isinstance(sparse, dict):
        raise ConfigError(f'sparse must be a table of column = "kind", got {shown(sparse)}')
    if not sparse:
        raise ConfigError("sparse names no column", hint='under [sparse], write a line: column = "text"')
    kinds = (*KINDS, *TIME_KINDS)
    return [
        _entry(column, entry, kinds, _SPARSE_KEYS)
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
        return [_entry(column, value, DENSE_KINDS, _DENSE_KEYS) for column, value in dense.items()]
    if not isinstance(dense, list) or not all(isinstance(name, str) for name in dense):
        raise ConfigError(
            f"dense must be a list of column names, or a table of column = kind, got {shown(dense)}"
        )
    refuse_twice(dense)
    return [_entry(column, "integer", DENSE_KINDS, _DENSE_KEYS) for column in dense]


def _entry(column: str, value: Any, kinds: Sequence[str], checks: Mapping[str, _Check]) -> Entry:
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
    for key, (fits, wanted) in checks.items():
        if key in found and not fits(found[key]):
            raise ConfigError(f"column {column!r}: {key} must be {wanted}, got {shown(found[key])}")
    _check_list(column, found)
    _check_time(column, found)
    name = str(found.get("name", column))
    table = str(found.get("table", name))
    check_name(name)
    check_name(table)
    return Entry(
        column,
        name,
        str(kind),
        found.get("list", False),
        found.get("separator"),
        found.get("weight_separator"),
        found.get("transform", "log1p"),
        found.get("min_count"),
        found.get("embedding_dim"),
        found.get("unit"),
        found.get("format"),
        table,
    )


def _check_list(column: str, found: Mapping[str, Any]) -> None:
    for key in ("separator", "weight_separator"):
        if key in found and not found.get("list"):
            raise ConfigError(f"column {column!r}: {key} is for a list")
    if "separator" in found and found["separator"] == found.get("weight_separator"):
        raise ConfigError(f"column {column!r}: separator and weight_separator are the same")


def _check_time(column: str, found: Mapping[str, Any]) -> None:
    kind = found["kind"]
    if kind in TIME_KINDS and found.get("list"):
        raise ConfigError(f"column {column!r}: a list cannot have the kind {kind}")
    for key in ("unit", "format"):
        if key in found and kind not in TIME_KINDS:
            raise ConfigError(f"column {column!r}: {key} is for the kinds {' and '.join(TIME_KINDS)}")
    if "unit" in found and "format" in found:
        raise ConfigError(f"column {column!r}: a time has a unit or a format, not both")
    if "format" in found:
        check_time_format(found["format"], kind, f"column {column!r}")


def _hint_for(kind: Any, kinds: Sequence[str]) -> str | None:
    if isinstance(kind, list) or (isinstance(kind, str) and kind.startswith("list")):
        return 'a list-valued column is written column = { kind = "text", list = true }'
    return nearest(kind, kinds) if isinstance(kind, str) else None


def is_separator(value: Any) -> bool:
    """Return whether this can separate two elements of a list."""
    return _is_text(value, 4) and '"' not in value


def _is_byte(value: Any) -> bool:
    return _is_text(value, 1) and bool(value.isascii())


def _is_text(value: Any, most: int) -> bool:
    """Return whether this is at most so many characters of one line."""
    return isinstance(value, str) and 1 <= len(value) <= most and not set(value) & set("\r\n\0")


_Check = tuple[Callable[[Any], bool], str]
"""Whether a value fits its key, and what is wanted where it does not."""


def _whole_number(most: int, wanted: str) -> _Check:
    return lambda value: type(value) is int and 1 <= value <= most, wanted


_NAME: _Check = (lambda value: isinstance(value, str), "a name")
_DENSE_KEYS: dict[str, _Check] = {
    "kind": (lambda value: True, "one of those that are checked before"),
    "transform": (lambda value: value in TRANSFORMS, " or ".join(TRANSFORMS)),
    "name": _NAME,
}
_SPARSE_KEYS: dict[str, _Check] = {
    "kind": _DENSE_KEYS["kind"],
    "list": (lambda value: value == BRACKETS or isinstance(value, bool), f'true, false or "{BRACKETS}"'),
    "separator": (is_separator, "1 to 4 characters, none of them a quote or a line end"),
    "weight_separator": (is_separator, "1 to 4 characters, none of them a quote or a line end"),
    "min_count": _whole_number(2**63 - 1, "a whole number, 1 or more"),
    "embedding_dim": _whole_number(_MAX_EMBEDDING_DIM, f"a whole number from 1 to {_MAX_EMBEDDING_DIM}"),
    "name": _NAME,
    "table": _NAME,
    "unit": (lambda value: value in TIME_UNITS, f"one of {', '.join(TIME_UNITS)}"),
    "format": (is_name, TIME_FORMAT),
}


_TEXT_KEYS: dict[str, _Check] = {
    "separator": (lambda value: _is_text(value, 4), "1 to 4 characters of a line"),
    "quote": (lambda value: value == _NO_QUOTE or _is_byte(value), f"one ASCII character, or {_NO_QUOTE}"),
    "escape": (lambda value: _is_byte(value), "one ASCII character"),
    "skip": (lambda value: type(value) is int and 0 <= value <= _MAX_SKIP, f"0 to {_MAX_SKIP} lines"),
    "comment": (lambda value: _is_text(value, 8), "1 to 8 characters of a line"),
    "trim": (lambda value: isinstance(value, bool), "true or false"),
    "encoding": (lambda value: isinstance(value, str), "the name of an encoding"),
}
"""Keys of the text of a CSV log."""
_CSV_ONLY = ("header", "fields", *_TEXT_KEYS)
_OF_SAMPLES = ("label", "labels", "time", "weight", "group")
_KEYS = ("format", *_CSV_ONLY, "missing", *_OF_SAMPLES, "zone", "dense", "sparse")
_FINGERPRINT = re.compile(r"toml:[0-9a-f]{32}")
_Keys = dict[str, str | int]
"""Keys of one feature in a schema file."""
_LATER_KEYS = (
    "positive",
    "above",
    "lists",
    "brackets",
    "weight_separators",
    "floats",
    "untransformed",
    "renamed",
    "tables",
    "min_counts",
    "embedding_dims",
    "time_units",
    "time_formats",
    "time",
    "quote",
    "escape",
    "skip",
    "comment",
    "trim",
    "missing",
    "encoding",
    "zone",
    "labels",
    "weight",
    "group",
)
"""Left out of a fingerprint where they are not set, so that older schemas keep theirs."""
_UNSET = {each.name: each.default for each in fields(Schema)}
"""What each key is where it is not set."""


SCHEMAS: dict[str, Schema] = {}
"""Schemas of known logs that were read so far."""


def schema_named(name: str) -> Schema:
    """Return the schema of a known log; raises ConfigError with the names of all."""
    if name not in SCHEMAS:
        if name not in KNOWN_LOGS:
            raise ConfigError(
                f"no schema {name!r}", hint=f"use one of {', '.join(KNOWN_LOGS)}, or a .toml file"
            )
        SCHEMAS[name] = _schema(KnownLog.read(name).schema, (*FORMATS, "criteo"))
    return SCHEMAS[name]


def setting_of(word: str) -> str:
    """Return the setting that a user named: a built-in schema or a .toml file.

    Raises:
        ConfigError: there is no such schema, or the file cannot be read or is not a schema.
    """
    # What does not end in .toml can only be a name, and a wrong one is refused with the right ones.
    if word in KNOWN_LOGS or not word.endswith(".toml"):
        schema_named(word)
        return word
    # The setting holds the schema in its canonical form, so a run needs the file no longer.
    try:
        text = Path(word).read_text(encoding="utf-8")
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
    for key in _LATER_KEYS:
        if content[key] == _UNSET[key]:
            del content[key]
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
        return _schema(keys)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}", hint=error.hint) from None


def _schema(keys: dict[str, Any], formats: Sequence[str] = FORMATS) -> Schema:
    # Check unknown keys first: a slip in their names explains most other faults.
    for key in keys:
        if key not in _KEYS:
            raise ConfigError(f"unknown key {key!r}", hint=nearest(key, _KEYS))
    # The format is next, because it decides which other keys are allowed.
    if keys.get("format") not in formats:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {shown(keys.get('format'))}")
    if keys["format"] != "csv":
        for key in _CSV_ONLY:
            if key in keys:
                raise ConfigError(f"{key} is for csv, and the format is {keys['format']}")
    # The columns, and that a log without a header line has each of them.
    schema = _with_features(keys, read_labels(keys), read_dense(keys), read_sparse(keys))
    _refuse_names_of_samples(schema)
    if schema.fields:
        find_columns(schema.columns(has_label=True), schema.fields, "fields")
    return schema


def _refuse_names_of_samples(schema: Schema) -> None:
    """Raise ConfigError where a feature has the name of a column that samples have in shards."""
    taken = {each.name for each in schema.sample_columns(has_label=True)}
    for name in (*schema.dense, *schema.sparse):
        if name in taken:
            raise taken_name(name)


def _with_features(
    keys: dict[str, Any], label: dict[str, Any], dense: list[Entry], sparse: list[Entry]
) -> Schema:
    # Neither a column nor a feature's name may occur twice.
    # A sparse column may have several features, and counts once.
    columns = [*(entry.column for entry in dense), *dict.fromkeys(entry.column for entry in sparse)]
    labels = [rule.column for rule in label["labels"]] or [label["label"]]
    refuse_twice([*(name for name in labels if name is not None), *columns])
    refuse_twice([entry.name for entry in dense + sparse], "feature")
    sparse = by_table(sparse)
    check_tables(sparse)
    lists = [entry for entry in sparse if entry.form]
    time, time_format = read_time(keys)
    formats = [(entry.name, entry.format) for entry in sparse if entry.format is not None]
    # Of a shared table the setting of one feature is that of all.
    min_counts = {entry.table: entry.min_count for entry in sparse if entry.min_count is not None}
    dims = {entry.table: entry.embedding_dim for entry in sparse if entry.embedding_dim is not None}
    return Schema(
        dense=tuple(entry.name for entry in dense),
        sparse=tuple(entry.name for entry in sparse),
        kinds=tuple(entry.kind for entry in sparse),
        format=keys["format"],
        fields=_fields(keys),
        missing=_missing(keys.get("missing", [])),
        **_text_keys(keys),
        lists=tuple((entry.name, entry.separator_in(keys["format"])) for entry in lists),
        brackets=tuple(entry.name for entry in lists if entry.form == BRACKETS),
        weight_separators=tuple(
            (entry.name, entry.weight_separator) for entry in lists if entry.weight_separator is not None
        ),
        floats=tuple(entry.name for entry in dense if entry.kind == "float"),
        untransformed=tuple(entry.name for entry in dense if entry.transform == "none"),
        renamed=tuple((entry.name, entry.column) for entry in dense + sparse if entry.name != entry.column),
        tables=tuple((entry.name, entry.table) for entry in sparse if entry.name != entry.table),
        min_counts=tuple(sorted(min_counts.items())),
        embedding_dims=tuple(sorted(dims.items())),
        time=time,
        weight=read_weight(keys),
        group=read_group(keys, [(entry.column, entry.kind) for entry in sparse if not entry.form]),
        time_units=tuple((entry.name, entry.unit) for entry in sparse if entry.unit is not None),
        time_formats=(*time_format, *formats),
        zone=_zone(keys.get("zone", "")),
        **label,
    )


def _zone(value: Any) -> str:
    """The name of a time zone."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_+/-]*|", value):
        raise ConfigError(f'zone must be the name of a time zone such as "Asia/Shanghai", got {shown(value)}')
    return "" if value == "UTC" else value


def _fields(keys: dict[str, Any]) -> tuple[str, ...]:
    has_header = keys.get("header", True)
    fields = keys.get("fields", [])
    if not isinstance(has_header, bool):
        raise ConfigError(f"header must be true or false, got {shown(has_header)}")
    # Fields are the header that a log without one lacks.
    if not isinstance(fields, list) or not all(isinstance(name, str) and name for name in fields):
        raise ConfigError(f"fields must be a list of column names, got {shown(fields)}")
    if has_header and fields:
        raise ConfigError("fields is for a log with header = false")
    if not has_header and not fields:
        raise ConfigError("a log with header = false needs fields, the names of all its columns in order")
    refuse_twice(fields)
    return tuple(fields)


def _missing(words: Any) -> tuple[str, ...]:
    if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
        raise ConfigError(f'missing must be a list of texts, such as ["NULL"], got {shown(words)}')
    refuse_twice(words, "missing: text")
    return tuple(words)


def _text_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a Schema that say how the text of a log is read; raises ConfigError."""
    found = {key: keys[key] for key in _TEXT_KEYS if key in keys}
    for key, value in found.items():
        fits, wanted = _TEXT_KEYS[key]
        if not fits(value):
            raise ConfigError(f"{key} must be {wanted}, got {shown(value)}")
    if found.get("quote") == _NO_QUOTE:
        found["quote"] = None
    if "encoding" in found:
        found["encoding"] = _encoding(found["encoding"])
    # A character can mean one thing only.
    marks = {"quote": '"', "separator": ","} | {key: found[key] for key in _MARKS if key in found}
    for key, other in (("quote", "separator"), ("escape", "separator"), ("escape", "quote")):
        if marks.get(key) and marks.get(other) and marks[key] in marks[other]:
            hint = "a quote that is doubled inside quotes needs no escape" if other == "quote" else None
            raise ConfigError(f"{key} and {other} share the character {marks[key]!r}", hint=hint)
    return found


def _encoding(name: str) -> str:
    """Return the name of a text encoding as Python has it."""
    try:
        codec = codecs.lookup(name)
        # Some codecs of Python encode no text, others cannot read it in pieces.
        is_text = codec.incrementaldecoder().decode("a\n".encode(name), True) == "a\n"
        if is_text and not _NO_ENCODING.search(codec.name):
            return codec.name.removesuffix("-sig")  # a byte order mark is left out in any case
    except (LookupError, ValueError, TypeError):
        pass
    raise ConfigError(
        f"encoding must be the name of an encoding of text, got {shown(name)}",
        hint="such as utf-8, utf-16, latin-1 or gbk",
    )


def write_schema(schema: Schema, notes: dict[str, str] | None = None) -> str:
    """Write a schema as TOML that `read_schema` reads; ``notes`` become comments after the columns."""
    notes = notes or {}
    # Keys of the file itself come first: below [dense] or [sparse] they would belong to that table.
    lines = [f"format = {quoted(schema.format)}"]
    if schema.format == "csv":
        lines += [f"separator = {quoted(schema.separator)}", f"header = {str(not schema.fields).lower()}"]
        lines += _lines_of_text(schema)
    if schema.missing:
        lines.append(_list("missing", schema.missing))
    if schema.fields:
        lines.append(_list("fields", schema.fields))
    lines += _lines_of_samples(schema)
    if schema.zone:
        lines.append(f"zone = {quoted(schema.zone)}")
    # Dense columns are a plain list as long as none of them has a setting.
    renamed = dict(schema.renamed)
    if not (schema.floats or schema.untransformed or any(name in renamed for name in schema.dense)):
        lines += [_list("dense", schema.dense), ""]
    else:
        lines += ["", "[dense]", *_entries(schema, schema.dense, _keys_of_dense(schema), notes), ""]
    lines += ["[sparse]", *_entries(schema, schema.sparse, _keys_of_sparse(schema), notes)]
    return "\n".join(lines) + "\n"


def _lines_of_text(schema: Schema) -> Iterator[str]:
    """Yield the keys of the text of a log that are set."""
    for key in _TEXT_KEYS:
        value = getattr(schema, key)
        if key != "separator" and value != _UNSET[key]:
            yield f"{key} = {_value(_NO_QUOTE if value is None else value)}"


def _lines_of_samples(schema: Schema) -> Iterator[str]:
    """Yield the keys of columns that are no features."""
    if schema.labels:
        yield f"labels = [{', '.join(map(_label, schema.labels))}]"
    elif schema.label is not None:
        yield f"label = {_label(LabelRule(schema.label, schema.positive, schema.above))}"
    if schema.time is not None:
        column, unit = schema.time
        format = dict(schema.time_formats).get(SAMPLE_TIME, "")
        yield f"time = {_table('column', column, _if_any(unit=unit, format=format))}"
    if schema.weight is not None:
        yield f"weight = {quoted(schema.weight)}"
    if schema.group is not None:
        column, kind = schema.group
        yield f"group = {_table('column', column, {'kind': kind})}"


def _label(rule: LabelRule) -> str:
    above: dict[str, Any] = {"above": rule.above} if rule.above is not None else {}
    return _table("column", rule.column, above | _if_any(positive=rule.positive))


def _keys_of_dense(schema: Schema) -> dict[str, _Keys]:
    keys_of: dict[str, _Keys] = {}
    for name in schema.dense:
        keys_of[name] = {"kind": "float" if name in schema.floats else "integer"}
        if name in schema.untransformed:
            keys_of[name]["transform"] = "none"
    return keys_of


def _keys_of_sparse(schema: Schema) -> dict[str, _Keys]:
    lists = dict(schema.lists)
    tables = dict(schema.tables)
    # Settings of a table are written with its first feature.
    firsts = {features[0]: table for table, features in schema.features_of_tables.items()}
    min_counts, dims = (
        {name: dict(settings)[table] for name, table in firsts.items() if table in dict(settings)}
        for settings in (schema.min_counts, schema.embedding_dims)
    )
    units = dict(schema.time_units)
    weights = dict(schema.weight_separators)
    formats = dict(schema.time_formats)
    keys_of: dict[str, _Keys] = {name: {"kind": kind} for name, kind in schema.kind_of.items()}
    # Only what differs from the default is written.
    for name, keys in keys_of.items():
        if name in lists:
            keys["list"] = BRACKETS if name in schema.brackets else True
        if lists.get(name):
            keys["separator"] = lists[name]
        if name in weights:
            keys["weight_separator"] = weights[name]
        if name in tables:
            keys["table"] = tables[name]
        if name in min_counts:
            keys["min_count"] = min_counts[name]
        if name in dims:
            keys["embedding_dim"] = dims[name]
        if name in units:
            keys["unit"] = units[name]
        if name in formats:
            keys["format"] = formats[name]
    return keys_of


def _entries(
    schema: Schema, names: Iterable[str], keys_of: dict[str, _Keys], notes: dict[str, str]
) -> Iterator[str]:
    """Yield a line for each column: a kind, a table, or a list of tables for several features."""
    # Columns follow the order of their first feature, each once with all its features.
    features: dict[str, list[str]] = {}
    for name in names:
        features.setdefault(schema.column_of[name], []).append(name)
    for column, of_column in features.items():
        tables = []
        for name in of_column:
            keys = keys_of[name] | ({"name": name} if name != column else {})
            tables.append("{ " + ", ".join(f"{key} = {_value(value)}" for key, value in keys.items()) + " }")
        value = tables[0] if len(tables) == 1 else f"[{', '.join(tables)}]"
        # A feature with nothing but a kind needs no table.
        if len(tables) == 1 and len(keys) == 1:
            value = _value(keys["kind"])
        note = f"  # {notes[of_column[0]]}" if of_column[0] in notes else ""
        yield f"{key_of(column)} = {value}{note}"


def _if_any(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value}


def _table(key: str, value: str, others: Mapping[str, Any]) -> str:
    """Write a value alone where there are no other keys, else a table of them all."""
    if not others:
        return quoted(value)
    keys = {key: value} | dict(others)
    return "{ " + ", ".join(f"{name} = {_value(each)}" for name, each in keys.items()) + " }"


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return quoted(value) if isinstance(value, str) else str(value).lower()


def _list(key: str, names: Iterable[str]) -> str:
    return f"{key} = [{', '.join(map(quoted, names))}]"
