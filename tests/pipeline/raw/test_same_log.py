"""A log that was replaced or corrected in place is noticed, whatever its name, size and times.

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

from hotset.pipeline.errors import ByteSize, ManifestError
from hotset.pipeline.formats.arrow_files import write_batch
from hotset.pipeline.raw import same_log
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.raw.same_log import checksum_of_log, note_log, noted_checksum
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.tests.support.logs.criteo_text import draw_samples, text_of, tree_of
from hotset.tests.support.logs.interrupted import interrupt_after

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
    monkeypatch.setattr(same_log, "_SETTLED_NS", -(10**12))
    monkeypatch.setattr(same_log, "_LEAST_NOTED_BYTES", 0)


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
    settled = same_log._SETTLED_NS
    take_notes(monkeypatch)
    monkeypatch.setattr(same_log, "_SETTLED_NS", settled)
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
    monkeypatch.setattr(same_log, "_SETTLED_NS", -(10**12))
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
