"""Training on stored lookups gives the bits of training without; damaged or foreign ones are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import HotsetError, ManifestError, ShardError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.stages import transpose as transpose_stage
from hotset.pipeline.stages.transpose import TransposeConfig, transpose
from hotset.tests.support.resealed import reseal, write_manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import STAGING, STATELESS, assert_equal_bits, trained
from hotset.train.data import stored_batches
from hotset.train.data.batch import IdReader
from hotset.train.data.shards import Shards
from hotset.train.data.stored_batches import StoredBatches
from hotset.train.placements.staging_placements import StagingPlacement

SPECS = {
    "long lists": ShardSpec(batch_size=300, num_hot_only=400, num_mixed=700, skew=2.5),
    "bags of two widths": ShardSpec(
        num_rows=(50, 40, 300, 9),
        num_hot=(5, 10, 20, 4),
        multi_hot=(1,),
        table_dims=(2, 4, 4, 2),
        batch_size=30,
    ),
    "original": ShardSpec(order="original", batch_size=20),
}
FIELDS: dict[str, Any] = {"embedding_optimizer": "adagrad", "epochs": 2, "staging_bytes": 2_000}


def with_lookups(folder: Path, spec: ShardSpec) -> Shards:
    shards = Shards.open(write_shards(folder / "shards", spec))
    transpose(TransposeConfig(), shards.manifest, folder / "lookups")
    return shards


@pytest.mark.parametrize("name", SPECS)
def test_stored_lookups_change_no_bit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = Shards.open(write_shards(tmp_path / "without" / "shards", SPECS[name]))
    shards = with_lookups(tmp_path, SPECS[name])
    wanted = trained(without, placement="all-fast", **FIELDS)
    # With the folder no training batch is grouped by the trainer.
    by_row = IdReader.by_row
    grouped: list[bool] = []

    def noted(reader: IdReader, ids: Any, stored: Any = None) -> Any:
        grouped.append(stored is None)
        return by_row(reader, ids, stored)

    monkeypatch.setattr(IdReader, "by_row", noted)
    for placement in ({"placement": "all-fast"}, *STATELESS, *STAGING[:3]):
        assert_equal_bits(trained(shards, **placement, **FIELDS), wanted)
    assert grouped and not any(grouped)


@pytest.mark.parametrize("fields", [{"plan": "epoch"}, {"plan": "online", "window": 3}], ids=str)
def test_plans_are_made_from_stored_rows(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = with_lookups(tmp_path, SPECS["bags of two widths"])
    wanted = trained(shards, placement="lookahead", **fields, **FIELDS)

    def hashing(*_: Any) -> None:
        raise AssertionError("a batch is read for its plan")

    monkeypatch.setattr(StagingPlacement, "find_cold_rows", hashing)
    assert_equal_bits(trained(shards, placement="lookahead", **fields, **FIELDS), wanted)


def test_stored_rows_that_are_no_rows_are_refused_by_the_planner(tmp_path: Path) -> None:
    shards = with_lookups(tmp_path, SPECS["original"])

    def change(columns: dict[str, Any]) -> None:
        columns["rows"][2][-1] = 300

    path = reseal(tmp_path / "lookups", change, "mixed-00000.arrow")
    with pytest.raises(ManifestError, match="its lookups of C3 are not those of the shards") as caught:
        trained(shards, placement="lookahead", **FIELDS)
    assert str(caught.value).startswith(f"{path} is damaged: batch ")


def test_a_replayed_fae_run_takes_them_too(tmp_path: Path) -> None:
    shards = with_lookups(tmp_path, SPECS["long lists"])
    fae = trained(shards, placement="fae", **FIELDS)
    shutil.rmtree(tmp_path / "lookups")
    assert_equal_bits(trained(shards, fae.numbers, placement="all-fast", **FIELDS), fae)


def test_every_batch_is_found_by_its_number(tmp_path: Path) -> None:
    shards = with_lookups(tmp_path, SPECS["original"])
    stored = StoredBatches.find(shards)
    assert stored is not None
    reader = IdReader(shards.tables, range(3))
    for number in range(shards.num_training_batches):
        ids = reader.read(shards.training_batch(number))
        found = reader.by_row(ids, stored.read(number).lookups)
        for mine, other in zip(found, reader.by_row(ids), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_without_the_folder_there_is_nothing_to_find(tmp_path: Path) -> None:
    assert StoredBatches.find(Shards.open(write_shards(tmp_path / "shards", ShardSpec()))) is None


def test_a_folder_that_lost_its_manifest_or_was_not_finished_is_refused(tmp_path: Path) -> None:
    with_lookups(tmp_path, ShardSpec())
    (tmp_path / "lookups" / "manifest.json").unlink()
    with pytest.raises(ManifestError, match=r"lookups is unfinished: it has no manifest\.json") as caught:
        trained(Shards.open(tmp_path), placement="all-fast")
    assert caught.value.hint is not None and "hotset transpose" in caught.value.hint


def test_those_of_other_shards_are_refused(tmp_path: Path) -> None:
    with_lookups(tmp_path, ShardSpec())
    shutil.rmtree(tmp_path / "shards")
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec(seed=1)))
    with pytest.raises(ManifestError, match="lookups was written for other shards than") as caught:
        trained(shards, placement="all-fast")
    assert caught.value.hint is not None and "hotset transpose" in caught.value.hint


def test_another_stage_is_refused(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec()))
    shutil.copytree(tmp_path / "shards", tmp_path / "lookups")
    with pytest.raises(ManifestError, match="lookups holds 'pack' of version 1, want 'transpose' of 1"):
        trained(shards, placement="all-fast")


def test_a_flipped_bit_is_refused_before_training(tmp_path: Path) -> None:
    shards = with_lookups(tmp_path, ShardSpec())
    path = tmp_path / "lookups" / "mixed-00000.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ManifestError, match=r"mixed-00000\.arrow is damaged: its checksum is"):
        StoredBatches.find(shards)


@pytest.mark.parametrize("name", ["order", "rows", "starts"])
def test_other_numbers_are_refused_whatever_their_checksums(name: str, tmp_path: Path) -> None:
    shards = with_lookups(tmp_path, ShardSpec())

    def change(columns: dict[str, Any]) -> None:
        columns[name][1][-1] += 1

    path = reseal(tmp_path / "lookups", change, "mixed-00000.arrow")
    with pytest.raises(ManifestError) as caught:
        trained(shards, placement="lookahead")
    assert str(caught.value) == (f"{path} is damaged: batch 0: its lookups of C2 are not those of the shards")


def test_lists_that_are_cut_otherwise_are_refused(tmp_path: Path) -> None:
    shards = with_lookups(tmp_path, ShardSpec())

    def change(columns: dict[str, Any]) -> None:
        columns["starts"][0].append(0)

    reseal(tmp_path / "lookups", change, "mixed-00000.arrow")
    with pytest.raises(ManifestError, match="batch 0: its lists of rows and of starts are not of the same"):
        trained(shards, placement="all-fast")


def test_files_and_batches_that_lack_are_refused(tmp_path: Path) -> None:
    shards = with_lookups(tmp_path, ShardSpec())
    folder = tmp_path / "lookups"
    parts = json.loads((folder / "manifest.json").read_text())
    fewer = {**parts, "files": parts["files"][:1]}
    write_manifest(folder, fewer)
    with pytest.raises(ManifestError, match="lookups is damaged: it has batches"):
        StoredBatches.find(shards)
    parts["files"][0]["batches"] += 1
    write_manifest(folder, {**parts, "checksum": ""})
    with pytest.raises(ManifestError, match="lookups is damaged: it has batches"):
        StoredBatches.find(shards)


def test_a_file_that_is_no_lookups_is_refused(tmp_path: Path) -> None:
    shards = with_lookups(tmp_path, ShardSpec())
    path = tmp_path / "lookups" / "mixed-00000.arrow"
    entry = Manifest.read(tmp_path / "lookups").entries[path.name]
    shutil.copy(tmp_path / "shards" / path.name, path)
    reseal(tmp_path / "lookups", lambda columns: None, path.name)
    assert entry.num_samples
    with pytest.raises(ManifestError, match="its columns are not those of lookups by row"):
        StoredBatches.find(shards)


def test_a_file_cut_short_while_it_is_trained_on_is_an_error_and_no_signal(tmp_path: Path) -> None:
    shards = with_lookups(tmp_path, SPECS["long lists"])
    path = tmp_path / "lookups" / "mixed-00000.arrow"

    def cut(*_: Any) -> None:
        with open(path, "r+b") as file:
            file.truncate(100)

    with pytest.raises(ShardError, match=r"mixed-00000\.arrow was changed by another program") as caught:
        trained(shards, after_step=cut, placement="all-fast", epochs=4)
    assert isinstance(caught.value, HotsetError)
    assert caught.value.hint is not None and "hotset transpose" in caught.value.hint


def test_the_version_is_that_of_the_stage() -> None:
    assert stored_batches._VERSION == transpose_stage.VERSION
