"""Arrow files: written, mapped, and refused where they are not what the manifest says.

Maps of files: what they hold, for how long, and that none keeps a file open.

Parts are opened once, by whichever pass is first, and no more of them are kept than the limit.

Labels, weights and groups go through words as they are, for every number and every gap.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.pipeline.errors import ConfigError, ManifestError, ShardError, SystemFaultError
from hotset.pipeline.folders.manifest import FileEntry, Manifest, hash_file
from hotset.pipeline.folders.totals import CountedTable, multi_hot, one_hot
from hotset.pipeline.formats import arrow_files
from hotset.pipeline.formats.arrow_files import (
    NO_NULLS,
    OpenedParts,
    as_fixed_lists,
    as_lists,
    clicks_and_gaps,
    column_of,
    damage_named,
    fixed_lists,
    lookups_of,
    map_file,
    num_words,
    numpy_type,
    offsets_of,
    open_writer,
    read_batch,
    type_of,
    validity_of,
    values_of,
    write_batch,
    write_words,
)
from hotset.pipeline.formats.ids import ONE_EACH, TableLookups
from hotset.tests.support.processes.descriptors import open_files


def listed(path: Path, num_samples: int) -> tuple[Manifest, FileEntry]:
    """A manifest that lists ``path`` as it is now."""
    entry = FileEntry(path.name, num_samples, *hash_file(path))
    return Manifest(path.parent, "some stage", 1, {}, [], [entry], {}, "00" * 16), entry


@pytest.mark.parametrize("num_samples", [0, 1, 7, 1000])
def test_what_was_written_is_read(tmp_path: Path, num_samples: int, rng: np.random.Generator) -> None:
    numbers = rng.integers(0, 2**32, num_samples).astype(np.uint32)
    matrix = rng.random((num_samples, 3), np.float32)
    is_missing = rng.random(num_samples) < 0.5
    columns = {"a": pa.array(numbers, mask=is_missing), "b": pa.array(numbers), "c": as_fixed_lists(matrix)}
    write_batch(tmp_path / "file.arrow", columns)
    batch = read_batch(*listed(tmp_path / "file.arrow", num_samples))
    assert batch.schema.names == ["a", "b", "c"]
    np.testing.assert_array_equal(values_of(batch.column("b"), np.uint32), numbers)
    np.testing.assert_array_equal(fixed_lists(batch.column("c"), 3, np.float32), matrix)
    present = np.unpackbits(validity_of(batch.column("a")), count=num_samples or None, bitorder="little")
    if is_missing.any():
        np.testing.assert_array_equal(present, ~is_missing)
    assert validity_of(batch.column("b")) is NO_NULLS
    for name, dtype in (("b", np.uint32), ("c", np.float32)):
        array = batch.column(name)
        values = values_of(array.values if name == "c" else array, dtype)
        assert not values.flags.owndata


def test_a_part_of_an_array_is_that_part() -> None:
    array, matrix = pa.array(np.arange(10, dtype=np.int32)), np.arange(30, dtype=np.int32).reshape(10, 3)
    assert values_of(array.slice(3, 4), np.int32).tolist() == [3, 4, 5, 6]
    lists = as_fixed_lists(matrix)
    np.testing.assert_array_equal(fixed_lists(lists.slice(2, 5), 3, np.int32), matrix[2:7])


def test_fixed_lists_share_the_memory_of_the_matrix() -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert as_fixed_lists(matrix).values.buffers()[1].address == matrix.ctypes.data
    np.testing.assert_array_equal(fixed_lists(as_fixed_lists(matrix[:, :2]), 2, np.float32), matrix[:, :2])


def damage(path: Path, kind: str) -> None:
    text = path.read_bytes()
    damaged: dict[str, bytes] = {
        "cut": text[: len(text) // 2],
        "longer": text + b"\0",
        "zeros": bytes(len(text)),
        "tail": text[:-10] + b"\xff" * 10,
        "footer": text[:-200] + b"\x7f" * 190 + text[-10:],
    }
    path.write_bytes(damaged[kind])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("cut", r"has \d+ bytes, want \d+"),
        ("longer", r"has \d+ bytes, want \d+"),
        ("zeros", "is damaged"),
        ("tail", "is damaged"),
        ("footer", "is damaged"),
    ],
)
def test_damage_is_named_in_one_line(tmp_path: Path, kind: str, message: str) -> None:
    path = tmp_path / "file.arrow"
    write_batch(path, {"a": pa.array(np.arange(100))})
    manifest, entry = listed(path, 100)
    damage(path, kind)
    with pytest.raises(ManifestError, match=rf"file\.arrow {message}") as caught:
        read_batch(manifest, entry)
    assert "\n" not in str(caught.value) and caught.value.hint


def test_a_file_without_a_batch_is_damaged(tmp_path: Path) -> None:
    with open_writer(tmp_path / "file.arrow", pa.schema([pa.field("x", pa.int64())])):
        pass
    with pytest.raises(ManifestError, match=r"file\.arrow is damaged"):
        read_batch(*listed(tmp_path / "file.arrow", 0))


def test_another_number_of_samples_is_refused(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"a": pa.array(np.arange(100))}
    write_batch(tmp_path / "file.arrow", columns)
    manifest, entry = listed(tmp_path / "file.arrow", 100)
    with pytest.raises(ManifestError, match="has 100 samples, its manifest says 99"):
        read_batch(manifest, replace(entry, num_samples=99))


COUNTS = {"category": np.arange(3, dtype=np.uint32), "count": np.ones(3, np.int64)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"category": np.arange(3, dtype=np.uint64)}, None),
        ({"category": np.arange(3, dtype=np.int32)}, "column 'category' is int32, want uint32 or uint64"),
        ({"count": np.ones(3, np.int32)}, "column 'count' is int32, want int64"),
        ({"count": None}, "it has 0 columns 'count', want 1"),
        ({"count": pa.array([1, None, 3])}, "column 'count' lacks 1 values"),
        ({"count": np.array([1, 0, 2])}, "it counts a category 0 times"),
    ],
)
def test_columns_are_those_of_the_stage(tmp_path: Path, changes: dict[str, Any], message: str | None) -> None:
    columns = {name: pa.array(values) for name, values in (COUNTS | changes).items() if values is not None}
    write_batch(tmp_path / "file.arrow", columns)
    manifest, entry = listed(tmp_path / "file.arrow", 3)
    manifest = replace(manifest, stage="count")
    if message is None:
        assert read_batch(manifest, entry).num_rows == 3
    else:
        with pytest.raises(ManifestError, match=f"file.arrow is damaged: {message}"):
            read_batch(manifest, entry)


def test_values_of_another_type_or_width_are_refused() -> None:
    with pytest.raises(ManifestError, match="a column is int32, want int64"):
        values_of(pa.array([1, 2], pa.int32()), np.int64)
    with pytest.raises(ManifestError, match="lists of 3, want 2"):
        fixed_lists(as_fixed_lists(np.zeros((2, 3), np.int32)), 2, np.int32)


def test_checks_of_arrays_are_named_by_the_file_that_they_are_from(tmp_path: Path) -> None:
    path = tmp_path / "mixed-00000.arrow"
    with pytest.raises(ShardError, match=rf"^{path} cannot be read: a column is int32, want int64\n"):
        with damage_named(path, ShardError, "cannot be read"):
            values_of(pa.array([1], pa.int32()), np.int64)
    with pytest.raises(ManifestError, match=r"^other/file is damaged$"), damage_named(path, ShardError):
        raise ManifestError("other/file is damaged")
    with pytest.raises(ConfigError, match=r"^a wrong option$"), damage_named(path):
        raise ConfigError("a wrong option")


def test_a_folder_may_have_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"D\xff")
    folder.mkdir()
    write_batch(folder / "file.arrow", {"a": pa.array([1, 2])})
    assert read_batch(*listed(folder / "file.arrow", 2)).column("a").to_pylist() == [1, 2]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        MemoryError("malloc of size 64 failed"),
        pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable"),
    ],
)
def test_a_file_that_the_system_cannot_open_is_not_called_damaged(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise error

    write_batch(tmp_path / "file.arrow", {"a": pa.array([1, 2])})
    monkeypatch.setattr("hotset.pipeline.formats.arrow_files.map_batch", fail)
    with pytest.raises(SystemFaultError) as caught:
        read_batch(*listed(tmp_path / "file.arrow", 2))
    assert "file.arrow" in str(caught.value) and "damaged" not in str(caught.value)
    assert "remove" not in str(caught.value.hint)


def test_a_map_holds_the_bytes_of_its_file_and_keeps_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a\xff")
    path.write_bytes(bytes(range(256)) * 40)
    maps = [map_file(path) for _ in range(50)]
    assert open_files(tmp_path) == []
    path.unlink()
    for found in maps:
        values = np.frombuffer(found, np.uint8)
        assert values.size == 256 * 40 and not values.flags.writeable
        assert values.sum(dtype=np.int64) == 40 * 255 * 128


def test_an_array_keeps_the_map_and_the_last_one_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)

    def is_mapped() -> bool:
        return str(path) in Path("/proc/self/maps").read_text()

    values = np.frombuffer(map_file(path), np.uint8)[5000:]
    assert is_mapped() and values[-1] == ord("x")
    del values
    assert not is_mapped()


def test_what_cannot_be_mapped_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="it is empty"):
        map_file(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        map_file(tmp_path / "none")
    with pytest.raises(OSError, match=r"No such device|Is a directory"):
        map_file(tmp_path)


def test_each_part_is_opened_once_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, str]] = []

    def opening(folder: Any, entry: Any) -> object:
        opened.append((folder.fingerprint, entry.path))
        return opened[-1]

    monkeypatch.setattr(arrow_files, "read_batch", opening)
    monkeypatch.setattr(arrow_files, "_MOST_FILES", 3)
    parts: Any = OpenedParts()
    columns, samples = (SimpleNamespace(fingerprint=name) for name in ("columns", "samples"))
    first, second = (SimpleNamespace(path=path) for path in ("a.arrow", "b.arrow"))
    files = [(columns, first), (samples, first), (columns, second), (samples, second)]
    wanted = [(folder.fingerprint, entry.path) for folder, entry in files]
    for _ in range(3):
        assert [parts.read(*file) for file in files] == wanted
    # The last file is beyond the limit, and opened by each pass.
    assert opened == [*wanted, wanted[3], wanted[3]]


def named(name: str, is_multi_hot: bool) -> CountedTable:
    return CountedTable(name=name, num_categories=1, num_missing=0, is_multi_hot=is_multi_hot)


TABLES = [named("C1", False), named("L1", True), named("C2", False), named("L2", True)]


def lists_of(*lists: list[int]) -> pa.Array:
    return pa.array(lists, pa.list_(pa.int32()))


def with_offsets(offsets: list[int], num_values: int) -> pa.Array:
    """A list column whose offsets are what a damaged file may hold."""
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32))]
    values = pa.array(range(num_values), pa.int32())
    return pa.Array.from_buffers(pa.list_(pa.int32()), len(offsets) - 1, buffers, children=[values])


def test_tables_keep_their_order_of_either_kind() -> None:
    assert [table.name for table in one_hot(TABLES)] == ["C1", "C2"]
    assert [table.name for table in multi_hot(TABLES)] == ["L1", "L2"]


@pytest.mark.parametrize("lists", [[], [[]], [[], [], []], [[5]], [[1, 2], [], [3]]])
def test_offsets_and_values_make_the_lists_again(lists: list[list[int]]) -> None:
    array = lists_of(*lists)
    offsets = offsets_of(array)
    assert offsets.tolist() == np.cumsum([0, *map(len, lists)]).tolist()
    values = array.values.to_numpy(zero_copy_only=False).astype(np.int32)
    assert as_lists(offsets, values).to_pylist() == lists


def test_lookups_of_the_first_samples_are_their_elements() -> None:
    array = lists_of([1, 2], [], [3])
    values, num_lookups = lookups_of(array, 2)
    assert values.to_pylist() == [1, 2, 3] and num_lookups == 2
    flat = pa.array([7, 8, 9], pa.uint64())
    assert lookups_of(flat, 2) == (flat, 2)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (with_offsets([0, 3, 2, 4], 4), "do not cut its 4 elements into 3 lists"),
        (with_offsets([0, 2, 3], 4), "do not cut its 4 elements into 2 lists"),
        (with_offsets([1, 2, 4], 4), "do not cut its 4 elements into 2 lists"),
        (with_offsets([0, 9, 4], 4), "do not cut"),
        (with_offsets([0, -1, 4], 4), "do not cut"),
        (lists_of([1], [2], [3])[1:], "not one of lists that are all there"),
        (pa.array([[1], None], pa.list_(pa.int32())), "not one of lists that are all there"),
        (pa.array([1, 2]), "a column of int64"),
        (pa.array([[1]], pa.large_list(pa.int32())), "a column of large_list"),
    ],
)
def test_offsets_that_a_kernel_could_run_away_with_are_refused(array: pa.Array, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        offsets_of(array)


@pytest.mark.parametrize("start", range(5))
def test_the_lookups_of_some_samples_are_those_of_their_lists(start: int) -> None:
    lists = [[1, 2], [], [3], [4, 5, 6]]
    offsets = np.cumsum([0, *map(len, lists)]).astype(np.int32)
    whole = TableLookups(np.array([1, 2, 3, 4, 5, 6], np.int32), offsets)
    for stop in range(start, 5):
        part = whole.of_samples(start, stop)
        assert part.num_samples == stop - start
        found = [part.ids[a:b].tolist() for a, b in zip(part.offsets, part.offsets[1:], strict=False)]
        assert found == lists[start:stop]
    plain = TableLookups(np.arange(4, dtype=np.int32), ONE_EACH)
    assert plain.of_samples(start, 4).ids.tolist() == list(range(start, 4))


@pytest.mark.parametrize("kind", [pa.uint8(), pa.int32(), pa.int64(), pa.uint64(), pa.float32()])
def test_types_of_numbers_are_those_of_arrow(kind: pa.DataType) -> None:
    assert numpy_type(kind) == np.dtype(kind.to_pandas_dtype())
    assert values_of(pa.array([1, 2], kind)).tolist() == [1, 2]


def test_other_types_are_refused_as_numbers() -> None:
    with pytest.raises(ManifestError, match="a column is string, want int32"):
        values_of(pa.array(["a"]), np.int32)


LABELS = st.one_of(st.none(), st.integers(0, 1))
WEIGHTS = st.floats(0, width=32, allow_infinity=False, allow_nan=False)
GROUPS = st.one_of(st.none(), st.sampled_from([0, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))
COLUMNS = {"label": (LABELS, pa.uint8()), "weight": (WEIGHTS, pa.float32()), "group": (GROUPS, pa.uint64())}


@pytest.mark.parametrize("name", COLUMNS)
@given(data=st.data())
def test_chosen_values_come_out_of_words_as_they_went_in(name: str, data: Any) -> None:
    values, kind = COLUMNS[name]
    column = data.draw(st.lists(values, min_size=1, max_size=20))
    chosen = data.draw(st.lists(st.integers(0, len(column) - 1), max_size=20))
    words = np.full((num_words(name), len(chosen)), 7, np.int32)
    write_words(name, pa.array(column, kind), np.array(chosen, np.int32), words)
    # Rows have other words beside them.
    rows = np.concatenate([np.full((len(chosen), 2), 9, np.int32), words.T], axis=1)
    found = column_of(name, rows[:, 2:])
    found.validate(full=True)
    assert found.type == type_of(name)
    assert found.to_pylist() == [column[place] for place in chosen]


@given(labels=st.lists(LABELS, max_size=20))
def test_clicks_and_gaps_are_those_of_the_labels(labels: list[int | None]) -> None:
    clicks, gaps = clicks_and_gaps(pa.array(labels, pa.uint8()))
    assert clicks.tolist() == [label == 1 for label in labels]
    assert gaps.tolist() == [label is None for label in labels]
