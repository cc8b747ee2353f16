"""Schema files: their keys, reading and writing them as TOML, and those of known logs.

Entries under ``dense`` and ``[sparse]`` are a column's kind, or a table of keys for each of its features.
Labels, the time and the group are the name of a column, or a table with one key more. Errors name every
mistake, and writing gives one canonical form. A config's schema is the name of a built-in schema, or the text
of a schema file. Texts of equal content have one fingerprint, wherever the file is and whatever its comments.

A known log has a file in ``logs/``: a schema, and a table ``[known]``. There, ``header`` has all columns as
they were published, and ``line`` is a pattern that each line matches in a log without names. Splits of one
log may share both.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import xxhash

from ..errors import ConfigError, first_line, local_path
from .schema import (
    DENSE_KINDS,
    KINDS,
    SAMPLE_TIME,
    TIME_CODES,
    TIME_KINDS,
    TIME_UNITS,
    TRANSFORMS,
    LabelRule,
    Schema,
    check_name,
    encoding_named,
    find_columns,
    key_of,
    nearest,
    quoted,
    refuse_twice,
    shown,
    taken_name,
    toml_of,
    zone_named,
)

_FOLDER = Path(__file__).parent / "logs"
KNOWN_LOGS = tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))
"""Names of the known logs."""
_LINE_NUMBERS = ("", "id")
"""Columns, in small letters, that any log may have besides its own: numbers of its lines."""


@dataclass(frozen=True, slots=True)
class KnownLog:
    """What is known of a log besides its columns."""

    schema: dict[str, Any]
    """Keys of its schema file."""
    header: tuple[str, ...] = ()
    """Its columns as published."""
    line: str = ""
    """Pattern of its lines, where they have no names above them."""

    @staticmethod
    @cache
    def read(name: str) -> KnownLog:
        """Return the known log of that name."""
        keys = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        known = keys.pop("known", {})
        return KnownLog(keys, tuple(known.get("header", ())), known.get("line", ""))

    def names_of(self, fields: Sequence[str], wanted: Sequence[str]) -> dict[str, str] | None:
        """Return what ``fields`` call the columns of this log; None where they are those of another one.

        Letters may be small or capital.

        Args:
            fields: names in the first line of a log.
            wanted: columns of this log that must be there.
        """
        actual = {name.lower(): name for name in fields}
        known = {name.lower() for name in self.header}
        if len(actual) != len(fields) or not known or not actual.keys() <= known | set(_LINE_NUMBERS):
            return None
        if not set(map(str.lower, wanted)) <= actual.keys():
            return None
        return {name: actual[name.lower()] for name in wanted}

    def is_line(self, line: str) -> bool:
        """Return whether a line looks like those of this log, which have no names above them."""
        return bool(self.line) and re.fullmatch(self.line, line) is not None


FORMATS = ("csv", "parquet", "arrow", "orc", "json")
"""Formats of a log in a schema file; json is JSON Lines."""
BRACKETS = "brackets"
"""Form of lists in text with brackets around them, such as those of JSON, Python or Postgres."""
UNSET = {each.name: each.default for each in fields(Schema)}
"""What each field of a schema is where its key is not set."""
_MAX_DIM = 1 << 16
_MAX_SKIP = 10_000
_NO_QUOTE = "none"
_LISTS, _TIMES = "a list", f"the kinds {' and '.join(TIME_KINDS)}"
Keys = dict[str, Any]
"""Keys and values as TOML has them; of a feature also its column, its name and its table."""


@dataclass(frozen=True, slots=True)
class Key:
    """What the value of a key may be."""

    wanted: str
    fits: Callable[[Any], bool]
    of: str = ""
    """The only features that may have it, where these are not all."""
    words: Sequence[str] = ()
    """All values, of a key that has few."""
    others: Mapping[str, Key] = field(default_factory=dict)
    """What may stand beside ``column`` in a table in place of the name of a column."""

    def check(self, value: Any, name: str) -> None:
        """Raise ConfigError where a value does not fit."""
        if not self.fits(value):
            raise ConfigError(f"{name} must be {self.wanted}, got {shown(value)}")
        for key in value if self.others and isinstance(value, dict) else ():
            if key != "column":
                self.others[key].check(value[key], f"{key} of {name}")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _text(pattern: str, wanted: str, of: str = "") -> Key:
    return Key(wanted, lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value)), of)


def _one_of(words: Sequence[str], of: str = "") -> Key:
    return Key(f"one of {', '.join(words)}", lambda value: value in words, of, words)


def _whole(least: int, most: int, wanted: str) -> Key:
    return Key(wanted, lambda value: type(value) is int and least <= value <= most)


def _list_of(fits: Callable[[Any], bool], wanted: str, least: int = 0) -> Key:
    return Key(
        wanted, lambda value: isinstance(value, list) and len(value) >= least and all(map(fits, value))
    )


def _column_or_table(wanted: str, **others: Key) -> Key:
    def fits(value: Any) -> bool:
        is_table = isinstance(value, dict) and value.keys() <= {"column", *others} and len(value) < 3
        return _is_name(value.get("column") if is_table else value)

    return Key(wanted, fits, others=others)


_SWITCH = Key("true or false", lambda value: isinstance(value, bool))
_NAME = Key("a name", lambda value: isinstance(value, str))
_MARK = _text(r'[^"\r\n\0]{1,4}', "1 to 4 characters, none of them a quote or a line end", _LISTS)
_UNIT = _one_of(TIME_UNITS, _TIMES)
_FORMAT = Key("codes such as %Y-%m-%d %H:%M:%S", _is_name, _TIMES)
_BYTE = r"[^\r\n\0\x80-\U0010ffff]"
TEXT_KEYS = {
    "separator": _text(r"[^\r\n\0]{1,4}", "1 to 4 characters of a line"),
    "quote": _text(f"{_BYTE}|{_NO_QUOTE}", f"one ASCII character, or {_NO_QUOTE}"),
    "escape": _text(_BYTE, "one ASCII character"),
    "skip": _whole(0, _MAX_SKIP, f"0 to {_MAX_SKIP} lines"),
    "comment": _text(r"[^\r\n\0]{1,8}", "1 to 8 characters of a line"),
    "trim": _SWITCH,
    "encoding": Key("the name of an encoding", lambda value: isinstance(value, str)),
}
"""Keys of the text of a CSV log."""
_CSV_ONLY = {"header": _SWITCH, "fields": _list_of(_is_name, "a list of column names"), **TEXT_KEYS}
KEYS = {
    "format": Key("", lambda value: True),  # which decides what other keys there may be
    **_CSV_ONLY,
    "missing": _list_of(_is_name, 'a list of texts, such as ["NULL"]'),
    "label": _column_or_table(
        '"NAME", { column = "NAME", above = 3 } or { column = "NAME", positive = ["yes"] }',
        above=Key("a number", _is_number),
        positive=_list_of(
            lambda each: _NAME.fits(each) or _is_number(each), "a list of texts and numbers", 1
        ),
        kind=_one_of(("float",)),
    ),
    "labels": _list_of(lambda value: True, "a list of columns", 1),
    "time": _column_or_table(
        'the name of a column, or { column = "NAME", unit = "s" }, '
        'or { column = "NAME", format = "%Y/%m/%d" }',
        unit=_UNIT,
        format=_FORMAT,
    ),
    "weight": Key("the name of a column", _is_name),
    "group": _column_or_table(
        'the name of a column, or { column = "NAME", kind = "text" }', kind=_one_of(KINDS)
    ),
    "zone": _text(r"([A-Za-z][A-Za-z0-9_+/-]*)?", 'the name of a time zone such as "Asia/Shanghai"'),
    "dense": Key(
        "a list of column names, or a table of column = kind",
        lambda value: isinstance(value, dict) or (isinstance(value, list) and all(map(_NAME.fits, value))),
    ),
    "sparse": Key('a table of column = "kind"', lambda value: isinstance(value, dict)),
}
"""Keys of the file itself."""
_DENSE_KEYS = {
    "kind": _one_of(DENSE_KINDS),
    "transform": Key(" or ".join(TRANSFORMS), lambda value: value in TRANSFORMS),
    "name": _NAME,
}
_SPARSE_KEYS = {
    "kind": _one_of((*KINDS, *TIME_KINDS)),
    "list": Key(f'true, false or "{BRACKETS}"', lambda value: value == BRACKETS or isinstance(value, bool)),
    "separator": _MARK,
    "weight_separator": _MARK,
    "table": _NAME,
    "min_count": _whole(1, 2**63 - 1, "a whole number, 1 or more"),
    "embedding_dim": _whole(1, _MAX_DIM, f"a whole number from 1 to {_MAX_DIM}"),
    "unit": _UNIT,
    "format": _FORMAT,
    "name": _NAME,
}


def read_keys(keys: Mapping[str, Any], formats: Sequence[str] = FORMATS) -> Schema:
    """Return the schema that a file describes; raises ConfigError on the first mistake."""
    # Check unknown keys first: a slip in their names explains most other faults.
    for key in keys:
        if key not in KEYS:
            raise ConfigError(f"unknown key {key!r}", hint=nearest(key, KEYS))
    # The format is next, because it decides which other keys are allowed.
    format = keys.get("format")
    if format not in formats:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {shown(format)}")
    for key, value in keys.items():
        if key in _CSV_ONLY and format != "csv":
            raise ConfigError(f"{key} is for csv, and the format is {format}")
        KEYS[key].check(value, key)
    if not keys.get("sparse"):
        raise ConfigError("sparse names no column", hint='under [sparse], write a line: column = "text"')
    sparse = _by_table(_entries(keys["sparse"], _SPARSE_KEYS))
    schema = _with_features(keys, _entries(keys.get("dense", []), _DENSE_KEYS), sparse)
    # A feature cannot have the name of a column that samples have in shards.
    taken = {each.name for each in schema.sample_columns(has_label=True)}
    for name in (*schema.dense, *schema.sparse):
        if name in taken:
            raise taken_name(name)
    # A log without a header line has each of the columns.
    if schema.fields:
        find_columns(schema.columns(has_label=True), schema.fields, "fields")
    return schema


def _entries(section: Any, known: Mapping[str, Key]) -> list[Keys]:
    """Return the features of ``dense``, where a list is one of integers, or of ``[sparse]``."""
    if isinstance(section, list):
        refuse_twice(section)
        section = dict.fromkeys(section, "integer")
    found = []
    for column, value in section.items():
        # A list of tables is one feature each.
        are_tables = isinstance(value, list) and value and all(isinstance(each, dict) for each in value)
        found += [_entry(column, each, known) for each in (value if are_tables else [value])]
    return found


def _entry(column: str, value: Any, known: Mapping[str, Key]) -> Keys:
    """Return the keys of one feature; a kind alone is short for a table of this one key."""
    found = value if isinstance(value, dict) else {"kind": value}
    where = f"column {column!r}"
    for key in found:
        if key not in known:
            raise ConfigError(f"{where} has an unknown key {key!r}", hint=nearest(key, known))
    # The kind first: a list written as a kind gets a hint.
    kind = found.get("kind")
    if not known["kind"].fits(kind):
        hint = nearest(kind, known["kind"].words) if isinstance(kind, str) else None
        if isinstance(kind, list) or (isinstance(kind, str) and kind.startswith("list")):
            hint = 'a list-valued column is written column = { kind = "text", list = true }'
        raise ConfigError(f"{where} must be {known['kind'].wanted}, got {shown(kind)}", hint=hint)
    # Then each key alone, then those that depend on others.
    for key, each in found.items():
        known[key].check(each, f"{where}: {key}")
    _check_together(found, known, where)
    entry = {"column": column, "name": column, **found}
    entry.setdefault("table", entry["name"])
    check_name(entry["name"])
    check_name(entry["table"])
    return entry


def _check_together(found: Keys, known: Mapping[str, Key], where: str) -> None:
    is_time, is_list = found["kind"] in TIME_KINDS, bool(found.get("list"))
    if is_time and is_list:
        raise ConfigError(f"{where}: a list cannot have the kind {found['kind']}")
    for key in found:
        of = known[key].of
        if of and not {_LISTS: is_list, _TIMES: is_time}[of]:
            raise ConfigError(f"{where}: {key} is for {of}")
    if "separator" in found and found["separator"] == found.get("weight_separator"):
        raise ConfigError(f"{where}: separator and weight_separator are the same")
    if "unit" in found and "format" in found:
        raise ConfigError(f"{where}: a time has a unit or a format, not both")
    if "format" in found:
        _check_time_format(found["format"], found["kind"], where)


def _check_time_format(format: str, kind: str, where: str) -> None:
    """Raise ConfigError where a format has an unknown code, or lacks what a kind of time needs."""
    codes = re.findall(r"%(.?)", format, re.DOTALL)
    for code in codes:
        if code not in TIME_CODES or not code:
            known = " ".join(f"%{each}" for each in TIME_CODES)
            raise ConfigError(f"{where}: format has an unknown code {shown('%' + code)}", hint=f"use {known}")
    needs_date = kind != "hour" or bool({"Y", "y", "d"} & set(codes))
    for wanted in (*(("Yy", "mbB", "d") if needs_date else ()), *(("HI",) if kind == "hour" else ())):
        if not set(wanted) & set(codes):
            names = " or ".join(f"%{each}" for each in wanted)
            raise ConfigError(f"{where}: format {shown(format)} lacks {names}, which the kind {kind} needs")


def _by_table(sparse: list[Keys]) -> list[Keys]:
    """Return the features of a table next to each other, tables in the order of their first feature."""
    # A column is written once, with all its features: the order is one that writing and reading keep.
    while True:
        ordered = _grouped(sparse, "table")
        written = _grouped(ordered, "column")
        if written == sparse:
            return ordered
        sparse = written


def _grouped(entries: list[Keys], key: str) -> list[Keys]:
    firsts: dict[str, int] = {}
    return sorted(entries, key=lambda entry: firsts.setdefault(entry[key], len(firsts)))


def _check_tables(sparse: list[Keys]) -> None:
    """Raise ConfigError where features cannot share the table that they name."""
    entry_of = {entry["name"]: entry for entry in sparse}
    said: dict[tuple[str, str], Keys] = {}
    for entry in sparse:
        table = entry["table"]
        owner = entry_of.get(table, entry)
        if owner["table"] != table:
            raise ConfigError(
                f"feature {entry['name']!r} has the table {table!r}, and that feature has another one",
                hint=f'write table = "{owner["table"]}" for both',
            )
        # Ids, counts and rows of a table are the same for all its features.
        for key in ("kind", "min_count", "embedding_dim"):
            first = said.setdefault((table, key), entry) if key in entry else entry
            if first.get(key) != entry.get(key):
                raise ConfigError(
                    f"features {first['name']!r} and {entry['name']!r} have one table, {table!r}, "
                    f"and the {key} {first[key]} and {entry[key]}",
                    hint=f"give them the same {key}, or different tables",
                )


def _with_features(keys: Mapping[str, Any], dense: list[Keys], sparse: list[Keys]) -> Schema:
    label = _labels(keys)
    # Neither a column nor a feature's name may occur twice, but a sparse column may have several features.
    columns = [entry["column"] for entry in dense] + list(dict.fromkeys(entry["column"] for entry in sparse))
    labels = [rule.column for rule in label["labels"]] or [label["label"]]
    refuse_twice([*(name for name in labels if name is not None), *columns])
    refuse_twice([entry["name"] for entry in dense + sparse], "feature")
    _check_tables(sparse)
    time = _table_of(keys.get("time"))
    if "format" in time:
        _check_time_format(time["format"], "time", "time")
    lists = [entry for entry in sparse if entry.get("list")]
    zone = keys.get("zone", "")

    def pairs(key: str) -> tuple[tuple[str, Any], ...]:
        return tuple((entry["name"], entry[key]) for entry in dense + sparse if key in entry)

    def of_tables(key: str) -> tuple[tuple[str, int], ...]:
        # Of a shared table the setting of one feature is that of all.
        return tuple(sorted({entry["table"]: entry[key] for entry in sparse if key in entry}.items()))

    return Schema(
        dense=tuple(entry["name"] for entry in dense),
        sparse=tuple(entry["name"] for entry in sparse),
        kinds=tuple(entry["kind"] for entry in sparse),
        format=keys["format"],
        fields=_fields(keys),
        missing=tuple(keys.get("missing", ())),
        **_text_keys(keys),
        lists=tuple((entry["name"], _separator_of(entry, keys["format"])) for entry in lists),
        brackets=tuple(entry["name"] for entry in lists if entry["list"] == BRACKETS),
        weight_separators=pairs("weight_separator"),
        floats=tuple(entry["name"] for entry in dense if entry["kind"] == "float"),
        untransformed=tuple(entry["name"] for entry in dense if entry.get("transform") == "none"),
        renamed=tuple(
            (entry["name"], entry["column"]) for entry in dense + sparse if entry["name"] != entry["column"]
        ),
        tables=tuple((entry["name"], entry["table"]) for entry in sparse if entry["name"] != entry["table"]),
        min_counts=of_tables("min_count"),
        embedding_dims=of_tables("embedding_dim"),
        time=(time["column"], time.get("unit", "")) if time else None,
        weight=keys.get("weight"),
        group=_group_of(keys, sparse),
        time_units=pairs("unit"),
        time_formats=(*(((SAMPLE_TIME, time["format"]),) if "format" in time else ()), *pairs("format")),
        zone=zone if zone != "UTC" else "",
        **label,
    )


def _separator_of(entry: Keys, format: str) -> str:
    """Return what is between the elements of a list in text of a log; "" where lists are no text."""
    plain = "," if entry["list"] == BRACKETS else "|" if format == "csv" else ""
    return str(entry.get("separator", plain))


def _table_of(value: Any) -> Keys:
    """Return a column of samples as a table, which a name alone is short for; nothing of None."""
    return {"column": value} if isinstance(value, str) else dict(value or {})


def _labels(keys: Mapping[str, Any]) -> Keys:
    """Return the fields of a schema that say what the labels are: of ``label``, or of ``labels``."""
    if "label" in keys and "labels" in keys:
        raise ConfigError(
            "label and labels exclude each other", hint="leave label out: labels names all of them"
        )
    rules = []
    for value in keys.get("labels", [keys["label"]] if "label" in keys else []):
        KEYS["label"].check(value, "label")
        table = _table_of(value)
        # A whole number is an integer, so that 1 and 1.0 are one setting.
        positive = (
            int(each) if not isinstance(each, str) and each == int(each) else each
            for each in table.get("positive", ())
        )
        above = float(table["above"]) if "above" in table else None
        rules.append(LabelRule(table["column"], tuple(positive), above, "kind" in table))
    if not rules:
        return {"label": None, "labels": ()}
    if "label" in keys and rules[0].is_number:
        raise ConfigError(
            "label is 0 or 1", hint='numbers are kept by labels = [{ column = "NAME", kind = "float" }]'
        )
    first = {"label": rules[0].column, "positive": rules[0].positive, "above": rules[0].above}
    return first | {"labels": tuple(rules) if "labels" in keys else ()}


def _group_of(keys: Mapping[str, Any], sparse: Sequence[Keys]) -> tuple[str, str] | None:
    """Return the column of ``group`` and its kind: as said, or that of its features with one category."""
    group = _table_of(keys.get("group"))
    if not group:
        return None
    column = group["column"]
    of_features = {entry["kind"] for entry in sparse if entry["column"] == column and not entry.get("list")}
    kinds = {group["kind"]} if "kind" in group else of_features & set(KINDS)
    if len(kinds) != 1:
        written = f'group = {{ column = {quoted(column)}, kind = "text" }}'
        raise ConfigError(
            f"group must say the kind of column {column!r}, which no feature decides",
            hint=f"write {written}, or one of {', '.join(KINDS)}",
        )
    return column, kinds.pop()


def _fields(keys: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of all columns of a log without a header, which are the header that it lacks."""
    has_header, names = keys.get("header", True), keys.get("fields", [])
    if has_header and names:
        raise ConfigError("fields is for a log with header = false")
    if not has_header and not names:
        raise ConfigError("a log with header = false needs fields, the names of all its columns in order")
    refuse_twice(names)
    refuse_twice(keys.get("missing", []), "missing: text")
    return tuple(names)


def _text_keys(keys: Mapping[str, Any]) -> Keys:
    """Return the fields of a Schema that say how the text of a log is read."""
    found = {key: keys[key] for key in TEXT_KEYS if key in keys}
    if found.get("quote") == _NO_QUOTE:
        found["quote"] = None
    if "encoding" in found:
        found["encoding"] = encoding_named(found["encoding"])
    # A character can mean one thing only.
    marks = {key: found.get(key, UNSET[key]) for key in ("quote", "separator", "escape")}
    for key, other in (("quote", "separator"), ("escape", "separator"), ("escape", "quote")):
        if marks[key] and marks[other] and marks[key] in marks[other]:
            hint = "a quote that is doubled inside quotes needs no escape" if other == "quote" else None
            raise ConfigError(f"{key} and {other} share the character {marks[key]!r}", hint=hint)
    return found


def keys_of(schema: Schema) -> Keys:
    """Return the keys of a schema as `read_keys` reads them, without those that have their default."""
    found: Keys = {"format": schema.format}
    if schema.format == "csv":
        found |= {"separator": schema.separator, "header": not schema.fields}
        values = {key: getattr(schema, key) for key in TEXT_KEYS}
        found |= {key: value for key, value in values.items() if value != UNSET[key]}
        if schema.quote is None:
            found["quote"] = _NO_QUOTE
    own = (LabelRule(schema.label, schema.positive, schema.above),) if schema.label is not None else ()
    labels = [
        _short(
            column=rule.column,
            above=rule.above,
            positive=list(rule.positive),
            kind="float" if rule.is_number else None,
        )
        for rule in schema.labels or own
    ]
    time, unit = schema.time or ("", "")
    group, kind = schema.group or ("", "")
    found |= _filled(
        missing=list(schema.missing),
        fields=list(schema.fields),
        labels=labels if schema.labels else None,
        label=labels[0] if own and not schema.labels else None,
        time=_short(column=time, unit=unit, format=dict(schema.time_formats).get(SAMPLE_TIME)),
        weight=schema.weight,
        group=_short(column=group, kind=kind),
        zone=schema.zone,
    )
    # Dense columns are a plain list as long as none of them has a setting.
    dense = _columns(schema, schema.dense)
    is_plain = all(entry == "integer" for entry in dense.values())
    return found | {"dense": list(dense) if is_plain else dense, "sparse": _columns(schema, schema.sparse)}


def _columns(schema: Schema, names: Iterable[str]) -> Keys:
    """Return the entries of columns, in the order of their first feature."""
    lists, weights, tables = dict(schema.lists), dict(schema.weight_separators), dict(schema.tables)
    units, formats = dict(schema.time_units), dict(schema.time_formats)
    counts, dims = dict(schema.min_counts), dict(schema.embedding_dims)
    # Settings of a table are those of its first feature.
    firsts = {features[0]: table for table, features in schema.features_of_tables.items()}
    kinds = dict.fromkeys(schema.dense, "integer") | dict.fromkeys(schema.floats, "float") | schema.kind_of
    columns = schema.column_of
    found: dict[str, list[Keys]] = {}
    for name in names:
        keys = _filled(
            kind=kinds[name],
            transform="none" if name in schema.untransformed else None,
            list=BRACKETS if name in schema.brackets else name in lists,
            separator=lists.get(name),
            weight_separator=weights.get(name),
            table=tables.get(name),
            min_count=counts.get(firsts.get(name, "")),
            embedding_dim=dims.get(firsts.get(name, "")),
            unit=units.get(name),
            format=formats.get(name),
            name=name if name != columns[name] else None,
        )
        found.setdefault(columns[name], []).append(keys)
    return {column: entry_of(features) for column, features in found.items()}


def entry_of(features: Sequence[Keys]) -> Any:
    """Return the entry of a column with these features: a kind, a table, or a list of tables."""
    return _short(**features[0]) if len(features) == 1 else list(features)


def _filled(**keys: Any) -> Keys:
    """Return the keys that have a value, which may be a zero."""
    return {key: value for key, value in keys.items() if value or type(value) in (int, float)}


def _short(**keys: Any) -> Any:
    """Return the keys that have a value, as a table; of one key its value alone."""
    found = _filled(**keys)
    return found if len(found) != 1 else next(iter(found.values()))


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
    return read_schema(setting) if "\n" in setting else schema_named(setting)


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


@lru_cache(maxsize=16)  # stages ask for it with every part
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
