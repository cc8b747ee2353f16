"""List-valued columns and floats in CSV and Parquet: what is read, and what is refused in which words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ByteSize, InputError
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.tests.support.logs.other_logs import Log, columns_in, naive_columns, schema_text, write_parquet

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
