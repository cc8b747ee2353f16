"""Tables in memory are read as logs are (`columnar_parts`); a column that is not of the schema is refused.

Columns of a log copied next to scores, row by row.
"""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.errors import ConfigError, InputError
from hotset.pipeline.raw.columnar_parts import TableParts
from hotset.pipeline.raw.log_files import inspect_logs
from hotset.pipeline.raw.log_parts import beside, kept_columns
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.schema.schema import Schema
from hotset.pipeline.schema.schema_file import read_schema, schema_named, schema_of

SCHEMA = read_schema(
    """
format = "csv"
label = "y"
[dense]
price = "float"
[sparse]
tags = { kind = "integer", list = true, separator = ";" }
site = "hex8"
"""
)
COLUMNS: dict[str, Any] = {
    "site": ["0000beef", None, "x", "1"],
    "unused": [1, 2, 3, 4],
    "tags": [[1, 2], None, [], [3]],
    "price": [1, 2, 3, None],
}


def parts_of(columns: dict[str, Any], schema: Schema = SCHEMA) -> list[Any]:
    parts = TableParts(pa.table(columns), schema, rows_of_part=2)
    return [part.read() for part in parts.iterate({})]


def test_rows_are_cut_into_parts_with_the_first_fault_of_each() -> None:
    parts = parts_of(COLUMNS)
    assert [part.num_samples for part in parts] == [2, 0]
    columns = {name: column.to_pylist() for name, column in parts[0].columns.items()}
    assert columns == {"price": [1.0, 2.0], "tags": [[1, 2], [None]], "site": [0xBEEF, None]}
    assert parts[0].fault is None and parts[1].fault is not None
    assert parts[1].fault.text == ", column 'site': found 'x', want 8 hex digits, or nothing"


def test_lists_may_be_text_as_in_the_csv_of_the_schema() -> None:
    (part, _) = parts_of(COLUMNS | {"tags": ["1;2", None, "", "3"]})
    assert part.columns["tags"].to_pylist() == [[1, 2], [None]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"price": None}, "the table has no column 'price'"),
        ({"tags": [12] * 4}, "the table: column 'tags' is int64, want a list of an integer"),
        ({"site": [1.5] * 4}, "the table: column 'site' is double, want 8 hex digits"),
    ],
)
def test_another_column_is_refused(change: dict[str, Any], message: str) -> None:
    columns = {name: values for name, values in (COLUMNS | change).items() if values is not None}
    with pytest.raises(InputError, match=message):
        TableParts(pa.table(columns), SCHEMA, rows_of_part=2)


def test_columns_of_criteo_are_named_as_its_features_are() -> None:
    schema = schema_named("criteo-kaggle")
    columns: dict[str, Any] = {name: [1] for name in schema.dense}
    columns |= {name: ["0000beef"] for name in schema.sparse}
    (part,) = parts_of(columns, schema)
    assert part.fault is None and part.columns["C26"].to_pylist() == [0xBEEF]


ROWS = [("r1", "1", 'a "b", c', "x"), ("", "0", "ü", "yy"), ("r3", "1", "", "z")] * 20
NAMES = ("request", "click", "note", "site")
KEPT = 'label = "click"\n[sparse]\nsite = "text"\n'


def read(log: Path, schema: Schema, names: list[str], **options: Any) -> list[dict[str, Any]]:
    found = kept_columns(
        inspect_logs([log]), schema, names, **{"block_bytes": 64, "has_label": True} | options
    )
    return [row for batch in found for row in batch.to_pylist()]


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("is_compressed", [True, False])
def test_text_is_copied_as_python_reads_it(header: bool, is_compressed: bool, tmp_path: Path) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([NAMES, *ROWS] if header else ROWS)
    data = (b"\xef\xbb\xbf" if header else b"") + text.getvalue().encode()
    log = tmp_path / "log.csv"
    log.write_bytes(gzip.compress(data) if is_compressed else data)
    fields = "" if header else f"header = false\nfields = {list(NAMES)}\n"
    schema = schema_of(f'format = "csv"\n{fields}{KEPT}')
    wanted = [{"note": note, "request": request} for request, _, note, _ in ROWS]
    assert read(log, schema, ["note", "request"]) == wanted


def test_columns_of_parquet_keep_their_types(tmp_path: Path) -> None:
    table = pa.table(
        {"request": pa.array([1, None, 3], pa.int16()), "site": ["a", "b", None], "click": [0, 1, 0]}
    )
    pq.write_table(table, tmp_path / "log")
    found = kept_columns(
        inspect_logs([tmp_path / "log"]),
        schema_of(f'format = "parquet"\n{KEPT}'),
        ["site", "request"],
        block_bytes=64,
        has_label=False,
    )
    assert pa.Table.from_batches(found) == table.select(["site", "request"])


@pytest.mark.parametrize("has_label", [True, False])
def test_fields_of_criteos_text_have_the_names_of_the_schema(has_label: bool, tmp_path: Path) -> None:
    fields = [str(number) for number in range(40)][not has_label :]
    (tmp_path / "log").write_text("\t".join(fields) + "\n")
    found = read(tmp_path / "log", schema_named("criteo-kaggle"), ["C26", "I1"], has_label=has_label)
    assert found == [{"C26": "39", "I1": "1"}]


@pytest.mark.parametrize(
    ("names", "message"),
    [(["requst"], "has no column 'requst'"), (["site", "site"], "--keep 'site' is named twice")],
)
def test_a_name_that_cannot_be_kept_is_refused(names: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("request,click,site\n1,1,a\n")
    with pytest.raises((InputError, ConfigError), match=message):
        read(tmp_path / "log", schema_of(f'format = "csv"\n{KEPT}'), names)


def test_text_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"request,click,site\n\xff,1,a\n")
    with pytest.raises(InputError, match="column 'request' is not UTF-8"):
        read(tmp_path / "log", schema_of(f'format = "csv"\n{KEPT}'), ["request"])


@pytest.mark.parametrize("sizes", [[7], [3, 4], [0, 1, 5, 1]])
def test_rows_stay_beside_each_other_whatever_the_batches(sizes: list[int], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("seven rows")
    log = RawFile.inspect(tmp_path / "log")
    scores = [pa.record_batch({"p": pa.array([0.5] * size, pa.float32())}) for size in sizes]
    kept = pa.table({"row": range(7)}).to_batches(max_chunksize=2)
    found = pa.Table.from_batches(beside(scores, iter(kept), [log]))
    assert found["row"].to_pylist() == list(range(7)) and found.column_names == ["p", "row"]
    with pytest.raises(InputError, match="log changed while it was read"):
        list(beside([*scores, *scores], iter(kept), [log]))
    (tmp_path / "log").write_text("other rows")
    with pytest.raises(InputError, match="log changed while it was read"):
        list(beside(scores, iter(kept), [log]))


def test_files_give_columns_that_others_lack_and_folders_give_one(tmp_path: Path) -> None:
    for name, row in (("dt=1/a", '{"site": "a", "request": 7}'), ("dt=2/b", '{"site": "b"}')):
        log = tmp_path / "log" / name
        log.parent.mkdir(parents=True)
        log.write_text(row)
    schema = schema_of('format = "json"\n[sparse]\nsite = "text"\n')
    wanted = [{"dt": "1", "request": 7}, {"dt": "2", "request": None}]
    assert read(tmp_path / "log", schema, ["dt", "request"]) == wanted
    assert read(tmp_path / "log", schema, ["dt"]) == [{"dt": "1"}, {"dt": "2"}]
    with pytest.raises(InputError, match="has no column 'requst'"):
        read(tmp_path / "log", schema, ["dt", "requst"])


def test_damage_in_a_column_that_is_kept_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    columns = {"click": [0, 1] * 4000, "request": [f"request{number:09}" for number in range(8000)]}
    pq.write_table(
        pa.table(columns), path, use_dictionary=False, compression="none", write_page_checksum=True
    )
    content = bytearray(path.read_bytes())
    content[content.index(b"request000007000")] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read to its end"):
        read(path, schema_of('format = "parquet"\n[sparse]\nclick = "integer"'), ["request"])


def test_files_of_a_log_may_differ_in_types(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    log = RawFile.inspect(tmp_path / "log")
    scores = [pa.record_batch({"probability": pa.array([0.5, 0.5, 0.5])})]
    texts = pa.record_batch({"a": ["7", "8"]})
    for first, second, wanted in (
        (pa.record_batch({"a": [1]}), texts, [1, 7, 8]),
        (texts, pa.record_batch({"a": [1]}), ["7", "8", "1"]),
    ):
        found = pa.Table.from_batches(beside(scores, iter([first, second]), [log]))
        assert found["a"].to_pylist() == wanted
    with pytest.raises(InputError, match="a column has other types in later files"):
        list(beside(scores, iter([pa.record_batch({"a": [1]}), pa.record_batch({"a": ["x", "y"]})]), [log]))
