"""A schema proposed for a text log reads the values that were written, as Polars does."""

from __future__ import annotations

import datetime
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotset.pipeline.infer_schema import propose_schema
from hotset.pipeline.schema.schema import Schema
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.tests.support.logs.other_logs import columns_in

_NUM_ROWS = 120
_START = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)
_MOMENTS = [_START + datetime.timedelta(seconds=977 * row) for row in range(_NUM_ROWS)]
_FORMATS = (
    "%Y-%m-%d %H:%M:%S",
    "%Y/%m/%d %H:%M",
    "%Y-%m-%dT%H:%M:%SZ",
    "%d/%b/%Y:%H:%M:%S +0000",
    "%m/%d/%Y %I:%M:%S %p",
    "%Y%m%d%H%M%S",
)


@dataclass(frozen=True)
class Column:
    """The texts of a column, None for a missing value, and what they mean."""

    kind: str
    texts: list[str | None]
    values: list[Any]


def _text_hash(text: str | None) -> int | None:
    return None if not text else xxhash.xxh3_64_intdigest(text.encode())


def _repeated(values: list[Any]) -> list[Any]:
    return [values[(row * 7 + row // 11) % len(values)] for row in range(_NUM_ROWS)]


def _integers(draw: st.DrawFn) -> Column:
    numbers = _repeated(draw(st.lists(st.integers(-5, 10**6), min_size=3, max_size=9, unique=True)))
    suffix = draw(st.sampled_from(["", "", ".0"]))
    return Column("integer", [f"{number}{suffix}" for number in numbers], [n % 2**64 for n in numbers])


def _floats(draw: st.DrawFn) -> Column:
    numbers = _repeated(draw(st.lists(st.integers(1, 10**6), min_size=3, max_size=9, unique=True)))
    return Column("float", [f"{n + 0.25}" for n in numbers], [n + 0.25 for n in numbers])


def _codes(draw: st.DrawFn) -> Column:
    texts = _repeated(
        [f"{n:05}" for n in draw(st.lists(st.integers(0, 9999), min_size=3, max_size=9, unique=True))]
    )
    return Column("text", texts, list(map(_text_hash, texts)))


def _hex(draw: st.DrawFn) -> Column:
    numbers = _repeated(
        draw(st.lists(st.integers(10 * 2**28, 2**32 - 1), min_size=3, max_size=9, unique=True))
    )
    numbers[:1] = [0xA0B0C0D0]
    return Column("hex8", [f"{n:08x}" for n in numbers], list(numbers))


def _words(draw: st.DrawFn, extra: str = "") -> Column:
    few = st.text(st.sampled_from("abcé☃.- " if "'" in extra else "abcé☃'.- "), min_size=1, max_size=6)
    texts = ["red", "blue", "green", *draw(st.lists(few, min_size=2, max_size=6))]
    # Blanks at an end and words that mean something are for other tests.
    texts = [text.strip(" ").lstrip("-.'#") or "none given" for text in texts]
    # One with marks among many without: else they would look like lists.
    texts = _repeated([*texts, *texts, f"a{extra}b"])
    return Column("text", list(texts), list(map(_text_hash, texts)))


def _times(draw: st.DrawFn) -> Column:
    format = draw(st.sampled_from(_FORMATS))
    return Column("time", [m.strftime(format) for m in _MOMENTS], list(_MOMENTS))


def _unix(draw: st.DrawFn) -> Column:
    ticks = draw(st.sampled_from([1, 1000]))
    return Column("time", [str(int(m.timestamp()) * ticks) for m in _MOMENTS], list(_MOMENTS))


def _lists(draw: st.DrawFn, field_separator: str) -> Column:
    lists = [[(row * 3) % 17, (row * 5) % 19, row % 7][: 1 + row % 3] for row in range(_NUM_ROWS)]
    forms = ["|", "^", "\x02", " ", "[, ]", "{,}", "[ ]"]
    written = draw(st.sampled_from([form for form in forms if not set(form) & set(field_separator)]))
    opening, separator, closing = (
        ("", written, "") if len(written) == 1 else (written[0], written[1:-1], written[-1])
    )
    texts = [f"{opening}{separator.join(map(str, each))}{closing}" for each in lists]
    return Column("integer", list(texts), [list(each) for each in lists])


@dataclass
class Log:
    """A text log as somebody wrote it."""

    columns: dict[str, Column]
    separator: str
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

    def field_of(self, text: str | None) -> str:
        if text is None:
            return self.word
        special = [self.separator, "\n", "\r", self.quote or "\0", self.escape or "\0"]
        is_near = text[:1] in self.separator or text[-1:] in self.separator
        if self.quote is None or not (is_near or any(each in text for each in special)):
            return text
        if self.escape:
            text = text.replace(self.escape, 2 * self.escape).replace(self.quote, self.escape + self.quote)
        else:
            text = text.replace(self.quote, 2 * self.quote)
        return f"{self.quote}{text}{self.quote}"

    @property
    def content(self) -> bytes:
        between = self.separator + self.pad
        rows = [list(self.columns)] if self.has_header else []
        rows += [list(row) for row in zip(*(c.texts for c in self.columns.values()), strict=True)]
        lines = [
            between.join(map(self.field_of, row)) + (self.separator if self.trailing else "") for row in rows
        ]
        if self.comment:
            lines[9:9] = [f"{self.comment} a remark"]
            lines[60:60] = [f"{self.comment} another one"]
        text = self.end.join([*self.titles, *lines]) + (self.end if self.has_last_end else "")
        return text.encode(self.encoding)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Draw a log with a label, a user and two other columns, in any dialect."""
    separator = draw(st.sampled_from([",", "\t", ";", "|", "\x01", "::", "||", "~|~"]))
    quote, escape = draw(st.sampled_from([('"', None), ('"', "\\"), (None, None), ("'", None)]))
    # What does not have to be in quotes leaves their kind open, and so does an escape that is alone.
    inside = [quote, quote + "\\"] if escape and quote else ["", quote, "\n", ","]
    extra = "" if quote is None else separator + str(draw(st.sampled_from(inside)))
    makers: list[Any] = [_integers, _floats, _codes, _hex, _times, _unix, _lists]
    drawn = [draw(st.sampled_from([*makers, _words])) for _ in range(2)]
    more = {_words: (extra + "'" if quote == "'" else extra,), _lists: (separator,)}
    columns = [make(draw, *more.get(make, ())) for make in drawn]
    labels = [row * 7 % 3 % 2 for row in range(_NUM_ROWS)]
    user = _repeated(list(range(100, 117)))
    named = {
        "user": Column("integer", list(map(str, user)), user),
        "other": columns[0],
        "label": Column("label", list(map(str, labels)), labels),
        "third": columns[1],
    }
    order = draw(st.permutations(list(named)))
    log = Log({name: named[name] for name in order}, separator, quote, escape)
    log.has_header = draw(st.sampled_from([True, True, False]))
    log.end = draw(st.sampled_from(["\n", "\r\n", "\r\r\n"]))
    log.encoding = draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le"]))
    log.pad = draw(st.sampled_from(["", "", " "])) if _words not in drawn else ""  # no quote follows a blank
    log.titles = draw(st.sampled_from([[], [], ["made by job 17"], ["Report", ""]]))
    log.comment = draw(st.sampled_from(["", "", "#", "//"]))
    log.trailing = draw(st.sampled_from([False, False, True]))
    log.has_last_end = draw(st.booleans())
    log.word = draw(st.sampled_from(["", "NULL", "nan", "-", *(["\\N"] if escape is None else [])]))
    for name in ("other", "third"):
        column = named[name]
        is_missing = draw(st.booleans()) and (column.kind in ("integer", "float") or not log.word)
        for row in range(4, _NUM_ROWS, 9) if is_missing else ():
            column.texts[row] = column.values[row] = None
    return log


def expected(column: Column, kind: str, *, is_list: bool) -> list[Any]:
    """Return what columns/ should hold of a column."""
    if kind == "hour":
        return [None if value is None else value.hour for value in column.values]
    if kind == "weekday":
        return [None if value is None else value.isoweekday() for value in column.values]
    if is_list:
        return [[None] if value is None else value for value in column.values]
    return column.values


def check(log: Log) -> None:
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "log"
        raw.write_bytes(log.content)
        proposal = propose_schema(raw)
        schema = proposal.schema
        assert (proposal.num_rows, schema.separator) == (_NUM_ROWS, log.separator)
        read = columns_in(ingest([raw], IngestConfig(schema=proposal.text), Path(folder) / "columns"))
        names = dict(zip(schema.fields, log.columns, strict=False)) if not log.has_header else {}
        for name in schema.dense + schema.sparse:
            column = log.columns[names.get(schema.column_of[name], schema.column_of[name])]
            kind = "float" if name in schema.floats else schema.kind_of[name]
            assert read[name] == expected(column, kind, is_list=name in dict(schema.lists)), name
            assert column.kind in (kind, "time"), name
        assert read["label"] == log.columns["label"].values
        left_out = [each for each in proposal.columns if not each.is_used]
        assert all(each.name in ("unnamed", "", "field5") for each in left_out), left_out
        check_polars(log, schema, raw)


def check_polars(log: Log, schema: Schema, raw: Path) -> None:
    """Hold the fields that Polars finds against what was written, for the dialects that it reads."""
    if (
        len(schema.separator) > 1
        or schema.escape
        or schema.trim
        or schema.encoding != "utf-8"
        or "\r\r" in log.end
    ):
        return
    frame = pl.read_csv(
        raw,
        separator=schema.separator,
        quote_char=schema.quote,
        comment_prefix=schema.comment,
        skip_lines=schema.skip,
        has_header=not schema.fields,
        null_values=list(schema.missing),
        infer_schema=False,
    )
    for column, wanted in zip(frame.iter_columns(), log.columns.values(), strict=False):
        assert [text or None for text in column] == [text or None for text in wanted.texts]


@pytest.mark.parametrize("num_examples", [25, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_proposed_schema_reads_what_was_written(num_examples: int) -> None:
    held = settings(max_examples=num_examples, deadline=None, suppress_health_check=list(HealthCheck))
    held(given(logs())(check))()
