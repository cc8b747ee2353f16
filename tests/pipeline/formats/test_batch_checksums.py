"""Checksums of batches against a naive count over the bytes of the files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.manifest import TABLE_FACT, Manifest
from hotset.pipeline.formats.batch_checksums import (
    BLOCK_SAMPLES,
    CHECKSUMS,
    HEADER_BYTES,
    ROW,
    are_of_file,
    checksums_of_file,
    write_shard,
)
from hotset.tests.support.shard_factory import ShardSpec, draw_samples, to_record_batch, write_shards


def naive_blocks(column: Any, num_samples: int) -> list[tuple[int, list[bytes]]]:
    """Bytes of each buffer of a column, and those of its blocks without the padding of the last one."""
    starts = range(0, num_samples, BLOCK_SAMPLES)
    if pa.types.is_fixed_size_list(column.type):
        dtype = column.type.value_type.to_pandas_dtype()
        parts = [np.array(column.slice(at, BLOCK_SAMPLES).to_pylist(), dtype).tobytes() for at in starts]
        return [(sum(map(len, parts)), parts if column.type.list_size else [])]
    if pa.types.is_list(column.type):
        lists = column.to_pylist()
        ends = np.cumsum([0, *map(len, lists)]).astype(np.int32)
        offsets = [ends[at : at + BLOCK_SAMPLES].tobytes() for at in starts]
        offsets[-1] = ends[starts[-1] :].tobytes()
        flat = [[each for one in lists[at : at + BLOCK_SAMPLES] for each in one] for at in starts]
        elements = [np.array(each, np.int32).tobytes() for each in flat]
        return [(4 * num_samples + 4, offsets), (int(4 * ends[-1]), elements)]
    bitmap = []
    if column.null_count:
        bitmap = [np.packbits(column.is_valid().to_numpy(False), bitorder="little").tobytes()]
    values = column.buffers()[1].to_pybytes()
    width = column.type.bit_width // 8
    parts = [values[at * width : min(at + BLOCK_SAMPLES, num_samples) * width] for at in starts]
    return [(sum(map(len, bitmap)), bitmap), (num_samples * width, parts)]


def naive_record(batch: Any) -> bytes:
    buffers = [each for column in batch.columns for each in naive_blocks(column, len(batch))]
    checksums = b""
    for num_bytes, blocks in buffers:
        for number, block in enumerate(blocks):
            padding = bytes(-num_bytes % 8 if number == len(blocks) - 1 else 0)
            checksums += xxhash.xxh3_128_digest(block + padding)
    return np.array([num_bytes for num_bytes, _ in buffers], "<u8").tobytes() + checksums


@given(
    sizes=st.lists(st.sampled_from([1, 7, 127, 128, 129, 300]), min_size=1, max_size=3),
    multi_hot=st.sampled_from([(), (1,), (0, 1, 2)]),
    num_dense=st.sampled_from([0, 2]),
    labels=st.sampled_from([(), ("click", "buy")]),
    is_evaluation=st.booleans(),
)
@settings(max_examples=25)
def test_records_are_those_of_a_naive_count(
    sizes: list[int], multi_hot: tuple[int, ...], num_dense: int, labels: tuple[str, ...], is_evaluation: bool
) -> None:
    spec = ShardSpec(multi_hot=multi_hot, num_dense=num_dense, labels=labels, has_weight=bool(labels))
    rng = np.random.default_rng(len(sizes))
    drawn = [draw_samples(spec, size, hot_only=False, rng=rng) for size in sizes]
    batches = [to_record_batch(each, has_label=True, is_evaluation=is_evaluation) for each in drawn]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.arrow"
        found = write_shard(path, batches[0].schema, batches)
        assert found == checksums_of_file(path)
        whole = path.read_bytes()
    table = np.frombuffer(found, ROW, len(sizes), HEADER_BYTES)
    for batch, row in zip(batches, table, strict=True):
        record = naive_record(batch)
        assert found[row["record"] : row["record"] + len(record)] == record
        assert row["checksum"].tobytes() == xxhash.xxh3_128_digest(record)
        # The body begins with the first buffer that is not empty, here one of the first column.
        first = next(buffer for buffer in batch.column(0).buffers() if buffer is not None)
        assert whole[row["start"] :][: first.size] == first.to_pybytes() or batch.column(0).null_count
        assert row["num_bytes"] == sum(
            -(-size // 8) * 8 for size in np.frombuffer(record, "<u8", row["num_buffers"]).tolist()
        )
    assert are_of_file(found, sum(sizes), len(whole))
    assert not are_of_file(found, sum(sizes) + 1, len(whole))
    assert not are_of_file(found, sum(sizes), int(table[-1]["start"]))


def test_any_flipped_byte_of_the_checksums_of_a_file_is_seen(tmp_path: Path) -> None:
    batch = to_record_batch(
        draw_samples(ShardSpec(), 300, hot_only=False, rng=np.random.default_rng(0)),
        has_label=True,
        is_evaluation=False,
    )
    found = write_shard(tmp_path / "file.arrow", batch.schema, [batch, batch.slice(0, 9)][:1])
    num_bytes = (tmp_path / "file.arrow").stat().st_size
    for place in range(len(found)):
        damaged = bytearray(found)
        damaged[place] ^= 1
        assert not are_of_file(bytes(damaged), 300, num_bytes), place
    assert not are_of_file(found[:-1], 300, num_bytes)
    assert not are_of_file(b"", 300, num_bytes)


def test_the_file_of_a_folder_has_the_records_of_all_files(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", multi_hot=(1,))
    manifest = Manifest.read(folder)
    whole = (folder / CHECKSUMS).read_bytes()
    (entry,) = [each for each in manifest.files if each.is_checksums]
    assert entry.num_samples == 0 and [each.path for _, each in manifest.parts()] == [
        each.path for each in manifest.files if each is not entry
    ]
    rows = []
    for _, each in manifest.parts():
        found = checksums_of_file(folder / each.path)
        for row in np.frombuffer(found, ROW, each.facts["batches"], HEADER_BYTES):
            rows.append((row, found[row["record"] :]))
    table = np.frombuffer(whole, ROW, len(rows), HEADER_BYTES)
    for row, (own, record) in zip(table, rows, strict=True):
        assert (
            row[["start", "num_bytes", "num_samples", "checksum"]]
            == own[["start", "num_bytes", "num_samples", "checksum"]]
        )
        assert whole[row["record"] : row["record"] + 64] == record[:64]
    header = whole[: HEADER_BYTES - 16]
    assert entry.facts[TABLE_FACT] == xxhash.xxh3_128_hexdigest(header + table.tobytes())


def test_a_file_that_is_no_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "file.arrow").write_bytes(bytes(500))
    with pytest.raises(ManifestError, match=r"file\.arrow is damaged"):
        checksums_of_file(tmp_path / "file.arrow")
