"""Totals and facts of manifests are bounded when they are read: a wrong number is named with its key.

Tests `totals`, `manifest` and the check of shards in `cold_batches`, too.

Settings of finished stages: those that later stages read, checked.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.cold_batches import (
    cold_widths,
    mixed_files,
    read_batches,
    refuse_other_shards,
    staged_sizes,
)
from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.manifest import Manifest, checksum_of
from hotset.pipeline.folders.totals import ShardSettings, ShardsTotals
from hotset.tests.support.shard_factory import write_shards

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
    "files.0.batches": (-1, 10**7, None, 0),
    "files.0.kind": ("odd", None, 3),
    "files.0.hot_only_batches": ([-1], [99], "x"),
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
    parts.pop("checksum")
    where = parts
    *outer, last = [int(name) if name.isdecimal() else name for name in key.split(".")]
    for name in outer:
        where = where[name]
    where[last] = value
    (folder / "manifest.json").write_text(json.dumps(parts | {"checksum": checksum_of(parts)}))
    return Manifest.read(folder)


def read_cold_rows(shards: Manifest) -> None:
    """Read what planners need of shards."""
    refuse_other_shards(shards)
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
