"""Folders, patterns and partitions give the samples of the files that they stand for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.errors import InputError, ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.totals import ColumnsTotals
from hotset.pipeline.raw.log_files import example_file, inspect_logs, log_files
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.stages.ingest import IngestConfig, ingest

DATED = """format = "parquet"
label = "label"
dense = []
[sparse]
user = "integer"
dt = [{ kind = "text", name = "dt" }, { kind = "weekday", name = "day" }]
"""


def write_parquet(path: Path, users: list[int | None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"user": pa.array(users, pa.int64()), "label": [1] * len(users)}), path)


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def column_of(columns: Manifest, name: str) -> list[int | None]:
    found: list[int | None] = []
    for entry in columns.files:
        if "texts" not in entry.path:
            with pa.ipc.open_file(columns.folder / entry.path) as file:
                found += file.read_all()[name].to_pylist()
    return found


def test_a_folder_is_its_data_files_in_the_order_of_names(tmp_path: Path) -> None:
    for name in (
        "part-1",
        "part-0",
        "b/part-0",
        "_SUCCESS",
        ".part-0.crc",
        "x.crc",
        "_temporary/part-9",
        ".git/a",
    ):
        write_text(tmp_path / "log" / name, "x\n")
    found = [path.relative_to(tmp_path / "log").as_posix() for path in log_files([tmp_path / "log"])]
    assert found == ["b/part-0", "part-0", "part-1"]


def test_a_pattern_is_the_files_that_match_and_a_file_of_that_name_is_no_pattern(tmp_path: Path) -> None:
    for name in ("day=2/b.csv", "day=1/a.csv", "day=1/_b.csv", "log [1].csv"):
        write_text(tmp_path / name, "x\n")
    found = log_files([tmp_path / "day=*" / "*.csv", tmp_path / "log [1].csv", tmp_path / "day=[2]"])
    assert [path.name for path in found] == ["a.csv", "b.csv", "log [1].csv", "b.csv"]
    with pytest.raises(InputError, match=r"no file matches .*\*\.tsv"):
        log_files([tmp_path / "*.tsv"])


def test_what_has_no_data_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    write_text(tmp_path / "log" / "_SUCCESS", "")
    with pytest.raises(InputError, match="without data files"):
        log_files([tmp_path / "log"])
    write_text(tmp_path / "dir" / "manifest.json", "{}")
    with pytest.raises(InputError, match="was written by hotset"):
        log_files([tmp_path / "dir"])
    write_text(tmp_path / "log" / "dir" / "columns" / "manifest.json", "{}")
    with pytest.raises(InputError, match="columns was written by hotset"):
        log_files([tmp_path / "log"])
    with pytest.raises(InputError, match="new is inside the log"):
        ingest([tmp_path / "log"], IngestConfig(), tmp_path / "log" / "new")
    write_text(tmp_path / "loop" / "a.csv", "x\n")
    (tmp_path / "loop" / "again").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match="is a link to a folder"):
        log_files([tmp_path / "loop"])
    with pytest.raises(InputError, match="nothing cannot be read"):
        inspect_logs([tmp_path / "nothing"])


def test_partitions_are_columns_where_the_schema_names_them(tmp_path: Path) -> None:
    for day in (1, 2):
        write_parquet(tmp_path / "log" / f"dt=2024-01-0{day}" / "part-0", [10 * day, None])
    write_parquet(tmp_path / "log" / "dt=__HIVE_DEFAULT_PARTITION__" / "part-0", [7])
    columns = ingest([tmp_path / "log"], IngestConfig(schema=DATED), tmp_path / "columns")
    assert column_of(columns, "user") == [10, None, 20, None, 7]
    assert column_of(columns, "day") == [1, 1, 2, 2, None]  # a Monday, a Tuesday
    dates = column_of(columns, "dt")
    assert len(set(dates)) == 3 and dates[0] == dates[1] and dates[2] == dates[3] and dates[4] is None
    names = [raw.name for raw in ColumnsTotals.of(columns).raw]
    assert names[:2] == ["dt=2024-01-01/part-0", "dt=2024-01-02/part-0"]
    # The same files with dates exchanged are another log.
    (tmp_path / "log" / "dt=2024-01-01").rename(tmp_path / "log" / "dt=2024-01-03")
    with pytest.raises(ManifestError, match="other inputs"):
        ingest([tmp_path / "log"], IngestConfig(schema=DATED), tmp_path / "columns")


@pytest.mark.parametrize(
    "header", ["header = true", 'header = false\nfields = ["click", "user", "hour", "city"]']
)
def test_a_partition_may_be_label_time_or_category_of_text(tmp_path: Path, header: str) -> None:
    first = "user\n" if "true" in header else ""
    for click in (0, 1):
        for hour in ("2024-01-01 05:00", "2024-01-01 06:00"):
            place = (
                tmp_path
                / "log"
                / f"click={click}"
                / f"hour={hour.replace(':', '%3A')}"
                / "city=S%C3%A3o%20Paulo"
            )
            write_text(place / "a.txt", f"{first}{click}\n{click + 2}\n")
    schema = (
        f'format = "csv"\n{header}\nlabel = "click"\ndense = []\n[sparse]\nuser = "integer"\nhour = "hour"\n'
        'city = "text"\n'
    )
    columns = ingest([tmp_path / "log"], IngestConfig(schema=schema), tmp_path / "columns")
    assert column_of(columns, "label") == [0, 0, 0, 0, 1, 1, 1, 1]
    assert column_of(columns, "user") == [0, 2, 0, 2, 1, 3, 1, 3]
    assert column_of(columns, "hour") == [5, 5, 6, 6, 5, 5, 6, 6]
    assert len(set(column_of(columns, "city"))) == 1


def test_a_bad_partition_is_named_and_a_column_of_the_file_comes_before_one_of_the_path(
    tmp_path: Path,
) -> None:
    schema = 'format = "csv"\nlabel = "click"\ndense = []\n[sparse]\nuser = "integer"\n'
    write_text(tmp_path / "click=maybe" / "a.csv", "user\n5\n")
    with pytest.raises(InputError, match="line 2, column 'click': found 'maybe', want 0 or 1"):
        ingest([tmp_path / "click=maybe"], IngestConfig(schema=schema), tmp_path / "columns")
    write_text(tmp_path / "click=maybe" / "a.csv", "click,user\n1,5\n")
    columns = ingest([tmp_path / "click=maybe"], IngestConfig(schema=schema), tmp_path / "columns2")
    assert column_of(columns, "label") == [1]


def test_the_largest_file_is_the_example_of_a_log(tmp_path: Path) -> None:
    for name, text in (("a", ""), ("b", "x\n" * 10), ("c", "x\n")):
        write_text(tmp_path / "log" / name, text)
    assert example_file(tmp_path / "log").path.name == "b"
    assert RawFile.inspect(tmp_path / "log" / "b").partitions == {}


FILES = '[sparse]\nuser = "integer"\nitem = "integer"\n'


def test_files_of_a_log_may_differ_in_types_columns_and_their_order(tmp_path: Path) -> None:
    tables = [
        {"user": [1, 2], "item": [5, 6], "label": [0, 1]},
        {"user": ["3", None], "item": [7.0, 8.0], "label": [True, False]},
        {"label": ["1", "0"], "extra": ["x", "y"], "item": pa.array([9, 10], pa.uint8()), "user": [5, 6]},
    ]
    (tmp_path / "log").mkdir()
    for number, table in enumerate(tables):
        pq.write_table(pa.table(table), tmp_path / "log" / f"part-{number}")
    write_text(tmp_path / "log" / "part-3", "item,label,user\n11,1,7\n12,0,8\n")
    schema = f'format = "parquet"\nlabel = "label"\n{FILES}'
    columns = ingest([tmp_path / "log"], IngestConfig(schema=schema), tmp_path / "columns")
    assert column_of(columns, "user") == [1, 2, 3, None, 5, 6, 7, 8]
    assert column_of(columns, "item") == [5, 6, 7, 8, 9, 10, 11, 12]
    assert column_of(columns, "label") == [0, 1, 1, 0, 1, 0, 1, 0]


def test_a_file_of_a_log_that_lacks_a_column_or_its_names_is_refused(tmp_path: Path) -> None:
    write_text(tmp_path / "log" / "part.aa", "user,item,label\n1,5,0\n")
    schema = f'format = "csv"\nlabel = "label"\n{FILES}'
    for text, fault, hint in (
        ("user,label\n1,0\n", "part.ab has no column 'item'", "it has ['user', 'label']"),
        ("2,6,1\n3,7,0\n", "part.ab has no column 'label'", "its first line has 3 fields and no names; "),
    ):
        write_text(tmp_path / "log" / "part.ab", text)
        with pytest.raises(InputError, match=fault) as caught:
            ingest([tmp_path / "log"], IngestConfig(schema=schema), tmp_path / "columns")
        assert str(caught.value.hint).startswith(hint)
