"""A simulated epoch moves exactly what the run counts (`placements`)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hotset.pipeline.errors import ByteSize
from hotset.pipeline.preprocess import preprocess
from hotset.stats.shuffle import epoch_order
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import STAGING, STATELESS, trained
from hotset.train.config import TrainConfig
from hotset.train.data.shards import ShardSet
from hotset.train.placements.placements import with_staging
from hotset.workflows.bench.placements import EpochTraffic, simulate_epoch
from hotset.workflows.recipes import criteo_kaggle

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    folder = tmp_path_factory.mktemp("data") / "shards"
    return ShardSet.open(write_shards(folder, skew=1.2, multi_hot=(0,), table_dims=(4, 4, 8)))


def both_ways(moved: EpochTraffic) -> int:
    return moved.bytes_to_fast + moved.bytes_to_slow


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("staging_bytes", [700, 20_000])
@pytest.mark.parametrize("placement", [{"placement": "all-fast"}, *STATELESS, *STAGING], ids=str)
def test_the_counts_are_those_of_the_run(
    placement: dict[str, Any], staging_bytes: int, shards: ShardSet
) -> None:
    fields: dict[str, Any] = {"embedding_optimizer": "adagrad", "staging_bytes": staging_bytes}
    trainer = trained(shards, **placement, **fields)
    moved = simulate_epoch(shards, trainer.config, trainer.batch_numbers)
    assert (moved.bytes_to_fast, moved.bytes_to_slow) == trainer.meter.training_bytes()
    assert (moved.num_shortened, moved.num_split) == (
        trainer.step_source.num_shortened,
        trainer.step_source.num_split,
    )
    assert (moved == EpochTraffic()) == (placement["placement"] == "all-fast")


def test_by_default_no_transfer_is_late_and_few_rows_move_twice(tmp_path: Path) -> None:
    """Slots and depth are chosen together; at two batches ahead in as many slots as there are hot rows nearly
    every transfer waited for the batch before its own."""
    few_hot = ShardSpec(num_rows=(2000, 3000), num_hot=(20, 30), num_mixed=2000, num_hot_only=0, skew=1.3)
    shards = ShardSet.open(write_shards(tmp_path / "shards", few_hot))
    order = list(range(shards.num_training_batches))
    config = with_staging(TrainConfig(), shards)
    moved = simulate_epoch(shards, TrainConfig(), order)
    belady = simulate_epoch(shards, replace(config, prefetch=0), order)
    assert config.prefetch == 1 and moved.bytes_to_fast > 0
    assert moved.num_shortened <= 0.05 * len(order) and moved.num_split == 0
    assert both_ways(moved) <= 1.1 * both_ways(belady)
    # The depth follows a budget that is given, and a budget the depth.
    assert with_staging(TrainConfig(staging_bytes=ByteSize(500)), shards).prefetch == 0
    deep = simulate_epoch(shards, TrainConfig(prefetch=4), order)
    assert deep.num_shortened <= 0.05 * len(order)


@pytest.mark.slow
def test_no_transfer_is_late_by_default_on_real_samples(real_data: Path, tmp_path: Path) -> None:
    """The recipe without options, with fewer hot rows than fit by default."""
    recipe = criteo_kaggle()
    for hot_bytes in (256 << 10, 1 << 20):
        split = replace(recipe.split, hot_bytes=ByteSize(hot_bytes))
        data = tmp_path / str(hot_bytes)
        preprocess([real_data / "criteo_kaggle_uniform_110k.tsv.gz"], replace(recipe, split=split), data)
        shards = ShardSet.open(data)
        order = epoch_order(shards.is_hot_only, 0, 0, spread=shards.is_grouped).tolist()
        config = with_staging(TrainConfig(), shards)
        moved = simulate_epoch(shards, TrainConfig(), order)
        belady = simulate_epoch(shards, replace(config, prefetch=0), order)
        # Transfers run ahead, and still none of them is cut short.
        assert config.prefetch == 1 and both_ways(moved) > 0
        assert moved.num_shortened == moved.num_split == 0
        assert both_ways(moved) <= 1.1 * both_ways(belady)


def test_fae_decides_as_it_goes(shards: ShardSet) -> None:
    with pytest.raises(ValueError, match="fae cannot be simulated"):
        simulate_epoch(shards, TrainConfig(placement="fae"), [0])


def test_the_chart_of_the_readme_is_that_of_the_result() -> None:
    result = json.loads((ROOT / "workflows/results/placements-2m.json").read_text())
    (moved,) = (share["bytes"] for share in result["shares"])
    tree = ElementTree.parse(ROOT / "docs/bytes.svg")
    name = "{http://www.w3.org/2000/svg}"
    _, *texts = (text.text or "" for text in tree.iter(f"{name}text"))
    charted = [moved[label.split(" (")[0].replace("cache", "cache lfu")] for label in texts[::2]]
    both_ways = [each["to_fast"] + each["to_slow"] for each in charted]
    assert len(both_ways) == 6 and [f"{each:,.0f}" for each in both_ways] == texts[1::2]
    lengths = [float(bar.attrib["width"]) for bar in tree.iter(f"{name}rect")]
    assert lengths == pytest.approx([lengths[0] * each / both_ways[0] for each in both_ways], abs=0.1)
