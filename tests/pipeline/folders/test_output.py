"""Stage folders: killed at any moment, the same run ends in the same bytes; another is refused.

Tests `partial`, `reopening` and `resume`, too.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from hotset.pipeline.errors import MIB, ManifestError
from hotset.pipeline.folders.disk import PARTIAL, SCRATCH
from hotset.pipeline.folders.manifest import MANIFEST, Manifest, hash_file, known_checksum
from hotset.pipeline.folders.output import (
    Output,
    array_in,
    input_of,
    log_order,
    map_arrays,
    remove_arrays,
    write_arrays,
)
from hotset.pipeline.runtime.limits import anonymous_bytes
from hotset.pipeline.runtime.tasks import give_back
from hotset.tests.support.json_records import AnyRecord
from hotset.tests.support.logs.criteo_text import tree_of
from hotset.tests.support.processes.kills import Killed

INPUTS = [{"name": "columns", "fingerprint": "ab" * 16}]
NAMES = ("b.arrow", "a.arrow", "c.arrow")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The settings of a made-up stage."""

    width: int = 3
    fraction: float = 1 / 7
    names: tuple[str, ...] = ("x", "y")


def run(folder: Path, config: Config | None = None, inputs: list[dict[str, Any]] = INPUTS) -> Manifest:
    """A stage of three files; returns its manifest."""
    output = Output.begin("stage", 2, config or Config(), inputs, folder)
    if output.sealed is not None:
        return output.sealed
    for number, name in enumerate(NAMES):
        if not output.has(name):
            with output.writing(name, number, AnyRecord(kind=f"k{number}")) as path:
                path.write_bytes(name.encode() * number)
    return output.seal(AnyRecord(samples=3))


def test_a_finished_folder_holds_its_files_and_a_manifest(tmp_path: Path) -> None:
    manifest = run(tmp_path / "out")
    assert set(tree_of(tmp_path / "out")) == {*NAMES, MANIFEST}
    assert not (tmp_path / "out" / PARTIAL).exists()
    assert manifest == Manifest.read(tmp_path / "out")
    assert (manifest.stage, manifest.version, manifest.inputs) == ("stage", 2, INPUTS)
    assert manifest.config == {"width": 3, "fraction": 1 / 7, "names": ["x", "y"]}
    assert [entry.path for entry in manifest.files] == sorted(NAMES)
    for entry in manifest.files:
        text = (tmp_path / "out" / entry.path).read_bytes()
        assert (entry.num_bytes, entry.xxh3_128) == (len(text), xxhash.xxh3_128_hexdigest(text))
    assert input_of(manifest) == {"name": "out", "fingerprint": manifest.fingerprint}


def test_an_equal_run_only_looks_at_a_sealed_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = run(tmp_path / "out")
    (tmp_path / "out" / PARTIAL).mkdir()  # killed after the manifest, before this went
    monkeypatch.setattr(Output, "writing", None)
    assert run(tmp_path / "out") == manifest
    assert set(tree_of(tmp_path / "out")) == {*NAMES, MANIFEST} and not (tmp_path / "out" / PARTIAL).exists()


@pytest.mark.parametrize("is_after", [False, True])
def test_killed_at_any_rename_the_same_run_ends_in_the_same_bytes(
    tmp_path: Path, is_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "whole")
    wanted = tree_of(tmp_path / "whole")
    replace, calls_left = os.replace, 0

    def killing(source: Path, target: Path) -> None:
        nonlocal calls_left
        calls_left -= 1
        if calls_left == 0 and not is_after:
            raise Killed
        replace(source, target)
        if calls_left == 0:
            raise Killed

    monkeypatch.setattr(os, "replace", killing)
    num_renames = 2 * len(NAMES) + 2
    for kill_at in range(1, num_renames + 1):
        calls_left = kill_at
        with pytest.raises(Killed):
            run(tmp_path / f"out{kill_at}")
        run(tmp_path / f"out{kill_at}")
        assert tree_of(tmp_path / f"out{kill_at}") == wanted


def test_finished_files_are_not_written_again(tmp_path: Path) -> None:
    output = Output.begin("stage", 2, Config(), INPUTS, tmp_path)
    with output.writing("b.arrow", 1) as path:
        path.write_bytes(b"kept")
    resumed = Output.begin("stage", 2, Config(), INPUTS, tmp_path)
    assert resumed.has("b.arrow") and not resumed.has("a.arrow")
    assert resumed.finished == output.finished


@pytest.mark.parametrize("left", [b"", bytes(40), b'["/scr'])
def test_half_a_note_of_scratch_folders_is_none(left: bytes, tmp_path: Path) -> None:
    output = Output.begin("stage", 2, Config(), INPUTS, tmp_path / "out")
    output.keep(SCRATCH, left)
    assert output.scratch_folders() == []
    found = output.scratch_folder(tmp_path / "scratch")
    assert found.parent == tmp_path / "scratch" and output.scratch_folder(found.parent) == found


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize(
    ("config", "inputs", "message"),
    [
        (Config(width=4), INPUTS, "was written with width = 3, now 4"),
        (Config(fraction=0.5), INPUTS, "was written with fraction = 0.14285714285714285, now 0.5"),
        (Config(names=()), INPUTS, r"was written with names = \['x', 'y'\], now \[\]"),
        (Config(), [{"name": "columns", "fingerprint": "cd" * 16}], "was written from other inputs"),
        (Config(), [], "was written from other inputs"),
    ],
)
def test_other_settings_or_inputs_are_refused_by_name(
    tmp_path: Path, config: Config, inputs: list[dict[str, Any]], message: str, is_sealed: bool
) -> None:
    if is_sealed:
        run(tmp_path)
    else:
        output = Output.begin("stage", 2, Config(), INPUTS, tmp_path)
        with output.writing(NAMES[0], 0) as path:
            path.touch()
        del output
    before = tree_of(tmp_path)
    with pytest.raises(ManifestError, match=message) as caught:
        run(tmp_path, config, inputs)
    assert caught.value.hint is not None and "--redo stage" in caught.value.hint
    assert tree_of(tmp_path) == before


def test_a_folder_in_which_nothing_was_finished_starts_fresh_with_other_settings(tmp_path: Path) -> None:
    output = Output.begin("stage", 2, Config(), INPUTS, tmp_path / "out")
    for left in (output.temporary_path("b.arrow"), output.shared_path("counts")):
        left.write_bytes(b"of other settings")
    del output
    other = Output.begin("stage", 2, Config(width=4), [], tmp_path / "out")
    assert not other.shared_path("counts").exists() and other.finished == {}
    del other
    assert run(tmp_path / "out", Config(width=5)).config["width"] == 5
    run(tmp_path / "whole", Config(width=5))
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "whole")


def test_another_stage_or_version_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(ManifestError, match="holds stage 'stage', want 'other'"):
        Output.begin("other", 2, Config(), INPUTS, tmp_path)
    with pytest.raises(ManifestError, match="was written by another version of hotset"):
        Output.begin("stage", 3, Config(), INPUTS, tmp_path)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(ManifestError, match="is not empty and was not begun by this stage"):
        run(tmp_path)
    assert tree_of(tmp_path) == {"thesis.tex": b"all of it"}


def test_a_file_put_into_an_unfinished_folder_is_left_alone(tmp_path: Path) -> None:
    Output.begin("stage", 2, Config(), INPUTS, tmp_path)
    (tmp_path / "notes.txt").write_text("all of them")
    assert [entry.path for entry in run(tmp_path).files] == sorted(NAMES)
    assert (tmp_path / "notes.txt").read_text() == "all of them"


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(ManifestError, match="cannot be written"):
        run(tmp_path / "out")


def test_a_sealed_folder_whose_file_was_cut_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "c.arrow").write_bytes(b"short")
    with pytest.raises(ManifestError, match=r"c\.arrow has 5 bytes, want 14"):
        run(tmp_path)
    (tmp_path / "c.arrow").unlink()
    with pytest.raises(ManifestError, match=r"c\.arrow cannot be read: No such file"):
        run(tmp_path)


@pytest.mark.parametrize(
    "damage", ["short file", "no file", "short record", "record of nothing", "other record"]
)
def test_half_a_file_that_a_power_cut_left_is_made_again(tmp_path: Path, damage: str) -> None:
    run(tmp_path / "whole")
    output = Output.begin("stage", 2, Config(), INPUTS, tmp_path / "out")
    with output.writing("c.arrow", 2, AnyRecord(kind="k2")) as path:
        path.write_bytes(b"c.arrow" * 2)
    file, record = tmp_path / "out" / "c.arrow", tmp_path / "out" / PARTIAL / "c.arrow.json"
    if damage == "short file":
        file.write_bytes(b"")
    elif damage == "no file":
        file.unlink()
    elif damage == "other record":
        record.write_text(record.read_text().replace('"k2"', '"k3"'))
    else:
        record.write_text('{"path": ' if damage == "short record" else "[]")
    run(tmp_path / "out")
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "whole")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "true",
        "[" * 100_000,
        '{"stage": "stage", "version": 2, "inputs": []}',
        '{"stage": "stage", "version": 2, "config": [], "inputs": []}',
        '{"stage": "stage", "version": 2, "config": {}, "inputs": [1]}',
    ],
    ids=range(7),
)
def test_a_damaged_beginning_is_refused(tmp_path: Path, text: str) -> None:
    Output.begin("stage", 2, Config(), INPUTS, tmp_path)
    (tmp_path / PARTIAL / "begun.json").write_text(text)
    with pytest.raises(ManifestError, match=r"begun\.json is damaged"):
        run(tmp_path)


@pytest.mark.parametrize("name", ["b.arrow", MANIFEST])
def test_a_full_device_is_an_error_to_mend_and_the_same_run_goes_on(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "whole")

    def full(source: Path, target: Path) -> None:
        if Path(target).name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    replace = os.replace
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ManifestError, match=f"{name} cannot be written: No space left on device"):
        run(tmp_path / "out")
    monkeypatch.setattr(os, "replace", replace)
    run(tmp_path / "out")
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "whole")


def test_a_file_that_did_not_fit_gives_its_room_back(tmp_path: Path) -> None:
    output = Output.begin("stage", 2, Config(), INPUTS, tmp_path)
    with (
        pytest.raises(ManifestError, match=r"a\.arrow cannot be written: No space left on device"),
        output.writing("a.arrow", 1) as path,
    ):
        path.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert not path.exists()


@pytest.mark.parametrize("num_bytes", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_files_are_hashed_block_by_block(tmp_path: Path, num_bytes: int) -> None:
    text = bytes(range(256)) * (num_bytes // 256 + 1)
    (tmp_path / "file").write_bytes(text[:num_bytes])
    assert hash_file(tmp_path / "file") == (num_bytes, xxhash.xxh3_128_hexdigest(text[:num_bytes]))


def test_one_name_is_not_written_twice(tmp_path: Path) -> None:
    """Two features whose names lead to one file: the second would replace the first."""
    output = Output.begin("stage", 2, Config(), INPUTS, tmp_path / "out")

    def write(text: bytes) -> None:
        with output.writing("a.arrow", 1) as path:
            path.write_bytes(text)

    write(b"first")
    write(b"first")  # a task that is repeated after its worker was killed
    with pytest.raises(ManifestError, match=r"a\.arrow would be written twice"):
        write(b"second")
    assert (tmp_path / "out/a.arrow").read_bytes() == b"first"
    entry = output.report()[0] | {"xxh3_128": "0" * 32}
    with pytest.raises(ManifestError, match=r"a\.arrow would be written twice"):
        output.apply_report([entry])


def test_a_file_of_an_earlier_run_at_the_same_place_spoils_nothing(tmp_path: Path) -> None:
    path = tmp_path / "columns" / "a.arrow"
    path.parent.mkdir()
    path.write_bytes(b"values")
    known_checksum(path)
    # As where a folder is made anew and the system gives an old inode to the new file.
    path.write_bytes(b"others, in place")
    output = Output.begin("stage", 2, Config(), INPUTS, tmp_path / "out")
    with output.writing("a.arrow", 1) as written:
        written.write_bytes(b"a")
    output.seal(AnyRecord(samples=1))


@pytest.mark.parametrize("change", ["overwritten", "replaced", "removed"])
def test_an_input_that_is_overwritten_under_a_run_spoils_it(change: str, tmp_path: Path) -> None:
    path = tmp_path / "columns" / "a.arrow"
    path.parent.mkdir()
    path.write_bytes(b"values")
    output = Output.begin("stage", 2, Config(), INPUTS, tmp_path / "out")
    known_checksum(path)
    with output.writing("a.arrow", 1) as written:
        written.write_bytes(b"a")
    if change == "overwritten":
        path.write_bytes(b"others, in place")
        with pytest.raises(ManifestError, match=r"columns/a\.arrow was overwritten while it was read"):
            output.seal(AnyRecord(samples=1))
        assert Output.begin("stage", 2, Config(), INPUTS, tmp_path / "out").finished == {}
        return
    # The map of a file that is replaced or removed stays as it was; it keeps the inode, as an open file does.
    with path.open("rb"):
        path.unlink()
        if change == "replaced":
            path.write_bytes(b"others")
        output.seal(AnyRecord(samples=1))


@dataclass(frozen=True)
class NoConfig:
    """Nothing to vary."""


def test_files_are_in_the_order_of_the_log() -> None:
    numbers = [0, 9, 10, 9_999, 10_000, 10_001, 99_999, 100_000]
    names = [f"file{number:04}-{rest}" for number in numbers for rest in ("before0007.arrow", "row1.arrow")]
    assert sorted(sorted(names), key=log_order) == names
    others = ["C1.arrow", "file0001-C1.arrow", "file9999-C1.arrow", "fil.arrow", "filf.arrow"]
    assert sorted(others, key=log_order) == sorted(others)


def output_in(folder: Path) -> Output:
    output = Output.begin("count", 1, NoConfig(), [], folder)
    return output


def test_arrays_are_zeros_in_memory_or_in_a_file_without_a_name(tmp_path: Path) -> None:
    output = output_in(tmp_path / "counts")
    before = sorted(path.name for path in (tmp_path / "counts").rglob("*"))
    for room in (0, 8 * 6000):
        array = array_in(room, output, (3, 2000), np.int64)
        assert array.shape == (3, 2000) and array.dtype == np.int64 and not array.any()
        array[:] = np.arange(6000).reshape(3, 2000)
        assert array.sum() == 5999 * 3000
        assert sorted(path.name for path in (tmp_path / "counts").rglob("*")) == before
    assert array_in(0, output, (0,), np.uint32).shape == (0,)


@pytest.mark.skipif(anonymous_bytes() == 0, reason="this system does not say")
def test_a_mapped_array_is_no_anonymous_memory(tmp_path: Path) -> None:
    output = output_in(tmp_path / "counts")
    give_back()
    before = anonymous_bytes()
    array_in(0, output, (64 * MIB,), np.uint8)[:] = 1
    mapped = anonymous_bytes()
    held = array_in(64 * MIB, output, (64 * MIB,), np.uint8)
    held[:] = 1
    assert mapped - before < 32 * MIB < anonymous_bytes() - before


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    output = output_in(tmp_path / "counts")
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ManifestError, match="has no space for spill files: No space left") as caught:
        array_in(0, output, (10,), np.int64)
    assert "--memory" in str(caught.value.hint)


def test_arrays_overwrite_what_a_killed_run_left_and_outlive_their_file(tmp_path: Path) -> None:
    path = output_in(tmp_path / "counts").temporary_path("C1.runs")
    path.write_bytes(b"left by a kill")
    write_arrays(path, [np.array([1, 2], np.uint64), np.array([7, 8], np.int64)])
    write_arrays(path, [np.array([3], np.uint64), np.array([9], np.int64)], appends=True)
    mapped = map_arrays(path, np.uint64)
    remove_arrays(path)
    assert mapped.tolist() == [1, 2, 7, 8, 3, 9] and not path.exists()
    write_arrays(path, [])
    assert map_arrays(path, np.int32).shape == (0,)
