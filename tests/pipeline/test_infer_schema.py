"""Schemas proposed for logs nobody described can be used as they stand: header, label, columns, lines.

The label of a log: by its name and its values, and the columns that know it.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.errors import InputError
from hotset.pipeline.infer_column import infer_column
from hotset.pipeline.infer_schema import (
    InferredLabel,
    Proposal,
    explain_built_in,
    follows_label,
    infer_label,
    is_positive,
    propose_schema,
)
from hotset.pipeline.schema.schema_file import read_schema, schema_named
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.logs.other_logs import columns_in, draw_log, naive_columns, write_csv, write_parquet
from hotset.tests.support.logs.text_columns import texts_of


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_columns_that_know_the_label_are_left_out(
    format: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    click = rng.integers(0, 2, 300)
    columns = {
        "nonclk": 1 - click,
        "seconds": click * rng.integers(0, 90, 300),
        "copy": click,
        "liked": click * rng.integers(0, 2, 300),
        "rare": np.arange(300) == np.flatnonzero(click)[3],
        "user": rng.integers(0, 30, 300),
        "gender": rng.integers(0, 2, 300),
        "price": rng.random(300) + 1,
        "is_clicked": click,
    }
    rows = {
        name: [int(each) if name != "price" else float(each) for each in of] for name, of in columns.items()
    }
    if format == "csv":
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*rows.values(), strict=True))]
        proposal = proposed(tmp_path / "log.csv", "\n".join(lines) + "\n")
    else:
        proposal = proposed(tmp_path / "log.parquet", rows)
    assert proposal.schema.label == "is_clicked"
    assert proposal.schema.kind_of.keys() == {"rare", "user", "gender"}  # one row may be chance
    assert '# nonclk = "integer"  # left out: it is 1 - is_clicked in every row' in proposal.text
    for name in ("seconds", "copy", "liked"):
        assert f'# {name} = "integer"  # left out: it is 0 wherever is_clicked is 0' in proposal.text


def test_a_second_label_is_no_feature(tmp_path: Path) -> None:
    rows = "".join(f"{row % 2},{row // 2 % 2},{row % 7}\n" for row in range(200))
    proposal = proposed(tmp_path / "log.csv", f"click,is_like,user\n{rows}")
    assert (proposal.schema.label, proposal.schema.sparse) == ("click", ("user",))
    assert '# is_like = "integer"  # left out: it is called like a label, as click is' in proposal.text


@pytest.mark.parametrize(
    ("first", "rows", "is_header"),
    [
        (["", "user", "label"], [["0", "7", "1"], ["1", "8", "0"]], True),
        (["user", "n", "user", "label"], [["7", "2", "7", "1"], ["8", "3", "8", "0"]], True),
        (["label", "0", "1", "2"], [["1", "7", "8", "0.5"], ["0", "7", "9", "0.1"]], True),
        (["label", "deadbeef"], [["1", "00000007"], ["0", "00000008"]], True),
        (["when", "who"], [["2024-05-01", "a"], ["2024-05-02", "b"]], True),
        (["1", "7", "a"], [["0", "8", "b"], ["1", "9", "a"]], False),
        (["\\N", "7"], [["0", "8"], ["1", "9"]], False),
        (["", "7"], [["0", "8"], ["1", "9"]], False),
        (["2024-05-01", "a"], [["2024-05-02", "b"], ["2024-05-02", "b"]], False),
        (["00000001", "deadbeef"], [["00000002", "0a0b0c0d"], ["00000003", "0a0b0c0d"]], False),
        (["city", "site"], [["a", "b"], ["c", "d"]], True),
        (["city", "7"], [["a", "b"], ["c", "d"]], False),
        (["a", "a"], [["a", "b"], ["c", "d"]], False),
    ],
)
def test_a_line_that_is_unlike_the_others_is_the_header(
    first: list[str], rows: list[list[str]], is_header: bool, tmp_path: Path
) -> None:
    lines = [first, *rows * 20]
    text = "\n".join(",".join(line) for line in lines) + "\n"
    proposal = proposed(tmp_path / "log.csv", text)
    assert (proposal.schema.fields == ()) == is_header
    assert proposal.num_rows == len(lines) - is_header


@pytest.mark.parametrize("header", ["user,,user,item,label", "# made by job 17\nuser,,user,item,label"])
def test_columns_without_a_name_of_their_own_are_read_as_the_note_says(header: str, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    proposal = proposed(log, header + "\n" + "7,1,5,3,1\n8,2,6,4,0\n" * 30)
    assert [column.is_readable for column in proposal.columns] == [False, False, False, True]
    (note,) = (note for note in proposal.notes if "without a name" in note)
    told = re.search(r"write in place of header: (.*), (.*) and (.*)\.", note)
    assert told is not None
    keys = ["format = 'csv'", "label = 'label'", *told.groups(), "[sparse]"]
    columns = [f"{name} = 'integer'" for name in ("user", "unnamed", "user_")]
    found = ingest([log], IngestConfig(schema="\n".join([*keys, *columns])), tmp_path / "out")
    assert columns_in(found)["user_"] == [5, 6] * 30 and found.num_samples == 60
    assert not proposed(log, "user,label,\n" + "7,1,\n8,0,\n" * 30).notes, "nothing is in that column"
    log.write_text("user,user\n" + "7,1\n8,2\n" * 30)
    with pytest.raises(InputError, match=r"same one, are left out\. To read them, .*, skip = 1 and fields"):
        propose_schema(log)


def test_libsvm_is_named_and_its_lines_are_made_two_columns(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"{row % 2} {row % 5 + 1}:0.5 7:1 {row % 3 + 9}:2e-3\n" for row in range(90)))
    with pytest.raises(InputError, match="has LIBSVM's form: a label, then pairs") as caught:
        propose_schema(log)
    command = str(caught.value.hint).split("`")[1]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    proposal = propose_schema(tmp_path / "log.tsv")
    assert (proposal.schema.label, proposal.schema.lists) == ("field1", (("field2", " "),))
    assert proposal.schema.weight_separators == (("field2", ":"),)
    log.write_text("".join(f"{row % 2} 10:{row % 60} 9:15\n" for row in range(90)))
    assert propose_schema(log).schema.separator == " ", "numbers of pairs ascend"


@pytest.mark.parametrize("num_more", [9, 40])
def test_records_that_are_cut_where_places_meet_do_not_count(
    num_more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.pipeline.infer_dialect._CHUNK_BYTES", 1 << 17)
    more = "\nand more" * num_more
    num_rows = 600_000 // (len(more) + 25)
    rows = [f'{row % 97},"said {row}{more}, {row}",{row % 2}\n' for row in range(num_rows)]
    for log, content in ((tmp_path / "log", bytes), (tmp_path / "log.gz", gzip.compress)):
        log.write_bytes(content("".join(["user,text,label\n", *rows]).encode()))
        proposal = propose_schema(log)
        assert proposal.notes == () and "MiB" in proposal.places
        assert (proposal.schema.kind_of, proposal.schema.label) == ({"user": "integer"}, "label")
    rows[4:4] = ["7,8\n"]
    (tmp_path / "log").write_text("".join(["user,text,label\n", *rows]))
    assert "Not looked at: 1 of" in propose_schema(tmp_path / "log").text


def test_a_folder_may_name_the_label(tmp_path: Path) -> None:
    for click in range(2):
        folder = tmp_path / "log" / "dt=2024-01-01" / f"click={click}"
        folder.mkdir(parents=True)
        (folder / "part.csv").write_text("user,gender\n" + "7,0\n8,1\n" * (30 + click))
    proposal = propose_schema(tmp_path / "log")
    assert proposal.schema.label == "click" and proposal.schema.sparse == ("user", "gender")
    assert not any("are the same" in note for note in proposal.notes)
    files = sorted((tmp_path / "log").rglob("*.csv"))
    read = columns_in(ingest(files, IngestConfig(schema=proposal.text), tmp_path / "out"))
    assert read["label"] == [0] * 60 + [1] * 62
    files[1].write_text("7,a\n8,b\n" * 50)
    assert propose_schema(tmp_path / "log").schema.label is None, "the names in fields are all columns"


def test_lines_that_are_split_otherwise_are_counted(tmp_path: Path) -> None:
    lines = ["user,label"] + ["7,1", "8,0", "9,0", "7,1,", "8"] * 30
    proposal = proposed(tmp_path / "log.csv", "\n".join(lines) + "\n")
    assert proposal.num_rows == 90
    assert "# Not looked at: 60 of 150 lines. Line 5 has 3 fields, want 2." in proposal.text


def test_an_odd_line_has_a_number_only_if_the_lines_above_it_were_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.pipeline.infer_dialect._CHUNK_BYTES", 1 << 17)
    lines = ["user,label"] + [f"{row % 977},{row % 2}" for row in range(90_000)]
    for number, which in ((51_000, "One in the middle or at the end"), (7, "Line 8")):
        lines[number] += ","
        proposal = proposed(tmp_path / "log.csv", "\n".join(lines) + "\n")
        assert f"lines. {which} has 3 fields, want 2." in proposal.text


def test_values_in_another_encoding_are_remarked(tmp_path: Path) -> None:
    rows = "Köln,1\nMünchen,0\n" * 30
    remark = "# Some values are not UTF-8: they are read as bytes, unless encoding = ... says what they are."
    for encoding in ("utf-8", "latin-1"):
        (tmp_path / "log.csv").write_bytes(f"city,label\n{rows}".encode(encoding))
        lines = propose_schema(tmp_path / "log.csv").text.splitlines()
        assert (remark in lines) == (encoding == "latin-1")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("user,label\n" + "7,1,\n8,0,\n" * 30, ["skip = 1", 'fields = ["user", "label", "unnamed"]']),
        ("label,n\n" + "a,1,7\nb,0,8\n" * 30, ["skip = 1", 'fields = ["row", "label", "n"]']),
        ("user,label,\n" + "7,1\n8,0\n" * 30, ["skip = 1", 'fields = ["user", "label"]']),
        ("# by job 17\nuser,label\n" + "7,1\n8,0\n" * 30, ["header = true", "skip = 1"]),
        ("Report\n\nof, of\nmay,be,it\nuser,label,n,m\n" + "7,1,1,1\n8,0,2,2\n" * 30, ["skip = 4"]),
        ("sep=;\nuser;item;label\n" + "7;1;0\n8;0;1\n" * 30, ["skip = 1", 'separator = ";"']),
        ("\nuser,label\n" + "7,1\n8,0\n" * 30, ["header = true"]),
    ],
)
def test_lines_above_the_rows_are_skipped_and_give_names(text: str, keys: list[str], tmp_path: Path) -> None:
    proposal = proposed(tmp_path / "log.csv", text)
    assert proposal.num_rows == 60 and proposal.schema.label == "label"
    assert set(keys) <= set(proposal.text.splitlines())
    assert ("skip = 1" in keys or "skip = 4" in keys) == (proposal.schema.skip > 0)


def test_a_log_that_no_separator_splits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(",".join("1" * (row % 9 + 1)) + "\n" for row in range(90)))
    with pytest.raises(InputError, match="no separator splits most lines into equally many fields"):
        propose_schema(tmp_path / "log")


def test_footers_and_repeated_headers_are_remarked(tmp_path: Path) -> None:
    rows = "7,1\n8,0\n" * 30
    proposal = proposed(tmp_path / "log", f"user,label\n{rows}user,label\n{rows}(120 rows affected)\n")
    assert proposal.num_rows == 120 and proposal.schema.kind_of == {"user": "integer"}
    assert "# The last line has 1 field, want 2: ingest refuses a footer, or skips it." in proposal.text
    assert "# Lines that repeat the header: 1. Ingest refuses or skips them." in proposal.text


def test_a_header_of_more_names_than_fields_is_remarked(tmp_path: Path) -> None:
    proposal = proposed(tmp_path / "log", "user,item,label\n" + "7,1\n8,0\n" * 30)
    assert proposal.schema.skip == 1
    assert (
        "# Line 1 has 3 fields and the rows 2: it is skipped, and the names in fields are made up."
        in proposal.text
    )


def test_lines_that_are_no_json_objects_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"user": 1}\n[1, 2]\n{"user": 2}\nuser\n{"user": 1}\n')
    proposal = propose_schema(log)
    assert proposal.num_rows == 3 and "missing" not in proposal.columns[0].note
    assert "Lines that are no JSON object: 2. Ingest refuses or skips them." in proposal.notes


def test_a_header_alone_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("\n\n\n")
    with pytest.raises(InputError, match="has no rows"):
        propose_schema(tmp_path / "log.csv")
    (tmp_path / "log.csv").write_text("user,label\n")
    with pytest.raises(InputError, match="has a header and no rows"):
        propose_schema(tmp_path / "log.csv")


KINDS = {
    "other": "label",
    "clicked": "label",
    "user id": "text",
    "n": "integer",
    "hash": "unsigned",
    "site": "hex8",
}


def proposed(log: Path, content: str | dict[str, Any] | None = None) -> Proposal:
    """Return what is proposed for a log, written before as text or Parquet; it is read back as it is."""
    if isinstance(content, str):
        log.write_text(content)
    elif content is not None:
        pq.write_table(pa.table(content), log)
    proposal = propose_schema(log)
    assert read_schema(proposal.text) == proposal.schema
    return proposal


@pytest.mark.parametrize("has_label", [True, False])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_log_of_criteo_needs_no_schema(
    tmp_path: Path, has_label: bool, suffix: str, rng: np.random.Generator
) -> None:
    text = text_of(draw_samples(20, rng), label=has_label)
    log = tmp_path / f"log{suffix}"
    log.write_bytes(gzip.compress(text) if suffix else text)
    told = explain_built_in(log)
    assert told is not None and told.startswith(f"{log} has the format of Criteo's logs")
    assert told.endswith("leave out --schema" if has_label else "leave out --schema, and give --no-label")
    # It is read as the sentence says.
    assert ingest([log], IngestConfig(label=has_label), tmp_path / "out").num_samples == 20
    # One line of another format, and an empty log.
    log.write_bytes(text + b"1,2,3\n")
    assert explain_built_in(log) is None
    log.write_bytes(b"")
    assert explain_built_in(log) is None


@pytest.mark.parametrize("separator", [",", "\t", ";", "|"])
@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_kinds_label_and_separator_are_guessed_and_fit(
    tmp_path: Path, format: str, separator: str, rng: np.random.Generator
) -> None:
    log = draw_log(200, KINDS, rng)
    raw = tmp_path / "log.gz"
    proposal = proposed(
        write_csv(raw, log, separator=separator) if format == "csv" else write_parquet(raw, log)
    )
    schema = proposal.schema
    assert schema.kind_of == {name: kind for name, kind in KINDS.items() if kind != "label"} | {
        "other": "integer"
    }
    assert (schema.label, schema.format, proposal.num_rows) == (
        "clicked",
        format,
        200 if format == "csv" else 120,  # the first, the middle and the last of five row groups
    )
    assert format == "parquet" or schema.separator == separator
    columns = columns_in(ingest([raw], IngestConfig(schema=proposal.text), tmp_path / "out"))
    wanted = naive_columns(log) | {"other": [row[0] for row in log.rows]}
    wanted["label"] = [row[1] for row in log.rows]
    assert columns == wanted


def test_what_cannot_be_a_category_is_left_out_with_the_reason(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "a/b": ["x"] * 200,
        "every": list(range(200)),
        "lists": [[[1]]] * 200,
        "fractions": [0.5, float("inf")] * 100,
        "ids": ["a"] * 200,
        "times": pa.array([1] * 200, pa.timestamp("s")),
        "label": [7] * 200,
        "kept": [1.0, None] * 100,
        "nothing": pa.nulls(200),
        "same": ["x"] * 200,
        "one": [[1]] * 200,
        "clock": pa.array([0] * 200, pa.time32("s")),
        "pair": [{"a": 1}] * 200,
        "span": pa.array([0] * 200, pa.duration("s")),
        "sums": [[Decimal("1.5")]] * 200,
    }
    proposal = proposed(tmp_path / "log", columns)
    reasons = {look.name: look.note for look in proposal.columns if not look.is_used}
    assert set(reasons) == columns.keys() - {"kept"}
    assert reasons["every"] == "it numbers the rows"
    assert reasons["nothing"] == "every value is missing"
    assert reasons["same"] == "every row has the same value"
    assert reasons["times"] == "times with the same hour and weekday in every row"
    for name, kind in {
        "lists": "list<element: list<element: int64>>",
        "clock": "time32[ms]",
        "pair": "struct<a: int64>",
        "span": "duration[s]",
        "sums": "list<element: decimal128(2, 1)>",
    }.items():
        assert reasons[name] == f"{kind} is not supported"
    readable = {look.name for look in proposal.columns if look.is_readable}
    assert readable == {"every", "kept", "nothing", "same", "one"}
    assert reasons["fractions"].startswith("100 values are infinite: with missing =")
    assert "a feature cannot be called 'ids'" in reasons["ids"] and 'name = "..."' in reasons["ids"]
    assert reasons["label"] == "only the label can be called so"
    assert set(proposal.schema.sparse) == {"kept"} and proposal.schema.label is None
    assert '# every = "integer"  # left out: it numbers the rows' in proposal.text
    assert '# one = { kind = "integer", list = true }  # left out' in proposal.text
    assert "# 'times' is left out: times with the same hour" in proposal.text
    assert "looks like a label" in proposal.text


def test_decimals_are_dense_and_what_may_be_lists_is_a_hint(tmp_path: Path) -> None:
    rows = "".join(
        f"{n % 2},{n}.5,{n % 5}|{n % 7}|3,x{n % 3};y{n % 4},a|b,{'one; two' if n % 4 == 3 else n % 7}\n"
        for n in range(60)
    )
    proposal = proposed(tmp_path / "log", "clicked,price,numbers,texts,one,titles\n" + rows)
    assert proposal.schema.floats == proposal.schema.dense == ("price",)
    assert proposal.schema.kind_of == dict.fromkeys(("texts", "one", "titles"), "text") | {
        "numbers": "integer"
    }
    assert proposal.schema.lists == (("numbers", "|"), ("texts", ";"))
    notes = {look.name: look.note for look in proposal.columns}
    assert notes["numbers"] == "7 distinct, lists of 3.0 on average, 3 at most" and "list" not in notes["one"]
    assert notes["titles"] == "8 distinct", "a separator now and then is no list"


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_infinities_are_missing_where_the_schema_says_so(format: str, tmp_path: Path) -> None:
    prices = [0.5, float("inf"), 1.5, float("-inf")] * 30
    rows = "".join(f"{row % 7},{price}\n" for row, price in enumerate(prices))
    content = {"user": [row % 7 for row in range(120)], "price": prices}
    proposal = proposed(tmp_path / "log", "user,price\n" + rows if format == "csv" else content)
    assert "price" not in proposal.schema.dense
    written = re.sub(".*price.*\n", "", proposal.text).replace("dense = []", 'missing = ["inf", "-inf"]')
    config = IngestConfig(schema=f'{written}[dense]\nprice = "float"\n', label=False)
    found = columns_in(ingest([tmp_path / "log"], config, tmp_path / "out"))
    assert found["price"] == [0.5, None, 1.5, None] * 30


def test_floats_with_negative_values_keep_them(tmp_path: Path) -> None:
    columns = {
        "site": [1, 2] * 60,
        "history": [-0.5, 0.25, None] * 40,
        "price": [0.5, 0.0] * 60,
        "rare": [-1.5, *[2.5] * 119],
        "huge": [-1e300, 0.5] * 60,  # no float32 without the logarithm
        "every": [number + 0.25 for number in range(120)],
    }
    raw = tmp_path / "log"
    proposal = proposed(raw, columns)
    assert proposal.schema.untransformed == ("history", "rare")
    notes = {column.name: column.note for column in proposal.columns}
    assert notes["history"] == "2 distinct, 33% missing, 50% negative"
    assert notes["rare"] == "2 distinct, 1% negative"
    assert notes["price"] == "2 distinct" and notes["every"] == "120 distinct"
    assert notes["huge"] == "2 distinct, 50% negative, which log1p turns into 0"
    assert 'history = { kind = "float", transform = "none" }  # 2 distinct' in proposal.text
    ingested = columns_in(ingest([raw], IngestConfig(schema=proposal.text, label=False), tmp_path / "out"))
    assert ingested["history"][:3] == [-0.5, 0.25, None]


def test_text_is_a_list_if_a_third_of_the_fields_with_text_have_a_separator(tmp_path: Path) -> None:
    genres = ["", "", "a|b|c", "b", "c|a", "a", "b|c|a", "c", ""] * 20
    text = "genres,site\n" + "".join(f"{genre},{row % 3}\n" for row, genre in enumerate(genres))
    for content in (text, {"genres": genres, "site": [1, 2, 3] * 60}):
        proposal = proposed(tmp_path / "log", content)
        assert proposal.schema.lists == (("genres", "|"),)
        assert proposal.columns[0].note == "3 distinct, 21% missing, lists of 1.6 on average, 3 at most"
        columns = ingest(
            [tmp_path / "log"], IngestConfig(schema=proposal.text, label=False), tmp_path / "out"
        )
        assert len(columns_in(columns)["genres"][2]) == 3
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize(
    ("values", "entry", "note"),
    [
        (
            [f"2014-10-{day:02} 0{hour}:00:00" for day in range(1, 31) for hour in range(4)],
            '[{ kind = "hour", name = "ts_hour" }, { kind = "weekday", name = "ts_weekday" }]',
            "hour and weekday",
        ),
        (
            [f"2014-10-{day:02}" for day in range(1, 31)] * 4,
            '{ kind = "weekday", name = "ts_weekday" }',
            "weekday",
        ),
        (
            [str(1_413_849_600_000 + row // 2) for row in range(2_000_000, 9_000_000, 20_000)],
            '{ kind = "hour", unit = "ms", name = "ts_hour" }',
            "hour",
        ),
    ],
    ids=["times", "dates", "Unix times of one day"],
)
def test_times_are_proposed_as_hour_and_weekday(
    tmp_path: Path, values: list[str], entry: str, note: str
) -> None:
    lines = "".join(f"{value},{row % 3}\n" for row, value in enumerate(values))
    proposal = proposed(tmp_path / "log", "ts,kept\n" + lines)
    assert f"\nts = {entry}  # {note} of times, in UTC" in proposal.text
    assert proposal.schema.columns(has_label=True) == ("ts", "kept")


def test_a_log_without_any_category_is_refused_with_the_reasons(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("y,id\n" + "".join(f"{row % 2},{row}\n" for row in range(100)))
    with pytest.raises(InputError, match=r"could be a category \('id': it numbers the rows\)") as caught:
        propose_schema(tmp_path / "log")
    assert caught.value.hint is not None and "at least one column" in caught.value.hint


def test_one_column_is_a_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("item\n" + "ab\ncd\n" * 9)
    assert propose_schema(tmp_path / "log").schema.sparse == ("item",)


def test_few_rows_can_be_looked_at(tmp_path: Path) -> None:
    lines = ["1,x"] * 20 + ["c,x"] * 15 + ["0,x"] * 20 + ["c,x"] * 15 + ["1,x"] * 20
    (tmp_path / "log").write_text("click,b\n" + "\n".join(lines))
    proposal = propose_schema(tmp_path / "log", num_rows=50)
    assert proposal.num_rows == 50 and proposal.schema.label == "click"
    assert "# Guessed from 50 rows, the first, middle and last of 90: " in proposal.text


@pytest.mark.parametrize("text", [b"", b'"a\n', b"PAR1 and no more", b"\n\n", b"sep=;\n", b"\n", bytes(256)])
def test_what_is_no_log_is_one_clear_line(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "log").write_bytes(text)
    with pytest.raises(InputError, match="log") as caught:
        propose_schema(tmp_path / "log")
    assert "\n" not in str(caught.value)


@pytest.mark.real_data
def test_the_avazu_sample_is_proposed_as_the_built_in_schema_without_its_constant(real_data: Path) -> None:
    proposal = proposed(real_data / "avazu_train_head_10k.csv.gz")
    built_in = schema_named("avazu")
    # All these lines are of one hour.
    assert proposal.schema == replace(built_in, sparse=built_in.sparse[1:], kinds=built_in.kinds[1:])
    assert '# hour = "integer"  # left out: every row has the same value' in proposal.text


def test_times_of_one_hour_of_the_week_are_offered_as_the_time_of_the_samples(tmp_path: Path) -> None:
    weeks = [np.datetime64("2024-05-06T10", "h") + np.timedelta64(7 * week, "D") for week in range(200)]
    rows = "".join(f"{str(each).replace('T', ' ')}:00,{row % 3}\n" for row, each in enumerate(weeks))
    text = proposed(tmp_path / "log", "at,kept\n" + rows).text
    assert '# time = "at"  # cuts' in text and "# 'at' is left out: times with the same hour" in text


@pytest.mark.parametrize("is_text", [True, False])
def test_a_column_of_times_is_offered_as_the_time_of_the_samples(tmp_path: Path, is_text: bool) -> None:
    seconds = [1_700_000_000 + 700 * number for number in range(300)]
    shown = [str(np.datetime64(each, "s")) if is_text else str(1000 * each) for each in seconds]
    log = tmp_path / "clicks.csv"
    rows = [f"{number % 2},{number % 7},{each}" for number, each in enumerate(shown)]
    log.write_text("\n".join(["click,item,ts", *rows, ""]))
    text = propose_schema(log).text
    entry = 'time = "ts"' if is_text else 'time = { column = "ts", unit = "ms" }'
    (line,) = (line for line in text.splitlines() if line.startswith("# time"))
    assert line.startswith(f"# {entry}  # ")
    # Without its mark the line is a key of the schema.
    schema = tmp_path / "schema.toml"
    schema.write_text(text.replace(line, line.removeprefix("# ")))
    assert read_schema(schema.read_text()).time == ("ts", "" if is_text else "ms")


def test_the_label_is_a_column_of_zeros_and_ones_without_gaps() -> None:
    columns: list[tuple[str, Any]] = [
        ("gaps", texts_of(["0", "1", ""])),
        ("three", texts_of(["0", "1", "2"])),
        ("flag", texts_of(["1", "0", "1"])),
        ("Click", pa.array([0, 1, 1], pa.int8())),
        ("lists", pa.array([[0], [1], [1]], pa.list_(pa.int64()))),
    ]
    names = [name for name, _ in columns]
    inferred = [infer_column(name, values, 3, names) for name, values in columns]
    found = infer_label(inferred, columns)
    assert (found.name, found.others, found.notes) == ("Click", ("flag",), ())
    # Without a telling name nothing is chosen, unless the log has no names at all.
    found = infer_label(inferred[:3], columns)
    assert found.name is None and "It could be 'flag'. Write label = ..." in found.notes[0]
    found = infer_label(inferred[:3], columns, has_names=False)
    assert found.name == "flag" and "a guess" in found.notes[0]
    found = infer_label(inferred[:2], columns)
    assert found.name is None and "No column of zeros and ones" in found.notes[0]


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (["nonclk", "clk"], "clk"),
        (["conversion", "click"], "click"),
        (["is_like", "isClicked"], "isClicked"),
        (["purchase", "ctr_label"], "ctr_label"),
        (["gender", "is-buy"], "is-buy"),
        (["gender", "y"], "y"),
        (["pos.x", "pos.y"], None),
        (["user clicks ago", "clicked"], "clicked"),
        (["clickhouse", "newbuyer", "labels2"], None),
    ],
)
def test_the_label_is_known_by_a_word_of_its_name(names: list[str], label: str | None) -> None:
    columns = [(name, texts_of(["0", "1", "1"])) for name in names]
    inferred = [infer_column(name, values, 3, names) for name, values in columns]
    found = infer_label(inferred, columns)
    assert found.name == label
    assert found.others == tuple(name for name in names if name != label)


def found_in(columns: dict[str, Any], *, has_names: bool = True) -> InferredLabel:
    pairs = [(name, texts_of(each) if isinstance(each, list) else each) for name, each in columns.items()]
    inferred = [infer_column(name, values, 6, list(columns)) for name, values in pairs]
    return infer_label(inferred, pairs, has_names=has_names)


@pytest.mark.parametrize(
    ("name", "values", "above", "positive", "note"),
    [
        ("label", ["True", "False", "True"], None, (), ""),
        ("label", ["1.0e+00", "0.0e+00", "1.0e+00"], None, (), ""),
        ("label", ["-1", "1", "1"], 0.0, (), ""),
        ("y", ["1", "2", "2"], 1.5, (), ""),
        ("clicked", ["yes", "no", "yes"], None, ("yes",), ""),
        ("clicked", ["Y", "N", "Y"], None, ("Y",), ""),
        ("income", [" - 50000.", " - 50000.", " 50000+."], None, (" 50000+.",), "the rarer one of"),
        ("rating", ["1", "5", "4", "3", "2"], 3.0, (), "from 1 to 5 are 1 above 3"),
        ("rating:float", ["0.5", "5.0", "4.5", "3"], 3.0, (), "from 0.5 to 5 are 1 above 3"),
        ("stars", ["1", "10", "4", "8"], 6.0, (), "from 1 to 10 are 1 above 6"),
        ("clicks", ["0", "2", "1", "0"], 0.0, (), "from 0 to 2 are 1 above 0"),
        ("label", pa.array([1.0, -1.0, 1.0]), 0.0, (), ""),
        ("label", pa.array([True, False, None]), None, (), "1 rows have no label"),
        ("click", ["1", "", "0"], None, (), "1 rows have no click"),
    ],
)
def test_labels_of_other_forms_say_which_values_are_one(
    name: str, values: Any, above: float | None, positive: tuple[str, ...], note: str
) -> None:
    found = found_in({"other": ["a", "b", "a", "c", "d"][: len(values)], name: values})
    assert (found.name, found.above, found.positive) == (name, above, positive)
    assert note in " ".join(found.notes) and bool(note) == bool(found.notes)
    ones = is_positive(found, texts_of(values) if isinstance(values, list) else values)
    if note.startswith("from"):
        np.testing.assert_array_equal(ones, [float(value) > float(above or 0) for value in values])
    else:
        assert 0 < ones.sum() < len(values)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("label", ["a", "b", "c"]),
        ("clicked_shop", ["u", "v", "u"]),
        ("rating_of_app", ["1", "2", "3"]),
        ("score", [str(number) for number in range(30)]),
        ("label", ["-3", "1", "2"]),
        ("label", ["nan", "inf", "1e400"]),
        ("label", ["1", "inf"]),
        ("first_click", ["1", "", "0"]),
    ],
)
def test_values_that_no_label_has_make_none(name: str, values: list[str]) -> None:
    assert found_in({name: values}).name is None


def test_rivals_are_listed() -> None:
    flag, other = ["0", "1", "0"], ["1", "1", "0"]
    found = found_in({"is_like": flag, "click": other, "gender": flag})
    assert found.name == "click" and found.named == ("is_like",)
    assert found.notes == (
        "The label is 'click'. Called like labels as well, so left out: 'is_like'.",
        'To keep labels beside it, write labels = ["click", "is_like"] in place of label.',
    )
    found = found_in({"bought_before": flag, "gender": other})
    assert found.notes == ("The label is 'bought_before' by a word of its name. Or is it 'gender'?",)
    found = found_in({"a": flag, "b": ["yes", "no", "no"], "c": ["u", "v", "v"]})
    assert found.name is None and "It could be 'a', 'b', 'c'." in found.notes[0]
    found = found_in({"a": flag, "b": other}, has_names=False)
    assert found.notes == ("The label is a guess: a is the first column of zeros and ones; so are 'b'.",)
    found = found_in({"a": ["u", "v", "v"], "b": flag}, has_names=False)
    assert found.name == "b", "which of two words is 1 is not clear"


def test_a_label_that_cannot_be_one_or_says_nothing_is_remarked() -> None:
    found = found_in({"click": ["0", "1", "Total"], "user": ["7", "8", "9"]})
    assert (
        found.name is None and "'click' is called like a label, but has 3 distinct values" in found.notes[1]
    )
    found = found_in({"click": ["0", "0", "0"], "user": ["7", "8", "9"]})
    assert found.name == "click" and "All values of 'click' are the same" in found.notes[-1]


def test_a_column_that_knows_the_label_says_how() -> None:
    clicked = np.arange(300) % 2 == 0
    columns = {
        "twin": [str(int(not each)) for each in clicked],
        "later": [str(row % 4 // 2 * 0 + int(each and row % 3 > 0)) for row, each in enumerate(clicked)],
        "free": [str(row % 3) for row in range(300)],
        "word": ["a" if each else "b" for each in clicked],
    }
    reasons = {}
    for name, texts in columns.items():
        column = infer_column(name, texts_of(texts), 300, list(columns))
        reasons[name] = follows_label(column, texts_of(texts), "click", clicked)
    wanted = {"twin": "it is 1 - click in every row", "later": "it is 0 wherever click is 0"}
    assert reasons == wanted | {"free": None, "word": None}
