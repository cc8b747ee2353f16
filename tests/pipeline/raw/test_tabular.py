"""CSV and Parquet logs to columns, lists among them, against naive readers; what is refused and where.

Tests `log_parts`, `part`, `columnar_parts` and `column_values`, too.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ByteSize, InputError, ManifestError
from hotset.pipeline.folders.manifest import MANIFEST, Manifest
from hotset.pipeline.folders.totals import ColumnsFacts
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.raw import columnar_parts, tabular
from hotset.pipeline.raw.column_values import read_column
from hotset.pipeline.raw.columnar_parts import ParquetParts
from hotset.pipeline.raw.log_files import inspect_logs
from hotset.pipeline.raw.part import Part, Rows
from hotset.pipeline.raw.tabular import parse_rows, rows_of_batch
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import Schema
from hotset.pipeline.schema.schema_file import read_schema
from hotset.pipeline.stages.ingest import IngestConfig, ingest, open_log
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.other_logs import (
    Log,
    columns_in,
    draw_log,
    naive_columns,
    schema_text,
    write_csv,
    write_parquet,
)

KINDS = {
    "unused": "unused",
    "clicked": "label",
    "age": "dense",
    "user id": "text",
    "n": "integer",
    "hash": "unsigned",
    "site": "hex8",
    "price": "dense",
}


def config(text: str, **changes: Any) -> IngestConfig:
    settings: dict[str, Any] = {"schema": text, "block_bytes": ByteSize(1500)} | changes
    return IngestConfig(**settings)


@pytest.mark.diagonal(3)
@pytest.mark.parametrize(
    ("name", "block_bytes", "num_lines"),
    [
        # A part of its own for each line.
        *((name, 1, 20) for name in ("log.csv", "log.csv.gz")),
        *((name, block_bytes, 120) for name in ("log.csv", "log.csv.gz") for block_bytes in (500, 1 << 20)),
    ],
)
@pytest.mark.parametrize(
    ("separator", "end", "header"),
    [(",", "\n", True), ("\t", "\r\n", True), (";", "\n", False)],
)
def test_columns_hold_a_csv_log(
    tmp_path: Path,
    name: str,
    block_bytes: int,
    num_lines: int,
    separator: str,
    end: str,
    header: bool,
    rng: np.random.Generator,
) -> None:
    log = draw_log(num_lines, KINDS, rng)
    raw = write_csv(tmp_path / name, log, header=header, separator=separator, end=end)
    more = f'separator = "{separator}"' + ("" if header else f"\nheader = false\nfields = {list(KINDS)}")
    setting = config(schema_text(log, more=more), block_bytes=ByteSize(block_bytes))
    columns = ingest([raw], setting, tmp_path / "out", Resources(workers=2))
    assert columns_in(columns) == naive_columns(log)
    assert columns.totals["dense"] == ["age", "price"]
    assert columns.totals["sparse"] == ["user id", "n", "hash", "site"]
    assert columns.totals["has_label"] and read_schema(columns.totals["schema"]) == read_schema(
        setting.schema
    )
    assert (columns.totals["raw"][0]["lines"], columns.totals["raw"][0]["samples"]) == (num_lines,) * 2
    assert block_bytes > 500 or len(columns.files) > 1


@pytest.mark.parametrize("block_bytes", [1, 1500, 1 << 20])
def test_columns_hold_a_parquet_log(tmp_path: Path, block_bytes: int, rng: np.random.Generator) -> None:
    log = draw_log(130, KINDS, rng)
    raw = write_parquet(tmp_path / "log.parquet", log)
    text = schema_text(log, format="parquet")
    columns = ingest(
        [raw], config(text, block_bytes=ByteSize(block_bytes)), tmp_path / "out", Resources(workers=2)
    )
    assert columns_in(columns) == naive_columns(log)
    rows = [int(entry.path[12:24]) for entry in columns.files if not entry.is_texts]
    assert rows == sorted(rows) and len(rows) == {1: 130, 1500: 7, 1 << 20: 4}[block_bytes]


def test_one_log_gives_one_column_of_numbers_from_csv_and_parquet(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    logs = [
        draw_log(50, KINDS, rng),
        draw_log(1, KINDS, rng),
        draw_log(0, KINDS, rng),
        draw_log(30, KINDS, rng),
    ]
    csv = [write_csv(tmp_path / f"{n}.csv", log) for n, log in enumerate(logs)]
    parquet = [write_parquet(tmp_path / f"{n}.parquet", log) for n, log in enumerate(logs)]
    csv[2].write_bytes(b"")
    from_csv = ingest(csv, config(schema_text(logs[0])), tmp_path / "a")
    from_parquet = ingest(parquet, config(schema_text(logs[0], format="parquet")), tmp_path / "b")
    whole = Log(KINDS, [row for log in logs for row in log.rows])
    assert columns_in(from_csv) == columns_in(from_parquet) == naive_columns(whole)
    assert [file["samples"] for file in from_csv.totals["raw"]] == [50, 1, 0, 30]
    assert [file["samples"] for file in from_parquet.totals["raw"]] == [50, 1, 0, 30]


def test_the_schema_is_part_of_the_folder_and_its_path_is_not(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    log = draw_log(9, KINDS, rng)
    raw = write_csv(tmp_path / "log.csv", log)
    text = schema_text(log)
    made = ingest([raw], config(text), tmp_path / "out")
    assert made.config["schema"].startswith("toml:")
    assert ingest([raw], config("# a comment\n" + text), tmp_path / "out").fingerprint == made.fingerprint
    with pytest.raises(ManifestError, match="was written with schema = toml:"):
        ingest([raw], config(text.replace('"hex8"', '"text"')), tmp_path / "out")


GOOD = """
label = 'y'
[dense]
d = 'integer'
p = 'float'
[sparse]
u = 'text'
i = 'integer'
n = 'unsigned'
h = 'hex8'
c = { kind = 'hex8', list = true }
"""
HEADER = b"y,d,u,i,n,h,c,p\n"
INT32 = "want an integer from -2147483648 to 2147483647, or nothing"
NUMBER = "want a finite number, or nothing"
BAD_LINES: dict[bytes, tuple[str, str]] = {
    b",1,a,1,1,,,": ("missing_label", ", column 'y': found nothing, want 0 or 1"),
    b"2,1,a,1,1,,,": ("bad_label", ", column 'y': found '2', want 0 or 1"),
    b"1,1.5,a,1,1,,,": ("bad_integer", f", column 'd': found '1.5', {INT32}"),
    b"1,2147483648,a,1,1,,,": ("bad_integer", f", column 'd': found '2147483648', {INT32}"),
    b"1,,a,9223372036854775808,1,,,": (
        "bad_category",
        ", column 'i': found '9223372036854775808', want an integer from -2**63 to 2**63 - 1, or nothing",
    ),
    b"1,,a,1,-1,,,": (
        "bad_category",
        ", column 'n': found '-1', want an integer from 0 to 2**64 - 1, or nothing",
    ),
    b"1,,a,1,1,abc,,": ("bad_category", ", column 'h': found 'abc', want 8 hex digits, or nothing"),
    b"1,,a,1,1," + b"x" * 99 + b",,": (
        "bad_category",
        f", column 'h': found '{'x' * 40}'... (99 bytes), want 8 hex digits, or nothing",
    ),
    b"1,,a,1,1,,0000beef|abc|,": (
        "bad_category",
        ", column 'c', element 2: found 'abc', want 8 hex digits, or nothing",
    ),
    b"1,,a,1,1,,,1.5.2": ("bad_float", f", column 'p': found '1.5.2', {NUMBER}"),
    b"1,,a,1,1,,,nan": ("bad_float", f", column 'p': found 'nan', {NUMBER}"),
    b"1,,a,1,1,,,-1e999": ("bad_float", f", column 'p': found '-1e999', {NUMBER}"),
    b"1,1,a": ("field_count", ": found 3 fields, want 8 between ','"),
    b"1,1,a,1,1,,,,": ("field_count", ": found 9 fields, want 8 between ','"),
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_csv_line_is_refused_with_file_line_column_found_and_wanted(
    tmp_path: Path, line: bytes
) -> None:
    raw = tmp_path / "log.csv"
    raw.write_bytes(HEADER + b"1,1,a,1,1,,ffffffff|,.5\n" * 200 + line + b"\n" + b"x\n")
    with pytest.raises(InputError) as caught:
        ingest([raw], config('format = "csv"\n' + GOOD), tmp_path / "out", Resources(workers=2))
    assert str(caught.value) == f"{raw}, line 202{BAD_LINES[line][1]}"
    assert "--on-bad-line skip" in str(caught.value.hint)
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_bad_csv_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    raw = tmp_path / "log.csv"
    lines = [line for bad in BAD_LINES for line in (b'0,-7,"""q"",",-1,7,0000beef,ffffffff|,.5', bad)]
    raw.write_bytes(b"\xef\xbb\xbf" + HEADER + b"\n".join(lines))
    skipping = config('format = "csv"\n' + GOOD, on_bad_line="skip:0.5")
    columns = ingest([raw], skipping, tmp_path / "out")
    assert columns.totals["bad_lines"] == dict(sorted(Counter(r for r, _ in BAD_LINES.values()).items()))
    row = naive_columns(Log({"u": "text", "i": "integer"}, [('"q",', -1)]))
    found = columns_in(columns)
    assert found["u"] == row["u"] * len(BAD_LINES) and found["i"] == row["i"] * len(BAD_LINES)
    assert found["label"] == [0] * len(BAD_LINES) and found["d"] == [-7] * len(BAD_LINES)
    assert found["c"] == [[0xFFFFFFFF, None]] * len(BAD_LINES) and found["p"] == [0.5] * len(BAD_LINES)
    assert columns.totals["raw"][0]["lines"] == 2 * len(BAD_LINES)


ESCAPE = (
    'set escape = \'\\\' where quotes inside it are written \\", or quote = "none" where quotes mean nothing'
)
BEHIND = "behind its closing quote, want ',' or a line end"
OPENS = ", column 'u': a quote opens here and does not close"
WRONG_QUOTES = {
    b'1,1,"a,1,1,,,\n1,1,b,1,1,,,': f"{OPENS} before the log ends",
    b'1,1,"a"b,1,1,,,': f", column 'u': found 'b' {BEHIND}",
    b'1,1,"a\\"b" c\n",1,1,,,': f", column 'u': found 'b\" c' {BEHIND}",
    b'"1"x': f", column 'y': found 'x' {BEHIND}",
    b'1,1,"' + b"a\n" * (1 << 19): f"{OPENS} within 1 MiB",
}


@pytest.mark.parametrize("line", WRONG_QUOTES, ids=range(len(WRONG_QUOTES)))
@pytest.mark.parametrize("on_bad_line", ["error", "skip:1"])
@pytest.mark.parametrize("block_bytes", [700, 1 << 20])
def test_a_wrong_quote_is_refused_with_the_line_where_it_opens(
    tmp_path: Path, line: bytes, on_bad_line: str, block_bytes: int
) -> None:
    raw = tmp_path / "log.csv"
    good = b'1,1,"a\n\n",1,1,,ffffffff|,.5\n\n'
    end = b"" if "before" in WRONG_QUOTES[line] else good * 100
    raw.write_bytes(HEADER + good * 100 + line + b"\n" + end)
    size = ByteSize(max(block_bytes, len(line) // 20))
    setting = config('format = "csv"\n' + GOOD, on_bad_line=on_bad_line, block_bytes=size)
    with pytest.raises(InputError) as caught:
        ingest([raw], setting, tmp_path / "out", Resources(workers=2))
    # No sample is made of its pieces, and the hint names the keys that help.
    assert str(caught.value) == f"{raw}, line 402{WRONG_QUOTES[line]}"
    assert str(caught.value.hint) == ESCAPE
    assert not (tmp_path / "out" / MANIFEST).exists()


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (GOOD.replace("u =", "U ="), "has no column 'U'", "did you mean"),
        (
            GOOD.replace("'y'", "'click'"),
            "has no column 'click'",
            "it has ['y', 'd', 'u', 'i', 'n', 'h', 'c', 'p']",
        ),
    ],
)
@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_column_that_is_not_there_is_named(
    tmp_path: Path, format: str, text: str, message: str, hint: str
) -> None:
    kinds = ("label", "dense", "text", "integer", "unsigned", "hex8", "list hex8", "float")
    log = Log(dict(zip("yduinhcp", kinds, strict=True)), [])
    raw = (write_csv if format == "csv" else write_parquet)(tmp_path / "log", log)
    with pytest.raises(InputError, match=message) as caught:
        ingest([raw], config(f'format = "{format}"\n' + text), tmp_path / "out")
    assert hint in str(caught.value.hint) or "U" in message


CODE = "[sparse]\nd = 'unsigned'"
DENSE = "[dense]\nd = 'integer'\n[sparse]\nu = 'text'"
MISSING = None if int(pa.__version__.split(".")[0]) >= 25 else [3, 4]
"""A missing list of fixed size, which earlier versions of Arrow write to Parquet and cannot read."""
LISTS = "[sparse]\nd = { kind = 'integer', list = true }"
HOUR = "[sparse]\nd = { kind = 'hour' }"
MS = "[sparse]\nd = { kind = 'hour', unit = 'ms' }"
DAY = "[sparse]\nd = { kind = 'weekday', format = '%d/%b/%Y' }"
DATE = "[sparse]\nd = { kind = 'weekday', format = '%Y%m%d' }"
JSON = "[sparse]\nd = { kind = 'integer', list = 'brackets' }"
FLOAT = "[dense]\nd = 'float'\n[sparse]\nu = 'text'"
CODES = "[sparse]\nd = { kind = 'hex8', list = true }"
COLUMNS: dict[str, tuple[str, Any, Any]] = {
    "whole floats": (DENSE, pa.array([1.0, None, -3.0]), [1, None, -3]),
    "small integers": (DENSE, pa.array([1, None, -3], pa.int8()), [1, None, -3]),
    "text": (DENSE, pa.array(["1", "", "-3"]), [1, None, -3]),
    "views": (DENSE, pa.array(["1", "", "-3"], pa.string_view()), [1, None, -3]),
    "nothing": (DENSE, pa.nulls(3), [None, None, None]),
    "floats": (DENSE, pa.array([1.0, 2.0, 2.5]), "row 3, column 'd': found 2.5, want an integer"),
    "nan": (DENSE, pa.array([1.0, float("nan"), 2.0]), [1, None, 2]),
    "decimals": (DENSE, pa.array([Decimal("1.00"), None, Decimal("-3")]), [1, None, -3]),
    "large decimals": (DENSE, pa.array([Decimal(2**31), None]), "row 1, column 'd': found 2147483648, want"),
    "codes": (
        "[sparse]\nd = 'integer'",
        ["7", "007"],
        "line 3, column 'd': found '007', want an integer from",
    ),
    "codes of Parquet": (CODE, pa.array(["7", "07"]), "row 2, column 'd': found '07', want an integer from"),
    "true and false": ("[sparse]\nd = 'integer'", ["true", "False", "1", "TRUE"], [1, 0, 1, 1]),
    "true and false of Parquet": (CODE, pa.array([True, False, None]), [1, 0, None]),
    "true and false as dense": (DENSE, ["true", "False", "-5"], [1, 0, -5]),
    "true and false as floats": (FLOAT, ["true", "False", "2.5"], [1.0, 0.0, 2.5]),
    "true as text": ("[sparse]\nd = 'integer'", ["true", "truth"], "line 3, column 'd': found 'truth', want"),
    "true and false in lists": (JSON, ['"[true, false]"', "[7]"], [[1, 0], [7]]),
    "lists of true and false": (LISTS, pa.array([[True, None], [False], None]), [[1, None], [0], [None]]),
    "infinity": (DENSE, pa.array([float("inf"), 1, 1]), "row 1, column 'd': found inf, want an integer"),
    "infinity in a half": (
        DENSE,
        pa.array(np.array([1, 1, np.inf], np.float16)),
        "row 3, column 'd': found inf, want an integer",
    ),
    "large": (DENSE, pa.array([1, 2**31, 3]), "row 2, column 'd': found 2147483648, want an integer"),
    "unsigned": (DENSE, pa.array([1, 2**63, 3], pa.uint64()), "row 2, column 'd': found 9223372036854775808"),
    "lists as dense": (
        DENSE,
        pa.array([[1], [], None]),
        "column 'd' is list<element: int64>, want an integer",
    ),
    "times as dense": (
        DENSE,
        pa.array([1, 2, 3], pa.timestamp("s")),
        "column 'd' is timestamp[ms], want an integer",
    ),
    "float nan": (FLOAT, pa.array([1, float("nan")]), [1.0, None]),
    "ids with nan": (CODE, pa.array([5.0, float("nan")]), [5, None]),
    "float infinity": (FLOAT, pa.array([1, -np.inf]), f"row 2, column 'd': found -inf, {NUMBER}"),
    "fixed lists": (LISTS, pa.array([[1, 2], MISSING], pa.list_(pa.int64(), 2)), [[1, 2], MISSING or [None]]),
    "large lists": (LISTS, pa.array([[1], [], None], pa.large_list(pa.uint8())), [[1], [], [None]]),
    "no lists": (LISTS, pa.nulls(2), [[None], [None]]),
    "lists of nothing": (LISTS, pa.array([[None], [], None], pa.list_(pa.null())), [[None], [], [None]]),
    "lists of whole floats": (LISTS, pa.array([[1.0], [-1]], pa.list_(pa.float32())), [[1], [2**64 - 1]]),
    "lists of text": (LISTS, pa.array([["1", ""], ["-2"], []]), [[1, None], [2**64 - 2], []]),
    "no list": (LISTS, pa.array([1, 2, 3]), "column 'd' is int64, want a list of an integer"),
    "lists of lists": (LISTS, pa.array([[[1]], [], []]), "column 'd' is list<element: list<element: int64>>"),
    "lists of dictionaries": (
        CODES,
        pa.array([["0000beef", None, "x"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
        "row 1, column 'd', element 3: found 'x', want 8 hex digits",
    ),
    "lists that the schema does not call so": (
        "[sparse]\nd = 'text'",
        pa.array([[1], [2]]),
        "rows that hold lists need list = true in the schema",
    ),
    "no day": (HOUR, ["2024-05-06", "2024-02-30"], "line 3, column 'd': found '2024-02-30', want a time"),
    "no ticks": (MS, ["1", "1.5x"], "line 3, column 'd': found '1.5x', want a number (ms since 1970)"),
    "ticks with a fraction": (MS, ["1", "3600000.5"], [0, 1]),
    "ticks that are floats": (MS, pa.array([1.5, 3600000.5, None]), [0, 1, None]),
    "no time of the format": (
        DAY,
        ["1/May/2024", "1/Mai/2024"],
        "found '1/Mai/2024', want a time as %d/",
    ),
    "days that are integers": (DATE, pa.array([20240506, None]), [1, None]),
    "lists in brackets": (JSON, pa.array(['["1", 2]', "[]", None, "[null]"]), [[1, 2], [], [None], [None]]),
    "native lists in their place": (JSON, pa.array([[1, 2], [], None]), [[1, 2], [], [None]]),
    "lists in lists": (JSON, ['"[1,2]"', '"[[1]]"'], "line 3, column 'd', element 1: found '[1]', want an"),
    "ticks without a unit": (
        HOUR,
        pa.array([1]),
        "is int64, want times as text or timestamps, or numbers with",
    ),
    "times of day": (HOUR, pa.array([1, 2], pa.time32("s")), "column 'd' is time32[ms], want times as text"),
    "timestamps with a unit": (MS, pa.array([7200], pa.timestamp("s")), [2]),
}
"""Features and a column, of CSV where it is a list, and what is read or why it is refused."""


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_of_each_type_are_read_or_refused(tmp_path: Path, case: str) -> None:
    features, values, wanted = COLUMNS[case]
    raw = tmp_path / "log"
    is_csv = isinstance(values, list)
    if is_csv:
        raw.write_text("d,u\n" + "".join(f"{value},a\n" for value in values))
    else:
        pq.write_table(pa.table({"d": values, "u": ["a"] * len(values)}), raw)
    setting = config(f"format = '{'csv' if is_csv else 'parquet'}'\n{features}", label=False)
    if isinstance(wanted, list):
        assert columns_in(ingest([raw], setting, tmp_path / "out"))["d"] == wanted
        return
    with pytest.raises(InputError) as caught:
        ingest([raw], setting, tmp_path / "out")
    assert wanted in str(caught.value) and "\n" not in str(caught.value)


TIMES = """
[sparse]
site = "text"
when = [{ kind = "hour" }, { kind = "weekday", name = "day" }, { kind = "text", name = "moment" }]
ms = { kind = "hour", unit = "ms" }
"""


def test_columns_hold_hours_and_weekdays(tmp_path: Path) -> None:
    raw = tmp_path / "log.csv"
    rows = b'a,"2024-05-06 07:59:59",1500000000000\n,,\n"b",2024-05-05,-1\n'
    raw.write_bytes(b"site,when,ms\n" + rows * 40)
    columns = ingest(
        [raw], config('format = "csv"' + TIMES, label=False, block_bytes=ByteSize(500)), tmp_path / "a"
    )
    found = columns_in(columns)
    assert len(columns.files) > 2 and list(found) == ["site", "when", "day", "moment", "ms"]
    assert (found["when"], found["day"]) == ([7, None, 0] * 40, [1, None, 7] * 40)
    assert found["ms"] == [2, None, 23] * 40 and found["moment"][1] is None
    stamps = pa.array(["2024-05-06 07:59:59", None, "2024-05-05"] * 40).cast(pa.timestamp("s"))
    table = {"site": ["a", None, "b"] * 40, "when": stamps, "ms": [1_500_000_000_000, None, -1] * 40}
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    text = ('format = "parquet"' + TIMES).replace(', { kind = "text", name = "moment" }', "")
    again = columns_in(ingest([tmp_path / "log.parquet"], config(text, label=False), tmp_path / "b"))
    assert again == {name: found[name] for name in ("site", "when", "day", "ms")}


def test_a_group_that_is_a_feature_too_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[str] = []

    def counted(cells: Any, kind: str, form: Any) -> Any:
        kinds.append(kind)
        return read_column(cells, kind, form)

    monkeypatch.setattr(tabular, "read_column", counted)
    keys = 'format = "parquet"\nlabel = "label"\ngroup = "user"\n'
    user = 'user = [{ kind = "text" }, { kind = "text", name = "twin" }]\n'
    schema = read_schema(f"{keys}[sparse]\n{user}")
    rows = rows_of_batch(pa.record_batch({"user": ["a", "b"], "label": [0, 1]}))
    part = parse_rows(rows, schema, has_label=True)
    assert sorted(kinds) == ["label", "text"]
    assert part.columns["user"].equals(part.columns["twin"])
    assert part.columns["group"].to_pylist() == part.columns["user"].to_pylist()


@pytest.mark.parametrize("group_rows", [500, 60])
def test_a_damaged_parquet_file_is_one_clear_line(
    tmp_path: Path, group_rows: int, rng: np.random.Generator
) -> None:
    log = draw_log(500, KINDS, rng)
    raw = write_parquet(tmp_path / "log.parquet", log, group_rows=group_rows)
    text = raw.read_bytes()
    setting = config(schema_text(log, format="parquet"), block_bytes=ByteSize(1 << 14))
    raw.write_bytes(text.replace(b"clicked", b"click\xc3d"))
    with pytest.raises(InputError, match=r"is not a Parquet file|cannot be read"):
        ingest([raw], setting, tmp_path / "out", Resources(workers=1))
    for number in range(25):
        place = int(rng.integers(len(text)))
        raw.write_bytes(text[:place] + bytes([text[place] ^ 255]) + text[place + 1 :])
        try:
            ingest([raw], setting, tmp_path / f"out{number}", Resources(workers=1))
        except InputError as error:
            assert "\n" not in str(error) and str(raw) in str(error)


def test_a_label_can_be_left_out(tmp_path: Path, rng: np.random.Generator) -> None:
    log = draw_log(20, KINDS, rng)
    raw = write_csv(tmp_path / "log.csv", log)
    columns = ingest([raw], config(schema_text(log), label=False), tmp_path / "out")
    naive = naive_columns(log)
    del naive["label"]
    assert columns_in(columns) == naive and columns.totals["has_label"] is False


@pytest.mark.real_data
def test_the_real_avazu_sample_is_read(tmp_path: Path, real_data: Path) -> None:
    raw = real_data / "avazu_train_head_10k.csv.gz"
    preprocess([raw], PreprocessConfig(ingest=IngestConfig(schema="avazu")), tmp_path, until="split")
    columns = Manifest.read(tmp_path / "columns")
    assert columns.num_samples == 9999 and columns.totals["bad_lines"] == {}
    assert verify(tmp_path, raw=[raw]) == []


def test_a_finished_part_that_says_it_has_no_rows_is_refused() -> None:
    """It would be followed by itself for ever: found by fuzzing."""
    parts: Any = SimpleNamespace(_name="row{}".format, _file=SimpleNamespace(path="log.parquet"))
    part = SimpleNamespace(path="row0", read_facts=lambda kind: SimpleNamespace(num_lines=0))
    with pytest.raises(ManifestError, match=r"row0 is said to have 0 rows of log\.parquet"):
        ParquetParts._finished_names(parts, 0, 5, {"row0": part})  # type: ignore[dict-item]


@pytest.mark.parametrize("separator", ["|", ",", ";", " "])
def test_lists_in_quotes_may_have_the_separator_of_fields(tmp_path: Path, separator: str) -> None:
    rows: list[list[str | None]] = [["a", "b", "a"], ["c"], [None], ["", 'd"e'], ["", ""]]
    fields = [separator.join(element or "" for element in row).replace('"', '""') for row in rows]
    lines = [f'"{field}",{n}' for n, field in enumerate(fields)]
    (tmp_path / "log").write_text("\n".join(["tags,n", *lines]))
    keys = f'kind = "text", list = true, separator = "{separator}"'
    schema = f'format = "csv"\n[sparse]\ntags = {{ {keys} }}\nn = "integer"'
    found = columns_in(ingest([tmp_path / "log"], IngestConfig(schema=schema), tmp_path / "out"))
    log = Log({"tags": "list text"}, [(row,) for row in rows])
    assert found == naive_columns(log) | {"n": [0, 1, 2, 3, 4]}


def test_parts_of_long_lists_have_fewer_rows(tmp_path: Path) -> None:
    lists = [list(range(1000)) for _ in range(64)]
    pq.write_table(pa.table({"d": lists}), tmp_path / "log", row_group_size=32)
    schema = "format = 'parquet'\n[sparse]\nd = { kind = 'integer', list = true }"
    config = IngestConfig(schema=schema, block_bytes=ByteSize(64_000))
    columns = ingest([tmp_path / "log"], config, tmp_path / "out")
    assert [entry.num_samples for entry in columns.files] == [8] * 8
    assert columns.files[0].facts["lookups"] == {"d": 8000}


def test_parts_of_long_texts_have_fewer_rows(tmp_path: Path) -> None:
    columns = {"d": [f"{number:03}" + "x" * 997 for number in range(64)], "n": [1] * 64}
    pq.write_table(pa.table(columns), tmp_path / "log", use_dictionary=False)
    config = IngestConfig(schema="format = 'parquet'\n[sparse]\nd = 'text'", block_bytes=ByteSize(9000))
    made = ingest([tmp_path / "log"], config, tmp_path / "out")
    assert [entry.num_samples for _, entry in made.parts()] == [8] * 8
    # A column that is not read does not count; short texts count as other values do.
    config = IngestConfig(schema="format = 'parquet'\n[sparse]\nn = 'integer'", block_bytes=ByteSize(256))
    assert [entry.num_samples for entry in ingest([tmp_path / "log"], config, tmp_path / "n").files] == [
        32
    ] * 2


SMALL_GROUPS = "format = 'parquet'\n[sparse]\nd = 'text'\nn = 'integer'\nt = { kind = 'text', list = true }"


def small_groups(
    path: Path, num_rows: int, group_rows: int, *, is_numbered: bool = False
) -> dict[str, list[Any]]:
    """Write a log of small row groups, and return its columns."""
    texts = [None if row % 11 == 3 else f"u{row % 17}" for row in range(num_rows)]
    lists = [None if row % 7 == 2 else [f"t{tag}" for tag in range(row % 4)] for row in range(num_rows)]
    kind = pa.list_(pa.dictionary(pa.int32(), pa.string()) if is_numbered else pa.string())
    table = {"d": texts, "n": list(range(num_rows)), "t": pa.array(lists, kind)}
    pq.write_table(pa.table(table), path, row_group_size=group_rows)
    kinds = {"d": "text", "n": "integer", "t": "list text"}
    rows = list(zip(texts, range(num_rows), lists, strict=True))
    return naive_columns(Log(kinds, rows))


@pytest.mark.parametrize("most_decoded", [0, 4])
@pytest.mark.parametrize(("block_bytes", "num_parts"), [(1 << 20, 1), (8000, 4)])
def test_neighbouring_small_row_groups_make_one_part(
    tmp_path: Path, block_bytes: int, num_parts: int, most_decoded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their texts are numbered only where they would take too much memory."""
    monkeypatch.setattr(columnar_parts, "_MOST_DECODED", most_decoded)
    wanted = small_groups(tmp_path / "log", 900, 3)
    config = IngestConfig(schema=SMALL_GROUPS, block_bytes=ByteSize(block_bytes))
    columns = ingest([tmp_path / "log"], config, tmp_path / "one", Resources(workers=1))
    assert columns_in(columns) == wanted
    sizes = [entry.num_samples for _, entry in columns.parts()]
    assert all(size % 3 == 0 for size in sizes) and num_parts <= len(sizes) <= 3 * num_parts
    again = ingest([tmp_path / "log"], config, tmp_path / "two", Resources(workers=2))
    assert again.fingerprint == columns.fingerprint
    num_bytes = sum(columns.facts_of(ColumnsFacts, entry).num_raw_bytes for _, entry in columns.parts())
    assert num_bytes == (tmp_path / "log").stat().st_size


def test_row_groups_that_arrow_cannot_join_stay_parts(tmp_path: Path) -> None:
    wanted = small_groups(tmp_path / "log", 60, 20, is_numbered=True)
    columns = ingest([tmp_path / "log"], IngestConfig(schema=SMALL_GROUPS), tmp_path / "out")
    assert columns_in(columns) == wanted and len(list(columns.parts())) == 3


def test_small_groups_beside_large_ones_are_read_once(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64())])
    sizes = [*[1] * 8, 400, *[0, 5] * 10, 50, *[2] * 20, 90, 1]
    with pq.ParquetWriter(tmp_path / "log", schema) as writer:
        for first, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
            writer.write_table(pa.table({"n": range(first, first + size)}, schema))
    config = IngestConfig(schema="format = 'parquet'\n[sparse]\nn = 'integer'", block_bytes=ByteSize(800))
    columns = ingest([tmp_path / "log"], config, tmp_path / "out", Resources(workers=2))
    assert columns_in(columns)["n"] == list(range(sum(sizes)))
    assert [entry.num_samples for _, entry in columns.parts()] == [*[1] * 8, *[100] * 5, 40, 90, 1]


@pytest.mark.parametrize(("group_rows", "block_bytes"), [(3, 1 << 20), (600, 4000)])
def test_a_run_whose_parts_another_version_cut_is_refused(
    tmp_path: Path, group_rows: int, block_bytes: int
) -> None:
    """Whether a part has several row groups, or a row group several parts."""
    small_groups(tmp_path / "log", 600, group_rows)
    config = IngestConfig(schema=SMALL_GROUPS, block_bytes=ByteSize(block_bytes))
    part, *others = open_log(inspect_logs([tmp_path / "log"])[0], 0, config).iterate({})
    assert bool(others) == (group_rows == 600)
    entry: Any = SimpleNamespace(path=part.name, read_facts=lambda kind: SimpleNamespace(num_lines=3))
    parts = open_log(inspect_logs([tmp_path / "log"])[0], 0, config)
    with pytest.raises(ManifestError, match=r"has other rows of .*log than this version") as caught:
        list(parts.iterate({part.name: entry}))
    assert caught.value.hint == "--redo ingest reads the log from its start"


def test_a_row_group_of_different_long_texts_is_not_held_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer begins to number them, and stops."""
    texts = [f"{number:012000d}" for number in range(4000)]
    pq.write_table(pa.table({"d": texts}), tmp_path / "log")
    assert pq.ParquetFile(tmp_path / "log").metadata.row_group(0).column(0).has_dictionary_page
    held: list[int] = []

    def parse(rows: Rows, schema: Schema, **settings: Any) -> Part:
        held.append(pa.total_allocated_bytes())
        return parse_rows(rows, schema, **settings)

    monkeypatch.setattr(columnar_parts, "parse_rows", parse)
    config = IngestConfig(schema="format = 'parquet'\n[sparse]\nd = 'text'", block_bytes=ByteSize(1 << 20))
    before = pa.total_allocated_bytes()
    columns = ingest([tmp_path / "log"], config, tmp_path / "out", Resources(workers=1))
    assert columns.num_samples == 4000 and max(held) - before < 40_000_000


def test_texts_that_the_file_has_once_are_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["x" * 50_000, "y" * 50_000, None]
    pq.write_table(pa.table({"d": [texts[number % 3] for number in range(3000)]}), tmp_path / "log")
    held: list[int] = []

    def parse(rows: Rows, schema: Schema, **settings: Any) -> Part:
        held.append(rows.cells["d"].nbytes)
        return parse_rows(rows, schema, **settings)

    monkeypatch.setattr(columnar_parts, "parse_rows", parse)
    config = IngestConfig(schema="format = 'parquet'\n[sparse]\nd = 'text'")
    made = ingest([tmp_path / "log"], config, tmp_path / "out")
    assert columns_in(made)["d"].count(None) == 1000 and len(set(columns_in(made)["d"])) == 3
    assert max(held) < 200_000  # 100 MB where each row has its own


def test_a_batch_with_lists_much_longer_than_others_is_cut(tmp_path: Path) -> None:
    lengths = [1] * 500 + [2000] + [1] * 100 + [900] * 5 + [1] * 300
    lists = [list(range(length)) for length in lengths]
    pq.write_table(pa.table({"a.b": lists}), tmp_path / "log")
    schema = "format = 'parquet'\n[sparse]\n'a.b' = { kind = 'integer', list = true, name = 'd' }"
    config = IngestConfig(schema=schema, block_bytes=ByteSize(8000))
    columns = ingest([tmp_path / "log"], config, tmp_path / "out")
    assert columns_in(columns)["d"] == lists
    sizes = [(entry.num_samples, entry.facts["lookups"]["d"]) for entry in columns.files]
    assert (1, 2000) in sizes and all(rows == 1 or lookups <= 2000 for rows, lookups in sizes)
    whole = ingest([tmp_path / "log"], config, tmp_path / "two", Resources(workers=2))
    assert whole.fingerprint == columns.fingerprint


@given(st.lists(st.none() | st.lists(st.none() | st.text(max_size=3), max_size=4), min_size=1, max_size=9))
@settings(deadline=None, max_examples=12)
def test_any_lists_come_back(lists: list[list[str | None] | None]) -> None:
    """A missing list is one of one missing element, and so is an empty text."""
    log = Log({"a": "list text"}, [(value,) for value in lists])
    with TemporaryDirectory() as name:
        raw = write_parquet(Path(name) / "log", log)
        columns = ingest([raw], IngestConfig(schema=schema_text(log, format="parquet")), Path(name) / "out")
        assert columns_in(columns) == naive_columns(log)
