"""Hints about raw logs and their schemas."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.generate import world
from hotset.pipeline.raw.part import iterate_blocks
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.raw.tabular import _array
from hotset.pipeline.stages import ingest
from hotset.tests.support.hints import Shell, follows, hint_of

SCHEMA = 'format = "csv"\nlabel = "click"\ndense = ["age"]\n[sparse]\ncountry = "text"\n'


def write_csv(path: str = "log.csv", rows: int = 300) -> None:
    """Write a CSV log that SCHEMA describes."""
    lines = [f"{number % 2},{number % 50},c{number % 7}" for number in range(rows)]
    Path(path).write_text("\n".join(["click,age,country", *lines]) + "\n")


def write_parquet(path: str = "log.parquet") -> None:
    """Write the same as Parquet."""
    numbers = range(300)
    columns = {
        "click": [number % 2 for number in numbers],
        "age": [number % 50 for number in numbers],
        "country": [f"c{number % 7}" for number in numbers],
    }
    pq.write_table(pa.table(columns), path)


def preprocess(log: str, schema: str) -> list[str]:
    """Write the schema file, and return the command that reads ``log`` by it."""
    Path("schema.toml").write_text(schema)
    return ["preprocess", log, "--schema", "schema.toml", "--out", "other"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@follows("pipeline/raw/log_parts.py::_needs_schema")
def test_a_forgotten_schema_is_proposed(ending: str, shell: Shell) -> None:
    write_csv() if ending == "csv" else write_parquet()
    arguments = ["preprocess", f"log.{ending}", "--out", "other"]
    hint = shell.refused(*arguments)
    assert hint.endswith("look at it, then give it to --schema")
    shell.obey(hint)
    shell.works(*arguments, "--schema", "schema.toml")


def test_a_forgotten_built_in_schema_is_named(shell: Shell) -> None:
    Path("log.csv").write_text("label,user,item,category\n" + "1,5,6|7,1|1\n0,5,7|6,1|1\n" * 50)
    arguments = ["preprocess", "log.csv", "--out", "other"]
    hint = shell.refused(*arguments)
    assert hint == "it has the columns of taobao: give --schema taobao"
    shell.works(*arguments, *hint.split(": give ")[1].split())


@follows("pipeline/raw/log_parts.py::_CsvParts.__init__")
def test_parquet_under_a_schema_of_csv(shell: Shell) -> None:
    write_parquet()
    arguments = preprocess("log.parquet", SCHEMA)
    assert 'format = "parquet"' in shell.refused(*arguments)
    shell.works(*preprocess("log.parquet", SCHEMA.replace('"csv"', '"parquet"')))


@follows("pipeline/raw/parquet_parts.py::ParquetParts._open")
def test_csv_under_a_schema_of_parquet(shell: Shell) -> None:
    write_csv()
    assert 'format "csv"' in shell.refused(*preprocess("log.csv", SCHEMA.replace('"csv"', '"parquet"')))
    shell.works(*preprocess("log.csv", SCHEMA))


@follows("pipeline/raw/parquet_parts.py::ParquetParts._check_columns")
def test_a_column_of_another_type_is_fixed_in_the_schema(shell: Shell) -> None:
    write_parquet()
    schema = SCHEMA.replace('"csv"', '"parquet"')
    hint = shell.refused(
        *preprocess(
            "log.parquet", schema.replace('country = "text"', 'age = "hex8"').replace('["age"]', "[]")
        )
    )
    assert hint == "fix the schema, or cast the column"
    shell.works(*preprocess("log.parquet", schema))


@follows("pipeline/raw/parquet_parts.py::ParquetParts._damaged")
def test_a_damaged_parquet_file_is_fetched_again(shell: Shell) -> None:
    write_parquet()
    whole = Path("log.parquet").read_bytes()
    Path("log.parquet").write_bytes(whole[:30] + bytes(200) + whole[230:])
    arguments = preprocess("log.parquet", SCHEMA.replace('"csv"', '"parquet"'))
    assert "fetch it again" in shell.refused(*arguments)
    Path("log.parquet").write_bytes(whole)
    shell.works(*arguments)


@follows("pipeline/raw/raw_file.py::ByteSource._fill")
def test_a_gzip_file_that_was_cut_off_is_fetched_again(shell: Shell) -> None:
    whole = gzip.compress(Path("log.tsv").read_bytes())
    Path("log.tsv.gz").write_bytes(whole[: len(whole) // 2])
    arguments = ["preprocess", "log.tsv.gz", "--out", "other"]
    assert "fetch it again" in shell.refused(*arguments)
    Path("log.tsv.gz").write_bytes(whole)
    shell.works(*arguments)


@follows("pipeline/raw/raw_file.py::ByteSource.fill")
def test_a_log_that_shrinks_is_read_when_it_is_complete(shell: Shell) -> None:
    raw = RawFile.inspect(Path("log.tsv"))
    whole = Path("log.tsv").read_bytes()
    Path("log.tsv").write_bytes(whole[:1000])

    def read() -> None:
        for block in iterate_blocks(raw, 1 << 20):
            block.read()

    assert hint_of(read) == "run again when it is complete"
    Path("log.tsv").write_bytes(whole)
    read()


@follows("pipeline/stages/ingest.py::_refuse_changed")
def test_a_log_that_grows_is_read_when_it_is_complete(shell: Shell) -> None:
    raw = RawFile.inspect(Path("log.tsv"))
    with open("log.tsv", "a") as file:
        file.write("\n")
    assert hint_of(lambda: ingest._refuse_changed(raw)) == "run again when it is complete"
    ingest._refuse_changed(RawFile.inspect(Path("log.tsv")))


@follows("pipeline/raw/raw_file.py::RawFile.inspect")
def test_a_pipe_is_written_to_a_file_first(shell: Shell) -> None:
    os.mkfifo("pipe")
    assert "write the log to a file first" in shell.refused("preprocess", "pipe", "--out", "other")
    shell.works("preprocess", "log.tsv", "--out", "other")


@follows("pipeline/raw/part.py::_too_long")
def test_a_file_without_line_ends_is_no_log(shell: Shell) -> None:
    Path("binary").write_bytes(b"x" * (5 << 20))
    hint = shell.refused("preprocess", "binary", "--out", "other")
    assert hint == "give a log of text lines; `hotset schema --help` lists the formats"
    assert shell.run("schema", "--help")[0] == 0


@follows("pipeline/raw/tabular.py::_array")
def test_a_part_with_too_many_elements_is_made_smaller(shell: Shell) -> None:
    column = SimpleNamespace(kind="text", column="genres")
    values = SimpleNamespace(
        states=np.zeros(1, np.uint8), values=np.zeros(1, np.uint64), offsets=np.array([0, 2**31])
    )
    hint = hint_of(lambda: _array(column, values, None))  # type: ignore[arg-type]
    assert hint == "lower --block-bytes"
    shell.works("preprocess", "log.tsv", "--out", "other", "--block-bytes", "8MiB")


@follows("pipeline/stages/ingest.py::_ingest_file")
def test_a_bad_line_is_skipped(shell: Shell) -> None:
    lines = Path("log.tsv").read_bytes()
    Path("bad.tsv").write_bytes(lines + b"0\tx\n" + lines)
    # Blocks before the line are finished already; none of them is in the way of either way out.
    for out, more in (("skipped", ["--on-bad-line", "skip"]), ("fixed", [])):
        arguments = ["preprocess", "bad.tsv", "--out", out, "--block-bytes", "20000"]
        assert "fix the line, or count and skip such lines with --on-bad-line skip" in shell.refused(
            *arguments
        )
        assert list(Path(out, "columns").glob("*.arrow"))
        if out == "fixed":
            Path("bad.tsv").write_bytes(lines + lines)
        shell.works(*arguments, *more)
    # The same line, added to a folder that is finished.
    shell.works("preprocess", "log.tsv", "--out", "extended")
    Path("next.tsv").write_bytes(lines + b"0\tx\n" + lines)
    arguments = ["preprocess", "log.tsv", "next.tsv", "--out", "extended", "--extend"]
    assert "fix the line" in shell.refused(*arguments, "--block-bytes", "16MiB")
    Path("next.tsv").write_bytes(lines)
    shell.works(*arguments)


@follows()
def test_a_line_without_a_label(shell: Shell) -> None:
    write_csv()
    Path("log.csv").write_text(Path("log.csv").read_text().replace("\n1,", "\n,"))
    hint = shell.refused(*preprocess("log.csv", SCHEMA))
    assert "--on-bad-line skip; a log without labels is read with --no-label" in hint
    shell.works(*preprocess("log.csv", SCHEMA), "--on-bad-line", "skip:0.6")


@follows("pipeline/estimate.py::_parse_blocks")
def test_a_bad_line_is_found_by_a_dry_run_too(shell: Shell) -> None:
    Path("bad.tsv").write_bytes(b"0\tx\n" + Path("log.tsv").read_bytes())
    arguments = ["preprocess", "bad.tsv", "--out", "other", "--dry-run"]
    assert "skip such lines with --on-bad-line skip" in shell.refused(*arguments)
    shell.works(*arguments, "--on-bad-line", "skip")


@follows("pipeline/stages/ingest.py::_refuse_too_many_bad")
def test_more_bad_lines_are_allowed(shell: Shell) -> None:
    Path("bad.tsv").write_bytes(b"0\tx\n" * 300 + Path("log.tsv").read_bytes())
    arguments = ["preprocess", "bad.tsv", "--out", "other", "--on-bad-line", "skip"]
    assert "as in --on-bad-line skip:" in shell.refused(*arguments)
    shell.works(*arguments[:-1], "skip:0.5")


@follows("pipeline/infer_schema.py::_without_category")
def test_a_log_without_categories(shell: Shell) -> None:
    Path("log.csv").write_text("click,x\n" + "".join(f"{number % 2},{number}.5\n" for number in range(50)))
    assert "at least one column of values that occur again" in shell.refused("schema", "log.csv")
    write_csv()
    shell.works("schema", "log.csv")


@follows("pipeline/generate/world.py::profile_facts")
def test_a_profile_is_named(shell: Shell) -> None:
    arguments = ["generate", "--samples", "5", "--out", "new.tsv", "--profile"]
    hint = shell.refused(*arguments, "criteo")
    assert hint == f"use one of {', '.join(world.profile_names())}"
    shell.works(*arguments, hint.removeprefix("use one of ").split(", ")[0])


@follows("pipeline/schema/schema.py::schema_named")
def test_a_schema_is_named(shell: Shell) -> None:
    hint = shell.refused("preprocess", "log.tsv", "--out", "other", "--schema", "criteo")
    assert hint.startswith("use one of criteo-kaggle, ") and hint.endswith("or a .toml file")
    shell.works("preprocess", "log.tsv", "--out", "other", "--schema", "criteo-kaggle")
    write_csv()
    shell.works(*preprocess("log.csv", SCHEMA)[:-1], "csv")


@follows("pipeline/schema/schema_file.py::_entry#2")
def test_a_list_is_written_as_its_hint_has_it(shell: Shell) -> None:
    write_csv()
    Path("log.csv").write_text(re.sub(r",c(\d)", r",a|c\1", Path("log.csv").read_text()))
    hint = shell.refused(*preprocess("log.csv", SCHEMA.replace('"text"', '"list"')))
    shell.works(*preprocess("log.csv", SCHEMA.replace('"text"', hint.split("column = ")[1])))


@follows("pipeline/schema/schema_file.py::read_sparse")
def test_a_schema_without_categories(shell: Shell) -> None:
    write_csv()
    hint = shell.refused(*preprocess("log.csv", SCHEMA.replace('country = "text"', "")))
    line = hint.split("line: ")[1].replace("column", "country")
    shell.works(*preprocess("log.csv", SCHEMA.replace('country = "text"', line)))


@follows("pipeline/schema/schema_file.py::_entry")
def test_a_mistyped_key_of_an_entry(shell: Shell) -> None:
    write_csv()
    hint = shell.refused(*preprocess("log.csv", SCHEMA.replace('"text"', '{ kid = "text" }')))
    word = hint.split("'")[1]
    shell.works(*preprocess("log.csv", SCHEMA.replace('"text"', f'{{ {word} = "text" }}')))


@follows("pipeline/schema/schema_file.py::_schema")
def test_a_mistyped_key_of_a_schema(shell: Shell) -> None:
    write_csv()
    word = shell.refused(*preprocess("log.csv", SCHEMA.replace("label", "lable"))).split("'")[1]
    shell.works(*preprocess("log.csv", SCHEMA.replace("label", word)))


@follows("pipeline/schema/schema.py::find_columns")
def test_a_mistyped_column(shell: Shell) -> None:
    write_csv()
    word = shell.refused(*preprocess("log.csv", SCHEMA.replace("country", "contry"))).split("'")[1]
    shell.works(*preprocess("log.csv", SCHEMA.replace("country", word)))


@follows(
    "pipeline/schema/schema.py::check_name",
    "pipeline/schema/schema.py::check_name#2",
    "pipeline/schema/schema.py::check_name#3",
    "pipeline/schema/schema.py::check_name#4",
    "pipeline/schema/schema.py::check_name#5",
)
def test_a_feature_is_renamed(shell: Shell) -> None:
    for name in ("ids", "dense.x", "x.texts", "file0001-x", "a/b"):
        write_csv()
        Path("log.csv").write_text(Path("log.csv").read_text().replace("country", name))
        schema = SCHEMA.replace("country", f'"{name}"')
        hint = shell.refused(*preprocess("log.csv", schema))
        line = hint.split(": ", 1)[1].split("[dense], ")[-1]
        line = line.replace('"..." = {', f'"{name}" = {{').replace("kind = ...", 'kind = "text"')
        line = line.replace('name = "..."', 'name = "country"')
        shell.works(*preprocess("log.csv", SCHEMA.replace('country = "text"', line)), "--redo", "ingest")


@follows("pipeline/stages/ingest.py::_refuse_earlier")
def test_a_log_is_sorted_by_its_time(shell: Shell) -> None:
    schema = 'format = "csv"\nlabel = "click"\ntime = "ts"\ndense = []\n[sparse]\ncountry = "text"\n'
    header = "click,country,ts\n"
    for day, name in ((2, "first.csv"), (1, "second.csv")):
        rows = [f"{number % 2},c{number % 7},2026-01-0{day}\n" for number in range(300)]
        Path(name).write_text(header + "".join(rows))
    command = preprocess("first.csv", schema)
    place = command.index("first.csv") + 1
    hint = shell.refused(*command[:place], "second.csv", *command[place:])
    assert hint == "sort the log by its time column, or leave time out of the schema"
    shell.works(*command[: place - 1], "second.csv", *command[place - 1 :])
    # Or without times, in the order of the files.
    other = preprocess("first.csv", schema.replace('time = "ts"\n', ""))
    other[-1] = "untimed"
    shell.works(*other[:place], "second.csv", *other[place:])
