"""A quick look into logs: what is read of them, and the figures it gives."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import InputError
from hotset.pipeline.preview import log_sample as module
from hotset.pipeline.preview.log_sample import sample_log
from hotset.pipeline.raw.log_parts import open_parts
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.tests.support.logs.criteo_text import SCHEMA, draw_samples, text_of
from hotset.tests.support.logs.list_logs import KINDS
from hotset.tests.support.logs.other_logs import draw_log, naive_columns, schema_text, write_parquet

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
