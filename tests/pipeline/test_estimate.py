"""Estimates before a run: sums that follow from formats, and how they grow with the log.

A quick look into logs: what is read of them, and the figures it gives.
"""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline import estimate as module
from hotset.pipeline.errors import ByteSize, InputError
from hotset.pipeline.estimate import Estimate, LogSample, estimate_run, sample_log
from hotset.pipeline.preprocess import PreprocessConfig
from hotset.pipeline.raw.log_parts import open_parts
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.tests.support.logs.criteo_text import SCHEMA, draw_samples, text_of
from hotset.tests.support.logs.list_logs import KINDS
from hotset.tests.support.logs.other_logs import draw_log, naive_columns, schema_text, write_parquet

STAGES = ["ingest", "count", "rank", "encode", "split", "pack"]
SAMPLE = LogSample(
    text_bytes=[200_000.0, 100_000.0],
    samples=[2000.0, 1000.0],
    num_sampled=3000,
    column_bytes=160.0,
    distinct={name: (100, 150, 200) for name in SCHEMA.sparse},
    num_lookups={name: 3000 for name in SCHEMA.sparse},
    category_bytes={name: 4 for name in SCHEMA.sparse},
    list_lookups=0.0,
    parse_seconds=1e-9,
)


def estimated(
    sample: LogSample = SAMPLE, count: CountConfig | None = None, *, min_count: int = 1, workers: int = 1
) -> Estimate:
    config = PreprocessConfig(
        count=count or CountConfig(eval_fraction=0.25),
        rank=RankConfig(min_count=min_count),
        pack=PackConfig(batch_size=100),
    )
    return estimate_run(sample, config, workers=workers)


def test_every_stage_has_bytes_seconds_and_memory() -> None:
    found = estimated()
    assert (found.num_samples, found.num_train) == (3000, 2250)
    for of_stages in (found.folder_bytes, found.core_seconds, found.memory_bytes):
        assert list(of_stages) == STAGES and all(value > 0 for value in of_stages.values())


@pytest.mark.parametrize(
    ("config", "num_train"),
    [
        (CountConfig(eval_fraction=0.0), 3000),
        (CountConfig(eval_fraction=0.5), 1500),
        (CountConfig(eval_files=1), 2000),
    ],
)
def test_the_training_part_is_that_of_count(config: CountConfig, num_train: int) -> None:
    assert estimated(count=config).num_train == num_train


def test_bytes_of_values_follow_from_the_formats() -> None:
    """Twice the samples of the same categories: what is stored per sample doubles, beside headers."""
    once = estimated()
    twice = estimated(replace(SAMPLE, samples=[4000.0, 2000.0], text_bytes=[400_000.0, 200_000.0]))
    assert twice.folder_bytes["ingest"] - once.folder_bytes["ingest"] == pytest.approx(3000 * 160)
    assert twice.folder_bytes["encode"] - once.folder_bytes["encode"] == pytest.approx(3000 * 4 * 26)
    assert twice.folder_bytes["split"] - once.folder_bytes["split"] == pytest.approx(3000)
    for stage in ("ingest", "encode", "split", "pack", "count"):
        assert twice.core_seconds[stage] == pytest.approx(2 * once.core_seconds[stage])


def test_rows_are_fewer_where_rare_categories_share_one() -> None:
    every, frequent = estimated(), estimated(min_count=10)
    # Two rows of each table have no category of their own: missing, and oov.
    assert 26 * 150 < every.num_rows <= 26 * 202
    assert 26 * 2 < frequent.num_rows < every.num_rows
    assert frequent.folder_bytes["count"] == every.folder_bytes["count"], "rare categories are counted too"
    assert frequent.folder_bytes["rank"] < every.folder_bytes["rank"]


def test_a_window_of_several_files_writes_the_counts_of_each() -> None:
    whole = estimated(count=CountConfig(eval_fraction=0.25))
    window = estimated(count=CountConfig(eval_fraction=0.25, count_last=2))
    assert window.folder_bytes["count"] > 1.5 * whole.folder_bytes["count"]


def test_more_workers_hold_more_and_take_no_more_core_seconds() -> None:
    one, four = estimated(), estimated(workers=4)
    assert four.memory_bytes["ingest"] == pytest.approx(4 * one.memory_bytes["ingest"])
    assert four.core_seconds == one.core_seconds


CONFIG = IngestConfig()


def write_logs(folder: Path, *lengths: int) -> list[Path]:
    rng = np.random.default_rng(5)
    paths = [folder / f"day{number}" for number in range(len(lengths))]
    for path, length in zip(paths, lengths, strict=True):
        path.write_bytes(text_of(draw_samples(length, rng)))
    return paths


def test_a_log_that_fits_in_the_sample_is_counted_exactly(tmp_path: Path) -> None:
    (path,) = write_logs(tmp_path, 300)
    samples = draw_samples(300, np.random.default_rng(5))
    found = sample_log([path], CONFIG)
    assert found.num_sampled == found.samples[0] == 300
    assert found.text_bytes == [path.stat().st_size] and found.list_lookups == 0
    for feature, name in enumerate(SCHEMA.sparse):
        present = [s.categories[feature] for s in samples if s.categories[feature] is not None]
        assert found.num_lookups[name] == len(present) and found.category_bytes[name] == 4
        quarter, half, whole = found.distinct[name]
        assert quarter <= half <= whole == len(set(present))
    # Labels, 13 integers and 26 categories, and a bitmap at most for each but the label.
    assert 1 + 39 * 4 <= found.column_bytes <= 1 + 39 * 4 + 39 / 8 + 1
    assert found.parse_seconds > 0


def test_of_many_files_some_are_read_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_logs(tmp_path, *[40] * 9)
    read: list[str] = []

    def recording(file: RawFile, *settings: object, **options: object) -> object:
        read.append(file.path.name)
        return open_parts(file, *settings, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "open_parts", recording)
    found = sample_log(paths, CONFIG)
    assert read == ["day0", "day3", "day5", "day8"], "the first, the last, and some between them"
    assert found.num_sampled == 160 and len(found.samples) == 9
    assert sum(found.samples) == pytest.approx(360, rel=0.05)


def test_blocks_are_taken_from_all_over_a_plain_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = write_logs(tmp_path, 2000)
    monkeypatch.setattr(module, "_BLOCK_BYTES", ByteSize(4000))
    found = sample_log([path], CONFIG)
    assert 100 < found.num_sampled < 1000
    assert found.samples[0] == pytest.approx(2000, rel=0.1)


def test_a_compressed_log_is_told_by_how_far_it_expands(tmp_path: Path) -> None:
    (path,) = write_logs(tmp_path, 800)
    packed = tmp_path / "day.gz"
    packed.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    plain, found = sample_log([path], CONFIG), sample_log([packed], CONFIG)
    assert found.text_bytes[0] == pytest.approx(plain.text_bytes[0], rel=0.02)
    assert found.samples[0] == pytest.approx(800, rel=0.02) and found.distinct == plain.distinct


def test_elements_of_lists_are_lookups(tmp_path: Path) -> None:
    log = draw_log(60, KINDS, np.random.default_rng(2))
    path = write_parquet(tmp_path / "log.parquet", log)
    found = sample_log([path], IngestConfig(schema=schema_text(log, format="parquet")))
    columns = naive_columns(log)
    lists = [name for name, kind in KINDS.items() if kind.startswith("list")]
    elements = sum(len(bag) for name in lists for bag in columns[name])
    assert found.num_sampled == 60 and found.list_lookups == pytest.approx(elements / 60)
    assert found.num_lookups["tags"] == sum(one is not None for bag in columns["tags"] for one in bag)


def test_a_bad_line_is_named_as_ingest_would_name_it(tmp_path: Path) -> None:
    (path,) = write_logs(tmp_path, 30)
    path.write_bytes(path.read_bytes() + b"1\tx\n")
    with pytest.raises(InputError, match=r"day0, line 31") as caught:
        sample_log([path], CONFIG)
    assert "--on-bad-line skip" in str(caught.value.hint)
    assert sample_log([path], IngestConfig(on_bad_line="skip")).num_sampled == 30


def test_no_file_and_an_empty_log_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no input file given"):
        sample_log([], CONFIG)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(InputError, match="the log is empty"):
        sample_log([tmp_path / "empty"], CONFIG)
