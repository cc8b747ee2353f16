"""An edit of what a folder means is found, even where every checksum up the chain was computed anew.

One changed byte anywhere is found and its file named; so is whatever does not add up.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import ByteSize, ConfigError, ManifestError, MemoryCapError
from hotset.pipeline.folders.manifest import MANIFEST, Manifest, hash_file
from hotset.pipeline.formats.batch_checksums import CHECKSUMS
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig, map_ids
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.verify import STAGE_FOLDERS, verify
from hotset.tests.support.logs.list_logs import KINDS, recipe
from hotset.tests.support.logs.other_logs import draw_log, write_csv
from hotset.tests.support.resealed import reseal, reseal_later_folders, write_manifest

Rows = dict[str, list[Any]]
Edit = Callable[[Rows], None]
WORKERS = Resources(workers=1)
SCHEMA = """format = "csv"
label = "click"
[dense]
price = "float"
age = "integer"
[sparse]
site = "text"
device = "text"
user = "text"
"""
CONFIG = PreprocessConfig(
    ingest=IngestConfig(schema=SCHEMA, block_bytes=ByteSize(2500)),
    count=CountConfig(eval_fraction=0.25),
    rank=RankConfig(min_count=2),
    split=SplitConfig(hot_bytes=ByteSize(16 * 24), embedding_dim=4, embedding_optimizer="sgd"),
    pack=PackConfig(batch_size=16, seed=4),
)


def write_log(path: Path, num_samples: int, rng: np.random.Generator) -> Path:
    lines = ["click,price,age,site,device,user"]
    for _ in range(num_samples):
        site, device, user = np.minimum(rng.zipf([1.8, 2.2, 1.6]), [30, 12, 50])
        lines.append(f"{rng.integers(2)},{rng.random():.4f},{rng.integers(90)},s{site},d{device},u{user}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of every stage, and a map from the ids of a shorter log."""
    folder = tmp_path_factory.mktemp("rebuild")
    rng = np.random.default_rng(8)
    shorter = write_log(folder / "shorter.csv", 200, rng)
    preprocess([shorter], CONFIG, folder / "shorter", WORKERS, until="rank")
    preprocess([write_log(folder / "log.csv", 300, rng)], CONFIG, folder / "dir", WORKERS)
    vocabulary = Manifest.read(folder / "dir" / "vocabulary")
    map_ids(Manifest.read(folder / "shorter" / "vocabulary"), vocabulary, folder / "dir" / "id_map", WORKERS)
    return folder


def add(column: str, row: int, number: float, rows: Rows) -> None:
    rows[column][row] += number


def put(column: str, row: int, value: Any, rows: Rows) -> None:
    assert rows[column][row] != value
    rows[column][row] = value


def swap(columns: str, first: int, second: int, rows: Rows) -> None:
    """Swap two rows of some columns."""
    before = {name: list(rows[name]) for name in columns.split()}
    for name in before:
        rows[name][first], rows[name][second] = rows[name][second], rows[name][first]
    assert any(rows[name] != before[name] for name in before)


def move(column: str, giver: int, taker: int, rows: Rows) -> None:
    """Take one from a row and give it to another: the sum stays."""
    rows[column][giver] -= 1
    rows[column][taker] += 1


def flip(column: str, value: int, rows: Rows) -> None:
    """Turn the first ``value`` of a column of zeros and ones."""
    rows[column][rows[column].index(value)] = 1 - value


def put_in_list(column: str, row: int, element: int, number: float, rows: Rows) -> None:
    assert rows[column][row][element] != number
    rows[column][row] = [number if i == element else old for i, old in enumerate(rows[column][row])]


def put_other_id(rows: Rows) -> None:
    """Give a sample the id of another one in the same table."""
    ids = rows["ids"]
    other = next(sample for sample in ids if sample[2] != ids[0][2])
    put_in_list("ids", 0, 2, other[2], rows)


def swap_different(columns: str, rows: Rows) -> None:
    """Swap the first row with one that differs."""
    name = columns.split()[0]
    swap(columns, 0, next(i for i, row in enumerate(rows[name]) if row != rows[name][0]), rows)


def fill(column: str, value: Any, rows: Rows) -> None:
    rows[column] = [value] * len(rows[column])


def copy_sample(rows: Rows) -> None:
    for name in rows:
        rows[name][1] = rows[name][0]


def drop_last(rows: Rows) -> None:
    for values in rows.values():
        values.pop()


COLUMNS = "file0000-block0000001.arrow"
EVERY = "label dense ids"
MIXED = "mixed-00000.arrow"
EDITS: dict[str, tuple[str, Edit]] = {
    "columns: label": (COLUMNS, partial(flip, "label", 0)),
    "columns: label 2": (COLUMNS, partial(put, "label", -1, 2)),
    "columns: float that is not finite": (COLUMNS, partial(put, "price", 3, float("inf"))),
    "columns: float": (COLUMNS, partial(add, "price", 3, 0.5)),
    "columns: integer": (COLUMNS, partial(add, "age", 3, 1)),
    "columns: category": (COLUMNS, partial(put, "user", 3, 12345)),
    "columns: two samples": (COLUMNS, partial(swap, "label price age site device user", 0, 1)),
    "counts: a sum": ("user.arrow", partial(add, "count", 0, 1)),
    "counts: order": ("user.arrow", partial(swap, "category count", 0, 1)),
    "counts: +1 and -1": ("user.arrow", partial(move, "count", 0, 1)),
    "counts: a category": ("user.arrow", partial(add, "category", 0, -1)),
    "vocabulary: two categories": ("user.arrow", partial(swap, "category", 0, 1)),
    "vocabulary: a category twice": (
        "user.arrow",
        lambda rows: put("category", 1, rows["category"][0], rows),
    ),
    "vocabulary: counts": ("user.arrow", partial(move, "count", 1, 0)),
    "vocabulary: a place": ("user.arrow", partial(add, "place", 0, 1)),
    "vocabulary: rising counts": ("user.arrow", lambda rows: rows["count"].reverse()),
    "vocabulary: a lookup lost": ("user.arrow", partial(add, "count", -1, -1)),
    "vocabulary: a place twice": ("user.arrow", lambda rows: put("place", 1, rows["place"][0], rows)),
    "vocabulary: a place outside": ("user.arrow", partial(put, "place", -1, 10**9)),
    "vocabulary: another text": ("user.texts.arrow", partial(put, "text", 0, "other text")),
    "vocabulary: a text of no row": ("user.texts.arrow", partial(put, "id", -1, 10**6)),
    "plan: a hot tag": ("file0000-block0000000.arrow", partial(flip, "is_hot", 0)),
    "plan: a mixed tag": ("file0000-block0000000.arrow", partial(flip, "is_hot", 1)),
    "plan: tag 2": ("file0000-block0000000.arrow", partial(put, "is_hot", 0, 2)),
    "samples: all ids 0": (COLUMNS, partial(fill, "ids", [0, 0, 0])),
    "samples: an id": (COLUMNS, put_other_id),
    "samples: an id below 0": (COLUMNS, partial(put_in_list, "ids", 2, 1, -1)),
    "samples: an id outside its table": (COLUMNS, partial(put_in_list, "ids", 2, 1, 10**9)),
    "samples: two samples": (COLUMNS, partial(swap_different, "ids")),
    "shards: label 2": (MIXED, partial(put, "label", 0, 2.0)),
    "shards: a label": (MIXED, partial(flip, "label", 0)),
    "shards: all labels 0": (MIXED, partial(fill, "label", 0.0)),
    "shards: all labels 1": (MIXED, partial(fill, "label", 1.0)),
    "shards: a dense value": (MIXED, partial(put_in_list, "dense", 2, 1, 0.25)),
    "shards: dense NaN": (MIXED, partial(put_in_list, "dense", 2, 1, float("nan"))),
    "shards: an id": (MIXED, put_other_id),
    "shards: an id below 0": (MIXED, partial(put_in_list, "ids", 2, 1, -1)),
    "shards: an id outside its table": (MIXED, partial(put_in_list, "ids", 2, 1, 10**9)),
    "shards: half a label": (MIXED, partial(put, "label", 0, 0.5)),
    "shards: a batch too short": (MIXED, drop_last),
    "shards: a hot sample in a mixed batch": (MIXED, partial(put, "ids", 0, [0, 0, 0])),
    "shards: ids of two samples": (MIXED, partial(swap_different, "ids")),
    "shards: order": (MIXED, partial(swap, EVERY, 0, 1)),
    "shards: a sample twice": (MIXED, copy_sample),
    "shards: hot-only ids": ("hot_only-00000.arrow", put_other_id),
    "shards: evaluation tag": ("evaluation-00000.arrow", partial(flip, "is_hot", 0)),
    "shards: evaluation order": ("evaluation-00000.arrow", partial(swap, f"{EVERY} is_hot", 0, 1)),
    "id_map: an id twice": ("user.arrow", lambda rows: put("new_id", 1, rows["new_id"][0], rows)),
    "id_map: two ids": ("user.arrow", partial(swap, "new_id", 0, 1)),
}
"""Edits by name: the folder stands before the colon; then the file, and what is done to its first batch."""


def set_seed(parts: dict[str, Any]) -> None:
    parts["config"]["seed"] += 1


def set_oov_id(parts: dict[str, Any]) -> None:
    parts["totals"]["tables"][2]["oov_id"] += 1


def move_num_hot(parts: dict[str, Any]) -> None:
    first, _, last = parts["totals"]["tables"]
    first["num_hot"] += 1
    last["num_hot"] -= 1


MANIFEST_EDITS: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "vocabulary: oov_id": ("vocabulary", set_oov_id),
    "plan: num_hot": ("plan", move_num_hot),
    "plan: a smaller budget": ("plan", lambda parts: parts["config"].update(hot_bytes=100)),
    "plan: another optimizer": ("plan", lambda parts: parts["config"].update(embedding_optimizer="adagrad")),
    "plan: another dim": ("plan", lambda parts: parts["config"].update(feature_dims=[["user", 8]])),
    "shards: seed": ("shards", set_seed),
}


def test_an_untouched_folder_has_no_fault(made: Path) -> None:
    raw = [made / "log.csv"]
    assert verify(made / "dir", WORKERS, raw=raw, other_vocabulary=made / "shorter") == []


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_a_file_is_found(name: str, made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / "dir", tmp_path / "dir"))
    path, edit = EDITS[name]
    reseal(folder / name.split(":")[0], edit, path)
    reseal_later_folders(folder)
    faults = verify(folder, WORKERS, other_vocabulary=made / "shorter")
    assert faults and all(str(folder) in fault for fault in faults)
    assert not any("checksum" in fault or "made from another" in fault for fault in faults)


@pytest.mark.parametrize("name", MANIFEST_EDITS)
def test_an_edit_of_a_manifest_is_found(name: str, made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / "dir", tmp_path / "dir"))
    stage, edit = MANIFEST_EDITS[name]
    parts = json.loads((folder / stage / "manifest.json").read_text())
    edit(parts)
    write_manifest(folder / stage, parts)
    reseal_later_folders(folder)
    faults = verify(folder, WORKERS)
    assert any(stage in fault for fault in faults)


def move_between_lists(rows: Rows) -> None:
    """Move a lookup to the next list: the sum of the lengths stays."""
    lists = rows["tags"]
    row = next(i for i in range(len(lists) - 1) if lists[i])
    lists[row + 1] = [lists[row].pop(), *lists[row + 1]]


def drop_from_list(rows: Rows) -> None:
    next(tags for tags in rows["tags"] if tags).pop()


def put_outside(rows: Rows) -> None:
    next(tags for tags in rows["tags"] if tags)[0] = 10**6


LIST_EDITS: dict[str, Edit] = {
    "samples: a lookup in the next list": move_between_lists,
    "samples: an id outside its table": put_outside,
    "shards: a lookup lost": drop_from_list,
    "shards: a lookup in the next list": move_between_lists,
}


@pytest.fixture(scope="module")
def made_of_lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a log with lists; not to be changed."""
    folder = tmp_path_factory.mktemp("lists")
    log = draw_log(60, KINDS, np.random.default_rng(7))
    config = recipe(log, "csv", order="original")
    preprocess([write_csv(folder / "log", log)], config, folder / "dir", WORKERS)
    assert verify(folder / "dir", WORKERS) == []
    return folder / "dir"


@pytest.mark.parametrize("name", LIST_EDITS)
def test_an_edit_of_lists_is_found_and_the_file_named(name: str, made_of_lists: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made_of_lists, tmp_path / "dir"))
    path = reseal(folder / name.split(":")[0], LIST_EDITS[name])
    reseal_later_folders(folder)
    assert any(fault.startswith(f"{path}: ") for fault in verify(folder, WORKERS))


@pytest.mark.parametrize("swapped", ["dense", "order"])
def test_columns_that_are_not_those_of_the_log_are_found_and_named(
    swapped: str, made: Path, tmp_path: Path
) -> None:
    """Without later folders only the log can tell."""
    shutil.copytree(made / "dir" / "columns", tmp_path / "columns")
    edit = partial(add, "price", 3, 0.5) if swapped == "dense" else EDITS["columns: two samples"][1]
    path = reseal(tmp_path / "columns", edit, COLUMNS)
    assert verify(tmp_path, WORKERS) == []
    (fault,) = verify(tmp_path, WORKERS, raw=[made / "log.csv"])
    row = 3 if swapped == "dense" else 0
    assert fault.startswith(f"{path}: ") and f"in row {row} of record batch 0" in fault


def test_without_building_again_only_files_and_sums_are_checked(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / "dir", tmp_path / "dir"))
    path = reseal(folder / "shards", partial(flip, "label", 0), MIXED)
    reseal_later_folders(folder)
    assert verify(folder, WORKERS, rebuild=False) == []
    assert [str(path) in fault and "label in row" in fault for fault in verify(folder, WORKERS)] == [True]


def test_another_vocabulary_is_named(made: Path) -> None:
    (fault,) = verify(made / "dir", WORKERS, other_vocabulary=made / "dir")
    assert "id_map cannot be built again: it was not made from the vocabulary" in fault


@pytest.fixture(scope="module")
def adopted(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of another log with the ids of the first one."""
    folder = tmp_path_factory.mktemp("adopted")
    log = write_log(folder / "new.csv", 60, np.random.default_rng(9))
    preprocess([log], CONFIG, folder / "dir", WORKERS, like=made / "dir")
    return folder / "dir"


def test_an_untouched_adopted_vocabulary_has_no_fault(adopted: Path, made: Path) -> None:
    assert verify(adopted, WORKERS, other_vocabulary=made / "dir") == []
    assert verify(adopted, WORKERS, other_vocabulary=made / "dir" / "vocabulary") == []


def test_an_edit_of_an_adopted_vocabulary_is_found(adopted: Path, made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(adopted, tmp_path / "dir"))
    path = reseal(folder / "vocabulary", partial(move, "count", 1, 0), "user.arrow")
    reseal_later_folders(folder)
    assert verify(folder, WORKERS) == []  # only the vocabulary that was adopted can tell
    (fault,) = verify(folder, WORKERS, other_vocabulary=made / "dir")
    assert fault.startswith(f"{path}: count in row 0")


def test_a_vocabulary_that_was_not_adopted_is_named(adopted: Path, made: Path) -> None:
    (fault,) = verify(adopted, WORKERS, other_vocabulary=made / "shorter")
    assert f"{adopted / 'vocabulary'} cannot be built again: it was not made from the vocabulary" in fault


def test_a_folder_whose_name_is_not_utf_8_is_checked(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / "dir", tmp_path / os.fsdecode(b"d\xff")))
    assert verify(folder, WORKERS) == []
    path = reseal(folder / "shards", partial(flip, "label", 0), MIXED)
    reseal_later_folders(folder)
    (fault,) = verify(folder, WORKERS)
    assert fault.startswith(f"{path}: label in row")


def test_a_disk_without_room_is_refused_and_nothing_is_left(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.pipeline.preprocess.free_bytes", lambda _: 10)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigError, match="of disk") as refused:
        verify(made / "dir", WORKERS)
    assert "TMPDIR" in str(refused.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_a_cap_that_a_stage_cannot_keep_is_no_fault_of_the_folder(made: Path) -> None:
    with pytest.raises(MemoryCapError, match="cannot stay within 1 MiB of memory"):
        verify(made / "dir", Resources(workers=1, memory_bytes=2**20))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "dir", tmp_path / "dir"))


def rewrite_manifest(path: Path, **changes: object) -> None:
    """Change a manifest and give it the checksum that fits."""
    write_manifest(path.parent, json.loads(path.read_text()) | changes)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_one_flipped_bit_in_any_file_is_found_and_the_file_named(
    every: int, folder: Path, rng: np.random.Generator
) -> None:
    for path in sorted(path for path in folder.rglob("*") if path.is_file())[::every]:
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        faults = verify(folder, Resources(workers=1))
        assert faults and str(path) in faults[0], path
        path.write_bytes(whole)


def test_missing_files_and_strangers_are_named(folder: Path) -> None:
    (folder / "plan" / "stranger.txt").write_text("hello")
    next((folder / "shards").glob("mixed*")).unlink()
    faults = verify(folder)
    assert any("stranger.txt is no part" in fault for fault in faults)
    assert any("mixed-00000.arrow cannot be read" in fault for fault in faults)


def test_a_folder_made_from_another_one_is_found(folder: Path) -> None:
    rewrite_manifest(folder / "counts" / "manifest.json", version=7)
    assert any("vocabulary was made from another counts" in fault for fault in verify(folder))


@pytest.mark.parametrize(
    ("before", "name"), [("counts", "vocabulary"), ("vocabulary", "plan"), ("plan", "shards")]
)
def test_another_validation_part_is_found(folder: Path, before: str, name: str) -> None:
    path = folder / name / "manifest.json"
    rewrite_manifest(path, totals=json.loads(path.read_text())["totals"] | {"num_valid_samples": 5})
    reseal_later_folders(folder)
    assert f"{folder / name} has 5 validation samples, {before} has 0" in verify(folder, Resources(workers=1))


@pytest.mark.parametrize("tables", [["x"], ["x", "device"], []])
def test_a_table_that_its_manifest_does_not_name_is_a_fault(folder: Path, tables: list[str]) -> None:
    shutil.rmtree(folder / "id_map")  # which names the tables, too
    path = folder / "vocabulary" / "manifest.json"
    totals = json.loads(path.read_text())["totals"]
    own = totals["tables"]
    totals["tables"] = [table | {"name": name} for table, name in zip(own, tables, strict=False)] + own[2:]
    totals["num_rows"] = sum(table["num_rows"] for table in totals["tables"])
    rewrite_manifest(path, totals=totals)
    wanted = f"{path}: its total 'tables' is not what the rank stage finds when run again"
    assert wanted in verify(folder, Resources(workers=1))


def test_another_log_is_found(made: Path, tmp_path: Path) -> None:
    text = bytearray((made / "log.csv").read_bytes())
    text[-2] ^= 1
    (tmp_path / "log.csv").write_bytes(text)
    faults = verify(made / "dir", raw=[tmp_path / "log.csv"])
    assert len(faults) == 1 and "is not the log" in faults[0]


def test_a_folder_without_stages_is_refused(tmp_path: Path) -> None:
    assert set(STAGE_FOLDERS) == {"columns", "counts", "vocabulary", "samples", "plan", "shards", "id_map"}
    with pytest.raises(ManifestError, match="contains nothing that a stage wrote"):
        verify(tmp_path)


def test_progress_is_told_in_bytes_of_the_files(made: Path) -> None:
    told: list[tuple[str, int, int]] = []
    resources = Resources(workers=2, progress=lambda *call: told.append(call))
    assert verify(made / "dir", resources, rebuild=False) == []
    files = [path for path in (made / "dir").rglob("*") if path.is_file() and path.name != MANIFEST]
    total = sum(path.stat().st_size for path in files)
    assert {(stage, of) for stage, _, of in told} == {("verify", total)}
    done = [done for _, done, _ in told]
    assert done == sorted(done) and len(done) == len(files) and done[-1] == total


def test_checksums_of_other_batches_are_found(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made / "dir" / "shards", tmp_path / "shards"))
    parts = json.loads((copy / MANIFEST).read_text())
    whole = (copy / CHECKSUMS).read_bytes()
    # Another checksum of a block, with those of its record, the table and the file computed anew.
    changed = whole[:-1] + bytes([whole[-1] ^ 1])
    (copy / CHECKSUMS).write_bytes(changed)
    (entry,) = [each for each in parts["files"] if each["path"] == CHECKSUMS]
    entry["xxh3_128"] = hash_file(copy / CHECKSUMS)[1]
    write_manifest(copy, parts)
    assert verify(copy, WORKERS) == [f"{copy / CHECKSUMS} is not of the batches in the files next to it"]


def test_shards_of_older_versions_have_no_checksums_of_batches(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made / "dir", tmp_path / "dir"))
    parts = json.loads((copy / "shards" / MANIFEST).read_text())
    parts["files"] = [entry for entry in parts["files"] if entry["path"] != CHECKSUMS]
    (copy / "shards" / CHECKSUMS).unlink()
    write_manifest(copy / "shards", parts)
    assert verify(copy, WORKERS) == []
