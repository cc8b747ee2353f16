"""Records are written as they are declared, and refused where a key is missing or of another type.

Tests `totals`, too.

Manifests: what is written is read, and any damage is refused in one line.

Checksums noted while a file is written are those of reading it back.
"""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.manifest import (
    MANIFEST,
    REMOVED,
    FileEntry,
    HashedFile,
    JsonRecord,
    Manifest,
    RecordError,
    checksum_of,
    checksum_of_written,
    hash_file,
    known_checksum,
    note_checksum,
    overwritten_file,
    states_in,
    stored_as,
    without_removed,
)
from hotset.pipeline.folders.totals import (
    CountedTable,
    CountsTotals,
    PlannedTable,
    SampleTable,
    ShardFacts,
    SpanInfo,
    StageSettings,
    VocabularyTable,
    VocabularyTotals,
)
from hotset.pipeline.formats.arrow_files import open_writer
from hotset.pipeline.formats.columns import TextsFacts
from hotset.pipeline.preprocess import FOLDERS, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.preprocess_runs import CONFIG, copy_of
from hotset.tests.support.resealed import reseal_later_folders, write_manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner(JsonRecord):
    name: str
    is_odd: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer(JsonRecord):
    num_bytes: int = stored_as("bytes")
    share: float
    kind: Literal["a", "b"]
    file: int | None
    parts: tuple[Inner, ...]
    pair: tuple[int, int] | None = None
    counts: dict[str, int] = field(default_factory=dict)
    others: dict[str, dict] = field(default_factory=dict)  # type: ignore[type-arg]


FULL = {
    "bytes": 7,
    "share": 0.5,
    "kind": "b",
    "file": None,
    "parts": [{"name": "x"}, {"name": "y", "is_odd": True}],
    "pair": [1, 2],
    "counts": {"z": 3},
    "others": {"scheduler": {"rate": 1}},
}


def test_a_record_is_read_and_written_key_by_key_in_order() -> None:
    record = Outer.from_json(FULL)
    assert record.parts == (Inner(name="x"), Inner(name="y", is_odd=True)) and record.pair == (1, 2)
    assert json.dumps(record.to_json()) == json.dumps(FULL)


def test_values_that_are_the_default_are_left_out() -> None:
    record = replace(Outer.from_json(FULL), pair=None, counts={}, file=None, others={})
    assert record.to_json() == {key: FULL[key] for key in ("bytes", "share", "kind", "file", "parts")}
    assert Outer.from_json(record.to_json()) == record


def test_keys_that_are_no_fields_are_left_alone() -> None:
    assert Outer.from_json(FULL | {"of a later version": 1}) == Outer.from_json(FULL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bytes": "7"}, "totals.bytes is '7', want a whole number"),
        ({"bytes": True}, "totals.bytes is True, want a whole number"),
        ({"bytes": 7.0}, "totals.bytes is 7.0, want a whole number"),
        ({"bytes": None}, "totals.bytes is None, want a whole number"),
        ({"bytes": -1}, "totals.bytes is -1, want 0 or more"),
        ({"bytes": 2**63}, f"totals.bytes is {2**63}, want 0 to {2**63 - 1}"),
        ({"pair": [1, -2]}, "totals.pair[1] is -2, want 0 or more"),
        ({"counts": {"z": -3}}, "totals.counts.z is -3, want 0 or more"),
        ({"share": float("nan")}, "totals.share is nan, want a finite number"),
        ({"share": float("-inf")}, "totals.share is -inf, want a finite number"),
        ({"share": "much"}, "totals.share is 'much', want a number"),
        ({"kind": "c"}, "totals.kind is 'c', want one of a, b"),
        ({"parts": {}}, "totals.parts is {}, want an array"),
        ({"parts": [{"name": 1}]}, "totals.parts[0].name is 1, want a string"),
        ({"parts": [{}]}, "totals.parts[0].name is missing"),
        ({"parts": [3]}, "totals.parts[0] is 3, want an object"),
        ({"parts": [{"name": "x", "is_odd": 1}]}, "totals.parts[0].is_odd is 1, want true or false"),
        ({"pair": [1]}, "totals.pair has 1 values, want 2"),
        ({"counts": []}, "totals.counts is [], want an object"),
        ({"others": {"scheduler": [1]}}, "totals.others.scheduler is [1], want an object"),
        ({"counts": {"z": "x" * 99}}, f"totals.counts.z is '{'x' * 38}…, want a whole number"),
    ],
)
def test_other_values_are_refused_by_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError) as error:
        Outer.from_json(FULL | changes, "totals")
    assert str(error.value) == message


def test_a_missing_key_is_named() -> None:
    with pytest.raises(RecordError, match=r"^totals\.share is missing$"):
        Outer.from_json({key: value for key, value in FULL.items() if key != "share"}, "totals")


def manifest_of(totals: dict[str, Any], facts: dict[str, Any]) -> Manifest:
    entry = FileEntry("a.arrow", 1, 2, "00" * 16, facts)
    return Manifest(Path("dir"), "any", 1, {}, [], [entry], totals, "00" * 16)


def test_a_manifest_names_the_file_and_the_key_at_fault() -> None:
    totals = {"num_samples": 1, "num_train_samples": 1, "tables": [], "num_rows": "many"}
    manifest = manifest_of(totals, {"kind": "mixed"})
    with pytest.raises(ManifestError, match=r"^dir/manifest\.json is damaged: totals\.num_rows is 'many'"):
        VocabularyTotals.of(manifest)
    with pytest.raises(ManifestError, match=r"files\.a\.arrow\.batches is missing\n"):
        manifest.facts_of(ShardFacts, manifest.files[0])


def test_totals_are_read_once() -> None:
    manifest = manifest_of({"num_samples": 1, "num_train_samples": 1, "tables": [], "num_rows": 0}, {})
    assert VocabularyTotals.of(manifest) is VocabularyTotals.of(manifest)


def test_what_a_log_does_not_have_is_not_in_its_manifest() -> None:
    table = CountedTable(name="C1", num_categories=3, num_missing=0)
    span = SpanInfo(file=None, first_sample=0, num_samples=4, xxh3_128_of_parts="00")
    totals = CountsTotals(num_samples=5, num_train_samples=4, tables=(table,), spans=(span,))
    assert totals.to_json() == {
        "num_samples": 5,
        "num_train_samples": 4,
        "tables": [{"name": "C1", "num_categories": 3, "num_missing": 0}],
        "spans": [{"file": None, "first_sample": 0, "num_samples": 4, "xxh3_128_of_parts": "00"}],
    }


def test_a_record_is_extended_by_more_fields() -> None:
    ranked = VocabularyTable(name="C1", num_rows=5, oov_id=4, missing_id=3, oov_count=2, is_multi_hot=True)
    table = ranked.extended(SampleTable, oov_train=1, oov_evaluation=0, lookups_train=9, lookups_evaluation=0)
    assert list(table.to_json()) == [
        *("name", "num_rows", "oov_id", "missing_id", "oov_count", "is_multi_hot"),
        *("oov_train", "oov_evaluation", "lookups_train", "lookups_evaluation"),
    ]
    planned = PlannedTable(name="C1", num_rows=5, oov_id=4, missing_id=3, num_hot=2)
    assert list(planned.to_json()) == ["name", "num_rows", "oov_id", "missing_id", "num_hot"]


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


@pytest.mark.parametrize("max_examples", [50, pytest.param(150, marks=pytest.mark.slow)])
def test_a_flipped_byte_is_refused_or_changes_nothing(tmp_path: Path, max_examples: int) -> None:
    @settings(max_examples=max_examples)
    @given(share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
    def check(share: float, flip: int) -> None:
        write_parts(tmp_path, PARTS)
        whole = Manifest.read(tmp_path)
        text = bytearray((tmp_path / MANIFEST).read_bytes())
        text[int(share * len(text))] ^= flip
        (tmp_path / MANIFEST).write_bytes(text)
        try:
            assert Manifest.read(tmp_path) == whole  # a space between tokens became another
        except ManifestError as error:
            assert "is damaged" in str(error) and "\n" not in str(error)

    check()


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
class CountedSettings(StageSettings):
    """Some settings of a stage."""

    eval_fraction: float
    seed: int


def test_settings_are_checked_when_they_are_read(tmp_path: Path) -> None:
    config = {"eval_fraction": 0.2, "seed": 7, "name": "x"}
    manifest = Manifest(tmp_path, "count", 1, config, [], [], {}, "")
    assert CountedSettings.of(manifest) == CountedSettings(eval_fraction=0.2, seed=7)
    for seed, message in (
        ({"seed": -1}, "config.seed is -1, want 0 or more"),
        ({"seed": None}, "config.seed is None, want a whole number"),
        ({"seed": "x"}, "config.seed is 'x', want a whole number"),
        ({}, "config.seed is missing"),
    ):
        with pytest.raises(ManifestError) as refused:
            CountedSettings.of(replace(manifest, config={"eval_fraction": 0.2} | seed))
        assert str(refused.value) == f"{tmp_path / MANIFEST} is damaged: {message}"
    assert manifest.read_config(dict, seed=8) == config | {"seed": 8} and config["seed"] == 7
    with pytest.raises(ManifestError, match=r"damaged: its config is not one of 'count': .*argument 'name'"):
        manifest.read_config(CountedSettings)


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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of two days, and the folder of the first as an earlier version wrote it."""
    folder = tmp_path_factory.mktemp("removed")
    for day in range(2):
        (folder / f"day_{day}").write_bytes(text_of(draw_samples(60, np.random.default_rng(day))))
    preprocess([folder / "day_0"], CONFIG, folder / "dir", Resources(workers=1))
    for stage, options in REMOVED.items():
        add_settings(folder / "dir", stage, options)
    return folder


def add_settings(folder: Path, stage: str, settings: dict[str, Any]) -> None:
    """Write settings into the manifest of a stage, and make later folders agree."""
    name = FOLDERS[stage]
    if not (folder / name).exists():
        return
    parts = json.loads((folder / name / "manifest.json").read_bytes())
    parts["config"] |= settings
    write_manifest(folder / name, parts)
    reseal_later_folders(folder)


def test_an_old_folder_is_kept_verified_and_extended(made: Path, tmp_path: Path) -> None:
    out = copy_of(made / "dir", tmp_path / "dir")
    days = [made / "day_0", made / "day_1"]
    done: list[bool] = []
    preprocess(days[:1], CONFIG, out, on_stage=lambda report: done.append(report.was_sealed))
    assert done == [True] * 6
    assert verify(out, raw=days[:1]) == []
    preprocess(days, CONFIG, out, extend=True)
    assert verify(out, raw=days) == []


@pytest.mark.parametrize(
    ("stage", "name", "value"),
    [("ingest", "max_bad_fraction", 0.5), ("rank", "peel_floor", 7), ("pack", "train_last", 1)],
)
def test_an_option_that_is_gone_is_refused_by_name(
    stage: str, name: str, value: object, made: Path, tmp_path: Path
) -> None:
    out = copy_of(made / "dir", tmp_path / "dir")
    add_settings(out, stage, {name: value})
    with pytest.raises(ManifestError, match=f"was made with --{name.replace('_', '-')} {value}") as caught:
        preprocess([made / "day_0"], replace(CONFIG), out)
    assert f"--redo {stage}" in str(caught.value.hint)
    faults = verify(out, raw=[made / "day_0"])
    assert any(f"--{name.replace('_', '-')} {value}" in fault for fault in faults)


def test_only_defaults_of_the_stage_are_left_out() -> None:
    config = {"max_bad_fraction": 0.001, "schema": "x"}
    assert without_removed("ingest", config) == {"schema": "x"}
    assert without_removed("rank", config) == config


@pytest.mark.parametrize("pieces", [[], [b""], [b"a"], [b"ab", b"", b"c" * 3_000_000, b"d"]])
def test_a_file_is_hashed_while_it_is_written(tmp_path: Path, pieces: list[bytes]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"what was there before, and is longer than that")
    with HashedFile(path) as file:
        for number, piece in enumerate(pieces):
            assert file.tell() == sum(map(len, pieces[:number]))
            assert file.write(piece) == len(piece)
    assert path.read_bytes() == b"".join(pieces)
    assert checksum_of_written(path) == hash_file(path)


def test_arrow_files_are_hashed_while_they_are_written(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": pa.array(np.arange(1000)), "b": pa.array([None, 1] * 500)})
    with open_writer(tmp_path / "file", batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch.slice(3, 7))
    assert checksum_of_written(tmp_path / "file") == hash_file(tmp_path / "file")


def test_what_was_changed_since_or_written_otherwise_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with HashedFile(path) as file:
        file.write(b"1234")
    path.write_bytes(b"12345")
    assert checksum_of_written(path) == hash_file(path) == checksum_of_written(path)
    with HashedFile(path) as file:
        file.write(b"1234")
    assert checksum_of_written(path)[0] == 4
    path.write_bytes(b"4321")
    assert checksum_of_written(path) == hash_file(path)  # a note is used once


def test_a_file_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": pa.array(np.arange(100_000))})
    with pytest.raises(FileNotFoundError), open_writer(tmp_path / "no" / "file", batch.schema):
        pass
    if Path("/dev/full").exists():
        with (
            pytest.raises(OSError, match="No space left"),
            open_writer(Path("/dev/full"), batch.schema) as writer,
        ):
            writer.write_batch(batch)


def test_a_checksum_is_known_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    wanted = hash_file(path)[1]
    read = list[Path]()

    def counting(hashed: Path) -> tuple[int, str]:
        read.append(hashed)
        return hash_file(hashed)

    monkeypatch.setattr("hotset.pipeline.folders.manifest.hash_file", counting)
    assert [known_checksum(path) for _ in range(3)] == [wanted] * 3 and read == [path]
    note_checksum(path, "noted")
    assert known_checksum(path) == "noted" and read == [path]
    # Each of these alone tells the new state: another time of change, another file of that name.
    os.utime(path, ns=(0, 0))
    assert known_checksum(path) == wanted and len(read) == 2
    (tmp_path / "other").write_bytes(b"abd")
    os.utime(tmp_path / "other", ns=(0, 0))
    os.replace(tmp_path / "other", path)
    assert known_checksum(path) == hash_file(path)[1] != wanted


def test_only_files_that_were_written_in_place_are_found(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.write_bytes(b"abc")
    before = states_in(tmp_path)
    assert overwritten_file(before) is None and states_in(tmp_path / "none") == []
    second.rename(tmp_path / "third")
    assert overwritten_file(before) is None
    os.utime(first, ns=(0, 0))
    assert overwritten_file(before) == first
    assert overwritten_file(states_in(tmp_path)) is None
