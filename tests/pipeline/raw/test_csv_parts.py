"""Logs of text as people have them: read whole or in parts of any size, with the right lines and values.

Tests `text_parts`, too.

Records of text: fields against a naive twin, and cuts that do not depend on where blocks end.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ByteSize, FormatError, InputError
from hotset.pipeline.raw import part as part_module
from hotset.pipeline.raw.csv_parts import RecordCuts, find_records, read_header
from hotset.pipeline.raw.log_parts import kept_columns, open_parts
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import Schema
from hotset.pipeline.schema.schema_file import read_schema
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.tests.fuzz.fuzz_text import GuardedText, check_fields, dialect_of_marks
from hotset.tests.support.logs.other_logs import columns_in
from hotset.tests.support.logs.text_with_marks import MARKS, rows_of, text_of
from hotset.tests.support.naive.naive_fields import Marks, naive_records

FIELDS = ("a", "b", "c")


def schema_with(marks: Marks, **changes: Any) -> Schema:
    settings: dict[str, Any] = {
        "dense": (),
        "sparse": ("c", "a"),
        "kinds": ("text", "text"),
        "label": None,
        "format": "csv",
        "fields": FIELDS,
        "separator": marks.separator.decode(),
        "quote": marks.quote.decode() or None,
        "escape": marks.escape.decode() or None,
        "comment": marks.comment.decode() or None,
        "trim": marks.trim,
    }
    return Schema(**settings | changes)


@dataclass
class Found:
    """What the parts of a log hold."""

    rows: list[tuple[Any, ...]]
    num_bad: int = 0
    num_lines: int = 0
    """Lines of the file, as its parts count them."""
    fault_line: int | None = None
    """Line of the first fault, from 0."""
    is_refused: bool = False


def read_parts(path: Path, schema: Schema, block_bytes: int) -> Found:
    parts = open_parts(
        RawFile.inspect(path), 0, schema, block_bytes=block_bytes, has_label=False, strict=False
    )
    found = Found([], num_lines=parts.num_header_lines)
    for unread in parts.iterate({}):
        part = unread.read()
        if part is None:
            continue
        if part.fault is not None and found.fault_line is None:
            found.fault_line = found.num_lines + part.fault.line_in_block
        found.rows += zip(*(part.columns[name].to_pylist() for name in schema.sparse), strict=True)
        found.num_bad += part.bad.total()
        found.num_lines += part.num_samples + part.bad.total() + part.num_other_lines
        found.is_refused |= part.disorder is not None
    return found


def naive_found(text: bytes, marks: Marks) -> Found:
    records, broken = naive_records(text, marks)
    whole = [record for _, record in records if len(record) == len(FIELDS)]
    bad = [line for line, record in records if len(record) != len(FIELDS)]
    rows = [
        tuple(xxhash.xxh3_64_intdigest(row[field]) if row[field] else None for field in (2, 0))
        for row in whole
    ]
    lines = bad + ([broken[1]] if broken else [])
    return Found(rows, len(bad), text.count(b"\n"), lines[0] if lines else None, broken is not None)


LOGS = MARKS.flatmap(
    lambda marks: st.tuples(st.just(marks), st.one_of(rows_of(marks), rows_of(marks), text_of(marks)))
)


def check_parts(log: tuple[Marks, bytes], block_bytes: int, form: str, above: bytes) -> None:
    marks, text = log[0], log[1] or b"\n"
    schema = schema_with(marks, skip=above.count(b"\n"))
    data = above + text
    if form in ("utf-16", "latin-1"):
        above, schema = above.replace(b"\xef", b"").replace(b"\xbb\xbf", b""), replace(schema, encoding=form)
        if not marks.separator.isascii():
            return
        data = (above + text).decode("ascii").encode(form)
    wanted = naive_found(text, marks)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "log.csv")
        path.write_bytes(gzip.compress(data, mtime=0) if form == "gzip" else data)
        if form == "pieces":
            patch.setattr(part_module, "MAX_PIECE_BYTES", 7)
        found = read_parts(path, schema, block_bytes)
        if not wanted.is_refused:
            files = [RawFile.inspect(path)]
            kept = kept_columns(files, schema, ["b"], block_bytes=block_bytes, has_label=False)
            texts = [row["b"].encode() for batch in kept for row in batch.to_pylist()]
            rows = [record for _, record in naive_records(text, marks)[0]]
            assert texts == [row[1] if len(row) > 1 else b"" for row in rows]
    assert found.is_refused == wanted.is_refused
    lines = above.count(b"\n")
    assert found.fault_line == (None if wanted.fault_line is None else wanted.fault_line + lines)
    # Up to a quote that is wrong, after which nothing is read.
    assert (found.rows, found.num_bad) == (wanted.rows, wanted.num_bad)
    assert wanted.is_refused or found.num_lines == wanted.num_lines + lines


@pytest.mark.parametrize("max_examples", [50, pytest.param(150, marks=pytest.mark.slow)])
def test_parts_of_any_size_hold_the_rows_of_the_whole_file(max_examples: int) -> None:
    drawn = given(
        LOGS,
        st.one_of(st.integers(1, 40), st.just(1 << 20)),
        st.sampled_from(["plain", "pieces", "gzip", "utf-16", "latin-1"]),
        st.sampled_from([b"", b'skipped, "\n\xef\n', b"\xef\xbb\xbf"]),
    )
    settings(max_examples=max_examples)(drawn(check_parts))()


HEAD = 'format = "csv"\nlabel = "label"\n'
SPARSE = '[sparse]\nuser = "integer"\nquery = "text"\n'
ROWS = [(1000 + n * 7 % 40, ("one", "two", "three")[n % 3], n * 3 % 2) for n in range(30)]


def lines_of(rows: Sequence[tuple[Any, ...]], separator: str = ",", end: str = "\n") -> str:
    return "".join(separator.join(map(str, row)) + end for row in rows)


def in_quotes(text: str, rows: Sequence[tuple[Any, ...]] = ROWS) -> list[tuple[Any, ...]]:
    """The rows with another text for one query of three."""
    return [(user, text if query == "two" else query, label) for user, query, label in rows]


NAMES = "user,query,label\n"
PLAIN = lines_of(ROWS)
CONTROL_A = 'separator = "\\u0001"'
NO_HEADER = 'header = false\nfields = ["user", "query", "label"]'
NO_QUOTES = 'quote = "none"'
CHINESE = "乗亅"
FORMS: dict[str, tuple[str | bytes, str]] = {
    # Blanks around fields.
    "blanks": ("user, query, label\n" + lines_of(ROWS, ", "), "trim = true"),
    "blanks and tabs": ("user \t;query;label  \n" + lines_of(ROWS, " \t; "), 'separator = ";"\ntrim = true'),
    "blanks around quotes": (NAMES + lines_of(in_quotes(' "two" ')), "trim = true"),
    "padded columns": (
        "user |query |label\r\n" + lines_of(ROWS, " | ", "  \r\n"),
        'separator = "|"\ntrim = true',
    ),
    # Separators of several characters.
    "double colon": ("user::query::label\n" + lines_of(ROWS, "::"), 'separator = "::"'),
    "bars": ("user|||query|||label\n" + lines_of(in_quotes('"two"'), "|||"), 'separator = "|||"'),
    "no ascii": ("user¦query¦label\n" + lines_of(ROWS, "¦"), 'separator = "¦"'),
    "control character": ("user\x01query\x01label\n" + lines_of(ROWS, "\x01"), CONTROL_A),
    # Lines that are no rows.
    "comment above": ("# made by job 7\n" + NAMES + PLAIN, 'comment = "#"'),
    "comments with quotes": ('--"\n' + NAMES + PLAIN.replace("\n", '\n--it"s\n'), 'comment = "--"'),
    "comment at the end": (NAMES + PLAIN + "// 30 rows", 'comment = "//"'),
    "titles": ('Report: "clicks\n\n' + NAMES + PLAIN, "skip = 2"),
    "names to replace": ("u,u,u\n" + PLAIN, f"skip = 1\n{NO_HEADER}"),
    "sep=": ("sep=;\nuser;query;label\n" + lines_of(ROWS, ";"), 'separator = ";"\nskip = 1'),
    # Empty lines.
    "empty line at the end": (NAMES + PLAIN + "\n", ""),
    "empty lines": ("\n\r\n" + NAMES + "\n" + PLAIN.replace("\n", "\n\r\n\n"), ""),
    "no line end": (NAMES + PLAIN.rstrip("\n"), ""),
    "empty lines and no line end": (NAMES + PLAIN + "\n\n\r", ""),
    # Line ends and marks.
    "three bytes": (NAMES.replace("\n", "\r\r\n") + lines_of(ROWS, end="\r\r\n"), ""),
    "mark": ("\ufeff" + NAMES + PLAIN, ""),
    "mark and quotes": ('\ufeff"user","query","label"\n' + PLAIN, ""),
    "mark without names": ("\ufeff" + PLAIN, NO_HEADER),
    # Quotes.
    "line breaks": (NAMES + lines_of(in_quotes('"t\n\nw,o"')), ""),
    "line breaks that look right": (NAMES + lines_of(in_quotes('"t\n1,x,1\n2,y,0\n"')), ""),
    "line breaks in the header": (
        'user,"query",label,"an\nother"\n' + lines_of([(*row, "") for row in ROWS]),
        "",
    ),
    "other quotes": (NAMES + lines_of(in_quotes("'t''w\",\no'")), 'quote = "\'"'),
    "escaped quotes": (NAMES + lines_of(in_quotes('"t\\"w\\\\\\", o"')), "escape = '\\'"),
    "escapes without quotes": (NAMES + lines_of(in_quotes("t\\,w\\\\o")), "escape = '\\'\nquote = \"none\""),
    "other escapes": (NAMES + lines_of(in_quotes('"t^"w^^o"')), 'escape = "^"'),
    "escaped line breaks": (NAMES + lines_of(in_quotes('"t\\\nw\\"o"')), "escape = '\\'"),
    "no quotes": (NAMES + lines_of(in_quotes('"two')), NO_QUOTES),
    "no quotes, tabs": (
        "user\tquery\tlabel\n" + lines_of(in_quotes('5" tv "'), "\t"),
        'separator = "\\t"\nquote = "none"',
    ),
    "quotes inside": (NAMES + lines_of(in_quotes('5" tv')), ""),
    # Encodings.
    "utf-16": (("\ufeff" + NAMES + lines_of(in_quotes("zwölf"))).encode("utf-16-le"), 'encoding = "utf-16"'),
    "utf-16-be": (
        (NAMES + lines_of(in_quotes("二"))).encode("utf-16-be"),
        'encoding = "utf-16-be"',
    ),
    "latin-1": ((NAMES + lines_of(in_quotes("été"))).encode("latin-1"), 'encoding = "latin-1"'),
    "gbk": ((NAMES + lines_of(in_quotes("点击"))).encode("gbk"), 'encoding = "gbk"'),
    "gbk with marks": (
        (NAMES + lines_of(in_quotes(CHINESE))).encode("gbk"),
        'encoding = "gbk"',
    ),
}
"""Texts of one log, and the keys that read them."""
MIDDLE = {
    "line breaks": "t\n\nw,o",
    "line breaks that look right": "t\n1,x,1\n2,y,0\n",
    "other quotes": "t'w\",\no",
    "escaped quotes": 't"w\\", o',
    "escapes without quotes": "t,w\\o",
    "other escapes": 't"w^o',
    "escaped line breaks": 't\nw"o',
    "no quotes": '"two',
    "no quotes, tabs": '5" tv "',
    "quotes inside": '5" tv',
    "utf-16": "zwölf",
    "utf-16-be": "二",
    "latin-1": "été",
    "gbk": "点击",
    "gbk with marks": CHINESE,
}
"""What the middle query is where it is not ``two``."""


@pytest.mark.diagonal(3)
@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("form", FORMS)
def test_a_log_of_each_form_has_its_rows(form: str, block_bytes: int, tmp_path: Path) -> None:
    text, keys = FORMS[form]
    path = tmp_path / "log.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    config = IngestConfig(schema=f"{keys}\n{HEAD}{SPARSE}", block_bytes=ByteSize(block_bytes))
    columns = ingest([path], config, tmp_path / "out", Resources(workers=2))
    found = columns_in(columns)
    rows = in_quotes(MIDDLE.get(form, "two"))
    assert found["user"] == [user for user, *_ in rows] and found["label"] == [row[2] for row in rows]
    assert found["query"] == [xxhash.xxh3_64_intdigest(query.encode()) for _, query, _ in rows]
    # A later run finds the same log, and one that was changed.
    assert ingest([path], config, tmp_path / "out").fingerprint == columns.fingerprint


MISSING = {
    '["\\\\N"]': "\\N",
    '["NULL", "null"]': "null",
    '["-"]': "-",
    '["(no value)", "é"]': "é",
}


@pytest.mark.parametrize("keys", MISSING)
@pytest.mark.parametrize("is_quoted", [False, True])
def test_words_stand_for_missing_values_in_every_column_but_the_label(
    keys: str, is_quoted: bool, tmp_path: Path
) -> None:
    word = f'"{MISSING[keys]}"' if is_quoted else MISSING[keys]
    path = tmp_path / "log.csv"
    rows = [
        "label,user,query,n,price,tags,hour,h",
        "1,1,a,1,1.5,a|b,2026-01-31 23:59:59,0000beef",
        "0," + ",".join([word] * 7),
        f"1,2,{MISSING[keys]} x,2,2,a|{MISSING[keys]}|b,,",
    ]
    path.write_text("\n".join(rows) + "\n")
    schema = f"""missing = {keys}
{HEAD}[dense]
n = "integer"
price = "float"
[sparse]
user = "integer"
query = "text"
tags = {{ kind = "text", list = true }}
hour = "hour"
h = "hex8"
"""
    found = columns_in(ingest([path], IngestConfig(schema=schema), tmp_path / "out"))
    assert [found[name][1] for name in ("n", "price", "user", "query", "hour", "h")] == [None] * 6
    assert found["tags"][1] == [None] and [tag is None for tag in found["tags"][2]] == [False, True, False]
    assert [value is None for value in found["query"]] == [False, True, False]
    path.write_text("\n".join(rows).replace("1,1,a", f"{word},1,a") + "\n")
    with pytest.raises(InputError, match=r"line 2, column 'label': found .*, want 0 or 1"):
        ingest([path], IngestConfig(schema=schema), tmp_path / "other")


@pytest.mark.parametrize("block_bytes", [1, 30, 1 << 20])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_bad_value_is_at_its_line_of_the_file(block_bytes: int, suffix: str, tmp_path: Path) -> None:
    text = '# two\n\nuser,query,label\n1,"a\n\nb",1\n\n#\n2,"c\n",0\n3,"d\ne\nf",yes\n4,"\n",1\n'
    path = tmp_path / f"log.csv{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix else text.encode())
    schema = f'comment = "#"\n{HEAD}{SPARSE}'
    config = IngestConfig(schema=schema, block_bytes=ByteSize(block_bytes))
    with pytest.raises(InputError, match=r"line 11, column 'label': found 'yes', want 0 or 1"):
        ingest([path], config, tmp_path / "out", Resources(workers=2))
    skipping = replace(config, on_bad_line="skip:0.5")
    found = columns_in(ingest([path], skipping, tmp_path / "other", Resources(workers=2)))
    assert found["user"] == [1, 2, 4]


def test_a_record_is_skipped_with_the_lines_that_it_goes_on_in(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text('user,query,label\n1,a,1\nx,"\n5,b,1\n6,c,0\n",1\n2,"\n3,d,1\n",x\n7,e,0\n')
    config = IngestConfig(schema=HEAD + SPARSE, on_bad_line="skip:0.5")
    columns = ingest([path], config, tmp_path / "out")
    assert columns_in(columns)["user"] == [1, 7]
    assert columns.totals["bad_lines"] == {"bad_category": 1, "bad_label": 1}


def criteo_line(label: int) -> bytes:
    return b"\t".join([b"%d" % label, *[b"7"] * 13, *[b"0000beef"] * 26])


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("block_bytes", [1, 300, 1 << 20])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbf" + b"".join(criteo_line(n % 2) + b"\n" for n in range(9)),
        b"".join(criteo_line(n % 2) + b"\n" for n in range(9)) + b"\n",
        b"\xef\xbb\xbf" + b"".join(criteo_line(n % 2) + b"\r\n" for n in range(9)) + b"\r\n\r\n\n",
        b"".join(criteo_line(n % 2) + b"\n" for n in range(9)) + b"\r",
    ],
    ids=["mark", "empty line", "both", "return"],
)
def test_criteos_text_may_have_a_mark_and_empty_lines(
    text: bytes, block_bytes: int, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"log{suffix}"
    path.write_bytes(gzip.compress(text) if suffix else text)
    config = IngestConfig(block_bytes=ByteSize(block_bytes))
    found = columns_in(ingest([path], config, tmp_path / "out"))
    assert found["label"] == [n % 2 for n in range(9)] and set(found["C26"]) == {0xBEEF}
    # Such a line above others is bad.
    more = text + b"\n\r\n" + criteo_line(1)
    path.write_bytes(gzip.compress(more) if suffix else more)
    num_lines = len(text.rstrip(b"\r\n").split(b"\n"))
    with pytest.raises(InputError, match=f"line {num_lines + 1}: found 1 field, want 40 between tabs"):
        ingest([path], config, tmp_path / "other")


def test_text_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes((NAMES + PLAIN).encode("utf-16"))
    with pytest.raises(FormatError, match=r"is text in UTF-16\n") as caught:
        ingest([path], IngestConfig(schema=HEAD + SPARSE), tmp_path / "out")
    assert caught.value.hint == 'its schema needs encoding = "utf-16"'
    with pytest.raises(FormatError, match="looks like text in UTF-16, want the tab-separated lines"):
        ingest([path], IngestConfig(), tmp_path / "out")
    path.write_bytes((NAMES + PLAIN).encode() + b"1,\xff\xff,1\n")
    with pytest.raises(InputError, match=r"is not gbk: bytes 0 to \d,?\d+ cannot be decoded") as other:
        ingest([path], IngestConfig(schema=f'encoding = "gbk"\n{HEAD}{SPARSE}'), tmp_path / "out")
    assert "encoding" in str(other.value.hint)


@pytest.mark.parametrize("keys", ["", 'header = false\nfields = ["user", "query", "label"]\n'])
def test_a_text_of_carriage_returns_alone_is_refused(keys: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(PLAIN.replace("\n", "\r").encode())
    with pytest.raises(InputError, match=r"log\.csv ends its lines with a carriage return alone\n.*tr"):
        ingest([path], IngestConfig(schema=keys + HEAD + SPARSE), tmp_path / "out")
    path.write_text((PLAIN if keys else "user,query,label\n" + PLAIN).replace("\n", "\r\n"))
    ingest([path], IngestConfig(schema=keys + HEAD + SPARSE), tmp_path / "out")


def test_a_quote_in_the_header_that_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for header, message in (
        ('# a\nuser,"query"s,label\n', r"line 2: found 's' behind its closing quote, want ',' or a line end"),
        ('user,"query,label\n', r"line 1: a quote opens here and does not close before the log ends"),
    ):
        path.write_text(header + PLAIN)
        with pytest.raises(InputError, match=message) as caught:
            ingest([path], IngestConfig(schema=f'comment = "#"\n{HEAD}{SPARSE}'), tmp_path / "out")
        assert 'quote = "none"' in str(caught.value.hint)


@pytest.mark.parametrize(
    ("above", "keys"),
    [
        ("#" + "x" * 70_000 + "\n", 'comment = "#"'),
        ("x\n" + "x" * 70_000 + "\n", "skip = 2"),
        (("x" * 9 + "\n") * 10_000, f"skip = 10000\n{NO_HEADER}"),
        ("\n" * 70_000, ""),
    ],
)
def test_a_header_is_found_below_much_text(above: str, keys: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    names = "" if "fields" in keys else NAMES.replace("label", '"la""bel\n' + "x" * 70_000 + '"')
    path.write_text(above + names + PLAIN)
    found = read_header(RawFile.inspect(path), read_schema(f"{keys}\n{HEAD}{SPARSE}"))
    assert found.fields[:2] == ("user", "query") and len(found.fields) == 3
    assert found.num_bytes == len(above + names) and found.num_lines == (above + names).count("\n")


def test_names_that_are_no_utf_8_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes("用户,查询,label\n1,a,1\n".encode("gbk"))
    with pytest.raises(InputError, match="has no column 'user'"):
        ingest([path], IngestConfig(schema=HEAD + SPARSE), tmp_path / "out")
    schema = read_schema(f'encoding = "gbk"\n{HEAD}[sparse]\n"用户" = "integer"\n"查询" = "text"\n')
    assert read_parts(path, schema, 100).rows == [(1, xxhash.xxh3_64_intdigest(b"a"))]


def sampled(path: Path, schema: Schema, step: int) -> Iterator[Any]:
    parts: Any = open_parts(RawFile.inspect(path), 0, schema, block_bytes=300, has_label=True, strict=True)
    yield from (unread.read() for unread in parts.sample(step))


@pytest.mark.parametrize("query", ["a", '"a\nb,c\n1,d,0\n"', '5" tv'])
def test_samples_of_a_log_begin_and_end_with_whole_records(query: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(NAMES + f"7,{query},1\n" * 500)
    parts = list(sampled(path, read_schema(HEAD + SPARSE), 3))
    assert len(parts) > 3 and all(part.fault is None and part.num_samples for part in parts)
    assert all(set(part.columns["user"].to_pylist()) == {7} for part in parts)


CASES = MARKS.flatmap(lambda marks: st.tuples(st.just(marks), text_of(marks)))


@given(CASES)
@example((Marks(escape=b"\\"), b'"a\\"b",\\,c,\\N,"d\\\r\n"\n'))
@example((Marks(separator=b"::", escape=b"\\"), b"a\\:::b::::c\\\\\n"))
@example((Marks(separator=b"<>", escape=b"\\"), b"a\\<>b<>\\\\c\\<>\n"))
@example((Marks(trim=True), b' "a"" " , b c \t, "" \r\r\n  \n'))
@example((Marks(comment=b"#"), b'#"a\n\n"#b"\n#\n'))
@settings(deadline=None, max_examples=100)  # thousands more in `fuzz_text`
def test_fields_are_those_of_the_naive_twin(case: tuple[Marks, bytes]) -> None:
    marks, text = case
    check_fields(text, marks, GuardedText())


def test_a_field_of_each_form() -> None:
    text = np.frombuffer(b'a,"b ""c""\nd",e"f\r\n\n#g,"h",\n', np.uint8).copy()
    found = find_records(text, 0, text.shape[0], dialect_of_marks(Marks()), np.array([-1, 0, 1]))
    ends = zip(found.starts.T, found.stops.T, strict=True)
    assert [[bytes(text[a:b]) for a, b in zip(*each, strict=True)] for each in ends] == [
        [b'b "c"\nd', b'e"f'],
        [b"h", b""],
    ]
    assert (found.num_fields.tolist(), found.lines.tolist()) == ([3, 3], [0, 3])


def check_cuts(case: tuple[Marks, bytes], sizes: list[int]) -> None:
    marks, text = case
    if not marks.quote:
        return
    wanted, broken = naive_records(text, marks)
    lines = (
        text.splitlines(keepends=True)
        if b"\r" not in text
        else [line + b"\n" for line in text.split(b"\n")[:-1]]
    )
    cuts = RecordCuts(dialect_of_marks(marks))
    blocks: list[bytes] = []
    first = 0
    while first < len(lines) and not cuts.is_lost:
        size = sizes[len(blocks) % len(sizes)]
        block = b"".join(lines[first : first + size])
        head = cuts.pass_by(np.frombuffer(block, np.uint8))
        # What goes on with a record is moved to the block where it began.
        if blocks:
            blocks[-1] += block[:head]
            blocks.append(block[head:])
        else:
            assert head == 0
            blocks.append(block)
        if head == len(block):
            blocks.pop()
        first += size
    found = [record for block in blocks for _, record in naive_records(block, marks)[0]]
    assert found == [record for _, record in wanted][: len(found)]
    assert cuts.is_lost or (len(found) == len(wanted) and cuts.is_open == (broken is not None))
    assert cuts.is_lost == (broken is not None and broken[0] == "trailing")
    if not cuts.is_lost:
        assert sum(map(len, blocks)) == len(text)


@pytest.mark.parametrize("max_examples", [200, pytest.param(300, marks=pytest.mark.slow)])
def test_blocks_of_lines_are_cut_where_records_begin(max_examples: int) -> None:
    drawn = given(CASES, st.lists(st.integers(1, 12), min_size=1, max_size=6))
    settings(max_examples=max_examples)(drawn(check_cuts))()


@pytest.mark.parametrize("num_lines", [0, 1, 5000])
def test_text_without_quotes_is_passed_by(num_lines: int) -> None:
    cuts = RecordCuts(dialect_of_marks(Marks()))
    assert cuts.pass_by(np.frombuffer(b"a,b'c\n" * num_lines, np.uint8)) == 0
    assert not cuts.is_open and not cuts.is_lost
