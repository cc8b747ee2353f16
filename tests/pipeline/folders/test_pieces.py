"""Pieces come back as they were written, in any order and from any folder; see `test_two_phases`, too."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.disk import is_in_memory
from hotset.pipeline.folders.pieces import PieceArrays, PieceFolders

NUM_FILES, WIDTH = 5, 3


def drawn(rows: list[int], lookups: list[int], rng: np.random.Generator) -> PieceArrays:
    return PieceArrays(
        rng.integers(0, 2**63, sum(rows)).astype(np.uint64),
        rng.integers(0, 99, (sum(rows), WIDTH)).astype(np.int32),
        rng.integers(0, 99, sum(lookups)).astype(np.int32),
    )


def write(
    pieces: PieceFolders, parts: range, arrays: PieceArrays, rows: list[int], lookups: list[int]
) -> None:
    with pieces.writing(parts, arrays, np.array(rows), np.array(lookups)) as writer:
        for first, stop in ((2, 5), (0, 2)):
            writer.write(first, stop)


def read(pieces: PieceFolders, number: int, files: range) -> list[PieceArrays]:
    with pieces.runs[number].open() as reader:
        index = reader.index(files)
        found = [
            PieceArrays(np.empty(rows, np.uint64), np.empty((rows, WIDTH), np.int32), np.empty(ids, np.int32))
            for rows, ids in zip(np.diff(index.row_starts), np.diff(index.lookup_starts), strict=True)
        ]
        reader.read(files, index, found)
        reader.forget(index)
    return found


@pytest.mark.parametrize("most_views", [1024, 2])
@pytest.mark.parametrize(
    ("rows", "lookups"), [([2, 0, 3, 1, 4], [5, 0, 2, 0, 1]), ([1] * 5, [0] * 5), ([0] * 5, [0] * 5)]
)
def test_pieces_come_back(
    rows: list[int],
    lookups: list[int],
    most_views: int,
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hotset.pipeline.folders.pieces._MOST_VIEWS", most_views)
    short_reads(monkeypatch)
    pieces = PieceFolders([], NUM_FILES, WIDTH)
    pieces.write_to(tmp_path / "a")
    arrays = drawn(rows, lookups, rng)
    write(pieces, range(3), arrays, rows, lookups)
    starts = [np.cumsum([0, *counts]) for counts in (rows, lookups)]
    for files in (range(5), range(1, 4), range(4, 5), range(2, 2)):
        for file, piece in zip(files, read(pieces, 0, files), strict=True):
            first, stop = starts[0][file : file + 2]
            np.testing.assert_array_equal(piece.keys, arrays.keys[first:stop])
            np.testing.assert_array_equal(piece.rows, arrays.rows[first:stop])
            np.testing.assert_array_equal(piece.bags, arrays.bags[slice(*starts[1][file : file + 2])])
    np.testing.assert_array_equal(pieces.num_lookups, lookups)


def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system give at most 13 bytes at a time, and take 7."""
    preadv, pwrite = os.preadv, os.pwrite
    monkeypatch.setattr(os, "preadv", lambda file, views, at: preadv(file, [views[0][:13]], at))
    monkeypatch.setattr(os, "pwrite", lambda file, view, at: pwrite(file, view[:7], at))


def test_runs_of_two_folders_are_found_in_the_order_of_their_parts(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    rows, lookups = [1, 2, 0, 0, 1], [0, 3, 0, 0, 0]
    runs = {name: drawn(rows, lookups, rng) for name in "ab"}
    for name, parts in (("a", range(4, 6)), ("b", range(1, 3))):
        pieces = PieceFolders([], NUM_FILES, WIDTH)
        pieces.write_to(tmp_path / name)
        write(pieces, parts, runs[name], rows, lookups)
        (tmp_path / name / "left.tmp").write_bytes(b"half of it")
    pieces = PieceFolders([tmp_path / "a", tmp_path / "b"], NUM_FILES, WIDTH)
    assert [run.parts for run in pieces.runs] == [range(1, 3), range(4, 6)]
    assert pieces.missing(8) == [range(0, 1), range(3, 4), range(6, 8)]
    assert pieces.missing(6) == [range(0, 1), range(3, 4)]
    np.testing.assert_array_equal(read(pieces, 0, range(1))[0].keys, runs["b"].keys[:1])
    assert pieces.num_lookups.tolist() == [0, 6, 0, 0, 0]
    assert not list(tmp_path.rglob("*.tmp"))
    pieces.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("num_files", "width"), [(NUM_FILES + 1, WIDTH), (NUM_FILES, WIDTH + 1)])
def test_runs_of_other_files_are_removed(
    num_files: int, width: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    pieces = PieceFolders([], NUM_FILES, WIDTH)
    pieces.write_to(tmp_path / "a")
    write(pieces, range(2), drawn([1] * 5, [0] * 5, rng), [1] * 5, [0] * 5)
    assert PieceFolders([tmp_path / "a"], num_files, width).runs == []
    assert not list((tmp_path / "a").iterdir())


def test_runs_that_share_parts_are_not_both_taken(tmp_path: Path, rng: np.random.Generator) -> None:
    for name, parts in (("a", range(3)), ("b", range(2, 4))):
        pieces = PieceFolders([], NUM_FILES, WIDTH)
        pieces.write_to(tmp_path / name)
        write(pieces, parts, drawn([1] * 5, [0] * 5, rng), [1] * 5, [0] * 5)
    found = PieceFolders([tmp_path / "a", tmp_path / "b"], NUM_FILES, WIDTH)
    assert [run.parts for run in found.runs] == [range(3)]


def test_pieces_that_are_freed_take_no_space_and_no_other_is_touched(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    rows, lookups = [3000, 5001, 2000, 1, 4000], [0, 9000, 1, 7000, 0]
    pieces = PieceFolders([], NUM_FILES, WIDTH)
    pieces.write_to(tmp_path / "a")
    write(pieces, range(2), drawn(rows, lookups, rng), rows, lookups)
    whole = read(pieces, 0, range(5))
    taken = pieces.runs[0].path.stat().st_blocks
    pieces.free([range(1, 3), range(4, 4)])
    if pieces.frees_space:
        assert (
            pieces.runs[0].path.stat().st_blocks <= taken - (7001 * (8 + 4 * WIDTH) + 4 * 9001) // 512 + 6 * 8
        )
    for files in (range(1), range(3, 5)):
        for file, piece in zip(files, read(pieces, 0, files), strict=True):
            np.testing.assert_array_equal(piece.rows, whole[file].rows)
            np.testing.assert_array_equal(piece.bags, whole[file].bags)
    # An earlier run wrote these files, so the next one does not ask for their pieces.
    assert PieceFolders([tmp_path / "a"], NUM_FILES, WIDTH).missing(2) == []


def test_a_full_scratch_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(ManifestError, match="a cannot hold the pieces: No space left on device") as refused:
        PieceFolders([], NUM_FILES, WIDTH).write_to(tmp_path / "a")
    assert refused.value.hint is not None and "--scratch" in refused.value.hint


def test_a_folder_in_memory_is_known() -> None:
    assert is_in_memory(Path("/dev/shm"))
    assert not is_in_memory(Path("/proc"))
