"""Checksums of batches against a naive count over the bytes of the files.

The file of checksums is not trusted: whatever it holds, batches are what they were, or it is refused.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import HotsetError, ManifestError, ShardError
from hotset.pipeline.folders.manifest import TABLE_FACT, Manifest, hash_file
from hotset.pipeline.folders.totals import ShardFacts
from hotset.pipeline.formats.batch_checksums import (
    BLOCK_SAMPLES,
    CHECKSUMS,
    HEADER_BYTES,
    ROW,
    DamagedBatchError,
    StoredBatch,
    StoredBatches,
    are_of_file,
    checksum_of_table,
    checksums_of_file,
    write_shard,
)
from hotset.tests.support.resealed import write_manifest
from hotset.tests.support.shard_factory import ShardSpec, draw_samples, to_record_batch, write_shards
from hotset.train.data.shards import ShardSet


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


def opened(folder: Path) -> StoredBatches:
    manifest = Manifest.read(folder)
    files = [(entry, manifest.facts_of(ShardFacts, entry)) for _, entry in manifest.parts()]
    return StoredBatches(manifest, files)


def contents(shards: ShardSet) -> list[bytes]:
    """All that the batches hold."""
    found = []
    for number in range(shards.num_training_batches):
        batch = shards.training_batch(number)
        arrays = [batch.label_B.numpy(), batch.dense_BK.numpy(), batch.ids_BF]
        arrays += [each for bags in batch.bags for each in (bags.offsets_B1, bags.ids_N)]
        found += [array.tobytes() for array in arrays]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("stored") / "shards", multi_hot=(1,), labels=("click",))


def resealed(folder: Path, copy: Path, change: object) -> Path:
    """A copy whose file of checksums was changed, with every checksum above the change computed anew."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    path = copy / CHECKSUMS
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    parts = json.loads((copy / "manifest.json").read_text())
    entry = next(each for each in parts["files"] if each["path"] == CHECKSUMS)
    entry["bytes"], entry["xxh3_128"] = hash_file(path)
    whole = path.read_bytes()
    num_batches = int.from_bytes(whole[16:24], "little")
    rows = whole[HEADER_BYTES:][: ROW.itemsize * num_batches]
    entry[TABLE_FACT] = checksum_of_table(whole, rows)
    write_manifest(copy, parts)
    return copy


@pytest.mark.parametrize("max_examples", [50, pytest.param(150, marks=pytest.mark.slow)])
def test_a_flipped_bit_changes_nothing_or_is_refused(folder: Path, tmp_path: Path, max_examples: int) -> None:
    @settings(max_examples=max_examples)
    @given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), is_resealed=st.booleans())
    def check(place: float, bit: int, is_resealed: bool) -> None:
        def flip(whole: bytes) -> bytes:
            changed = bytearray(whole)
            changed[int(place * len(whole))] ^= 1 << bit
            return bytes(changed)

        wanted = contents(ShardSet.open(folder))
        copy = tmp_path / "copy"
        if is_resealed:
            resealed(folder, copy, flip)
        else:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder, copy)
            (copy / CHECKSUMS).write_bytes(flip((copy / CHECKSUMS).read_bytes()))
        try:
            found = contents(ShardSet.open(copy))
        except ShardError as error:
            assert CHECKSUMS in str(error) or isinstance(error, DamagedBatchError)
            return
        # The checksum in the header is of the same bytes as that in the manifest, and the flipped one.
        assert found == wanted

    check()


@pytest.mark.parametrize("max_examples", [50, pytest.param(150, marks=pytest.mark.slow)])
def test_crafted_tables_are_refused_or_give_the_same_batches(
    folder: Path, tmp_path: Path, max_examples: int
) -> None:
    @settings(max_examples=max_examples)
    @given(
        field=st.sampled_from(["start", "num_bytes", "num_samples", "num_buffers", "record"]),
        row=st.integers(0, 10),
        value=st.one_of(
            st.integers(0, 2**13), st.sampled_from([2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 8])
        ),
    )
    def check(field: str, row: int, value: int) -> None:
        def craft(whole: bytes) -> bytes:
            num_batches = int.from_bytes(whole[16:24], "little")
            table = np.frombuffer(whole, ROW, num_batches, HEADER_BYTES).copy()
            table[field][row] = value & (2 ** (8 * ROW[field].itemsize) - 1)
            end = HEADER_BYTES + table.nbytes
            return whole[:HEADER_BYTES] + table.tobytes() + whole[end:]

        copy = resealed(folder, tmp_path / "copy", craft)
        try:
            shards = ShardSet.open(copy)
            found = contents(shards)
        except HotsetError as error:
            assert str(copy) in str(error)
            return
        assert found == contents(ShardSet.open(folder))

    check()


def test_a_header_of_another_kind_is_named(folder: Path, tmp_path: Path) -> None:
    for start, stop, value, fault in (
        (0, 8, b"otherone", "it holds no checksums of batches"),
        (8, 12, (2).to_bytes(4, "little"), "it is of version 2, want 1"),
        (16, 24, (2**40).to_bytes(8, "little"), "it is of .* bytes, and has"),
        (16, 24, (10).to_bytes(8, "little"), "it is of 10 batches, want 11"),
    ):
        copy = resealed(folder, tmp_path / "copy", lambda w, a=start, b=stop, v=value: w[:a] + v + w[b:])
        with pytest.raises(ShardError, match=rf"checksums\.bin is damaged: {fault}"):
            opened(copy)


def test_a_missing_or_short_file_is_refused_when_shards_are_opened(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    whole = (copy / CHECKSUMS).read_bytes()
    (copy / CHECKSUMS).write_bytes(whole[:-1])
    with pytest.raises(ManifestError, match=r"checksums\.bin has .* bytes, want"):
        opened(copy)
    (copy / CHECKSUMS).unlink()
    with pytest.raises(ManifestError, match=r"checksums\.bin cannot be read"):
        opened(copy)


def test_a_damaged_block_is_named_by_its_samples(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", num_mixed=700, num_hot_only=0, batch_size=700)
    stored: StoredBatch = opened(folder).batch(1, 0)
    path = folder / "mixed-00000.arrow"
    buffer = stored.layout.buffers["ids", "values"]
    data = np.frombuffer(path.read_bytes(), np.uint8)[stored.start + buffer.start :][
        : buffer.bounds[-1]
    ].copy()
    stored.check(buffer, data, buffer.bounds)
    data[buffer.bounds[2] + 5] ^= 4
    with pytest.raises(DamagedBatchError, match="batch 0, ids of samples 256 to 383: the checksum is"):
        stored.check(buffer, data, buffer.bounds)
    part = data[buffer.bounds[4] :]
    stored.check(buffer, part, buffer.bounds[4:], 4)
    with pytest.raises(DamagedBatchError, match="batch 0, ids of samples 384 to 511"):
        stored.check(buffer, part, buffer.bounds[4:], 3)


def test_damaged_checksums_are_named_as_such(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    whole = bytearray((copy / CHECKSUMS).read_bytes())
    whole[-1] ^= 1
    (copy / CHECKSUMS).write_bytes(whole)
    stored = opened(copy)
    stored.batch(2, 0)
    with pytest.raises(
        ShardError, match=r"checksums\.bin is damaged: checksums of mixed-00000.arrow, batch 4"
    ):
        stored.batch(2, 4)
