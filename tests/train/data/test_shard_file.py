"""Files that are read as they were when they were opened, with few of them open at a time.

Every flipped byte of a batch is found before it is used, whichever buffer and samples are read.
"""

from __future__ import annotations

import json
import os
import resource
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import hotset.train.data.shards as shards_module
from hotset.pipeline.errors import ShardError
from hotset.pipeline.folders.manifest import MANIFEST, hash_file
from hotset.pipeline.formats.batch_checksums import BLOCK_SAMPLES, DamagedBatchError
from hotset.tests.support.processes.descriptors import open_files
from hotset.tests.support.resealed import reseal_checksums, write_manifest
from hotset.tests.support.shard_factory import write_shards
from hotset.train.data.batch import Batch, FeatureBags
from hotset.train.data.shard_file import Columns, ShardFile, UnchangedFile
from hotset.train.data.shards import ShardSet


def write_files(folder: Path, count: int) -> list[Path]:
    paths = [folder / str(number) for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 1000)
    return paths


def read(file: UnchangedFile, start: int = 0) -> bytes:
    return file.read_at(start, 1000 - start).tobytes()


@pytest.fixture
def _few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process seem to be allowed four files, so that two of ours are open."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4, 4))


@pytest.mark.usefixtures("_few_files")
def test_more_files_than_a_process_may_open_are_read_in_any_order(tmp_path: Path) -> None:
    files = [UnchangedFile(path) for path in write_files(tmp_path, 40)]
    for number in [*range(40), *range(39, -1, -1), 7, 7, 20]:
        assert read(files[number], 990) == bytes([number]) * 10
        files[number].refuse_change()
        assert len(open_files(tmp_path)) <= 2
    assert len(open_files(tmp_path)) == 2
    del files
    assert open_files(tmp_path) == []


@pytest.mark.usefixtures("_few_files")
def test_threads_read_files_that_others_would_close(tmp_path: Path) -> None:
    files = [UnchangedFile(path) for path in write_files(tmp_path, 6)]
    wrong: list[int] = []

    def read_often(number: int) -> None:
        for _ in range(200):
            files[number].refuse_change()
            if read(files[number]) != bytes([number]) * 1000:
                wrong.append(number)

    threads = [threading.Thread(target=read_often, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.usefixtures("_few_files")
@pytest.mark.parametrize("how", ["changed", "removed"])
def test_a_file_that_had_to_be_closed_and_is_another_now_is_named(tmp_path: Path, how: str) -> None:
    paths = write_files(tmp_path, 3)
    files = [UnchangedFile(path) for path in paths]  # the first one is closed
    if how == "changed":
        status = paths[0].stat()
        (tmp_path / "other").write_bytes(b"x" * 1000)
        os.utime(tmp_path / "other", ns=(status.st_atime_ns, status.st_mtime_ns))
        os.replace(tmp_path / "other", paths[0])
    else:
        paths[0].unlink()
    with pytest.raises(ShardError, match=f"{paths[0]} was {how} by another program while it was in use"):
        files[0].refuse_change()


def test_a_file_that_is_cut_short_or_written_to_is_named(tmp_path: Path) -> None:
    paths = write_files(tmp_path, 2)
    files = [UnchangedFile(path) for path in paths]
    os.truncate(paths[0], 500)
    with pytest.raises(ShardError, match="was changed by another program"):
        read(files[0])
    paths[1].write_bytes(b"y" * 1001)
    with pytest.raises(ShardError, match="was changed by another program"):
        files[1].refuse_change()


def test_of_many_files_the_first_are_opened_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_module, "_MOST_OPENED", 1)
    stats: list[str] = []
    lstat = os.lstat

    def counting(path: str) -> os.stat_result:
        stats.append(Path(path).name)
        return lstat(path)

    monkeypatch.setattr(os, "lstat", counting)
    shards = made(tmp_path, "one-hot")
    first, second = (file.path for file in shards._files)
    assert [stats.count(path.name) for path in (first, second)] == [1, 1]
    assert sorted(path.name for path in open_files(tmp_path)) == ["checksums.bin", first.name]
    first.unlink()
    assert shards._files[0].read(0, shards._columns, False).num_samples > 0
    os.utime(second, ns=(0, 0))
    with pytest.raises(ShardError, match=f"{second} was changed by another program"):
        shards._files[1].read(0, shards._columns, False)
    again = made(tmp_path / "again", "one-hot")
    again._files[1].path.unlink()
    with pytest.raises(ShardError, match="was removed by another program"):
        again._files[1].read(0, shards._columns, False)


KINDS: dict[str, dict[str, Any]] = {
    "one-hot": {},
    "lists": {"multi_hot": (0, 2)},
    "lists alone": {"multi_hot": (0, 1, 2), "num_dense": 0},
    "labels": {"labels": ("click", "buy"), "has_weight": True},
}


def made(folder: Path, kind: str, *, has_checksums: bool = True) -> ShardSet:
    spec = KINDS[kind] | {"batch_size": 300, "num_hot_only": 0, "num_mixed": 500, "num_evaluation": 310}
    return ShardSet.open(write_shards(folder / "shards", **spec, has_checksums=has_checksums))


def equal(one: Batch, other: Batch) -> bool:
    pairs = [(one.label_B.numpy(), other.label_B.numpy()), (one.dense_BK.numpy(), other.dense_BK.numpy())]
    pairs += [(one.ids_BF, other.ids_BF)]
    pairs += [(one.of_samples[name], other.of_samples[name]) for name in one.of_samples]
    for own, its in zip(one.bags, other.bags, strict=True):
        pairs += [(own.ids_N, its.ids_N), (own.offsets_B1, its.offsets_B1)]
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)


def as_arrow_parses(file: ShardFile, number: int, columns: Columns) -> Batch:
    """The naive twin: the batch as Arrow reads it."""
    table = pa.ipc.open_file(pa.py_buffer(file.path.read_bytes())).get_batch(number)

    def values(name: str) -> NDArray[Any]:
        return np.array(table.column(name).to_pylist(), table.column(name).type.to_pandas_dtype())

    bags = []
    for name in columns.multi_hot:
        lists = table.column(name).to_pylist()
        offsets_B1 = np.cumsum([0, *map(len, lists)]).astype(np.int32)
        bags.append(FeatureBags(offsets_B1, np.array([row for each in lists for row in each], np.int32)))
    return Batch(
        torch.from_numpy(values("label")),
        torch.from_numpy(np.array(table.column("dense").to_pylist(), np.float32).reshape(len(table), -1)),
        np.array(table.column("ids").to_pylist(), np.int32).reshape(len(table), -1),
        values("is_hot") if "is_hot" in table.schema.names else None,
        False,
        tuple(bags),
        {name: values(name) for name in columns.of_samples},
    )


@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_that_arrow_parses(kind: str, has_checksums: bool, tmp_path: Path) -> None:
    shards = made(tmp_path, kind, has_checksums=has_checksums)
    for file in shards._files:
        assert file.verifies_reads == has_checksums
        for number in range(2):
            wanted = as_arrow_parses(file, number, shards._columns)
            assert equal(file.read(number, shards._columns, False), wanted)
            lookups = file.read_lookups(number, shards._columns, False)
            np.testing.assert_array_equal(lookups.ids_BF, wanted.ids_BF)
            for bounds in ((0, 0), (0, 128), (100, 129), (128, 200), (5, wanted.num_samples)):
                first, stop = (min(each, wanted.num_samples) for each in bounds)
                part = file.read(
                    number, shards._columns, False, lookups=lookups.cut(first, stop), part=(first, stop)
                )
                assert equal(part, wanted.cut(first, stop))


@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)), file=st.integers(0, 1), batch=st.integers(0, 1))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_flipped_byte_is_named_by_file_batch_and_buffer(
    data: st.DataObject, kind: str, file: int, batch: int, tmp_path: Path
) -> None:
    folder = tmp_path / kind
    if not folder.exists():
        made(folder, kind)
    shards = ShardSet.open(folder / "shards")
    own = shards._files[file]
    stored = own._stored.batch(file, batch)
    buffers = [each for each in stored.layout.buffers.values() if each.num_bytes]
    buffer = data.draw(st.sampled_from(buffers))
    place = data.draw(st.integers(0, -(-buffer.num_bytes // 8) * 8 - 1))  # padding included
    whole = bytearray(own.path.read_bytes())
    position = stored.start + buffer.start + place
    whole[position] ^= 1 << data.draw(st.integers(0, 7))
    status = own.path.stat()
    kept = own.path.read_bytes()
    try:
        own.path.write_bytes(whole)
        damaged = ShardSet.open(folder / "shards")._files[file]
        with pytest.raises(DamagedBatchError) as refused:
            damaged.read(batch, shards._columns, False)
        assert str(refused.value).startswith(f"{own.path} is damaged: batch {batch}, {buffer.type.name} of ")
        # The other batch is what it was.
        damaged.read(1 - batch, shards._columns, False)
    finally:
        own.path.write_bytes(kept)
    assert own.path.stat().st_size == status.st_size


def test_a_part_reads_its_own_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_shards(tmp_path / "shards", num_hot_only=0, num_mixed=2048, batch_size=2048)
    shards = ShardSet.open(folder)
    (file,) = (each for each in shards._files if each.facts.kind == "mixed")
    lookups = file.read_lookups(0, shards._columns, False)
    read: list[tuple[int, int]] = []
    read_at = UnchangedFile.read_at

    def counting(self: UnchangedFile, position: int, num_bytes: int) -> Any:
        read.append((position, num_bytes))
        return read_at(self, position, num_bytes)

    monkeypatch.setattr(UnchangedFile, "read_at", counting)
    for first, stop, blocks in ((0, 512, 4), (512, 1024, 4), (700, 1020, 3), (1, 2048, 16), (127, 129, 2)):
        read.clear()
        file.read(0, shards._columns, False, lookups=lookups.cut(first, stop), part=(first, stop))
        # A label and two dense values.
        assert sum(size for _, size in read) == blocks * BLOCK_SAMPLES * (4 + 2 * 4)


def test_a_hashed_file_is_not_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = made(tmp_path, "lists")
    checked: list[object] = []
    monkeypatch.setattr(
        "hotset.pipeline.formats.batch_checksums.StoredBatch.check", lambda *each: checked.append(each)
    )
    shards.training_batch(0)
    assert checked
    checked.clear()
    shards.refuse_damage(["evaluation"])
    shards.evaluation_batch(0)
    assert not checked
    shards.training_batch(0)
    assert checked
    shards.refuse_damage()
    checked.clear()
    shards.training_batch(0)
    assert not checked


def test_lists_that_do_not_begin_at_their_elements_are_refused(tmp_path: Path) -> None:
    shards = made(tmp_path, "lists")
    (file,) = (each for each in shards._files if each.facts.kind == "mixed")
    stored = file._stored.batch(file._number, 0)
    name = shards._columns.multi_hot[0]
    start = stored.start + stored.layout.buffers[name, "offsets"].start
    # The first list lacks its first elements, which are then of no list; all checksums are computed anew.
    whole = bytearray(file.path.read_bytes())
    whole[start : start + 4] = whole[start + 4 : start + 8]
    assert whole[start] > 0
    file.path.write_bytes(whole)
    parts = json.loads((shards.manifest.folder / MANIFEST).read_text())
    (entry,) = (each for each in parts["files"] if each["path"] == file.entry.path)
    entry["xxh3_128"] = hash_file(file.path)[1]
    reseal_checksums(shards.manifest.folder, parts)
    write_manifest(shards.manifest.folder, parts)
    with pytest.raises(ShardError, match=rf"the offsets of '{name}' are not of \d+ elements"):
        ShardSet.open(shards.manifest.folder).training_batch(0)
