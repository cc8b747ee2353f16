"""No number of a vocabulary reaches a kernel unchecked, whatever its checksums say.

Tests the bounds in `totals` and `totals`, and those of `read_batch`.
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
from hotset.pipeline.preprocess import preprocess, run_stage
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.other_vocabulary import map_ids
from hotset.pipeline.statistics.frequencies import frequency_statistics
from hotset.stats.step_times import Machine
from hotset.tests.support.logs.other_logs import draw_log, schema_text, write_parquet
from hotset.tests.support.preprocess_runs import CONFIG
from hotset.tests.support.resealed import reseal, reseal_later_folders, write_manifest
from hotset.train.advice import AdviceConfig, advise

ONE = Resources(workers=1)
KINDS = {"y": "label", "site": "hex8", "user": "integer"}
TOTALS: dict[str, tuple[Any, ...]] = {
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
EDITS = [(key, value) for key, values in TOTALS.items() for value in values]


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


@pytest.mark.diagonal(2)
@pytest.mark.parametrize(("key", "value"), EDITS, ids=[f"{key}={value!r}" for key, value in EDITS])
def test_a_manifest_that_makes_no_sense_is_refused_by_its_key(
    key: str, value: Any, made: Path, tmp_path: Path
) -> None:
    for number, read in enumerate(READERS.values()):
        folder = Path(shutil.copytree(made, tmp_path / str(number)))
        parts = json.loads((folder / "vocabulary" / "manifest.json").read_text())
        where = parts["totals"]
        *outer, last = [int(name) if name.isdecimal() else name for name in key.split(".")]
        for name in outer:
            where = where[name]
        where[last] = value
        write_manifest(folder / "vocabulary", parts)
        with pytest.raises(ManifestError, match=r"vocabulary/manifest\.json is damaged: totals\.") as refused:
            read(folder)
        assert "\n" not in str(refused.value)


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
