"""The columns of a log: label, dense numbers, sparse categories.

Both public Criteo logs have the same columns and differ in size, so their presets differ in the recipe, not
here. Other logs are described by a file: `schema_file`. This module also checks names, suggests the name that
was probably meant, and reads settings by feature: ``C3=10,C5=2`` on the command line, pairs in a manifest.
"""

from __future__ import annotations

import codecs
import datetime
import json
import re
import zoneinfo
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal
from unicodedata import normalize

from ..errors import ConfigError

KINDS = ("integer", "unsigned", "text", "hex8")
"""Kinds of categories: integers down to -2**63 or up to 2**64 - 1, any text, or 8 hex digits."""
TIME_KINDS = ("hour", "weekday")
"""Kinds of categories that are made from a time: 0 to 23, and 1 for Monday to 7."""
TIME_UNITS = ("s", "ms", "us", "ns")
"""Units of times that are written as numbers since 1970-01-01."""
TIME_CODES = "YymbBdHIpMSfzZaA%"
"""Codes of a time's format, those of Python's strptime. Names of months and days are English."""
LABEL = "label"
"""Column of columns/ and shards/ with the first label."""
NUMBER = "number label"
"""Kind of a label that is any number."""
SAMPLE_TIME = "sample_time"
"""Column of columns/ with the time of each sample."""
WEIGHT = "weight"
"""Column of columns/ and shards/ with the weight of each sample."""
GROUP = "group"
"""Column of columns/ and shards/ with the group of each sample, a number."""
DENSE_KINDS = ("integer", "float")
"""Kinds of dense values: an integer from -2**31 to 2**31 - 1, or a float64."""
TRANSFORMS = ("log1p", "none")
"""Transforms of a dense value: log1p(max(x, 0)), or the nearest float32."""
Pairs = tuple[tuple[str, str], ...]
"""Names of features, in the schema's order, each with a text."""
Settings = tuple[tuple[str, int], ...]
"""Names of features, ascending, each with a number."""


def label_column(name: str) -> str:
    """Return the column of columns/ and shards/ with another label, which the log calls ``name``."""
    return f"{LABEL}_{name}"


@dataclass(frozen=True, slots=True)
class LabelRule:
    """A column of labels, and which of its values are a label of 1; see `Schema`."""

    column: str
    positive: tuple[str | int | float, ...] = ()
    above: float | None = None
    is_number: bool = False
    """Whether a label is any number, and not 0 or 1."""


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of a column are written; the fields of a `Schema` have more on each."""

    unit: str | None = None
    """Unit of times that are numbers."""
    format: str | None = None
    """How times are written."""
    zone: str = ""
    """Time zone of hours and weekdays, empty for UTC."""
    positive: tuple[str | int | float, ...] = ()
    """Values that are a label of 1."""
    above: float | None = None
    """Number above which a value is a label of 1."""
    missing: tuple[str, ...] = ()
    """Texts that stand for a missing value."""


PLAIN = Form()


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is read from a log."""

    name: str
    """Name in columns/, and in shards/ but for the time."""
    column: str
    """Name in the log."""
    kind: str
    """LABEL, NUMBER, SAMPLE_TIME or WEIGHT; of features dense, float, float32 (a float that is not
    transformed), or one of KINDS or TIME_KINDS; of a group one of KINDS."""
    form: Form = PLAIN
    list_form: Any = None
    """How lists are written in text, a ListForm; None for a single value."""
    may_lack: bool = True
    """Whether a sample may have no value."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a log; in Criteo's format also the order of its fields, label first.

    ``dense`` and ``sparse`` are names of features, which are the names of columns but for ``renamed``.
    """

    dense: tuple[str, ...]
    sparse: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    """Kind of each sparse feature, one of KINDS or TIME_KINDS; empty means that all are hex8."""
    label: str | None = "label"
    """Column of the label, None in a log without one."""
    positive: tuple[str | int | float, ...] = ()
    """Values of that column that are a label of 1; any other value is 0. Empty: the label is 0 or 1."""
    above: float | None = None
    """Number above which a value of that column is a label of 1, in place of ``positive``."""
    format: Literal["criteo", "csv", "parquet", "arrow", "orc", "json"] = "criteo"
    separator: str = ","
    """Characters between two fields of a CSV log, 1 to 4."""
    quote: str | None = '"'
    """Character around a field of a CSV log that may hold separators; None where there is none."""
    escape: str | None = None
    """Character of a CSV log before one that is taken as it is; None where there is none."""
    skip: int = 0
    """Lines of a CSV log before its header, or before its first row."""
    comment: str | None = None
    """Beginning of the lines of a CSV log that are comments; None where there are none."""
    trim: bool = False
    """Whether blanks around the fields of a CSV log are left out."""
    missing: tuple[str, ...] = ()
    """Texts that stand for a missing value, in every column but the label's."""
    encoding: str = "utf-8"
    """Encoding of a CSV log, by the name of Python's codec."""
    fields: tuple[str, ...] = ()
    """All columns in order, of a CSV log without a header line."""
    lists: Pairs = ()
    """Sparse features that are list-valued (multi-hot), and the separator of elements in text."""
    brackets: tuple[str, ...] = ()
    """Those of them whose text may have brackets around the list, and quotes around elements."""
    weight_separators: Pairs = ()
    """Those of them whose elements have a weight, which is not used, and what is between the two."""
    floats: tuple[str, ...] = ()
    """Dense features that are floats; the others are integers."""
    untransformed: tuple[str, ...] = ()
    """Dense features whose transform is none; the others' is log1p."""
    renamed: Pairs = ()
    """Features that are not named after their column, and the column."""
    tables: Pairs = ()
    """Sparse features that look up in a table of another name than their own, and the table."""
    min_counts: Settings = ()
    """Tables with a separate ``min_count``: a setting of `rank`, no part of the columns."""
    embedding_dims: Settings = ()
    """Tables with a separate ``embedding_dim``: a setting of `split`."""
    time_units: Pairs = ()
    """Sparse features of TIME_KINDS from times that are numbers, and the unit of these."""
    time_formats: Pairs = ()
    """Sparse features of TIME_KINDS, or SAMPLE_TIME, and how their times are written, in TIME_CODES."""
    zone: str = ""
    """Name of the time zone of hours and weekdays, such as Asia/Shanghai; empty for UTC."""

    time: tuple[str, str] | None = None
    """Column of the time of each sample, by which the log is ordered and divided into parts, and the unit of
    its numbers, or nothing."""
    labels: tuple[LabelRule, ...] = ()
    """Labels that a sample may lack, the one of ``label`` first; empty where there is one that all have."""
    weight: str | None = None
    """Column of the weight of each sample."""
    group: tuple[str, str] | None = None
    """Column of the group of each sample, and its kind, one of KINDS."""

    def columns(self, *, has_label: bool) -> tuple[str, ...]:
        """Return the columns to read, named as in the log: of samples, dense, sparse; each once."""
        of_samples = [each.column for each in self.sample_columns(has_label=has_label)]
        columns = self.column_of
        # Several features may be made from one column.
        return tuple(dict.fromkeys((*of_samples, *(columns[name] for name in self.dense + self.sparse))))

    def sample_columns(self, *, has_label: bool) -> list[Column]:
        """Return the columns with one value for each sample that are no features, labels first."""
        found = []
        if has_label and self.label is not None:
            rules = self.labels or (LabelRule(self.label, self.positive, self.above),)
            # A label that no sample may lack is what it is, whatever stands for a missing value elsewhere.
            may_lack = bool(self.labels)
            missing = self.missing if may_lack else ()
            for number, rule in enumerate(rules):
                form = Form(positive=rule.positive, above=rule.above, missing=missing)
                kind = NUMBER if rule.is_number else LABEL
                name = label_column(rule.column) if number else LABEL
                found.append(Column(name, rule.column, kind, form, may_lack=may_lack))
        plain = Form(missing=self.missing)
        if self.time is not None:
            column, unit = self.time
            form = replace(plain, unit=unit or None, format=dict(self.time_formats).get(SAMPLE_TIME))
            found.append(Column(SAMPLE_TIME, column, SAMPLE_TIME, form, may_lack=False))
        if self.weight is not None:
            found.append(Column(WEIGHT, self.weight, WEIGHT, plain, may_lack=False))
        if self.group is not None:
            found.append(Column(GROUP, *self.group, plain))
        return found

    @property
    def column_of(self) -> dict[str, str]:
        """The column of each feature, as the log names it."""
        columns = dict(self.renamed)
        return {name: columns.get(name, name) for name in self.dense + self.sparse}

    @property
    def kind_of(self) -> dict[str, str]:
        """The kind of each sparse feature's categories."""
        return dict(zip(self.sparse, self.kinds or ("hex8",) * len(self.sparse), strict=True))

    @property
    def features_of_tables(self) -> dict[str, tuple[str, ...]]:
        """The features of each table, in the order of ``sparse``."""
        tables = dict(self.tables)
        found: dict[str, tuple[str, ...]] = {}
        for name in self.sparse:
            table = tables.get(name, name)
            found[table] = (*found.get(table, ()), name)
        return found

    @property
    def one_hot(self) -> tuple[str, ...]:
        """Sparse features with one lookup per sample."""
        lists = dict(self.lists)
        return tuple(name for name in self.sparse if name not in lists)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Columns of all labels, as the log names them."""
        own = (self.label,) if self.label is not None else ()
        return tuple(rule.column for rule in self.labels) or own

    @property
    def of_predicted(self) -> Schema:
        """The schema of a log that is only predicted: what decides nothing about a sample is not read."""
        return replace(self, time=None, weight=None, group=None)

    @property
    def without_settings(self) -> Schema:
        """The schema without settings of later stages."""
        return replace(self, min_counts=(), embedding_dims=())


MAX_NAME_BYTES = 200
RESERVED = ("ids", "label", "dense", "is_hot", "sample_time")
"""Columns that shards have besides those named after a feature."""
DENSE_PREFIX = "dense."
"""Prefix of the names of dense layers' weights in a run, as opposed to those of tables."""
_TAKEN = {
    re.escape(DENSE_PREFIX): f"weights of dense layers begin with {DENSE_PREFIX!r}",
    # Files of a stage are called NAME.arrow, NAME.texts.arrow and fileNNNN-NAME.arrow.
    r".*\.texts\Z": "the texts of a feature are in a file of that name",
    r"file\d{4,}-": "what belongs to one file of a log is named like that",
}
"""Patterns of names that are taken, and by what."""
_RENAME = 'rename the feature: "..." = { kind = ..., name = "..." }'


def check_name(name: str) -> None:
    """Raise ConfigError unless a name fits a file, a shard column and a tensor."""
    # A name becomes a column, a tensor and a file, so it must not be taken in any of them.
    if name in RESERVED:
        raise taken_name(name)
    for pattern, reason in _TAKEN.items():
        if re.match(pattern, name, re.DOTALL):
            raise ConfigError(f"a feature cannot be called {shown(name)}: {reason}", hint=_RENAME)
    if not name or "/" in name or "\0" in name or len(name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(
            f"{shown(name)} cannot be the name of a file: "
            f"want 1 to {MAX_NAME_BYTES} bytes, no slash and no NUL",
            hint=_RENAME,
        )


def taken_name(name: str) -> ConfigError:
    """Return the error for a feature with the name of a column of samples."""
    return ConfigError(
        f"a feature cannot be called {name!r}: shards have a column of that name",
        hint=f'rename it: under [sparse] or [dense], {key_of(name)} = {{ kind = ..., name = "..." }}',
    )


def refuse_twice(names: Sequence[str], what: str = "column") -> None:
    """Raise ConfigError if a name occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"{what} {name!r} is named twice")
        seen.add(name)


def find_columns(wanted: Iterable[str], fields: Iterable[str], source: str) -> list[int]:
    """Return the position of each wanted column among ``fields``.

    Raises:
        ConfigError: ``source`` has no such column, or two of that name.
    """
    # A duplicate name is refused only if it is used: other columns may have any name.
    fields = list(fields)
    positions = {name: position for position, name in enumerate(fields)}
    for name in wanted:
        if name not in positions:
            hint = _twin(name, fields) or nearest(name, fields) or _describe_fields(fields)
            raise ConfigError(f"{source} has no column {name!r}", hint=hint)
        if fields.count(name) > 1:
            raise ConfigError(f"{source} has two columns {name!r}")
    return [positions[name] for name in wanted]


def _twin(name: str, fields: Sequence[str]) -> str | None:
    """Return a hint with the column that has the name in other characters, which look the same."""
    found = (field for field in fields if normalize("NFC", field) == normalize("NFC", name))
    return next((f"it has {json.dumps(field)}, which looks the same: write it so" for field in found), None)


_CRITEO_TABS = (38, 39)
"""Tabs of a line of Criteo's text, without and with a label."""


def _describe_fields(fields: Sequence[str]) -> str:
    """Return a hint with the names of columns; values of a log that has none are not printed."""
    if all(re.fullmatch(r"[A-Za-z_][\w .-]{0,63}", field) for field in fields):
        return f"it has {shown(fields)}"
    if len(fields) == 1 and fields[0].count("\t") in _CRITEO_TABS:
        return "its first line looks like Criteo's text: give --schema criteo-kaggle, or criteo-1tb"
    num_fields = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
    return f"its first line has {num_fields} and no names; `hotset schema LOG` proposes a schema"


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return a hint with the name that ``word`` was probably meant to be."""
    found = get_close_matches(word, list(words), n=1)
    return f"did you mean {found[0]!r}?" if found else None


def zone_named(name: str) -> datetime.tzinfo:
    """Return a time zone of the system's, or tzdata's, database; raises ConfigError where it has none."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, OSError, ValueError):
        known = zoneinfo.available_timezones()
        hint = "this machine has no time zones: pip install tzdata"
        raise ConfigError(
            f"there is no time zone {name!r}",
            hint=(nearest(name, known) or "a name is such as Asia/Shanghai") if known else hint,
        ) from None


def encoding_named(name: str) -> str:
    """Return the name of a text encoding as Python has it."""
    try:
        codec = codecs.lookup(name)
        # Some codecs of Python encode no text, others cannot read it in pieces, or are not for files.
        is_text = codec.incrementaldecoder().decode("a\n".encode(name), True) == "a\n"
        if is_text and not re.search("escape|idna|punycode", codec.name):
            return codec.name.removesuffix("-sig")  # a byte order mark is left out in any case
    except (LookupError, ValueError, TypeError):
        pass
    raise ConfigError(
        f"encoding must be the name of an encoding of text, got {shown(name)}",
        hint="such as utf-8, utf-16, latin-1 or gbk",
    )


def shown(value: Any) -> str:
    """Return a value as a message shows it, cut short."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def key_of(name: str) -> str:
    """Return a name as a key of TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


def quoted(text: str) -> str:
    """Quote a TOML basic string; JSON's escapes are TOML's too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_of(value: Any) -> str:
    """Write a value as TOML, on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_of(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_of, value))}]"
    return quoted(value) if isinstance(value, str) else str(value).lower()


class FeatureSettings(tuple[tuple[str, int], ...]):
    """Pairs of a feature's name and a number, ascending by name; empty sets nothing for any feature."""

    def __new__(cls, pairs: Iterable[Any] = ()) -> FeatureSettings:
        """Take ``pairs`` in any order, as tuples, as the lists of a manifest or as a dictionary."""
        found = pairs.items() if isinstance(pairs, Mapping) else pairs
        try:
            return super().__new__(cls, sorted((str(name), int(number)) for name, number in found))
        except (TypeError, ValueError):
            message = f"want a whole number for each feature, such as {{'C3': 8}}, got {shown(pairs)}"
            raise ConfigError(message) from None


NO_SETTINGS = FeatureSettings()


def check_settings(option: str, settings: FeatureSettings) -> None:
    """Raise ConfigError where a feature is named twice or a number is too small."""
    for name, number in settings:
        if number < 1:
            raise ConfigError(f"{option} must be 1 or more, got {number} for {name!r}")
    refuse_twice([name for name, _ in settings], f"{option}: feature")


def numbers_of(
    option: str,
    settings: FeatureSettings,
    features: Sequence[str],
    default: int,
    *,
    tables: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """Return the number of every feature, ``default`` where ``settings`` have none.

    Args:
        features: names of tables: those of features, where several share a table.
        tables: table of each feature that has one of another name.

    Raises:
        ConfigError: they name a feature that the log does not have, or one without a table of its name.
    """
    for name, number in settings:
        if name not in features and name in (tables or {}):
            table = (tables or {})[name]
            raise ConfigError(
                f"{option} names {name!r}, whose table is {table!r}",
                hint=f"write {table}={number}, which is for all features of that table",
            )
        if name not in features:
            hint = nearest(name, features) or f"the features are {shown(', '.join(features))}"
            raise ConfigError(f"{option} names {name!r}, which is not a feature of this log", hint=hint)
    return dict.fromkeys(features, default) | dict(settings)


def parse_feature_settings(text: str) -> FeatureSettings:
    """Parse ``"C3=10,C5=2"``; raises ConfigError on anything else."""
    pairs = []
    for word in filter(None, text.split(",")):
        # A feature's name may have an equals sign, a number has none.
        name, equals, number = word.rpartition("=")
        if not equals or not name or not (number.isascii() and number.isdigit()):
            raise ConfigError(
                f"found {word!r}, want a feature and a number",
                hint="write FEATURE=NUMBER, separated by commas",
            )
        pairs.append((name, int(number)))
    return FeatureSettings(pairs)


def format_feature_settings(settings: FeatureSettings) -> str:
    """Write settings as `parse_feature_settings` reads them."""
    return ",".join(f"{name}={number}" for name, number in settings)
