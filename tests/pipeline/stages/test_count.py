"""Spans cut the training part at raw files, and parts are cut where a span begins and ends.

Parts of a log that begin at a time, against a naive search, and logs that are not in the order of time.

Counts of the training part, exact and of nothing else.

Tests `count` and `count`, too.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from hotset.pipeline.errors import ByteSize, ConfigError, InputError, ManifestError
from hotset.pipeline.folders.manifest import FileEntry, Manifest
from hotset.pipeline.formats.arrow_files import read_batch
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import (
    CountConfig,
    check_num_files,
    count,
    evaluation_parts,
    first_of_time,
    spans_of,
)
from hotset.pipeline.stages.count_tasks import Span
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.criteo_text import NUM_DENSE, NUM_SPARSE, Sample, draw_samples
from hotset.tests.support.logs.criteo_text import SCHEMA as TIMED_SCHEMA
from hotset.tests.support.naive.naive_stages import columns_of as columns_of_of_count


@pytest.mark.parametrize(
    ("num_train", "count_last", "files", "spans"),
    [
        (70, 0, [40, 30, 30], [Span(0, 70, None)]),
        (70, 1, [40, 30, 30], [Span(40, 70, None)]),
        (70, 2, [40, 30, 30], [Span(0, 40, 0), Span(40, 70, 1)]),
        (70, 9, [40, 30, 30], [Span(0, 40, 0), Span(40, 70, 1)]),
        (50, 2, [40, 30, 30], [Span(0, 40, 0), Span(40, 50, 1)]),
        (40, 1, [40, 30], [Span(0, 40, None)]),
        (70, 2, [40, 0, 30, 30], [Span(40, 70, None)]),
        (70, 3, [40, 0, 30, 30], [Span(0, 40, 0), Span(40, 70, 2)]),
    ],
)
def test_spans_are_the_last_files_of_the_training_part(
    num_train: int, count_last: int, files: list[int], spans: list[Span]
) -> None:
    assert spans_of(num_train, count_last, files) == spans


def test_files_of_a_span_are_named_by_its_raw_file() -> None:
    assert [Span(0, 9, None).prefix, Span(0, 9, 12).prefix] == ["", "file0012-"]


@pytest.mark.parametrize("first", range(10))
def test_parts_of_a_span_hold_each_of_its_samples_once(first: int) -> None:
    sizes = [3, 0, 4, 1]
    files = [FileEntry(f"part{number}", size, 0, "") for number, size in enumerate(sizes)]
    columns = Manifest(Path("columns"), "ingest", 1, {}, [], files, {}, "")
    samples = [(f"part{number}", own) for number, size in enumerate(sizes) for own in range(size)]
    for stop in range(first, 10):
        found = [
            (entry.path, own)
            for _, entry, low, high in columns.parts_within(first, stop)
            for own in range(low, high)
        ]
        assert found == samples[first:stop]


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
    num_train, first_of_test = evaluation_parts(config, columns)
    num_valid = first_of_test - num_train
    test, valid = seconds.index(seconds[320]), seconds.index(seconds[220])
    assert (num_train, num_train + num_valid) == (valid, test)
    # Whole files stay whole.
    assert evaluation_parts(CountConfig(eval_files=1), columns)[0] == 150
    assert evaluation_parts(CountConfig(eval_fraction=0), columns)[0] == 400


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
        InputError, match=r"early, after line 1: the next time, .* 00:01:00, is before .* 00:02"
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
    with pytest.raises(InputError, match=r"found '-1', want a number \(ms since 1970\), 1970"):
        columns_of([tmp_path / "log"], tmp_path / "other", unit)
    times = pa.array([0, 5, 5, 7], pa.timestamp("s"))
    table = pa.table({"click": [0, 1, 0, 1], "c": [1, 2, 3, 4], "ts": times})
    pyarrow.parquet.write_table(table, tmp_path / "log.parquet")
    config = IngestConfig(schema=SCHEMA.format(time='"ts"').replace('"csv"', '"parquet"'))
    found = ingest([tmp_path / "log.parquet"], config, tmp_path / "parquet", Resources(workers=1))
    assert [first_of_time(found, sample) for sample in range(4)] == [0, 1, 1, 3]


def counted(counts: Manifest) -> list[dict[int | None, int]]:
    """Per table, how often each category (None: missing) was seen."""
    tables = []
    for name, facts in zip(TIMED_SCHEMA.sparse, counts.totals["tables"], strict=True):
        entry = next(entry for entry in counts.files if entry.path == f"{name}.arrow")
        batch = read_batch(counts, entry)
        categories = batch.column("category").to_pylist()
        assert str(batch.column("category").type) == "uint32" and categories == sorted(set(categories))
        assert facts == {"name": name, "num_categories": len(categories), "num_missing": facts["num_missing"]}
        assert entry.facts == {"num_missing": facts["num_missing"]}
        table: dict[int | None, int] = dict(zip(categories, batch.column("count").to_pylist(), strict=True))
        tables.append(table | ({None: facts["num_missing"]} if facts["num_missing"] else {}))
    return tables


def naive_counts(samples: list[Sample]) -> list[dict[int | None, int]]:
    return [dict(Counter(sample.categories[f] for sample in samples)) for f in range(NUM_SPARSE)]


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("num_samples", "eval_fraction", "num_train"),
    [(1, 0.0, 1), (1, 0.99, 1), (7, 1 / 7, 6), (90, 1 / 7, 78), (90, 0.5, 45), (90, 0.0, 90), (90, 0.98, 2)],
)
def test_counts_are_those_of_the_first_samples(
    tmp_path: Path,
    num_samples: int,
    eval_fraction: float,
    num_train: int,
    workers: int,
    rng: np.random.Generator,
) -> None:
    samples = draw_samples(num_samples, rng)
    columns = columns_of_of_count(tmp_path, samples)
    counts = count(
        CountConfig(eval_fraction=eval_fraction), columns, tmp_path / "counts", Resources(workers=workers)
    )
    assert counted(counts) == naive_counts(samples[:num_train])
    assert (counts.totals["num_samples"], counts.totals["num_train_samples"]) == (num_samples, num_train)


@pytest.mark.parametrize(("eval_files", "num_train"), [(1, 41), (2, 30), (3, 30)])
def test_whole_files_can_be_kept_for_evaluation(
    tmp_path: Path, eval_files: int, num_train: int, rng: np.random.Generator
) -> None:
    samples = draw_samples(60, rng)
    columns = columns_of_of_count(tmp_path, samples[:30], [], samples[30:41], samples[41:])
    counts = count(CountConfig(eval_files=eval_files), columns, tmp_path / "counts")
    assert counted(counts) == naive_counts(samples[:num_train])
    assert counts.totals["num_train_samples"] == num_train


@pytest.mark.parametrize("eval_files", [4, 5])
def test_no_sample_to_train_on_is_refused(tmp_path: Path, eval_files: int, rng: np.random.Generator) -> None:
    samples = draw_samples(9, rng)
    columns = columns_of_of_count(tmp_path, [], samples[:3], samples[3:6], samples[6:])
    with pytest.raises(ConfigError, match=f"eval_files {eval_files} of 4 files leaves no sample to train on"):
        evaluation_parts(CountConfig(eval_files=eval_files), columns)[0]
    assert evaluation_parts(CountConfig(eval_files=2), columns)[0] == 3
    with pytest.raises(ConfigError, match="leaves no sample to train on"):
        evaluation_parts(CountConfig(eval_files=3), columns)[0]


@pytest.mark.diagonal(2)
@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"eval_fraction": 0.2, "valid_fraction": 0.1}, (42, 6, 12)),
        ({"eval_fraction": 0.0, "valid_fraction": 0.1}, (54, 6, 0)),
        ({"eval_files": 1, "valid_fraction": 0.5}, (11, 30, 19)),
        ({"eval_files": 1, "valid_files": 1}, (30, 11, 19)),
        ({"eval_files": 1, "valid_files": 2}, (0, 41, 19)),
        ({"eval_fraction": 0.0, "valid_files": 1}, (41, 19, 0)),
        ({"eval_fraction": 0.5, "valid_fraction": 0.5}, (0, 30, 30)),
        ({"eval_fraction": 0.9, "valid_fraction": 0.9}, (-48, 54, 54)),
    ],
)
def test_a_validation_part_lies_before_the_test_part(
    tmp_path: Path, fields: dict[str, Any], parts: tuple[int, int, int], rng: np.random.Generator
) -> None:
    samples = draw_samples(60, rng)
    columns = columns_of_of_count(tmp_path, samples[:30], samples[30:41], samples[41:])
    num_train, num_valid, _ = parts
    config = CountConfig(**fields)
    if num_train <= 0:
        with pytest.raises(ConfigError, match=r"eval_\w+ .* and valid_\w+ .* leave no sample to train on"):
            evaluation_parts(config, columns)[0]
        return
    counts = count(config, columns, tmp_path / "counts")
    assert counted(counts) == naive_counts(samples[:num_train])
    assert (counts.totals["num_train_samples"], counts.totals["num_valid_samples"]) == (num_train, num_valid)


@pytest.mark.parametrize(
    ("fields", "empty"),
    [
        ({"eval_files": 1}, ["evaluation"]),
        ({"eval_files": 2, "valid_files": 1}, []),
        ({"eval_fraction": 0.01}, ["evaluation"]),
        ({"eval_fraction": 0.0, "valid_files": 1}, ["validation"]),
        ({"eval_fraction": 0.0}, []),
        ({"eval_fraction": 0.5, "valid_fraction": 0.01}, ["validation"]),
    ],
)
def test_a_part_without_samples_is_warned_of(
    tmp_path: Path,
    fields: dict[str, Any],
    empty: list[str],
    rng: np.random.Generator,
    caplog: pytest.LogCaptureFixture,
) -> None:
    samples = draw_samples(40, rng)
    columns = columns_of_of_count(tmp_path, samples[:20], samples[20:30], samples[30:], [])
    count(CountConfig(**fields), columns, tmp_path / "counts")
    assert [record.message.split()[4].rstrip(":") for record in caplog.records] == empty


def test_no_file_is_for_validation_where_none_is_wanted() -> None:
    assert CountConfig(valid_files=0) == CountConfig()
    check_num_files(CountConfig(eval_files=1, valid_files=1), 3)
    check_num_files(CountConfig(), 1)
    for num_files in (1, 2):
        with pytest.raises(ConfigError, match=f"take the last 2 files of {num_files}: none is left"):
            check_num_files(CountConfig(eval_files=1, valid_files=1), num_files)


def test_a_folder_without_validation_is_as_it_always_was(tmp_path: Path, rng: np.random.Generator) -> None:
    """So that folders of before are still resumed and extended."""
    columns = columns_of_of_count(tmp_path, draw_samples(9, rng))
    counts = count(CountConfig(), columns, tmp_path / "counts")
    assert "num_valid_samples" not in counts.totals
    assert counts.config.keys() == {"eval_fraction", "eval_files", "count_last", "texts"}
    with pytest.raises(ManifestError, match=r"was written with valid_fraction = none, now 0\.2"):
        count(CountConfig(valid_fraction=0.2), columns, tmp_path / "counts")
    other = count(CountConfig(valid_fraction=0.2), columns, tmp_path / "other")
    assert other.config["valid_fraction"] == 0.2 and "valid_files" not in other.config
    with pytest.raises(ManifestError, match=r"was written with valid_fraction = 0\.2, now none"):
        count(CountConfig(), columns, tmp_path / "other")


def test_two_ways_to_say_one_part_are_refused() -> None:
    with pytest.raises(ConfigError, match="valid_files and valid_fraction are two ways"):
        CountConfig(eval_files=1, valid_files=1, valid_fraction=0.1)
    with pytest.raises(ConfigError, match="valid_files needs a test part that begins at a file") as refused:
        CountConfig(valid_files=1)
    assert refused.value.hint is not None and "--eval-files" in refused.value.hint


def test_a_table_that_only_misses_values_has_no_category(tmp_path: Path) -> None:
    columns = columns_of_of_count(tmp_path, [Sample(0, (1,) * NUM_DENSE, (None,) * NUM_SPARSE)] * 30)
    counts = count(CountConfig(eval_fraction=0.1), columns, tmp_path / "counts")
    assert counted(counts) == [{None: 27}] * NUM_SPARSE


@pytest.mark.parametrize(
    "changes",
    [
        {"eval_fraction": 1.0},
        {"eval_fraction": -0.1},
        {"eval_fraction": float("nan")},
        {"eval_files": -1},
        {"valid_fraction": 0.0},
        {"valid_fraction": 1.0},
        {"valid_files": -1},
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=name):
        CountConfig(**changes)
