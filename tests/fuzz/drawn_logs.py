"""Logs drawn over formats, dialects, types, orders of columns, missing values and lists.

A log has some ten dozen rows: a label, a user and one to four other columns. It knows what was written, so
that any reader can be compared with it. Equal seeds give equal logs.
"""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

FORMATS = ("csv", "csv", "csv", "csv", "parquet", "json")
"""Formats, as often as they are drawn."""
_START = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)
_TIMES = (
    "%Y-%m-%d %H:%M:%S",
    "%Y/%m/%d %H:%M",
    "%Y-%m-%dT%H:%M:%SZ",
    "%d/%b/%Y:%H:%M:%S +0000",
    "%m/%d/%Y %I:%M:%S %p",
    "%Y%m%d%H%M%S",
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M:%S.%f+00:00",
)
_TIMES_WITH_COMMA = ("%a, %d %b %Y %H:%M:%S GMT", "%b %d, %Y %I:%M:%S %p")
"""Where bars are between fields, too, a comma in each row would seem to be there as well."""
_LISTS = ("|", "^", "\x02", " ", "[, ]", "{,}", "[ ]")
_SEPARATORS = (",", "\t", ";", "|", "\x01", "::", "||", "~|~")
_NAMES = ("other", "third", "a b", "prix_été", "x.y", "C1", "ref id")
_COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda content: gzip.compress(content, 1, mtime=0),
    "zstd": lambda content: bytes(pa.compress(content, "zstd", asbytes=True)),
    "bz2": bz2.compress,
}


@dataclass(frozen=True, slots=True)
class Column:
    """The fields of a column, None for a missing value, and what they mean."""

    kind: str
    """Kind that a schema gives it; "time" for hour and weekday, "label" for the label."""
    fields: list[Any]
    """Texts, or values of ``type`` where the format has types."""
    values: list[Any]
    """Labels, numbers, categories as uint64, moments, or lists of these."""
    type: Any = None
    """Type of Arrow; None in a log of text."""

    def without(self, rows: Sequence[int]) -> Column:
        """Return the column with missing values in some rows."""
        fields, values = list(self.fields), list(self.values)
        for row in rows:
            fields[row] = values[row] = None
        return replace(self, fields=fields, values=values)


@dataclass(slots=True)
class Log:
    """A log as somebody wrote it, and the dialect where it is text."""

    columns: dict[str, Column]
    format: str = "csv"
    separator: str = ","
    quote: str | None = '"'
    escape: str | None = None
    has_header: bool = True
    word: str = ""
    """Text of a missing value."""
    end: str = "\n"
    encoding: str = "utf-8"
    pad: str = ""
    titles: list[str] = field(default_factory=list)
    comment: str = ""
    trailing: bool = False
    has_last_end: bool = True
    quotes_all: bool = False
    compression: str = ""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.columns["label"].fields)

    @property
    def content(self) -> bytes:
        """Bytes of the file."""
        if self.format == "parquet":
            return self._parquet()
        content = self.text().encode(self.encoding)
        return _COMPRESSIONS[self.compression](content) if self.compression else content

    def text(self) -> str:
        """Return the text of a log in CSV or JSON Lines."""
        columns = self.columns.values()
        rows = list(zip(*(column.fields for column in columns), strict=True))
        if self.format == "json":
            lines = [json.dumps(dict(zip(self.columns, map(_plain, row), strict=True))) for row in rows]
            return "\n".join(lines) + "\n"
        between, tail = self.separator + self.pad, self.separator if self.trailing else ""
        header = [tuple(self.columns)] if self.has_header else []
        lines = [between.join(map(self._field, row)) + tail for row in [*header, *rows]]
        if self.comment:
            lines[9:9] = [f"{self.comment} a remark"]
            lines[60:60] = [f"{self.comment} another one"]
        return self.end.join([*self.titles, *lines]) + (self.end if self.has_last_end else "")

    def _field(self, text: str | None) -> str:
        if text is None:
            return self.word
        special = [self.separator, "\n", "\r", self.quote or "\0", self.escape or "\0"]
        is_near = text[:1] in self.separator or text[-1:] in self.separator
        is_special = is_near or any(each in text for each in special)
        if self.quote is None or not (is_special or self.quotes_all):
            return text
        if self.escape:
            text = text.replace(self.escape, 2 * self.escape).replace(self.quote, self.escape + self.quote)
        else:
            text = text.replace(self.quote, 2 * self.quote)
        return f"{self.quote}{text}{self.quote}"

    def _parquet(self) -> bytes:
        columns = {name: pa.array(column.fields, column.type) for name, column in self.columns.items()}
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink, row_group_size=50, compression="snappy")
        return sink.getvalue()


def _plain(value: Any) -> Any:
    """Return a value as JSON writes it."""
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value


def draw_log(seed: int) -> Log:
    """Draw a log; the same one for the same seed."""
    luck = Random(seed)
    format = luck.choice(FORMATS)
    drawing = _Drawing(luck, luck.choice([120, 140]))
    return drawing.text_log() if format == "csv" else drawing.typed_log(format)


def hash_of(text: str) -> int:
    """Return the category of a text."""
    return xxhash.xxh3_64_intdigest(text.encode())


@dataclass(slots=True)
class _Drawing:
    luck: Random
    num_rows: int

    def _few(self, draw: Callable[[], Any]) -> list[Any]:
        return list(dict.fromkeys(draw() for _ in range(self.luck.randint(4, 9))))

    def _repeated(self, values: Sequence[Any]) -> list[Any]:
        return [values[(row * 7 + row // 11) % len(values)] for row in range(self.num_rows)]

    @property
    def _moments(self) -> list[datetime.datetime]:
        return [_START + datetime.timedelta(seconds=977 * row) for row in range(self.num_rows)]

    # Columns of text.

    def _integers(self) -> Column:
        least, suffix = self.luck.choice([-5, 0, 10**5]), self.luck.choice(["", "", ".0"])
        numbers = self._repeated([-5, 3, 10**6, *self._few(lambda: self.luck.randint(least, 10**6))])
        return Column("integer", [f"{each}{suffix}" for each in numbers], [each % 2**64 for each in numbers])

    def _floats(self) -> Column:
        numbers = self._repeated([0.25, 7.75, *self._few(lambda: self.luck.randint(1, 10**6) + 0.25)])
        return Column("float", list(map(str, numbers)), numbers)

    def _codes(self) -> Column:
        texts = self._repeated(["00007", "00500", *self._few(lambda: f"{self.luck.randint(0, 9999):05}")])
        return Column("text", texts, list(map(hash_of, texts)))

    def _hex(self) -> Column:
        numbers = [0xA0B0C0D0, *self._few(lambda: self.luck.randint(10 * 2**28, 2**32 - 1))]
        numbers = self._repeated(numbers)
        return Column("hex8", [f"{each:08x}" for each in numbers], numbers)

    def _words(self, extra: str = "") -> Column:
        letters = "abcé☃.- " if "'" in extra else "abcé☃'.- "
        drawn = self._few(lambda: "".join(self.luck.choices(letters, k=self.luck.randint(1, 6))))
        # Blanks at an end and words that mean something are for other tests.
        drawn = [text.strip(" ").lstrip("-.'#") or "none given" for text in drawn]
        texts = ["red", "blue", "green", *drawn]
        # One with marks among many without: else they would look like lists.
        texts = self._repeated([*texts, *texts, f"a{extra}b"])
        return Column("text", texts, list(map(hash_of, texts)))

    def _flags(self) -> Column:
        words = self.luck.choice([("false", "true"), ("False", "True"), ("FALSE", "TRUE")])
        values = self._repeated([0, 1, 1])
        return Column("integer", [words[value] for value in values], values)

    def _times(self, separator: str) -> Column:
        format = self.luck.choice(_TIMES + (_TIMES_WITH_COMMA if separator in ";\t\x01" else ()))
        return Column("time", [moment.strftime(format) for moment in self._moments], self._moments)

    def _unix(self) -> Column:
        ticks = self.luck.choice([1, 1000])
        fields = [str(int(moment.timestamp()) * ticks) for moment in self._moments]
        return Column("time", fields, self._moments)

    def _numbers_in_lists(self) -> list[list[int]]:
        return [[row * 3 % 17, row * 5 % 19, row % 7][: 1 + row % 3] for row in range(self.num_rows)]

    def _lists(self, separator: str) -> Column:
        written = self.luck.choice([form for form in _LISTS if not set(form) & set(separator)])
        marks = ("", written, "") if len(written) == 1 else (written[0], written[1:-1], written[-1])
        lists = self._numbers_in_lists()
        return Column("integer", [marks[1].join(map(str, each)).join(marks[::2]) for each in lists], lists)

    def _label(self, forms: Sequence[tuple[Any, Any]], type: Any = None) -> Column:
        labels = [row * 7 % 3 % 2 for row in range(self.num_rows)]
        words = self.luck.choice(forms)
        return Column("label", [words[label] for label in labels], labels, type)

    def text_log(self) -> Log:
        """Draw a log of text, in any dialect."""
        luck = self.luck
        separator = luck.choice(_SEPARATORS)
        quote, escape = luck.choice([('"', None), ('"', "\\"), (None, None), ("'", None)])
        # What does not have to be in quotes leaves their kind open, and so does an escape that is alone.
        inside = [quote, quote + "\\"] if escape and quote else ["", quote or "", "\n", ","]
        extra = "" if quote is None else separator + luck.choice(inside)
        makers: dict[str, Callable[[], Column]] = {
            "integers": self._integers,
            "floats": self._floats,
            "codes": self._codes,
            "hex": self._hex,
            "times": lambda: self._times(separator),
            "unix": self._unix,
            "lists": lambda: self._lists(separator),
            "words": lambda: self._words(extra + "'" if quote == "'" else extra),
        }
        has_header = luck.random() < 0.67
        makers |= {"flags": self._flags} if has_header else {}  # without names they may be the label
        drawn = [luck.choice(list(makers)) for _ in range(luck.choice([1, 2, 2, 3, 4]))]
        forms = [("0", "1"), ("0", "1"), ("0.0", "1.0"), ("False", "True"), ("no", "yes")]
        users = self._repeated(range(100, 117))
        columns = {
            "user": Column("integer", list(map(str, users)), users),
            # Without names only zeros and ones are a label.
            "label": self._label(forms if has_header else forms[:1]),
        }
        columns |= dict(zip(luck.sample(_NAMES, len(drawn)), (makers[each]() for each in drawn), strict=True))
        log = Log(self._in_any_order(columns), "csv", separator, quote, escape, has_header)
        log.end = luck.choice(["\n", "\n", "\r\n", "\r\r\n"])
        log.encoding = luck.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
        log.pad = luck.choice(["", "", " "]) if "words" not in drawn else ""  # no quote follows a blank
        log.titles = luck.choice([[], [], ["made by job 17"], ["Report", ""]])
        log.comment = luck.choice(["", "", "#", "//"])
        log.trailing = luck.random() < 0.33
        log.has_last_end = luck.random() < 0.5
        log.word = luck.choice(["", "NULL", "nan", "-", *(["\\N"] if escape is None else [])])
        log.quotes_all = quote is not None and not log.pad and luck.random() < 0.2
        log.compression = luck.choice(["", "", "", *_COMPRESSIONS])
        numbers = ("integer", "float")
        log.columns = self._with_holes(log, lambda column: column.kind in numbers or not log.word)
        return log

    def _in_any_order(self, columns: dict[str, Column]) -> dict[str, Column]:
        return {name: columns[name] for name in self.luck.sample(list(columns), len(columns))}

    def _with_holes(self, log: Log, may_be: Callable[[Column], bool]) -> dict[str, Column]:
        holes = range(4, self.num_rows, 9)
        return {
            name: column.without(holes)
            if name not in ("user", "label") and may_be(column) and self.luck.random() < 0.5
            else column
            for name, column in log.columns.items()
        }

    # Columns of a format that has types.

    def _typed(self, kind: str, fields: list[Any], type: Any, value_of: Callable[[Any], Any]) -> Column:
        return Column(kind, fields, [value_of(each) for each in fields], type)

    def _typed_integers(self) -> Column:
        type = self.luck.choice([pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint16(), pa.uint64()])
        least = 0 if pa.types.is_unsigned_integer(type) else -9
        few = self._few(lambda: self.luck.randint(least, 127 if type == pa.int8() else 30_000))
        return self._typed("integer", self._repeated([3, 5, 7, *few]), type, lambda each: each % 2**64)

    def _typed_flags(self) -> Column:
        return self._typed("integer", self._repeated([True, False, False]), pa.bool_(), int)

    def _large_integers(self) -> Column:
        few = [2**63, 2**64 - 1, 7, *self._few(lambda: self.luck.randrange(2**64))]
        return self._typed("unsigned", self._repeated(few), pa.uint64(), int)

    def _typed_floats(self) -> Column:
        few = [0.25, 7.75, *self._few(lambda: self.luck.randint(1, 10**5) + 0.25)]
        return self._typed(
            "float", self._repeated(few), self.luck.choice([pa.float32(), pa.float64()]), float
        )

    def _decimals(self) -> Column:
        few = [Decimal("0.25"), Decimal("7.75"), *self._few(lambda: Decimal(self.luck.randint(1, 10**6)) / 4)]
        return self._typed("float", self._repeated(few), pa.decimal128(18, 2), float)

    def _whole_decimals(self) -> Column:
        few = [Decimal(3), Decimal(5), Decimal(7), *self._few(lambda: Decimal(self.luck.randint(1, 10**9)))]
        return self._typed("integer", self._repeated(few), pa.decimal128(38, 0), int)

    def _strings(self) -> Column:
        letters = "abcé☃'.- \",\\"
        few = self._few(lambda: "".join(self.luck.choices(letters, k=self.luck.randint(1, 6))))
        texts = self._repeated(["red", "blue", "green", "red ", *few])
        type = self.luck.choice(
            [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
        )
        return self._typed("text", texts, type, hash_of)

    def _moments_of_type(self) -> Column:
        unit, zone = self.luck.choice(["s", "ms", "us", "ns"]), self.luck.choice([None, "UTC", "Asia/Tokyo"])
        moments = self._moments if zone else [each.replace(tzinfo=None) for each in self._moments]
        return Column("time", list(moments), self._moments, pa.timestamp(unit, zone))

    def _dates(self) -> Column:
        days = [_START + datetime.timedelta(days=row // 3) for row in range(self.num_rows)]
        return Column("time", [day.date() for day in days], days, pa.date32())

    def _typed_lists(self) -> Column:
        lists = self._numbers_in_lists()
        if self.luck.random() < 0.5:
            return Column(
                "integer",
                list(lists),
                lists,
                self.luck.choice([pa.list_(pa.int64()), pa.large_list(pa.int16())]),
            )
        texts = [[f"t{each}" for each in row] for row in lists]
        return Column("text", list(texts), [list(map(hash_of, row)) for row in texts], pa.list_(pa.string()))

    def typed_log(self, format: str) -> Log:
        """Draw a log of Parquet or of JSON Lines."""
        makers = [self._typed_integers, self._typed_floats, self._strings, self._typed_lists]
        makers += [self._typed_flags, self._large_integers]
        if format == "parquet":
            makers += [self._decimals, self._whole_decimals, self._moments_of_type, self._dates]
        users = self._repeated(range(100, 117))
        forms: list[tuple[Any, Any, Any]] = [
            (0, 1, pa.int8()),
            (0.0, 1.0, pa.float32()),
            (False, True, pa.bool_()),
        ]
        no, yes, type = self.luck.choice(forms)
        drawn = [self.luck.choice(makers)() for _ in range(self.luck.choice([1, 2, 3, 4]))]
        columns = {
            "user": Column("integer", users, users, pa.int64()),
            "label": self._label([(no, yes)], type),
        }
        columns |= dict(zip(self.luck.sample(_NAMES, len(drawn)), drawn, strict=True))
        log = Log(self._in_any_order(columns), format)
        log.columns = self._with_holes(log, lambda column: True)
        if format == "json":
            log.compression = self.luck.choice(["", "", "", *_COMPRESSIONS])
        return log
