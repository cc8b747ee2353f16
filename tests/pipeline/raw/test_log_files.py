"""Folders, patterns and partitions give the samples of the files that they stand for.

A log that was replaced or corrected in place is noticed, whatever its name, size and times.

Tests `ingest`, too.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.errors import ByteSize, InputError, ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.totals import ColumnsTotals
from hotset.pipeline.formats.arrow_files import write_batch
from hotset.pipeline.raw.log_files import (
    _SETTLED_NS,
    checksum_of_log,
    example_file,
    inspect_logs,
    log_files,
    note_log,
    noted_checksum,
)
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.tests.support.logs.criteo_text import draw_samples, text_of, tree_of
from hotset.tests.support.logs.interrupted import interrupt_after

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


BLOCK = ByteSize(1500)
PARQUET = 'format = "parquet"\nlabel = "label"\ndense = ["price"]\n[sparse]\nuser = "integer"\n'
Log = tuple[Path, IngestConfig, Callable[[], None]]
"""A log, how it is read, and what writes it again with another first label."""


@pytest.fixture(params=["tsv", "tsv.gz", "parquet"])
def log(request: pytest.FixtureRequest, tmp_path: Path, rng: np.random.Generator) -> Log:
    path = tmp_path / f"log.{request.param}"
    if request.param == "parquet":
        columns = {
            "label": rng.integers(0, 2, 80),
            "price": rng.integers(0, 99, 80),
            "user": rng.integers(0, 9, 80),
        }

        def write() -> None:
            pq.write_table(
                pa.table(columns), path, row_group_size=8, compression="none", use_dictionary=False
            )

        def write_another() -> None:
            columns["label"][0] ^= 1
            write()

        config = IngestConfig(schema=PARQUET, block_bytes=BLOCK)
    else:
        text = bytearray(text_of(draw_samples(80, rng)))

        def write() -> None:
            # Without compression, so that another label changes no size.
            packed = gzip.compress(bytes(text), compresslevel=0, mtime=0)
            path.write_bytes(packed if path.suffix == ".gz" else text)

        def write_another() -> None:
            text[0] ^= 1
            write()

        config = IngestConfig(block_bytes=BLOCK)
    write()
    return path, config, write_another


def rewrite(log: Log, *, keeps_times: bool) -> None:
    path, _, write_another = log
    before = path.stat()
    write_another()
    assert path.stat().st_size == before.st_size
    if keeps_times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def take_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Note also logs that were just written, and small ones."""
    monkeypatch.setattr("hotset.pipeline.raw.log_files._SETTLED_NS", -(10**12))
    monkeypatch.setattr("hotset.pipeline.raw.log_files._LEAST_NOTED_BYTES", 0)


@pytest.mark.parametrize("keeps_times", [False, True])
def test_a_finished_folder_is_not_taken_for_that_of_a_corrected_log(
    log: Log, keeps_times: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_notes(monkeypatch)  # which must not mislead
    path, config, _ = log
    made = ingest([path], config, tmp_path / "out")
    assert ingest([path], config, tmp_path / "out").fingerprint == made.fingerprint
    rewrite(log, keeps_times=keeps_times)
    with pytest.raises(ManifestError, match=r"has changed since .*out was made from it") as raised:
        ingest([path], config, tmp_path / "out")
    assert ("begins in bytes" in str(raised.value)) == (path.suffix != ".parquet")
    assert ingest([path], config, tmp_path / "out", trust_names=True).fingerprint == made.fingerprint
    rewrite(log, keeps_times=keeps_times)  # the first one again
    ingest([path], config, tmp_path / "out")


def test_the_block_that_changed_is_named(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "log.tsv"
    text = bytearray(text_of(draw_samples(80, rng)))
    path.write_bytes(text)
    config = IngestConfig(block_bytes=BLOCK)
    ingest([path], config, tmp_path / "out")
    text[text.index(b"\n", 5 * BLOCK + 200) + 1] ^= 1
    path.write_bytes(text)
    with pytest.raises(ManifestError, match=r"begins in bytes 7,500 to 9,000\n"):
        ingest([path], config, tmp_path / "out")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_log_replaced_after_a_kill_is_not_mixed_with_the_first(
    log: Log, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, config, _ = log
    out = tmp_path / "out"
    ingest([path], config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("hotset.pipeline.stages.ingest.write_batch", interrupt_after(9, KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ingest([path], config, out, Resources(workers=workers))
    rewrite(log, keeps_times=True)
    with pytest.raises(ManifestError, match="has changed since an unfinished run read it"):
        ingest([path], config, out, Resources(workers=workers))
    # With the first log the run goes on where it was.
    rewrite(log, keeps_times=True)
    with monkeypatch.context() as patch:
        read: list[str] = []

        def noting(to: Path, columns: dict[str, Any]) -> None:
            read.append(to.name)
            write_batch(to, columns)

        patch.setattr("hotset.pipeline.stages.ingest.write_batch", noting)
        ingest([path], config, out, Resources(workers=workers))
    assert tree_of(out) == tree_of(tmp_path / "whole")
    assert 0 < len(read) < len(list(out.glob("*.arrow")))


def test_what_is_trusted_is_not_noted(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on with parts of another log knows no checksum of the one that is there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    take_notes(monkeypatch)
    path, config, _ = log
    with monkeypatch.context() as patch:
        patch.setattr("hotset.pipeline.stages.ingest.write_batch", interrupt_after(9, KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ingest([path], config, tmp_path / "out")
    rewrite(log, keeps_times=True)
    made = ingest([path], config, tmp_path / "out", trust_names=True)
    assert noted_checksum(RawFile.inspect(path), BLOCK) is None
    if path.suffix != ".parquet":  # whose checksum is that of the file as it is
        with pytest.raises(ManifestError, match="has changed since"):
            ingest([path], config, tmp_path / "out")
    assert ingest([path], config, tmp_path / "out", trust_names=True).fingerprint == made.fingerprint


def test_a_large_file_of_parquet_that_changed_is_named(tmp_path: Path) -> None:
    """It has no line ends for longer than a line may be."""
    path = tmp_path / "log.parquet"
    columns = {name: np.full(200_000, 0x4141414141414141) for name in ("label", "price", "user")}
    columns["label"] = np.zeros(200_000, np.int64)
    columns["price"] = columns["price"] & 0xFFFF
    config = IngestConfig(schema=PARQUET)
    for label in (0, 1):
        columns["label"][0] = label
        pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False)
        if not label:
            ingest([path], config, tmp_path / "out")
    with pytest.raises(ManifestError, match=r"log\.parquet has changed since .*out was made from it\n"):
        ingest([path], config, tmp_path / "out")


def test_an_extension_compares_the_logs_of_before(tmp_path: Path, rng: np.random.Generator) -> None:
    paths = [tmp_path / "day0.tsv", tmp_path / "day1.tsv"]
    for path in paths:
        path.write_bytes(text_of(draw_samples(20, rng)))
    config = IngestConfig(block_bytes=BLOCK)
    ingest(paths[:1], config, tmp_path / "out")
    text = bytearray(paths[0].read_bytes())
    text[0] ^= 1
    paths[0].write_bytes(text)
    with pytest.raises(ManifestError, match=r"day0\.tsv has changed since"):
        ingest(paths, config, tmp_path / "out", extend=True)
    text[0] ^= 1
    paths[0].write_bytes(text)
    ingest(paths, config, tmp_path / "out", extend=True)
    ingest(paths, config, tmp_path / "whole")
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "whole")


def test_a_note_saves_reading_only_while_the_file_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "log.tsv"
    path.write_bytes(b"some\nlines\n")
    settled = _SETTLED_NS
    take_notes(monkeypatch)
    monkeypatch.setattr("hotset.pipeline.raw.log_files._SETTLED_NS", settled)
    note_log(RawFile.inspect(path), 8, "abc")
    assert noted_checksum(RawFile.inspect(path), 8) is None  # a file just written may be written once more
    take_notes(monkeypatch)
    note_log(RawFile.inspect(path), 8, "abc")
    assert noted_checksum(RawFile.inspect(path), 8) == "abc"
    assert noted_checksum(RawFile.inspect(path), 16) is None
    times = path.stat()
    path.write_bytes(b"more\nlines\n")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert noted_checksum(RawFile.inspect(path), 8) is None  # the time of change cannot be set back
    note_log(RawFile.inspect(path), 8, "abc")
    copy = tmp_path / "copy.tsv"
    copy.write_bytes(path.read_bytes())
    copy.replace(path)
    assert noted_checksum(RawFile.inspect(path), 8) is None


def test_a_small_file_is_hashed_again_and_not_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("hotset.pipeline.raw.log_files._SETTLED_NS", -(10**12))
    for size, is_noted in ((2**20 - 1, False), (2**20, True)):
        (tmp_path / "log").write_bytes(b"x" * size)
        note_log(RawFile.inspect(tmp_path / "log"), 8, "abc")
        assert (noted_checksum(RawFile.inspect(tmp_path / "log"), 8) is not None) == is_noted


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"state": 3}', b"\xff"])
def test_a_damaged_note_counts_as_none(
    damage: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    take_notes(monkeypatch)
    path = tmp_path / "log.tsv"
    path.write_bytes(b"some\nlines\n")
    file = RawFile.inspect(path)
    note_log(file, 8, "abc")
    (note,) = (tmp_path / "cache").rglob("*.json")
    note.write_bytes(damage)
    assert noted_checksum(file, 8) is None


def test_a_cache_folder_that_cannot_be_written_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    take_notes(monkeypatch)
    path = tmp_path / "log.tsv"
    path.write_bytes(b"some\nlines\n")
    note_log(RawFile.inspect(path), 8, "abc")
    assert noted_checksum(RawFile.inspect(path), 8) is None


def test_the_checksum_is_that_of_the_columns_for_any_number_of_workers(log: Log, tmp_path: Path) -> None:
    path, config, _ = log
    recorded = ingest([path], config, tmp_path / "out").totals["raw"][0]["xxh3_128_of_blocks"]
    for workers in (1, 2, 3):
        assert checksum_of_log(RawFile.inspect(path), BLOCK, Resources(workers=workers)) == recorded
