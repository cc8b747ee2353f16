"""CSV and Parquet logs to columns, lists among them, against naive readers; what is refused and where.

Tests `log_parts` and `part`, too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
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
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.raw.parquet_parts import ParquetParts
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema_file import read_schema
from hotset.pipeline.stages.ingest import IngestConfig, ingest
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


GOOD = "label = 'y'\ndense = ['d']\n[sparse]\nu = 'text'\ni = 'integer'\nn = 'unsigned'\nh = 'hex8'\n"
HEADER = b"y,d,u,i,n,h\n"
BAD_LINES: dict[bytes, tuple[str, str]] = {
    b",1,a,1,1,": ("missing_label", ", column 'y': found nothing, want 0 or 1"),
    b"2,1,a,1,1,": ("bad_label", ", column 'y': found '2', want 0 or 1"),
    b"1,1.5,a,1,1,": (
        "bad_integer",
        ", column 'd': found '1.5', want an integer from -2147483648 to 2147483647, or nothing",
    ),
    b"1,2147483648,a,1,1,": (
        "bad_integer",
        ", column 'd': found '2147483648', want an integer from -2147483648 to 2147483647, or nothing",
    ),
    b"1,,a,9223372036854775808,1,": (
        "bad_category",
        ", column 'i': found '9223372036854775808', want an integer from -2**63 to 2**63 - 1, or nothing",
    ),
    b"1,,a,1,-1,": (
        "bad_category",
        ", column 'n': found '-1', want an integer from 0 to 2**64 - 1, or nothing",
    ),
    b"1,,a,1,1,abc": ("bad_category", ", column 'h': found 'abc', want 8 hex digits, or nothing"),
    b"1,,a,1,1," + b"x" * 99: (
        "bad_category",
        f", column 'h': found '{'x' * 40}'... (99 bytes), want 8 hex digits, or nothing",
    ),
    b"1,1,a": ("field_count", ": found 3 fields, want 6 between ','"),
    b"": ("field_count", ": found 1 field, want 6 between ','"),
    b"1,1,a,1,1,,": ("field_count", ": found 7 fields, want 6 between ','"),
    b'1,1,"a,1,1,': ("field_count", ": a quoted field is not closed before the next field or line"),
    b'1,1,"a"b,1,1,': ("field_count", ": a quoted field is not closed before the next field or line"),
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_csv_line_is_refused_with_file_line_column_found_and_wanted(
    tmp_path: Path, line: bytes
) -> None:
    raw = tmp_path / "log.csv"
    raw.write_bytes(HEADER + b"1,1,a,1,1,\n" * 200 + line + b"\n" + b"x\n")
    with pytest.raises(InputError) as caught:
        ingest([raw], config('format = "csv"\n' + GOOD), tmp_path / "out", Resources(workers=2))
    assert str(caught.value) == f"{raw}, line 202{BAD_LINES[line][1]}"
    assert "--on-bad-line skip" in str(caught.value.hint)
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_bad_csv_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    raw = tmp_path / "log.csv"
    lines = [line for bad in BAD_LINES for line in (b'0,-7,"""q"",",-1,7,0000beef', bad)]
    raw.write_bytes(b"\xef\xbb\xbf" + HEADER + b"\n".join(lines))
    skipping = config('format = "csv"\n' + GOOD, on_bad_line="skip:0.5")
    columns = ingest([raw], skipping, tmp_path / "out")
    assert columns.totals["bad_lines"] == dict(sorted(Counter(r for r, _ in BAD_LINES.values()).items()))
    row = naive_columns(Log({"u": "text", "i": "integer"}, [('"q",', -1)]))
    found = columns_in(columns)
    assert found["u"] == row["u"] * len(BAD_LINES) and found["i"] == row["i"] * len(BAD_LINES)
    assert found["label"] == [0] * len(BAD_LINES) and found["d"] == [-7] * len(BAD_LINES)
    assert columns.totals["raw"][0]["lines"] == 2 * len(BAD_LINES)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (GOOD.replace("u =", "U ="), "has no column 'U'", "did you mean"),
        (GOOD.replace("'y'", "'click'"), "has no column 'click'", "it has ['y', 'd', 'u', 'i', 'n', 'h']"),
    ],
)
@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_column_that_is_not_there_is_named(
    tmp_path: Path, format: str, text: str, message: str, hint: str
) -> None:
    log = Log(dict(zip("yduinh", ("label", "dense", "text", "integer", "unsigned", "hex8"), strict=True)), [])
    raw = (write_csv if format == "csv" else write_parquet)(tmp_path / "log", log)
    with pytest.raises(InputError, match=message) as caught:
        ingest([raw], config(f'format = "{format}"\n' + text), tmp_path / "out")
    assert hint in str(caught.value.hint) or "U" in message


def test_a_file_of_the_other_format_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    log = draw_log(5, KINDS, rng)
    csv = write_csv(tmp_path / "a.csv", log)
    parquet = write_parquet(tmp_path / "a.parquet", log)
    with pytest.raises(InputError, match=r"a\.csv is not a Parquet file"):
        ingest([csv], config(schema_text(log, format="parquet")), tmp_path / "a")
    with pytest.raises(InputError, match=r"a\.parquet is a Parquet file"):
        ingest([parquet], config(schema_text(log)), tmp_path / "b")


PARQUET: dict[str, tuple[Any, str]] = {
    "whole floats": (pa.array([1.0, None, -3.0]), "[1, None, -3]"),
    "small integers": (pa.array([1, None, -3], pa.int8()), "[1, None, -3]"),
    "text": (pa.array(["1", "", "-3"]), "[1, None, -3]"),
    "views": (pa.array(["1", "", "-3"], pa.string_view()), "[1, None, -3]"),
    "nothing": (pa.nulls(3), "[None, None, None]"),
    "floats": (pa.array([1.0, 2.0, 2.5]), "row 3, column 'd': found 2.5, want an integer"),
    "nan": (pa.array([1.0, float("nan"), 2.5]), "row 2, column 'd': found nan, want an integer"),
    "infinity": (pa.array([float("inf"), 1, 1]), "row 1, column 'd': found inf, want an integer"),
    "infinity in a half": (
        pa.array(np.array([1, 1, np.inf], np.float16)),
        "row 3, column 'd': found inf, want an integer",
    ),
    "large": (pa.array([1, 2**31, 3]), "row 2, column 'd': found 2147483648, want an integer"),
    "unsigned": (pa.array([1, 2**63, 3], pa.uint64()), "row 2, column 'd': found 9223372036854775808"),
    "lists": (pa.array([[1], [], None]), "column 'd' is list<element: int64>, want an integer"),
    "times": (pa.array([1, 2, 3], pa.timestamp("s")), "column 'd' is timestamp[ms], want an integer"),
}


@pytest.mark.parametrize("case", PARQUET)
def test_parquet_types_are_read_or_refused(tmp_path: Path, case: str) -> None:
    array, wanted = PARQUET[case]
    pq.write_table(pa.table({"y": [True, False, True], "d": array, "u": ["a", "", None]}), tmp_path / "log")
    text = "format = 'parquet'\nlabel = 'y'\ndense = ['d']\n[sparse]\nu = 'text'"
    if wanted.startswith("["):
        found = columns_in(ingest([tmp_path / "log"], config(text), tmp_path / "out"))
        assert str(found["d"]) == wanted and found["label"] == [1, 0, 1] and found["u"][1:] == [None, None]
        return
    with pytest.raises(InputError) as caught:
        ingest([tmp_path / "log"], config(text), tmp_path / "out")
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


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (
            "when",
            ["2024-05-06", "2024-02-30"],
            "line 3, column 'when': found '2024-02-30', want a time such as",
        ),
        ("ms", ["1", "1.5"], "line 3, column 'ms': found '1.5', want an integer (ms since 1970), or nothing"),
        (
            "when",
            pa.array([1, 2]),
            "column 'when' is int64, want times as text or timestamps, or integers with",
        ),
        ("when", pa.array([1, 2], pa.time32("s")), "column 'when' is time32[ms], want times as text"),
        ("ms", pa.array([1, 2], pa.timestamp("s")), "is timestamp[ms], want an integer (ms since 1970)"),
    ],
)
def test_what_is_no_time_is_refused(column: str, values: Any, message: str, tmp_path: Path) -> None:
    table = {"site": ["a", "b"], "when": ["2024-05-06"] * 2, "ms": ["1", "2"]} | {column: values}
    is_text = isinstance(values, list)
    raw = tmp_path / "log"
    if is_text:
        rows = "".join(",".join(row) + "\n" for row in zip(*table.values(), strict=True))
        raw.write_text(",".join(table) + "\n" + rows)
    else:
        pq.write_table(pa.table(table), raw)
    with pytest.raises(InputError) as caught:
        setting = config(f'format = "{"csv" if is_text else "parquet"}"' + TIMES, label=False)
        ingest([raw], setting, tmp_path / "out")
    assert message in str(caught.value)


def test_a_damaged_parquet_file_is_one_clear_line(tmp_path: Path, rng: np.random.Generator) -> None:
    log = draw_log(500, KINDS, rng)
    raw = write_parquet(tmp_path / "log.parquet", log, group_rows=500)
    text = raw.read_bytes()
    setting = config(schema_text(log, format="parquet"))
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
    """It would be followed by itself for ever: found by `bench fuzz`."""
    parts: Any = SimpleNamespace(_name="row{}".format, _file=SimpleNamespace(path="log.parquet"))
    part = SimpleNamespace(path="row0", read_facts=lambda kind: SimpleNamespace(num_lines=0))
    with pytest.raises(ManifestError, match=r"row0 is said to have 0 rows of log\.parquet"):
        ParquetParts._finished_names(parts, 0, 5, {"row0": part})  # type: ignore[dict-item]


BAD_ROWS: dict[str, tuple[str, Any, str]] = {
    "csv list": ("csv", b"1,0000beef|abc|,1\n", "column 'codes', element 2: found 'abc', want 8 hex digits"),
    "csv float": ("csv", b"1,,1.5.2\n", "column 'price': found '1.5.2', want a finite number, or nothing"),
    "csv nan": ("csv", b"1,,nan\n", "column 'price': found 'nan', want a finite number, or nothing"),
    "csv huge": ("csv", b"1,,-1e999\n", "column 'price': found '-1e999', want a finite number, or nothing"),
    "list": ("parquet", (["0000beef", None, "x"], 1.0), "column 'codes', element 3: found 'x', want 8 hex"),
    "nan": ("parquet", ([], float("nan")), "column 'price': found nan, want a finite number, or nothing"),
    "inf": ("parquet", ([], float("-inf")), "column 'price': found -inf, want a finite number, or nothing"),
}
CODES = "label = 'y'\n[dense]\nprice = 'float'\n[sparse]\ncodes = { kind = 'hex8', list = true }\n"


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_element_is_refused_with_what_was_found(tmp_path: Path, case: str) -> None:
    format, row, message = BAD_ROWS[case]
    raw = tmp_path / "log"
    if format == "csv":
        raw.write_bytes(b"y,codes,price\n1,ffffffff|,2\n0,,.5\n" + row + b"0,x,y\n")
    else:
        table = {"y": [1, 0, 1], "codes": [["ffffffff"], None, row[0]], "price": [2.0, None, row[1]]}
        pq.write_table(pa.table(table, pa.schema(PARQUET_CODES)), raw)
    config = IngestConfig(schema=f"format = '{format}'\n{CODES}")
    with pytest.raises(InputError) as caught:
        ingest([raw], config, tmp_path / "out")
    unit = "line 4" if format == "csv" else "row 3"
    assert f"{raw}, {unit}, {message}" in str(caught.value)
    skipping = replace(config, on_bad_line="skip:0.9")
    columns = ingest([raw], skipping, tmp_path / "skipped")
    found = columns_in(columns)
    assert found["codes"] == [[0xFFFFFFFF, None] if format == "csv" else [0xFFFFFFFF], [None]]
    assert found["price"] == [2.0, 0.5 if format == "csv" else None]
    assert sum(columns.totals["bad_lines"].values()) == (2 if format == "csv" else 1)


PARQUET_CODES = [
    ("y", pa.int8()),
    ("codes", pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    ("price", pa.float32()),
]


PARQUET_LISTS: dict[str, tuple[Any, str]] = {
    "fixed size": (
        pa.array([[1, 2], None, [3, None]], pa.list_(pa.int64(), 2)),
        "[[1, 2], [None], [3, None]]",
    ),
    "large": (pa.array([[1], [], None], pa.large_list(pa.uint8())), "[[1], [], [None]]"),
    "nothing": (pa.array([[None], [], None], pa.list_(pa.null())), "[[None], [], [None]]"),
    "whole floats": (pa.array([[1.0], [2], [-1]], pa.list_(pa.float32())), f"[[1], [2], [{2**64 - 1}]]"),
    "text": (pa.array([["1", ""], ["-2"], []]), f"[[1, None], [{2**64 - 2}], []]"),
    "no list": (pa.array([1, 2, 3]), "column 'd' is int64, want a list of an integer"),
    "lists of lists": (pa.array([[[1]], [], []]), "column 'd' is list<element: list<element: int64>>, want"),
}


@pytest.mark.parametrize("case", PARQUET_LISTS)
def test_parquet_lists_are_read_or_refused(tmp_path: Path, case: str) -> None:
    array, wanted = PARQUET_LISTS[case]
    pq.write_table(pa.table({"d": array}), tmp_path / "log")
    config = IngestConfig(schema="format = 'parquet'\n[sparse]\nd = { kind = 'integer', list = true }")
    if wanted.startswith("["):
        assert str(columns_in(ingest([tmp_path / "log"], config, tmp_path / "out"))["d"]) == wanted
        return
    with pytest.raises(InputError) as caught:
        ingest([tmp_path / "log"], config, tmp_path / "out")
    assert wanted in str(caught.value) and "\n" not in str(caught.value)


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


def test_a_list_that_the_schema_does_not_call_one_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"d": [[1], [2]]}), tmp_path / "log")
    with pytest.raises(InputError, match="rows that hold lists need list = true in the schema"):
        ingest(
            [tmp_path / "log"],
            IngestConfig(schema="format = 'parquet'\n[sparse]\nd = 'text'"),
            tmp_path / "a",
        )


def test_parts_of_long_lists_have_fewer_rows(tmp_path: Path) -> None:
    lists = [list(range(1000)) for _ in range(64)]
    pq.write_table(pa.table({"d": lists}), tmp_path / "log", row_group_size=32)
    schema = "format = 'parquet'\n[sparse]\nd = { kind = 'integer', list = true }"
    config = IngestConfig(schema=schema, block_bytes=ByteSize(64_000))
    columns = ingest([tmp_path / "log"], config, tmp_path / "out")
    assert [entry.num_samples for entry in columns.files] == [8] * 8
    assert columns.files[0].facts["lookups"] == {"d": 8000}


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
