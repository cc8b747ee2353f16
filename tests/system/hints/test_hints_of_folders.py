"""Hints about stage folders: missing, damaged, in use, or written with other settings."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hotset.pipeline.folders import whole_file
from hotset.pipeline.folders.manifest import CountsFacts, FileEntry, Manifest, read_referenced
from hotset.pipeline.folders.output import Output
from hotset.pipeline.folders.partial import (
    FolderLock,
    held_by_worker,
    start_generation,
    write_errors_explained,
)
from hotset.pipeline.folders.temporary_files import spill_errors_explained
from hotset.pipeline.formats.arrow_files import columns_of, fixed_lists, offsets_of, read_file, values_of
from hotset.pipeline.stages.other_vocabulary import map_ids
from hotset.tests.support.hints import Shell, follows, hint_of
from hotset.tests.support.json_records import AnyRecord
from hotset.tests.support.processes.kills import start_holder
from hotset.tests.support.resealed import write_manifest


@dataclass(frozen=True)
class AnyConfig:
    """Nothing to vary."""


def change_manifest(folder: Path, **changes: Any) -> None:
    """Change parts of a manifest and seal it again."""
    parts = json.loads((folder / "manifest.json").read_text())
    write_manifest(folder, parts | changes)


def damage(path: Path) -> None:
    """Turn a file's bytes round, so that its size stays."""
    path.write_bytes(path.read_bytes()[::-1])


def replace_by_link(path: Path) -> None:
    """Put a link in place of a file, to the same bytes elsewhere."""
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


@follows("pipeline/folders/manifest.py::_missing", "pipeline/folders/manifest.py::_missing#2")
def test_what_is_no_folder_of_preprocess(shell: Shell) -> None:
    for path, command in (
        ("log.tsv", "stats"),
        ("run", "stats"),
        ("data/shards", "advise"),
    ):
        assert shell.refused(command, path) == "give the folder that preprocess wrote (its --out)"
    shell.works("stats", "data")


@follows("pipeline/stages/other_vocabulary.py::map_ids")
def test_what_is_no_vocabulary_is_not_mapped(shell: Shell) -> None:
    shards, vocabulary = (Manifest.read(Path("data", name)) for name in ("shards", "vocabulary"))
    hint = hint_of(lambda: map_ids(shards, vocabulary, Path("map")))
    assert hint == "give a folder that preprocess wrote (its --out)"
    map_ids(vocabulary, vocabulary, Path("map"))


@follows("pipeline/folders/manifest.py::_missing#3")
def test_a_missing_folder_is_written_by_the_command_in_the_hint(shell: Shell) -> None:
    shutil.rmtree("data/vocabulary")
    hint = shell.refused("stats", "data")
    assert hint == "`hotset rank data` writes it"
    shell.obey(hint)
    shell.works("stats", "data")
    # Where there is nothing at all, every stage has to run.
    hint = shell.refused("stats", "my data")
    shell.obey(hint, RAW="log.tsv")
    shell.works("stats", "my data")
    assert shell.refused("train", "run", "--out", "other")  # a run is no stage folder


@pytest.mark.parametrize("folder", ["counts", "vocabulary", "samples", "plan", "shards"])
@follows("pipeline/folders/manifest.py::Manifest.read#2")
def test_a_damaged_manifest_is_written_again(folder: str, shell: Shell) -> None:
    damage(Path("data", folder, "manifest.json"))
    next_command = {"counts": "rank", "shards": "advise"}.get(folder, "verify")
    if folder in ("counts", "shards"):
        hint = shell.refused(next_command, "data")
    else:
        hint = shell.refused("stats" if folder != "samples" else "split", "data")
    shell.obey(hint)
    Manifest.read(Path("data", folder))


@follows("pipeline/folders/manifest.py::Manifest.read")
def test_a_linked_manifest_is_replaced_by_the_file(shell: Shell) -> None:
    path = Path("data/vocabulary/manifest.json")
    replace_by_link(path)
    assert "put the file itself there" in shell.refused("stats", "data")
    path.unlink()
    (Path("data") / path.name).rename(path)
    shell.works("stats", "data")


@follows("pipeline/folders/manifest.py::Manifest._read")
def test_totals_that_no_stage_writes_are_written_again(shell: Shell) -> None:
    change_manifest(Path("data/vocabulary"), totals={})
    shell.obey(shell.refused("stats", "data"))
    shell.works("stats", "data")


@follows("pipeline/folders/manifest.py::Manifest.checked_path")
def test_a_missing_file_is_written_again(shell: Shell) -> None:
    Path("data/vocabulary/C1.arrow").unlink()
    shell.obey(shell.refused("stats", "data"))
    shell.works("stats", "data")


@follows("pipeline/folders/manifest.py::Manifest.checked_path#2")
def test_a_linked_file_is_replaced_by_the_file(shell: Shell) -> None:
    path = Path("data/vocabulary/C1.arrow")
    replace_by_link(path)
    assert "put the file itself there" in shell.refused("stats", "data")
    path.unlink()
    (Path("data") / path.name).rename(path)
    shell.works("stats", "data")


@follows("pipeline/folders/manifest.py::Manifest.checked_path#3")
def test_a_file_of_another_size_is_written_again(shell: Shell) -> None:
    with open("data/vocabulary/C1.arrow", "ab") as file:
        file.write(b"more")
    shell.obey(shell.refused("stats", "data"))
    shell.works("stats", "data")


@follows("pipeline/folders/manifest.py::Manifest.hashed_path")
def test_a_changed_file_is_written_again(shell: Shell) -> None:
    damage(Path("data/vocabulary/C1.arrow"))
    manifest = Manifest.read(Path("data/vocabulary"))
    shell.obey(hint_of(lambda: manifest.hashed_path(manifest.entry("C1.arrow"))))
    shell.works("stats", "data")


@follows("pipeline/folders/manifest.py::read_referenced")
def test_machines_with_other_folders_are_told_what_must_be_equal(shell: Shell) -> None:
    hint = hint_of(lambda: read_referenced(Path("data/vocabulary"), "0"))
    assert "at the same paths" in hint
    read_referenced(Path("data/vocabulary"), Manifest.read(Path("data/vocabulary")).fingerprint)


@follows("pipeline/folders/resume.py::decide")
def test_a_folder_of_someone_else_is_left_alone(shell: Shell) -> None:
    Path("mine/columns").mkdir(parents=True)
    Path("mine/columns/notes.txt").write_text("mine")
    assert shell.refused("preprocess", "log.tsv", "--out", "mine") == "use another folder, or remove this one"
    shell.works("preprocess", "log.tsv", "--out", "another")
    shutil.rmtree("mine/columns")
    shell.works("preprocess", "log.tsv", "--out", "mine")


@follows("pipeline/folders/disk.py::refuse_discarded")
def test_discarded_folders_are_rebuilt_from_the_log(shell: Shell) -> None:
    shell.works("preprocess", "log.tsv", "--out", "other", "--shards-only")
    for command in (["split", "other", "--hot-bytes", "1MiB", "--redo"], ["stats", "other"]):
        shell.obey(shell.refused(*command), RAW="log.tsv")
        shell.works(*command)
        shell.works("preprocess", "log.tsv", "--out", "other", "--redo", "split", "--shards-only")


@follows("pipeline/folders/partial.py::_refusal")
def test_a_folder_in_use_is_free_when_the_other_run_ends(shell: Shell) -> None:
    arguments = ["preprocess", "log.tsv", "--out", "other"]
    with start_holder(Path("other/columns/.partial/lock")) as holder:
        assert "wait until that run ends" in shell.refused(*arguments)
        holder.communicate()
    shell.works(*arguments)


@follows("pipeline/folders/partial.py::FolderLock.take")
def test_runs_that_remove_each_others_folders(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        for name in ("_take_over", "_take_file"):
            patched.setattr(FolderLock, name, lambda *_: None)
        assert hint_of(lambda: FolderLock.take(Path("x/lock"), Path("x"))) == "stop one of the runs"
    FolderLock.take(Path("x/lock"), Path("x")).release()


@follows("pipeline/folders/partial.py::start_generation")
def test_a_worker_that_does_not_end(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.pipeline.folders.partial._MOST_SECONDS", 0.05)
    token = start_generation(Path("workers"), shell.folder)
    with held_by_worker(Path("workers"), token, shell.folder):
        assert "wait until it ends" in hint_of(lambda: start_generation(Path("workers"), shell.folder))
    start_generation(Path("workers"), shell.folder)


@follows("pipeline/folders/output.py::Output._refuse_overwriting")
def test_features_whose_names_lead_to_one_file(shell: Shell) -> None:
    output = Output.begin("stage", 1, AnyConfig(), [], Path("out"))

    def write(name: str, text: bytes) -> None:
        with output.writing(name, 1, AnyRecord()) as path:
            path.write_bytes(text)

    write("a.arrow", b"one")
    assert "rename one of the features" in hint_of(lambda: write("a.arrow", b"two"))
    write("b.arrow", b"two")


@follows("pipeline/folders/partial.py::write_errors_explained")
def test_a_folder_that_cannot_be_written(shell: Shell) -> None:
    hint = shell.refused("preprocess", "log.tsv", "--out", "log.tsv/out")
    assert hint == "make room or fix the cause, and run the same command again"
    with write_errors_explained(Path("out")):
        shell.works("preprocess", "log.tsv", "--out", "out")


@follows("pipeline/folders/temporary_files.py::spill_errors_explained")
def test_a_disk_that_is_full_of_spill_files(shell: Shell) -> None:
    output = Output.begin("stage", 1, AnyConfig(), [], Path("out"))

    def spill() -> None:
        with spill_errors_explained(output):
            raise OSError(28, "No space left on device")

    assert "--memory; the same command resumes" in hint_of(spill)


@follows("pipeline/folders/resume.py::read_begun")
def test_half_a_record_of_an_unfinished_run(shell: Shell) -> None:
    Path("other/columns/.partial").mkdir(parents=True)
    Path("other/columns/.partial/begun.json").write_text("{")
    shell.obey(shell.refused("ingest", "log.tsv", "--out", "other"), RAW="log.tsv")


@pytest.mark.parametrize("is_single", [False, True])
@follows("pipeline/folders/resume.py::_refuse_other_config#2")
def test_other_settings_are_taken_with_redo(is_single: bool, shell: Shell) -> None:
    arguments = ["rank", "data"] if is_single else ["preprocess", "log.tsv", "--out", "data"]
    hint = shell.refused(*arguments, "--min-count", "2")
    assert "use another folder, or give --redo rank," in hint
    shell.works(*arguments, "--min-count", "2", "--redo", "rank")
    assert not is_single or not Path("data/shards").exists()


@follows("pipeline/folders/resume.py::_refuse_other_config")
def test_a_folder_of_another_stage(shell: Shell) -> None:
    change_manifest(Path("data/vocabulary"), stage="count")
    assert "--redo rank" in shell.refused("preprocess", "log.tsv", "--out", "data")
    shell.works("preprocess", "log.tsv", "--out", "data", "--redo", "rank")


@follows("pipeline/folders/resume.py::refuse_difference")
def test_a_folder_of_another_version(shell: Shell) -> None:
    change_manifest(Path("data/vocabulary"), version=999)
    assert "--redo rank" in shell.refused("rank", "data")
    shell.works("rank", "data", "--redo", "rank")


@follows("pipeline/folders/resume.py::refuse_difference#2")
def test_a_longer_log_is_added_with_extend(shell: Shell) -> None:
    shutil.copy("log.tsv", "more.tsv")
    arguments = ["preprocess", "log.tsv", "more.tsv", "--out", "data", "--hot-bytes", "64KiB"]
    assert "give --extend, which adds the 1 behind them" in shell.refused(*arguments)
    shell.works(*arguments, "--extend")


@follows("pipeline/folders/resume.py::refuse_difference#3")
def test_another_log_is_taken_with_redo(shell: Shell) -> None:
    shutil.copy("log.tsv", "other.tsv")
    arguments = ["preprocess", "other.tsv", "--out", "data"]
    assert "--redo ingest" in shell.refused(*arguments)
    shell.works(*arguments, "--redo", "ingest")


@follows("pipeline/formats/arrow_files.py::damage_named")
def test_a_damaged_arrow_file_is_written_again(shell: Shell) -> None:
    damage(Path("data/vocabulary/C1.arrow"))
    path = Path("data/vocabulary/C1.arrow")
    shell.obey(hint_of(lambda: read_file(path, 3, {})))
    shell.works("stats", "data", "--feature", "C1")


@follows("pipeline/formats/arrow_files.py::read_file")
def test_an_arrow_file_of_another_length_is_written_again(shell: Shell) -> None:
    columns = Manifest.read(Path("data/columns"))
    path = Path("data/columns") / columns.files[0].path
    hint = hint_of(lambda: read_file(path, 3, columns_of(columns)))
    shell.obey(hint, RAW="log.tsv")


@follows(
    "pipeline/formats/arrow_files.py::values_of",
    "pipeline/formats/arrow_files.py::values_of#2",
    "pipeline/formats/arrow_files.py::fixed_lists",
    "pipeline/formats/arrow_files.py::offsets_of",
    "pipeline/folders/manifest.py::FileEntry.read_facts",
)
def test_columns_of_another_type_are_damage_of_their_folder(shell: Shell) -> None:
    class Short:
        """An Arrow array of three integers with a buffer for one."""

        type = pa.int32()
        offset = 0

        def __len__(self) -> int:
            return 3

        def buffers(self) -> list[Any]:
            return [None, pa.py_buffer(bytes(4))]

    offsets = pa.py_buffer(np.array([0, 9, 2], np.int32))
    children = [pa.array([1, 2], pa.int32())]
    torn = pa.Array.from_buffers(pa.list_(pa.int32()), 2, [None, offsets], children=children)
    for call in (
        lambda: values_of(pa.array([1.5]), np.int32),
        lambda: values_of(Short(), np.int32),
        lambda: fixed_lists(pa.array([[1, 2]], pa.list_(pa.int32(), 2)), 3, np.int32),
        lambda: offsets_of(torn),
        lambda: FileEntry("a.arrow", 1, 1, "").read_facts(CountsFacts),
    ):
        assert "remove its folder and run its stage again" in hint_of(call)


@follows("pipeline/folders/totals.py::table_named")
def test_a_manifest_without_a_table_is_written_again(shell: Shell) -> None:
    parts = json.loads(Path("data/plan/manifest.json").read_text())
    parts["totals"]["tables"][0]["name"] = "x"
    write_manifest(Path("data/plan"), parts)
    shell.obey(shell.refused("stats", "data", "--feature", "C1"))


@follows("pipeline/folders/whole_file.py::refuse_target")
def test_the_folder_of_a_file_is_created(shell: Shell) -> None:
    arguments = ["generate", "--samples", "5", "--out", "my logs/a.tsv"]
    shell.obey(shell.refused(*arguments))
    shell.works(*arguments)


@follows(
    "pipeline/folders/whole_file.py::refuse_target#3",
    "pipeline/folders/whole_file.py::refuse_target#4",
    "pipeline/folders/whole_file.py::refuse_target#5",
)
def test_another_file_is_given(shell: Shell) -> None:
    arguments = ["generate", "--samples", "5", "--out"]
    for name in (["x" * 300], ["data"], ["data", "--overwrite"], ["log.tsv"]):
        assert shell.refused(*arguments, *name).startswith("give another --out")
    shell.works(*arguments, "another.tsv")
    # The last of them could be deleted, too.
    os.unlink("log.tsv")
    shell.works(*arguments, "log.tsv")


@follows(
    "pipeline/folders/whole_file.py::refuse_target#2",
    "train/run_folder/files.py::make_folder",
)
def test_a_folder_that_can_be_written_is_given(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("read-only").mkdir()
    access = os.access
    # A superuser may write in any folder, but not where a device is mounted for reading alone.
    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "read-only" and access(path, mode))
    arguments = ["generate", "--samples", "5", "--out"]
    assert shell.refused(*arguments, "read-only/a.tsv") == "give another --out"
    shell.works(*arguments, "a.tsv")
    arguments = ["train", "data", "--max-steps", "1", "-q", "--out"]
    assert shell.refused(*arguments, "log.tsv/run") == "give a folder that can be written"
    shell.works(*arguments, "another")


@follows("pipeline/folders/whole_file.py::whole_file", "pipeline/folders/whole_file.py::whole_file#2")
def test_a_file_that_fails_on_the_way(shell: Shell) -> None:
    def write(name: str, fault: OSError) -> None:
        with whole_file.whole_file(Path(name)) as file:
            file.write(b"x")
            if fault.errno == 28:
                raise fault
            Path(name).write_text("of the other run")

    assert hint_of(lambda: write("a", OSError(17, "exists"))) == "give another --out"
    assert hint_of(lambda: write("b", OSError(28, "full"))) == "give another --out, or free disk space"
    with whole_file.whole_file(Path("c")) as file:
        file.write(b"x")


@follows("pipeline/folders/manifest.py::refuse_removed")
def test_an_option_that_is_gone(shell: Shell) -> None:
    parts = json.loads(Path("data/vocabulary/manifest.json").read_bytes())
    parts["config"]["peel_floor"] = 7
    write_manifest(Path("data/vocabulary"), parts)
    arguments = ["preprocess", "log.tsv", "--out", "data", "--hot-bytes", "64KiB", "--batch-size", "128"]
    hint = shell.refused(*arguments)
    assert "--redo rank" in hint
    shell.works(*arguments, "--redo", "rank")
