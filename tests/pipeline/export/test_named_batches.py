"""Both kinds of training batches alternate evenly, and each part of the log is cut where it ends."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.export.named_batches import NamedBatches, Split, _alternating, _Position
from hotset.pipeline.folders.manifest import Manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards


def positions(kind: Any, count: int) -> list[_Position]:
    return [_Position(kind, index) for index in range(count)]


@pytest.mark.parametrize(("num_hot", "num_mixed"), [(0, 0), (0, 4), (5, 0), (1, 1), (3, 3), (2, 17), (40, 7)])
def test_every_stretch_has_its_share_of_both_kinds(num_hot: int, num_mixed: int) -> None:
    hot, mixed = positions("hot", num_hot), positions("mixed", num_mixed)
    found = _alternating(hot, mixed)
    assert [each for each in found if each.entry == "hot"] == hot  # type: ignore[comparison-overlap]
    assert [each for each in found if each.entry == "mixed"] == mixed  # type: ignore[comparison-overlap]
    # Each stands at the middle of its share of the whole, hot-only batches first where two meet.
    middles = [(Fraction(2 * each.index + 1, num_hot), 0, each.index) for each in hot]
    middles += [(Fraction(2 * each.index + 1, num_mixed), 1, each.index) for each in mixed]
    assert found == [(hot, mixed)[kind][index] for _, kind, index in sorted(middles)]
    seen = 0
    for length, each in enumerate(found, 1):
        seen += each.entry == "hot"  # type: ignore[comparison-overlap]
        assert abs(seen - length * num_hot / len(found)) <= 1


@pytest.mark.parametrize("num_validation", [0, 1, 31, 32, 33, 64, 89, 90])
def test_the_validation_part_ends_wherever_a_batch_does(tmp_path: Path, num_validation: int) -> None:
    spec = ShardSpec(num_validation=num_validation)
    shards = NamedBatches(Manifest.read(write_shards(tmp_path / "shards", spec)))
    whole = NamedBatches(Manifest.read(write_shards(tmp_path / "whole", ShardSpec())))
    assert shards.num_samples == {"train": 220, "valid": num_validation, "test": 90 - num_validation}
    splits: tuple[Split, ...] = ("valid", "test")
    rows = {split: [row for batch in shards.batches(split) for row in batch.to_pylist()] for split in splits}
    assert {split: len(found) for split, found in rows.items()} == {
        split: shards.num_samples[split] for split in splits
    }
    log = [row for batch in whole.batches("test") for row in batch.to_pylist()]
    assert rows["valid"] + rows["test"] == log


def test_ids_of_lists_are_raised_too_and_stay_in_their_lists(tmp_path: Path) -> None:
    manifest = Manifest.read(write_shards(tmp_path / "shards", ShardSpec(multi_hot=(0, 2))))
    plain, raised = NamedBatches(manifest), NamedBatches(manifest, first_id=1)
    lengths: Counter[int] = Counter()
    for split in ("train", "test"):
        for one, other in zip(plain.batches(split), raised.batches(split, workers=2), strict=True):
            for row, above in zip(one.to_pylist(), other.to_pylist(), strict=True):
                assert above["C2"] == row["C2"] + 1 and above["label"] == row["label"]
                for name in ("C1", "C3"):
                    assert above[name] == [found + 1 for found in row[name]]
                    lengths[len(row[name])] += 1
    assert set(lengths) == {0, 1, 2, 3, 4}


def test_logs_without_labels_or_dense_features_have_no_such_columns(tmp_path: Path) -> None:
    spec = ShardSpec(has_label=False, num_dense=0)
    shards = NamedBatches(Manifest.read(write_shards(tmp_path / "shards", spec)))
    (first, *_) = shards.batches("train")
    assert first.schema.names == shards.schema.names == ["C1", "C2", "C3"] and first.num_rows > 0
