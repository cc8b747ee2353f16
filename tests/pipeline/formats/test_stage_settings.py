"""Settings of finished stages: those that later stages read, checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.formats.stage_settings import ShardSettings


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
