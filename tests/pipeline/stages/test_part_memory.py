"""The memory of a worker follows from the lines at the start of a log, its columns and the block."""

from __future__ import annotations

import gzip
from pathlib import Path

from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.schema.schema_file import schema_of
from hotset.pipeline.sizes import MIB
from hotset.pipeline.stages.part_memory import part_bytes, samples_of_block

_CSV = 'format = "csv"\nlabel = "y"\n[sparse]\na = "integer"\n'
_LINE = b"1" + b"\t5" * 13 + b"\t0a1b2c3d" * 26 + b"\n"


def bytes_of(path: Path, schema: str, block_bytes: int, *, has_label: bool = True) -> int:
    return part_bytes(RawFile.inspect(path), schema_of(schema), block_bytes, has_label=has_label)


def test_a_block_of_criteo_takes_its_text_and_its_values(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(_LINE * 1000)
    assert bytes_of(path, "criteo-kaggle", 1 << 40) == int(262_000 * 9 / 8 + 1000 * 40 * 4.7)
    assert bytes_of(path, "criteo-kaggle", 26_200) == int(26_200 * 9 / 8 + 100 * 40 * 4.7)
    assert bytes_of(path, "criteo-kaggle", 26_200, has_label=False) == int(26_200 * 9 / 8 + 100 * 39 * 4.7)


def test_blocks_of_a_compressed_log_wait_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(_LINE * 1000))
    assert bytes_of(path, "criteo-kaggle", 262_000) == int(262_000 * 3 + 1000 * 40 * 4.7)


def test_short_lines_of_csv_take_many_times_their_text(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"y,a\n" * 250)
    assert bytes_of(path, _CSV, 1 << 40) == int(1000 * 9 / 8 + 250 * 2 * 36)


def test_a_log_that_cannot_be_read_is_left_to_the_parser(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(_LINE * 1000)[:100])
    assert bytes_of(path, "criteo-kaggle", 16 * MIB) == int(16 * MIB * 3 + 16 * MIB / 160 * 40 * 4.7)


def test_parquet_counts_values_and_not_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    path.write_bytes(b"PAR1")
    assert bytes_of(path, _CSV.replace("csv", "parquet"), 8000) == 64_000


def test_the_samples_of_a_block_follow_from_the_first_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"y,a\n" * 800)

    def samples(path: Path, schema: str, block_bytes: int) -> int:
        return samples_of_block(RawFile.inspect(path), schema_of(schema), block_bytes, has_label=True)

    # An eighth more than expected; a small file has no more than its own.
    assert samples(path, _CSV, 400) == 112
    assert samples(path, _CSV, 1 << 40) == 900
    compressed = tmp_path / "log.csv.gz"
    compressed.write_bytes(gzip.compress(b"y,a\n" * 800))
    assert samples(compressed, _CSV, 4000) == 1125
    path.write_bytes(b"PAR1")
    assert samples(path, _CSV.replace("csv", "parquet"), 8000) == 500
