"""The file of checksums is not trusted: whatever it holds, batches are what they were, or it is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import HotsetError, ManifestError, ShardError
from hotset.pipeline.folders.manifest import TABLE_FACT, Manifest, hash_file
from hotset.pipeline.folders.totals import ShardFacts
from hotset.pipeline.formats.batch_checksums import CHECKSUMS, HEADER_BYTES, ROW, checksum_of_table
from hotset.pipeline.formats.stored_batches import DamagedBatchError, StoredBatch, StoredBatches
from hotset.tests.support.resealed import write_manifest
from hotset.tests.support.shard_factory import write_shards
from hotset.train.data.shards import Shards


def opened(folder: Path) -> StoredBatches:
    manifest = Manifest.read(folder)
    found = StoredBatches.open(
        manifest, [(entry, manifest.facts_of(ShardFacts, entry)) for _, entry in manifest.parts()]
    )
    assert found is not None
    return found


def contents(shards: Shards) -> list[bytes]:
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


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), is_resealed=st.booleans())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_changes_nothing_or_is_refused(
    place: float, bit: int, is_resealed: bool, folder: Path, tmp_path: Path
) -> None:
    def flip(whole: bytes) -> bytes:
        changed = bytearray(whole)
        changed[int(place * len(whole))] ^= 1 << bit
        return bytes(changed)

    wanted = contents(Shards.open(folder))
    copy = tmp_path / "copy"
    if is_resealed:
        resealed(folder, copy, flip)
    else:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        (copy / CHECKSUMS).write_bytes(flip((copy / CHECKSUMS).read_bytes()))
    try:
        found = contents(Shards.open(copy))
    except ShardError as error:
        assert CHECKSUMS in str(error) or isinstance(error, DamagedBatchError)
        return
    # The checksum in the header is of the same bytes as that in the manifest, and the flipped one.
    assert found == wanted


@given(
    field=st.sampled_from(["start", "num_bytes", "num_samples", "num_buffers", "record"]),
    row=st.integers(0, 10),
    value=st.one_of(st.integers(0, 2**13), st.sampled_from([2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 8])),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_crafted_tables_are_refused_or_give_the_same_batches(
    field: str, row: int, value: int, folder: Path, tmp_path: Path
) -> None:
    def craft(whole: bytes) -> bytes:
        num_batches = int.from_bytes(whole[16:24], "little")
        table = np.frombuffer(whole, ROW, num_batches, HEADER_BYTES).copy()
        table[field][row] = value & (2 ** (8 * ROW[field].itemsize) - 1)
        end = HEADER_BYTES + table.nbytes
        return whole[:HEADER_BYTES] + table.tobytes() + whole[end:]

    copy = resealed(folder, tmp_path / "copy", craft)
    try:
        shards = Shards.open(copy)
        found = contents(shards)
    except HotsetError as error:
        assert str(copy) in str(error)
        return
    assert found == contents(Shards.open(folder))


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
