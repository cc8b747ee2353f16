"""Totals, facts and settings of manifests are bounded when they are read: no wrong number reaches a kernel.

Tests the check of shards in `ids`, too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.totals import ShardSettings, ShardsTotals, VocabularyTotals
from hotset.pipeline.formats.ids import check_shards, cold_widths, mixed_files, read_batches, staged_sizes
from hotset.pipeline.preprocess import preprocess, run_stage
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.rank import map_ids
from hotset.pipeline.statistics.frequencies import frequency_statistics
from hotset.stats.step_times import Machine
from hotset.tests.support.logs.other_logs import draw_log, schema_text, write_parquet
from hotset.tests.support.preprocess_runs import CONFIG
from hotset.tests.support.resealed import reseal, reseal_later_folders, write_manifest
from hotset.tests.support.shard_factory import write_shards
from hotset.train.advice import AdviceConfig, advise

VALUES: dict[str, tuple[Any, ...]] = {
    "totals.tables.0.num_rows": (0, -1, 2**70, None, "5", 5.0, float("nan"), True),
    "totals.tables.2.num_hot": (-1, 301, None, "x", 2**40),
    "totals.tables.1.oov_id": (-1, 40, None),
    "totals.tables.1.missing_id": (-1, 40, []),
    "totals.tables.1.embedding_dim": (0, -4, "4", 2**40),
    "totals.tables": ([], None, {}, [3]),
    "totals.embedding_dim": (0, -1, None, [4], 2**40),
    "totals.embedding_optimizer": ("nope", None, ["sgd"]),
    "totals.num_rows": (3, -1, None),
    "totals.num_hot_rows": (3, None),
    "totals.samples": (None, {}, []),
    "totals.samples.mixed": (-1, 10**7, None, "x"),
    "totals.batches.mixed": (-1, 10**7, None),
    "totals.batches.evaluation": (-1, 10**7),
    "config.batch_size": (0, -1, "x", None, 2**40, 1.5),
    "config.order": ("none", None, 3),
    "files.1.batches": (-1, 10**7, None, 0),
    "files.1.kind": ("odd", None, 3),
    "files.1.hot_only_batches": ([-1], [99], "x"),
    "stage": ("split",),
    "version": (2, 0),
}
EDITS = [(key, value) for key, values in VALUES.items() for value in values]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("data") / "shards")


def edit(folder: Path, key: str, value: Any) -> Manifest:
    """Put a value in the place of another in a manifest, and seal it again."""
    parts = json.loads((folder / "manifest.json").read_text())
    where = parts
    *outer, last = [int(name) if name.isdecimal() else name for name in key.split(".")]
    for name in outer:
        where = where[name]
    where[last] = value
    write_manifest(folder, parts)
    return Manifest.read(folder)


def read_cold_rows(shards: Manifest) -> None:
    """Read what planners need of shards."""
    check_shards(shards)
    widths = cold_widths(shards)
    staged_sizes(shards, widths, ShardsTotals.of(shards).embedding_optimizer)
    for entry, numbers in mixed_files(shards):
        read_batches(entry, numbers, shards, widths)


@pytest.mark.parametrize(("key", "value"), EDITS, ids=[f"{key}={value!r}" for key, value in EDITS])
def test_shards_whose_manifest_makes_no_sense_are_refused(
    key: str, value: Any, sealed: Path, tmp_path: Path
) -> None:
    shards = edit(Path(shutil.copytree(sealed, tmp_path / "shards")), key, value)
    with pytest.raises(ManifestError) as refused:
        read_cold_rows(shards)
    assert str(shards.folder / "manifest.json") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_key_at_fault_is_named(sealed: Path, tmp_path: Path) -> None:
    shards = edit(Path(shutil.copytree(sealed, tmp_path / "shards")), "totals.tables.2.num_hot", 301)
    with pytest.raises(ManifestError, match=r"totals\.tables\[2\]\.num_hot is 301, want 0 to 300"):
        ShardsTotals.of(shards)


def test_a_flipped_bit_in_shards_is_refused(sealed: Path, tmp_path: Path) -> None:
    shards = Manifest.read(Path(shutil.copytree(sealed, tmp_path / "shards")))
    path = shards.folder / "mixed-00000.arrow"
    flipped = bytearray(path.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(ManifestError, match=r"mixed-00000\.arrow is damaged: its checksum is"):
        read_cold_rows(shards)


def manifest_of(config: dict[str, object]) -> Manifest:
    return Manifest(Path("data/shards"), "pack", 1, config, [], [], {}, "")


def test_settings_of_shards_are_read_and_others_left_alone() -> None:
    found = ShardSettings.of(manifest_of({"batch_size": 8, "order": "grouped", "seed": 3}))
    assert found == ShardSettings(batch_size=8, order="grouped")
    assert found.is_grouped
    assert not ShardSettings(batch_size=8, order="original").is_grouped


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"batch_size": 0, "order": "grouped"}, "config.batch_size is 0, want 1 or more"),
        ({"batch_size": "8", "order": "grouped"}, "config.batch_size is '8', want a whole number"),
        ({"order": "grouped"}, "config.batch_size is missing"),
        ({"batch_size": 8, "order": "by day"}, "config.order is 'by day', want one of grouped, original"),
    ],
)
def test_settings_that_no_stage_writes_are_damage(config: dict[str, object], message: str) -> None:
    with pytest.raises(ManifestError, match=f"is damaged: {message}"):
        ShardSettings.of(manifest_of(config))


ONE = Resources(workers=1)
KINDS = {"y": "label", "site": "hex8", "user": "integer"}
VOCABULARY_VALUES: dict[str, tuple[Any, ...]] = {
    "tables.0.num_rows": (0, -1, 2**31, 2**63, None, "5", True),
    "tables.0.oov_id": (-1, 10**6, None),
    "tables.1.missing_id": (-1, 10**6, 2**70, "x"),
    "tables.1.oov_count": (-1, None),
    "tables": (None, {}, [3], 1.5),
    "num_rows": (-1, 1, None),
    "num_train_samples": (-1, 10**9, None, "many"),
    "num_samples": (-1, None),
    "rank_by": ("nothing", None, 3),
}
VOCABULARY_EDITS = [(f"totals.{key}", value) for key, values in VOCABULARY_VALUES.items() for value in values]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bounds")
    log = draw_log(60, KINDS, np.random.default_rng(0))
    write_parquet(folder / "log.parquet", log, group_rows=60)
    config = replace(CONFIG, ingest=replace(CONFIG.ingest, schema=schema_text(log, format="parquet")))
    preprocess([folder / "log.parquet"], config, folder / "dir", ONE)
    return folder / "dir"


def encode_again(folder: Path) -> object:
    for name in ("samples", "plan", "shards"):
        shutil.rmtree(folder / name)
    return run_stage("encode", CONFIG.encode, folder, ONE)


def split_again(folder: Path) -> object:
    for name in ("plan", "shards"):
        shutil.rmtree(folder / name)
    return run_stage("split", CONFIG.split, folder, ONE)


def map_again(folder: Path) -> object:
    vocabulary = Manifest.read(folder / "vocabulary")
    return map_ids(vocabulary, vocabulary, folder / "id_map", ONE)


READERS: dict[str, Callable[[Path], object]] = {
    "encode": encode_again,
    "split": split_again,
    "map-ids": map_again,
    "stats": lambda folder: frequency_statistics(folder, ONE),
    "advise": lambda folder: advise(folder, AdviceConfig(), Machine(), ONE),
}


@pytest.mark.parametrize(("key", "value"), VOCABULARY_EDITS)
def test_a_vocabulary_that_makes_no_sense_is_refused_by_its_key(
    key: str, value: Any, made: Path, tmp_path: Path
) -> None:
    vocabulary = edit(Path(shutil.copytree(made / "vocabulary", tmp_path / "vocabulary")), key, value)
    with pytest.raises(ManifestError, match=r"vocabulary/manifest\.json is damaged: totals\.") as refused:
        VocabularyTotals.of(vocabulary)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_refuses_a_vocabulary_that_makes_no_sense(
    reader: str, made: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "dir"))
    edit(folder / "vocabulary", "totals.tables.0.oov_id", 10**6)
    with pytest.raises(ManifestError, match=r"totals\.tables\[0\]\.oov_id is 1000000"):
        READERS[reader](folder)


def put(column: str, row: int, number: int, columns: dict[str, Any]) -> None:
    columns[column][row] = number


ROWS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a place below 0": (partial(put, "place", 1, -1), "a place is outside its "),
    "a place behind all rows": (partial(put, "place", 1, 10**6), "a place is outside its "),
    "a place of 64 bits": (partial(put, "place", 0, 2**63 - 1), "a place is outside its "),
    "a count below 0": (partial(put, "count", 1, -1), "its counts are not those of a log"),
    "a count of 62 bits": (partial(put, "count", 1, 2**62), "its counts are not those of a log"),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("reader", ["split", "map-ids", "stats"])
def test_rows_that_make_no_sense_are_refused(name: str, reader: str, made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "dir"))
    change, message = ROWS[name]
    path = reseal(folder / "vocabulary", change)
    reseal_later_folders(folder)
    with pytest.raises(ManifestError, match=message) as refused:
        READERS[reader](folder)
    assert str(path) in str(refused.value)
