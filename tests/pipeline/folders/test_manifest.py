"""Manifests: what is written is read, and any damage is refused in one line."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.file_facts import ShardFacts, TextsFacts
from hotset.pipeline.folders.json_record import JsonRecord
from hotset.pipeline.folders.manifest import MANIFEST, FileEntry, Manifest, checksum_of

PARTS: dict[str, Any] = {
    "stage": "count",
    "version": 1,
    "config": {"eval_fraction": 0.2},
    "inputs": [{"name": "columns", "fingerprint": "ab" * 16}],
    "files": [
        {"path": "C1.arrow", "samples": 3, "bytes": 5, "xxh3_128": "cd" * 16, "num_missing": 2},
        {"path": "C2.arrow", "samples": 4, "bytes": 0, "xxh3_128": "ef" * 16},
    ],
    "totals": {"tables": [1, 2]},
}


def write_parts(folder: Path, parts: dict[str, Any], **changes: Any) -> None:
    parts = parts | changes
    text = json.dumps(parts | {"checksum": checksum_of(parts)}, indent=1) + "\n"
    (folder / MANIFEST).write_text(text)


def refusal(folder: Path) -> str:
    with pytest.raises(ManifestError) as caught:
        Manifest.read(folder)
    message = str(caught.value)
    assert "\n" not in message and str(folder) in message and caught.value.hint
    return message


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_parts(tmp_path, PARTS)
    found = Manifest.read(tmp_path)
    assert (found.folder, found.stage, found.version) == (tmp_path, "count", 1)
    assert (found.config, found.inputs, found.totals) == (PARTS["config"], PARTS["inputs"], PARTS["totals"])
    assert found.files[0] == FileEntry("C1.arrow", 3, 5, "cd" * 16, {"num_missing": 2})
    assert [entry.to_json() for entry in found.files] == PARTS["files"]
    assert found.num_samples == 7 and found.fingerprint == checksum_of(PARTS)


def test_a_folder_without_a_manifest_is_unfinished_or_missing(tmp_path: Path) -> None:
    assert "is unfinished" in refusal(tmp_path)
    assert "does not exist" in refusal(tmp_path / "nothing")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "shards"):
        with pytest.raises(ManifestError, match=f"{tmp_path}/file is not a folder"):
            Manifest.read(folder)


def test_a_folder_of_a_run_or_a_stage_is_not_taken_for_that_of_preprocess(tmp_path: Path) -> None:
    write_parts(tmp_path, PARTS)
    (tmp_path / "vocabulary").mkdir()
    with pytest.raises(ManifestError, match=f"{tmp_path} holds no samples/"):
        Manifest.read(tmp_path / "samples")


def test_a_cut_manifest_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    write_parts(tmp_path, PARTS)
    text = (tmp_path / MANIFEST).read_bytes()
    for num_bytes in range(len(text.rstrip())):
        (tmp_path / MANIFEST).write_bytes(text[:num_bytes])
        assert "is damaged" in refusal(tmp_path)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_changes_nothing(tmp_path: Path, share: float, flip: int) -> None:
    write_parts(tmp_path, PARTS)
    whole = Manifest.read(tmp_path)
    text = bytearray((tmp_path / MANIFEST).read_bytes())
    text[int(share * len(text))] ^= flip
    (tmp_path / MANIFEST).write_bytes(text)
    try:
        assert Manifest.read(tmp_path) == whole  # a space between tokens became another
    except ManifestError as error:
        assert "is damaged" in str(error) and "\n" not in str(error)


def test_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    text = json.dumps(PARTS | {"checksum": "00" * 16})
    (tmp_path / MANIFEST).write_text(text)
    assert "its checksum is '0000" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "..", ".", "", "a/", "./a"])
def test_a_file_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    entry = PARTS["files"][0] | {"path": name}
    write_parts(tmp_path, PARTS, files=[entry])
    assert f"file name {name!r} leaves the folder" in refusal(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        {"samples": -1},
        {"bytes": -1},
        {"samples": 1.5},
        {"samples": True},
        {"bytes": "5"},
        {"path": 3},
        {"xxh3_128": None},
    ],
)
def test_a_file_that_no_stage_would_write_is_refused(tmp_path: Path, entry: dict[str, Any]) -> None:
    write_parts(tmp_path, PARTS, files=[PARTS["files"][0] | entry])
    assert "is damaged" in refusal(tmp_path)


@pytest.mark.parametrize("text", ["[]", "3", "null", "{}", "[" * 100_000, '{"checksum": ' * 100_000])
def test_json_that_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    assert "is damaged" in refusal(tmp_path)


@pytest.mark.parametrize("key", ["stage", "version", "config", "inputs", "files", "totals"])
def test_a_manifest_that_lacks_a_part_is_refused(tmp_path: Path, key: str) -> None:
    parts = {name: part for name, part in PARTS.items() if name != key}
    write_parts(tmp_path, parts)
    assert key in refusal(tmp_path)


def test_a_listed_file_must_be_there_in_its_size(tmp_path: Path) -> None:
    write_parts(tmp_path, PARTS)
    manifest = Manifest.read(tmp_path)
    with pytest.raises(ManifestError, match=r"C1\.arrow cannot be read: No such file"):
        manifest.checked_path(manifest.entry("C1.arrow"))
    (tmp_path / "C1.arrow").write_bytes(b"123456")
    with pytest.raises(ManifestError, match=r"C1\.arrow has 6 bytes, want 5"):
        manifest.checked_path(manifest.entry("C1.arrow"))
    (tmp_path / "C1.arrow").write_bytes(b"12345")
    assert manifest.checked_path(manifest.entry("C1.arrow")) == tmp_path / "C1.arrow"
    with pytest.raises(ManifestError, match=r"lists no file 'C3\.arrow'"):
        manifest.checked_path(manifest.entry("C3.arrow"))


def test_links_and_pipes_are_refused(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    write_parts(folder, PARTS)
    manifest = Manifest.read(folder)
    outside.write_bytes(b"12345")
    (folder / "C1.arrow").symlink_to(outside)
    os.mkfifo(folder / "C2.arrow")
    for entry in manifest.files:
        with pytest.raises(ManifestError, match=f"{entry.path} is not a plain file"):
            manifest.checked_path(entry)
    (tmp_path / "link").symlink_to(folder)
    assert Manifest.read(tmp_path / "link").files == manifest.files  # a whole folder may lie elsewhere
    (folder / MANIFEST).rename(outside)
    for make_link in (True, False):
        if make_link:
            (folder / MANIFEST).symlink_to(outside)
        else:
            os.mkfifo(folder / MANIFEST)
        with pytest.raises(ManifestError, match=r"manifest\.json is not a plain file"):
            Manifest.read(folder)
        (folder / MANIFEST).unlink()


@pytest.mark.parametrize(
    "changes",
    [
        {"stage": 3},
        {"version": "1"},
        {"config": []},
        {"inputs": {}},
        {"inputs": [{"name": 3}]},
        {"totals": None},
        {"files": [PARTS["files"][0]] * 2},
    ],
)
def test_a_manifest_of_other_types_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_parts(tmp_path, PARTS | changes)
    assert "is damaged" in refusal(tmp_path)


def test_thousands_of_files_are_found_by_name_and_a_manifest_travels_by_its_folder(tmp_path: Path) -> None:
    names = [f"file{number:05}.arrow" for number in range(3000)]
    files = [FileEntry(name, 0, 0, "").to_json() for name in names]
    (tmp_path / "counts").mkdir()
    for name in names:
        (tmp_path / "counts" / name).touch()
    write_parts(tmp_path / "counts", PARTS, files=files)
    manifest = Manifest.read(tmp_path / "counts")
    assert [manifest.checked_path(manifest.entry(name)).name for name in names] == names
    assert [manifest.entry(name).path for name in reversed(names)] == names[::-1]
    with pytest.raises(ManifestError, match="lists no file"):
        manifest.entry("file.arrow")
    packed = pickle.dumps(manifest)
    assert len(packed) < 1000 and pickle.loads(packed) == manifest


@dataclass(frozen=True, kw_only=True)
class CountedSettings(JsonRecord):
    """Some settings of a stage."""

    eval_fraction: float
    seed: int


def test_settings_are_checked_when_they_are_read(tmp_path: Path) -> None:
    config = {"eval_fraction": 0.2, "seed": 7, "name": "x"}
    manifest = Manifest(tmp_path, "count", 1, config, [], [], {}, "")
    assert manifest.read_settings(CountedSettings) == CountedSettings(eval_fraction=0.2, seed=7)
    for seed, message in (
        ({"seed": -1}, "config.seed is -1, want 0 or more"),
        ({"seed": None}, "config.seed is None, want a whole number"),
        ({"seed": "x"}, "config.seed is 'x', want a whole number"),
        ({}, "config.seed is missing"),
    ):
        with pytest.raises(ManifestError) as refused:
            replace(manifest, config={"eval_fraction": 0.2} | seed).read_settings(CountedSettings)
        assert str(refused.value) == f"{tmp_path / MANIFEST} is damaged: {message}"
    assert manifest.read_config(lambda found: found.pop("name")) == "x" and config["name"] == "x"
    with pytest.raises(ManifestError, match="damaged: its config is not one of 'count': 'span'"):
        manifest.read_config(lambda found: found["span"])


def test_only_a_sealed_folder_has_a_manifest(tmp_path: Path) -> None:
    assert Manifest.read_sealed(tmp_path) is None
    write_parts(tmp_path, PARTS)
    assert Manifest.read_sealed(tmp_path) == Manifest.read(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(ManifestError, match="is damaged"):
        Manifest.read_sealed(tmp_path)


def test_facts_of_a_file_are_read_or_its_record_is_damaged() -> None:
    entry = FileEntry("a.arrow", 1, 2, "00" * 16, {"texts": 3})
    assert entry.read_facts(TextsFacts) == TextsFacts(num_texts=3)
    with pytest.raises(ManifestError, match=r"a\.arrow is damaged: files\.a\.arrow\.kind is missing"):
        entry.read_facts(ShardFacts)
