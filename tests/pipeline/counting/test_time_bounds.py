"""Parts of a log that begin at a time, against a naive search, and logs that are not in the order of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from hotset.pipeline.counting.time_bounds import first_of_time
from hotset.pipeline.errors import InputError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.stages.count import CountConfig, num_training_samples, num_validation_samples
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.pipeline.verify.verify import verify

SCHEMA = """format = "csv"
label = "click"
time = {time}
dense = []

[sparse]
c = "integer"
"""
HOUR = 3600


def write(path: Path, seconds: list[int]) -> Path:
    lines = [f"{i % 2},{i % 5},{np.datetime64(second, 's')}" for i, second in enumerate(seconds)]
    path.write_text("click,c,ts\n" + "".join(f"{line}\n" for line in lines))
    return path


def columns_of(logs: list[Path], out: Path, time: str = '"ts"', **changes: Any) -> Manifest:
    config = IngestConfig(schema=SCHEMA.format(time=time), block_bytes=ByteSize(1024), **changes)
    return ingest(logs, config, out, Resources(workers=1))


@pytest.fixture(scope="module")
def seconds() -> list[int]:
    rng = np.random.default_rng(3)
    # Runs of one time, some longer than a part.
    return [int(time) for time in np.sort(rng.integers(0, 9, 400) * HOUR + rng.integers(0, 2, 400) * 60)]


@pytest.fixture(scope="module")
def columns(seconds: list[int], tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("log")
    logs = [write(folder / "a", seconds[:150]), write(folder / "b", seconds[150:])]
    return columns_of(logs, folder / "columns")


def test_a_sample_is_moved_to_the_first_of_its_time(columns: Manifest, seconds: list[int]) -> None:
    assert len(columns.files) > 8
    for sample in range(400):
        wanted = seconds.index(seconds[sample]) if sample else 0
        assert first_of_time(columns, sample) == wanted
    assert first_of_time(columns, 400) == 400


def test_parts_begin_at_a_time(columns: Manifest, seconds: list[int]) -> None:
    config = CountConfig(eval_fraction=0.2, valid_fraction=0.25)
    num_train = num_training_samples(config, columns)
    num_valid = num_validation_samples(config, columns)
    test, valid = seconds.index(seconds[320]), seconds.index(seconds[220])
    assert (num_train, num_train + num_valid) == (valid, test)
    # Whole files stay whole.
    assert num_training_samples(CountConfig(eval_files=1), columns) == 150
    assert num_training_samples(CountConfig(eval_fraction=0), columns) == 400


def test_verify_looks_at_the_times(columns: Manifest) -> None:
    assert verify(columns.folder.parent, rebuild=False) == []


@pytest.mark.parametrize("swapped", [3, 60])
def test_a_time_before_the_one_above_is_refused_with_its_line(tmp_path: Path, swapped: int) -> None:
    seconds = [60 * i for i in range(100)]
    seconds[swapped], seconds[swapped + 1] = seconds[swapped + 1], seconds[swapped]
    log = write(tmp_path / "log", seconds)
    line = rf"log, line {swapped + 3}: its time, 1970-01-01 \d\d:\d\d:00, is before .* above it"
    with pytest.raises(InputError, match=line):
        columns_of([log], tmp_path / "columns")
    # Not skipped as a bad line either.
    with pytest.raises(InputError, match="is before"):
        columns_of([log], tmp_path / "columns", on_bad_line="skip")


def test_files_and_blocks_follow_each_other_in_time(tmp_path: Path) -> None:
    early, late = write(tmp_path / "early", [60] * 100), write(tmp_path / "late", [120] * 100)
    assert columns_of([early, late], tmp_path / "columns").num_samples == 200
    with pytest.raises(
        InputError, match=r"early, behind line 1: the next time, .* 00:01:00, is before .* 00:02"
    ):
        columns_of([late, early], tmp_path / "other")
    config = IngestConfig(schema=SCHEMA.format(time='"ts"'), block_bytes=ByteSize(1024))
    with pytest.raises(InputError, match="is before"):
        ingest([early, late, early], config, tmp_path / "columns", Resources(workers=1), extend=True)


def test_a_sample_without_a_time_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("click,c,ts\n1,2,1970-01-01\n0,2,\n")
    with pytest.raises(InputError, match=r"line 3, column 'ts': found nothing, want a time such as"):
        columns_of([tmp_path / "log"], tmp_path / "columns")
    (tmp_path / "log").write_text("click,c,ts\n1,2,soon\n")
    with pytest.raises(InputError, match=r"line 2, column 'ts': found 'soon', want a time such as"):
        columns_of([tmp_path / "log"], tmp_path / "columns")


def test_integers_have_a_unit_and_parquet_has_timestamps(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("click,c,ts\n1,2,999\n1,2,1000\n0,2,1999\n")
    unit = '{ column = "ts", unit = "ms" }'
    found = columns_of([tmp_path / "log"], tmp_path / "csv", unit)
    assert [first_of_time(found, sample) for sample in range(3)] == [0, 1, 1]
    (tmp_path / "log").write_text("click,c,ts\n1,2,-1\n")
    with pytest.raises(InputError, match=r"found '-1', want an integer \(ms since 1970\), 1970"):
        columns_of([tmp_path / "log"], tmp_path / "other", unit)
    times = pa.array([0, 5, 5, 7], pa.timestamp("s"))
    table = pa.table({"click": [0, 1, 0, 1], "c": [1, 2, 3, 4], "ts": times})
    pyarrow.parquet.write_table(table, tmp_path / "log.parquet")
    config = IngestConfig(schema=SCHEMA.format(time='"ts"').replace('"csv"', '"parquet"'))
    found = ingest([tmp_path / "log.parquet"], config, tmp_path / "parquet", Resources(workers=1))
    assert [first_of_time(found, sample) for sample in range(4)] == [0, 1, 1, 3]
