"""All formats of the same rows give the same columns, and the bytes of a file decide which one it is.

Tests `columnar_parts` and `json_parts`, too.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ByteSize, FormatError, HotsetError, InputError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.totals import ColumnsTotals
from hotset.pipeline.formats.arrow_files import write_batch
from hotset.pipeline.infer_schema import propose_schema
from hotset.pipeline.raw import columnar_parts
from hotset.pipeline.raw.json_parts import read_lines, types_of
from hotset.pipeline.raw.log_files import inspect_logs, log_files
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.raw.tabular import parse_rows, rows_of_batch
from hotset.pipeline.runtime.limits import Node
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema_file import schema_of
from hotset.pipeline.stages import ingest as ingest_module
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.criteo_text import tree_of
from hotset.tests.support.processes.made_up_cluster import made_up_cluster

KEYS = """label = "label"
[dense]
price = "float"
count = "integer"
[sparse]
user = "integer"
item = "unsigned"
city = "text"
tags = { kind = "integer", list = true }
ts = [{ kind = "hour", name = "hour" }, { kind = "weekday", name = "day" }]
"""
SCHEMA = f'format = "parquet"\n{KEYS}'
NUM_ROWS = 700
Row = dict[str, Any]


def rows_of(seed: int = 0, *, num_rows: int = NUM_ROWS) -> list[Row]:
    drawn = random.Random(seed)
    return [
        {
            "label": drawn.randrange(2),
            "user": drawn.choice([None, -7, 12, 2**62]),
            "item": 2**62 + drawn.randrange(9),
            "price": drawn.choice([None, 0.1, -2.5, 1e-7]),
            "count": drawn.randrange(-5, 5),
            "city": drawn.choice([None, "a", "São", 'b "c", d', "2024-01-01"]),
            "tags": drawn.choice([None, [1], [3, 2, 3]]),
            "ts": f"2024-01-{drawn.randrange(1, 29):02} {drawn.randrange(24):02}:00:00",
        }
        for _ in range(num_rows)
    ]


TYPES = {"item": pa.uint64(), "tags": pa.list_(pa.int64()), "user": pa.int64()}


def table_of(rows: list[Row]) -> Any:
    return pa.table({name: pa.array([row[name] for row in rows], TYPES.get(name)) for name in rows[0]})


def write_arrow(path: Path, rows: list[Row], compression: str | None = None) -> None:
    table = table_of(rows)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, table.schema, options=options) as file:
        file.write_table(table, max_chunksize=90)


def write_stream(path: Path, rows: list[Row]) -> None:
    table = table_of(rows)
    with pa.ipc.new_stream(path, table.schema) as file:
        file.write_table(table, max_chunksize=90)


def write_orc(path: Path, rows: list[Row]) -> None:
    table = table_of(rows)
    place = table.schema.names.index("item")  # ORC has no unsigned integers
    orc.write_table(table.set_column(place, "item", table["item"].cast(pa.int64())), path)


def json_lines(rows: list[Row]) -> str:
    """Return lines without the keys of some missing values, and with others in between."""
    return "".join(
        json.dumps({"x": {"y": [1]}} | {k: v for k, v in row.items() if v is not None or number % 2}) + "\n"
        for number, row in enumerate(rows)
    )


def csv_lines(rows: list[Row], separator: str = ",") -> str:
    def cell(value: Any) -> str:
        if isinstance(value, list):
            return "|".join(map(str, value))
        text = "" if value is None else str(value)
        return '"' + text.replace('"', '""') + '"' if '"' in text or separator in text else text

    header = separator.join(rows[0])
    return "\n".join([header, *(separator.join(map(cell, row.values())) for row in rows), ""])


WRITERS: dict[str, Callable[[Path, list[Row]], Any]] = {
    "arrow": write_arrow,
    "arrow-zstd": lambda path, rows: write_arrow(path, rows, "zstd"),
    "stream": write_stream,
    "orc": write_orc,
    "json": lambda path, rows: path.write_text(json_lines(rows)),
    "json.gz": lambda path, rows: path.write_bytes(gzip.compress(json_lines(rows).encode())),
    "json-bom-crlf": lambda path, rows: path.write_bytes(
        b"\xef\xbb\xbf" + json_lines(rows).replace("\n", "\r\n\n").encode()
    ),
    "csv": lambda path, rows: path.write_text(csv_lines(rows)),
    "tsv": lambda path, rows: path.write_text(csv_lines(rows, "\t")),
    "parquet": lambda path, rows: pq.write_table(table_of(rows), path, row_group_size=300),
}


def columns_of(path: Path, out: Path, schema: str = SCHEMA, **ways: Any) -> dict[str, list[Any]]:
    ingest(log_files([path]), IngestConfig(schema=schema, **ways), out, Resources(workers=2))
    columns = Manifest.read(out)
    found: dict[str, list[Any]] = {}
    for entry in columns.files:
        if not entry.path.endswith(".texts.arrow"):
            with pa.ipc.open_file(out / entry.path) as file:
                for name, values in file.read_all().to_pydict().items():
                    found.setdefault(name, []).extend(values)
    return found


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    folder = tmp_path_factory.mktemp("wanted")
    WRITERS["parquet"](folder / "log", rows_of())
    return columns_of(folder / "log", folder / "columns")


def few_at_first(*names: str) -> list[Any]:
    """Return all formats, of which some are left to the slow run."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in WRITERS]


@pytest.mark.parametrize("block_bytes", [4096, pytest.param(1 << 20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_columns_of_parquet(
    tmp_path: Path, wanted: dict[str, list[Any]], name: str, block_bytes: int
) -> None:
    WRITERS[name](tmp_path / "log", rows_of())
    assert columns_of(tmp_path / "log", tmp_path / "D" / "columns", block_bytes=block_bytes) == wanted
    assert not verify(tmp_path / "D", raw=[tmp_path / "log"])


@pytest.mark.parametrize("name", few_at_first("parquet", "json.gz"))
def test_other_machines_are_sent_no_data_of_a_log(tmp_path: Path, name: str) -> None:
    """A compressed file, or one of Arrow, is one task; of Parquet each row group is."""
    schema = propose_schema(_written(tmp_path, name, "a")).text
    logs = [_written(tmp_path, name, each) for each in ("a", "b", "c")]
    config = IngestConfig(schema=schema, block_bytes=ByteSize(2000))
    here = ingest(logs, config, tmp_path / "here", Resources(workers=2))
    with made_up_cluster(Node(3, 1 << 36)) as engine:
        there = ingest(logs, config, tmp_path / "there")
    assert tree_of(here.folder) == tree_of(there.folder)
    units = [size for function, size in engine.sent if function == "_ingest_unit"]
    assert max(size for _, size in engine.sent) < 8192 < sum(log.stat().st_size for log in logs)
    is_whole = name in ("json.gz", "orc", "stream") or name.startswith("arrow")
    assert len(units) == 3 if is_whole else len(units) >= 9


def _written(folder: Path, name: str, part: str) -> Path:
    path = folder / f"{part}.{name}"
    WRITERS[name](path, rows_of(ord(part)))
    return path


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "tsv"])
def test_a_schema_of_csv_reads_every_format(tmp_path: Path, wanted: dict[str, list[Any]], name: str) -> None:
    WRITERS[name](tmp_path / "log", rows_of())
    schema = f'format = "csv"\n{KEYS}'
    assert columns_of(tmp_path / "log", tmp_path / "columns", schema) == wanted


@pytest.mark.parametrize("format", ["csv", "json"])
def test_text_of_no_rows_is_a_file_of_any_log(
    tmp_path: Path, wanted: dict[str, list[Any]], format: str
) -> None:
    files = [tmp_path / name for name in "abcd"]
    for file, content in zip(files, (b"\n\n", b"\xef\xbb\xbf", gzip.compress(b"")), strict=False):
        file.write_bytes(content)
    WRITERS[format](files[-1], rows_of())
    assert columns_of(tmp_path, tmp_path / "_columns", f'format = "{format}"\n{KEYS}') == wanted


def test_lists_as_text_keep_their_separator_in_parquet(tmp_path: Path, wanted: dict[str, list[Any]]) -> None:
    texts = [None if row["tags"] is None else "|".join(map(str, row["tags"])) for row in rows_of()]
    table = table_of(rows_of())
    place = table.schema.names.index("tags")
    pq.write_table(table.set_column(place, "tags", pa.array(texts)), tmp_path / "log")
    assert columns_of(tmp_path / "log", tmp_path / "columns", f'format = "csv"\n{KEYS}') == wanted


def test_parts_are_of_about_block_bytes_whatever_the_batches_of_the_file_are(tmp_path: Path) -> None:
    sizes: dict[str, list[int]] = {}
    for name in ("arrow", "stream", "orc"):
        WRITERS[name](tmp_path / name, rows_of())
        ingest(
            [tmp_path / name],
            IngestConfig(schema=SCHEMA, block_bytes=ByteSize(16_384)),
            tmp_path / f"{name}-columns",
        )
        parts = Manifest.read(tmp_path / f"{name}-columns").files
        sizes[name] = [entry.num_samples for entry in parts if ".texts." not in entry.path]
    assert all(max(found) * 8 * 8 <= 16_384 for found in sizes.values())
    assert all(len(found) < 8 for found in sizes.values())


@pytest.mark.parametrize("name", ["arrow", "json"])
def test_a_format_is_written_in_a_proposal_and_read_by_it(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / "log", rows_of())
    proposal = propose_schema(tmp_path / "log")
    assert proposal.schema.format == name and proposal.schema.label == "label"
    assert {"user", "item", "city", "tags"} <= set(proposal.schema.sparse)
    assert proposal.schema.kind_of["item"] in ("integer", "unsigned")
    assert columns_of(tmp_path / "log", tmp_path / "columns", proposal.text)["label"]


def test_rows_of_json_that_arrow_cannot_read_have_the_values_of_csv(tmp_path: Path) -> None:
    schema = schema_of(
        'format = "json"\nlabel = "y"\ndense = []\n[sparse]\nuser = "integer"\nname = "text"\n'
    )
    assert schema.format == "json"
    lines = [
        '{"y": 1, "user": 5, "name": "a"}',
        '{"y": 0, "user": "5", "name": "a"}',  # a number in quotes
        '{"y": true, "user": 5.0, "name": null}',
        '{"y": 1, "user": 18014398509481985}',
    ]
    text = 'format = "json"\nlabel = "y"\ndense = []\n[sparse]\nuser = "integer"\nname = "text"\n'
    assert schema_of(text).format == "json"
    (tmp_path / "log").write_text("\n".join(lines))
    found = columns_of(tmp_path / "log", tmp_path / "columns", text)
    assert found["label"] == [1, 0, 1, 1]
    assert found["user"] == [5, 5, 5, 18014398509481985]
    assert found["name"][0] == found["name"][1] and found["name"][2:] == [None, None]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"y": 1, "user": ', "row 3: want one JSON object on the line"),
        ('["y", 1]', "row 3: want one JSON object on the line"),
        ('{"y": 2, "user": 3}', "row 3, column 'y': found 2, want 0 or 1"),
        ('{"y": 1, "user": Infinity}', "row 3, column 'user': found 'Infinity', want an integer"),
        ('{"y": 1, "user": "x"}', "row 3, column 'user': found 'x', want an integer"),
        ('{"y": 1, "user": {"a": "x"}}', "row 3, column 'user': found '{\"a\": \"x\"}', want an integer"),
        ('{"user": 3}', "row 3, column 'y': found nothing, want 0 or 1"),
    ],
)
def test_a_bad_line_of_json_is_named_and_may_be_skipped(tmp_path: Path, line: str, found: str) -> None:
    text = 'format = "json"\nlabel = "y"\ndense = []\n[sparse]\nuser = "integer"\n'
    (tmp_path / "log").write_text(
        '{"y": 1, "user": 1}\n\n{"y": 0, "user": 2}\n' + line + '\n{"y": 1, "user": 4}\n'
    )
    with pytest.raises(InputError) as caught:
        columns_of(tmp_path / "log", tmp_path / "columns", text)
    assert f"log, {found}" in str(caught.value)
    kept = columns_of(tmp_path / "log", tmp_path / "skipped", text, on_bad_line="skip:0.5")
    assert kept["user"] == [1, 2, 4]
    totals = ColumnsTotals.of(Manifest.read(tmp_path / "skipped"))
    assert sum(totals.bad_lines.values()) == 1


def test_a_key_that_no_row_has_is_refused(tmp_path: Path) -> None:
    text = 'format = "json"\nlabel = "y"\ndense = []\n[sparse]\nusr = "integer"\n'
    (tmp_path / "log").write_text('{"y": 1, "user": 1}\n')
    with pytest.raises(InputError, match="has no column 'usr'") as caught:
        columns_of(tmp_path / "log", tmp_path / "columns", text)
    assert caught.value.hint == "did you mean 'user'?"


def test_a_file_of_json_may_lack_a_key_and_begin_without_a_list(tmp_path: Path) -> None:
    """The second file has labels of two kinds and what is no number, which are read slowly."""
    text = 'format = "json"\nlabel = "y"\ndense = []\n[sparse]\nuser = "integer"\n'
    text += 'tags = { kind = "text", list = true, separator = "|" }\n'
    text += 'seen = { kind = "integer", list = true }\nname = "text"\n'
    (tmp_path / "a").write_text('{"y": 1, "tags": null, "seen": null, "name": 7.50}\n')
    (tmp_path / "b").write_text(
        '{"y": 1, "user": NaN, "tags": null}\n{"y": true, "user": 7, "tags": ["a|b", "c"]}\n'
    )
    (tmp_path / "c").write_text('{"y": 1, "tags": [false], "name": "7.50"}\n')
    found = columns_of(tmp_path, tmp_path / "_columns", text)
    assert found["user"] == [None, None, 7, None]
    hashes = {word: xxhash.xxh3_64_intdigest(word) for word in (b"a|b", b"c", b"0", b"7.50")}
    assert found["tags"] == [[None], [None], [hashes[b"a|b"], hashes[b"c"]], [hashes[b"0"]]]
    assert found["name"] == [hashes[b"7.50"], None, None, hashes[b"7.50"]]


@pytest.mark.parametrize(
    ("form", "values", "read"),
    [
        ('list = true, separator = "^"', ["x", ["x", "y"]], [["x"], ["x", "y"]]),
        ('list = true, separator = "^"', [["x"], "x^y"], None),
        ('list = true, separator = "^"', ["x^y", ["x"]], None),
        ('list = "brackets"', ["[x,y]", ["x"]], None),
        ('list = "brackets"', ["{x}", ["x"]], None),
        ('list = "brackets"', ["x (y)", ["x", "y"]], [["x (y)"], ["x", "y"]]),
    ],
)
def test_arrays_and_text_of_lists_in_one_column_are_never_read_as_one_element(
    form: str, values: list[Any], read: list[list[str]] | None, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text("".join(json.dumps({"y": 1, "a": each}) + "\n" for each in values))
    text = f'format = "json"\nlabel = "y"\ndense = []\n[sparse]\na = {{ kind = "text", {form} }}\n'
    if read is None:
        with pytest.raises(InputError, match="no column of both arrays and text of lists"):
            columns_of(tmp_path / "log", tmp_path / "columns", text)
    else:
        hashes = [[xxhash.xxh3_64_intdigest(e.encode()) for e in row] for row in read]
        assert columns_of(tmp_path / "log", tmp_path / "columns", text)["a"] == hashes


def test_a_stray_array_among_numbers_is_a_bad_value(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"y": 1, "age": age, "a": "x"} for age in (3, 5, [4], 7)]
    (tmp_path / "log").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = 'format = "json"\nlabel = "y"\ndense = ["age"]\n[sparse]\na = "text"\n'
    found = columns_of(tmp_path / "log", tmp_path / "columns", text, on_bad_line="skip:0.5")
    assert found["age"] == [3, 5, 7]
    with pytest.raises(InputError, match="row 3, column 'age': found"):
        columns_of(tmp_path / "log", tmp_path / "strict", text)


def test_text_that_is_not_utf_8_is_its_bytes_in_parquet_and_json(tmp_path: Path) -> None:
    words = [b"caf\xe9", b"x"] * 3
    offsets, data = pa.array(words, pa.binary()).buffers()[1:]
    text = pa.StringArray.from_buffers(6, offsets, data)
    lists = pa.ListArray.from_arrays(range(7), text)
    pq.write_table(pa.table({"y": [1] * 6, "user": text, "tags": lists}), tmp_path / "a", row_group_size=2)
    lines = [b'{"y": 1, "user": "%s", "tags": ["%s"]}\n' % (word, word) for word in words]
    (tmp_path / "b").write_bytes(b"".join(lines))
    for name in "ab":
        proposal = propose_schema(tmp_path / name)
        assert set(proposal.schema.sparse) == {"user", "tags"}
    keys = 'label = "y"\ndense = []\n[sparse]\nuser = "text"\ntags = { kind = "text", list = true }\n'
    found = columns_of(tmp_path, tmp_path / "_columns", f'format = "parquet"\n{keys}')
    assert found["user"] == [xxhash.xxh3_64_intdigest(word) for word in words] * 2
    assert found["tags"] == [[user] for user in found["user"]]
    (tmp_path / "b").write_bytes(lines[1] + rb'{"y": 1, "user": "\ud83d"}')
    with pytest.raises(InputError, match="b, row 2: want one JSON object"):
        columns_of(tmp_path / "b", tmp_path / "_other", f'format = "json"\n{keys}')


@pytest.mark.parametrize("name", ["arrow", "arrow-zstd", "stream", "orc", "parquet"])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / "log", rows_of())
    content = (tmp_path / "log").read_bytes()
    for length in (len(content) // 2, len(content) - 20, 100):
        (tmp_path / "log").write_bytes(content[:length])
        with pytest.raises(InputError):
            columns_of(tmp_path / "log", tmp_path / f"columns{length}")


@pytest.mark.parametrize(
    "name",
    [
        "arrow",
        "orc",
        "json",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("arrow-zstd", "stream")),
    ],
)
def test_a_damaged_byte_is_refused_or_changes_values_only(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / "log", rows_of(num_rows=60))
    content = (tmp_path / "log").read_bytes()
    drawn = random.Random(5)
    for number in range(60):
        changed = bytearray(content)
        changed[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
        (tmp_path / "log").write_bytes(changed)
        try:
            found = columns_of(tmp_path / "log", tmp_path / f"columns{number}")
        except HotsetError:  # also memory, where a batch claims to be large
            continue
        assert len(found["label"]) <= 60


def test_text_that_is_not_what_it_seems_is_text(tmp_path: Path) -> None:
    for start in ("ORC,label\n", "ARROW1,label\n", '{"a": 1},5\n', "{,label\n"):
        (tmp_path / "log").write_text(start + "3,1\n")
        assert RawFile.inspect(tmp_path / "log").read_format() == "text"
    (tmp_path / "log").write_text('[{"a": 1},\n{"a": 2}]\n')
    with pytest.raises(InputError, match="is a JSON array") as caught:
        inspect_logs([tmp_path / "log"])[0].read_format()
    assert (caught.value.hint or "").startswith("`jq -c '.[]' ")


def test_text_without_the_columns_of_a_parquet_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("1,2,3\n")
    with pytest.raises(FormatError, match="neither parquet nor text with the columns"):
        columns_of(tmp_path / "log", tmp_path / "columns")


def test_batches_of_long_texts_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"label": [1] * 300, "text": [f"{number:05}" * 200 for number in range(300)]})
    with pa.ipc.new_file(tmp_path / "log", table.schema) as file:
        file.write_table(table)
    held: list[int] = []
    join = columnar_parts._join

    def joined(batches: list[Any]) -> Any:
        held.append(sum(batch.nbytes for batch in batches))
        return join(batches)

    monkeypatch.setattr(columnar_parts, "_join", joined)
    schema = 'format = "arrow"\nlabel = "label"\ndense = []\n[sparse]\ntext = "text"\n'
    assert len(columns_of(tmp_path / "log", tmp_path / "columns", schema, block_bytes=20_000)["text"]) == 300
    assert len(held) > 15 and max(held) <= 20_000


@pytest.mark.parametrize("name", ["arrow-zstd", "stream", "orc", "json", "json.gz"])
def test_a_run_that_was_stopped_resumes_to_the_same_bytes(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[name](tmp_path / "log", rows_of())
    config = IngestConfig(schema=SCHEMA, block_bytes=ByteSize(8192))
    whole = ingest([tmp_path / "log"], config, tmp_path / "whole")
    written: list[Path] = []

    def stopping(path: Path, columns: Any) -> None:
        if len(written) == 3:
            raise KeyboardInterrupt
        write_batch(path, columns)
        written.append(path)

    with monkeypatch.context() as patch:
        patch.setattr(ingest_module, "write_batch", stopping)
        with pytest.raises(KeyboardInterrupt):
            ingest([tmp_path / "log"], config, tmp_path / "resumed", Resources(workers=1))
    resumed = ingest([tmp_path / "log"], config, tmp_path / "resumed", Resources(workers=2))
    assert resumed.fingerprint == whole.fingerprint
    # Another log of the same length is refused by what is finished.
    shutil.rmtree(tmp_path / "resumed")
    with monkeypatch.context() as patch:
        written.clear()
        patch.setattr(ingest_module, "write_batch", stopping)
        with pytest.raises(KeyboardInterrupt):
            ingest([tmp_path / "log"], config, tmp_path / "resumed", Resources(workers=1))
    # Half a note, as a power cut leaves it, tells of no log.
    for note in (tmp_path / "resumed").rglob("*.checksums*"):
        text = note.read_bytes()
        note.write_bytes(text[:9])
        with pytest.raises(HotsetError, match="changed"):
            ingest([tmp_path / "log"], config, tmp_path / "resumed")
        note.write_bytes(text)
    content = bytearray((tmp_path / "log").read_bytes())
    WRITERS[name](tmp_path / "log", rows_of(1))
    other = (tmp_path / "log").read_bytes()[: len(content)].ljust(len(content))
    (tmp_path / "log").write_bytes(other)
    with pytest.raises(HotsetError):
        ingest([tmp_path / "log"], config, tmp_path / "resumed")


VALUES = st.none() | st.integers(-(2**40), 2**40) | st.sampled_from([2**53 + 1, 2**63 - 1, -(2**63)])
JSON_ROWS = st.lists(
    st.fixed_dictionaries(
        {"y": st.integers(0, 1)},
        optional={
            "number": VALUES,
            "large": st.none() | st.integers(0, 2**64 - 1),
            "text": st.none() | st.text(max_size=5),
            "price": st.none() | st.floats(-1e6, 1e6, width=32),
            "list": st.none() | st.lists(st.none() | st.integers(0, 99), max_size=3),
        },
    ),
    min_size=1,
    max_size=12,
)
JSON_SCHEMA = schema_of(
    'format = "json"\nlabel = "y"\n[dense]\nprice = "float"\n[sparse]\nnumber = "integer"\n'
    'large = "unsigned"\ntext = "text"\nlist = { kind = "integer", list = true }\n'
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(rows=JSON_ROWS)
def test_json_is_read_the_same_by_arrow_and_line_by_line(rows: list[Row]) -> None:
    names = JSON_SCHEMA.columns(has_label=True)
    text = np.frombuffer("".join(json.dumps(row) + "\n" for row in rows).encode(), np.uint8)
    found = pa.schema(
        [("y", pa.int64()), ("price", pa.float64()), ("number", pa.int64()), ("large", pa.uint64())]
    )
    found = pa.unify_schemas([found, pa.schema([("text", pa.string()), ("list", pa.list_(pa.int64()))])])
    fields = types_of(found, JSON_SCHEMA, names, has_label=True)
    fast = read_lines(text, fields)[0]
    slow = read_lines(np.concatenate([text, np.frombuffer(b"{\n", np.uint8)]), fields)[0].slice(0, len(rows))
    parts = [parse_rows(rows_of_batch(batch), JSON_SCHEMA, has_label=True) for batch in (fast, slow)]
    columns = [{name: values.to_pylist() for name, values in part.columns.items()} for part in parts]
    assert columns[0] == columns[1] and parts[0].fault == parts[1].fault
    assert columns[0]["number"] == [None if (n := row.get("number")) is None else n % 2**64 for row in rows]
    assert columns[0]["large"] == [row.get("large") for row in rows]
    assert columns[0]["price"] == [row.get("price") for row in rows]
    lists = [[None] if row.get("list") is None else row["list"] for row in rows]
    assert columns[0]["list"] == lists
