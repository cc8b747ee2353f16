"""How a text log is written: separators, quotes, escapes, comments, titles, encodings."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import MIB, InputError
from hotset.pipeline.infer_dialect import count_titles, find_dialect, read_sample, split_text
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.schema.schema import Schema

ROWS = [["user", "price", "title", "label"]]
ROWS += [[str(row % 7), f"{row}.5", ["red", "dark blue", "x"][row % 3], str(row % 2)] for row in range(40)]


def dialect(**keys: Any) -> Schema:
    return Schema((), (), format="csv", **keys)


def text_of(rows: list[list[str]] = ROWS, separator: str = ",", end: str = "\n") -> str:
    return "".join(separator.join(row) + end for row in rows)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        *((text_of(separator=each), dialect(separator=each)) for each in ",\t;|\x01\x1f"),
        *((text_of(separator=each), dialect(separator=each)) for each in ("::", "||", "|||", "~|~", "^^")),
        (text_of([row[:2] for row in ROWS], " "), dialect(separator=" ")),
        (text_of(separator=", "), dialect(trim=True)),
        (text_of(separator=" | "), dialect(separator="|", trim=True)),
        (text_of([[f'"{each}"' for each in row] for row in ROWS], " , "), dialect(trim=True)),
        (text_of(end="\r\n"), dialect()),
        (text_of(end="\r\r\n"), dialect()),
        ("sep=;\n" + text_of(separator=";"), dialect(separator=";", skip=1)),
        ("sep=|\r\n" + text_of(separator="|"), dialect(separator="|", skip=1)),
        (text_of([[f"'{each}'" for each in row] for row in ROWS]), dialect(quote="'")),
        (text_of([[f'"{each}"' for each in row] for row in ROWS]), dialect()),
        (text_of([[*row, '"a, b"'] for row in ROWS]), dialect()),
        (text_of([[*row, '"a\n,b,"'] for row in ROWS]), dialect()),
        (text_of([[*row, '"say ""x"", y"'] for row in ROWS]), dialect()),
        (text_of([[*row, '"say \\"x\\", y"'] for row in ROWS]), dialect(escape="\\")),
        (text_of([[*row, "a\\,b" if row[0] == "3" else "c"] for row in ROWS]), dialect(escape="\\")),
        (
            text_of([[*row, '"best buy' if row[0] == "3" else "buy"] for row in ROWS], "\t"),
            dialect(separator="\t", quote=None),
        ),
        (text_of(ROWS[:9]) + "# a remark\n" + text_of(ROWS[9:]), dialect(comment="#")),
        ("// one\n" + text_of(ROWS[:9]) + "// two, three\n" + text_of(ROWS[9:]), dialect(comment="//")),
        (text_of([["#" + row[2], *row] for row in ROWS]), dialect()),
        (
            text_of(
                [[row[0], "5 o'clock", '"a\x01\\"b"' if row[0] in "34" else "c"] for row in ROWS[1:]], "\x01"
            ),
            dialect(separator="\x01", escape="\\"),
        ),
        (text_of([row[:1] for row in ROWS]), dialect()),
        (text_of([[row[0], "http://a/b", row[3]] for row in ROWS[1:]]), dialect()),
        (text_of([[row[0], "3|5|7"] for row in ROWS[1:]]), dialect()),
        (text_of([[row[0], f"{row[0]},5"] for row in ROWS[1:]], ";"), dialect(separator=";")),
        (text_of([["2024-01-01 10:00:00", row[0]] for row in ROWS[1:]], "\t"), dialect(separator="\t")),
    ],
)
def test_the_dialect_that_splits_most_lines_alike_is_taken(text: str, wanted: Schema) -> None:
    found = find_dialect(text.encode())
    assert found.dialect == wanted
    assert found.usual.size == found.counts.size or "best" in text


def records_of(text: str, dialect: Schema) -> list[tuple[int, list[str]]]:
    split = split_text(text.encode(), dialect)
    return [(int(line), split.fields_of(record)) for record, line in enumerate(split.lines)]


def test_quotes_hold_where_each_half_of_a_record_has_as_many_fields() -> None:
    header = "id,label,said,user\n"
    records = "".join(f'{row},{row % 2},"a{row}\nb, c",7\n' for row in range(200))
    cut = "".join((header + records).splitlines(keepends=True)[:300])  # in the middle of a record
    split = find_dialect(cut.encode())
    assert split.dialect == dialect()
    assert split.fields_of(1) == ["0", "0", "a0\nb, c", "7"]


def test_records_are_split_as_the_dialect_says() -> None:
    text = 'skipped\n\na,"b ""c""\r\n,"\r\n# no\n\n d ,\\,e\r\r\n"f"g,h\ni,j\nk,l,m,n\n"o'
    heeded = dialect(skip=1, comment="#", trim=True, escape="\\")
    wanted = [(3, ["a", 'b "c"\r\n,']), (7, ["d", ",e"]), (8, []), (9, ["i", "j"])]
    assert records_of(text + "\n", heeded) == [*wanted, (10, ["k", "l", "m"]), (11, [])]
    assert records_of("a::b:c\n", dialect(separator="::", quote=None)) == [(1, ["a", "b:c"])]
    assert records_of('"a::b"::c\n', dialect(separator="::")) == [(1, ["a::b", "c"])]
    assert records_of('"a",b\n', dialect(quote=None)) == [(1, ['"a"', "b"])]
    assert records_of("a\n", dialect(skip=3)) == []


def test_records_next_to_a_seam_are_neither_whole_nor_odd() -> None:
    text = b'u,l\n1,0\n2,1\nmore\nx, y"\n3,0\n4\n'
    split = split_text(text, dialect(), seams=(4,))
    assert (split.whole.tolist(), split.odd.tolist()) == ([0, 1, 5], [6])
    split = split_text(text, dialect())
    assert (split.whole.tolist(), split.odd.tolist()) == ([0, 1, 2, 4, 5], [3, 6])


def test_titles_are_the_lines_above_the_first_that_is_split_like_most() -> None:
    split = find_dialect(f"Report\nof January\n\n{text_of()}".encode())
    assert count_titles(split) == 2 and split.lines[2] == 4


def test_quotes_that_stand_alone_are_no_quotes_and_two_halves_no_rows() -> None:
    alone = b"user,query,n\n" + b"".join(
        b"%d,%s,%d\n" % (row, b'"' if row % 3 else b"x", row % 5) for row in range(60)
    )
    split = find_dialect(alone)
    assert (split.dialect.quote, split.usual.size) == (None, 61)
    assert find_dialect(alone.replace(b"9,", b"# a remark\n9,", 1)).usual.size == 61
    halves = b"user,text\n" + b"".join(b'%d,"first %d\nsecond, third"\n' % (row, row) for row in range(60))
    split = find_dialect(halves)
    assert (split.dialect.quote, split.usual.size) == ('"', 61)


def read(path: Path, content: bytes) -> Any:
    path.write_bytes(content)
    return read_sample(RawFile.inspect(path))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "utf-8"])
def test_encodings_without_doubt_are_decoded(tmp_path: Path, encoding: str) -> None:
    text = "größe,label\n" + "5,1\n" * 99
    sample = read(tmp_path / "log", text.encode(encoding))
    assert sample.text == text.encode() and not sample.is_guessed and sample.is_whole
    assert sample.encoding == encoding.removesuffix("-sig")
    assert read(tmp_path / "log.gz", gzip.compress(text.encode(encoding))).text == text.encode()


@pytest.mark.parametrize(("encoding", "name"), [("latin-1", "catégorie"), ("gbk", "类别")])
def test_a_first_line_in_another_encoding_is_a_guess(tmp_path: Path, encoding: str, name: str) -> None:
    sample = read(tmp_path / "log", f"{name},label\n5,1\n".encode(encoding))
    assert sample.is_guessed and sample.text.startswith(name.encode())
    values = read(tmp_path / "log", "name,label\nété,1\n".encode("latin-1"))
    assert values.encoding == "utf-8" and values.text == "name,label\nété,1\n".encode("latin-1")


def test_a_large_log_is_read_at_its_beginning_middle_and_end(tmp_path: Path) -> None:
    content = b"".join(b"%09d,x\n" % row for row in range(500_000))
    sample = read(tmp_path / "log", content)
    rows = [int(line[:9]) for line in sample.text.splitlines()]
    jumps = [row for row, (one, other) in enumerate(pairwise(rows)) if other != one + 1]
    assert len(jumps) == 2 and not sample.is_whole and "5.7 MiB" in sample.places
    assert rows[0] == 0 and abs(rows[jumps[0] + 1] - 250_000) < 2 and rows[-1] == 499_999
    assert abs(len(sample.text) - 3 * MIB) < 64
    firsts = [int(line[:9]) for line in sample.starts.splitlines()]
    assert len(firsts) == 900 and firsts[300] == rows[jumps[0] + 1]
    packed = read(tmp_path / "log.gz", gzip.compress(content, 1))
    assert packed.text == content[: len(packed.text)] and len(packed.text) >= 3 * MIB and not packed.is_whole


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "is empty"),
        (bytes(range(256)) * 9, "neither Parquet nor"),
        (b"a,b\r1,2\r", r"ends its lines with a carriage return alone\n.*tr"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        read(tmp_path / "log", content)
