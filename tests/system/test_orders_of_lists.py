"""Other orders than by frequency on logs with list-valued features, and on the real samples."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.totals import VocabularyTotals
from hotset.pipeline.formats.ids import read_lookups
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.row_order import HotOrder, hot_curves, levels_of_tables, read_tables
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.list_logs import KINDS, recipe
from hotset.tests.support.logs.other_logs import draw_log, write_csv, write_parquet
from hotset.tests.support.naive.naive_peel import naive_peel


def bags_of(folder: Path, num_train: int) -> list[set[int]]:
    """Places of the rows that each training sample looks up."""
    vocabulary, samples = Manifest.read(folder / "vocabulary"), Manifest.read(folder / "samples")
    places, bags = read_tables(vocabulary, "place"), []
    for entry in samples.files:
        part: list[set[int]] = [set() for _ in range(entry.num_samples)]
        for table, lookups in zip(places, read_lookups(samples, entry, 0, entry.num_samples), strict=True):
            for i, bag in enumerate(part):
                bag |= {int(table[row]) for row in lookups.of_samples(i, i + 1).ids}
        bags += part
    return bags[:num_train]


def test_bags_are_peeled_as_by_the_twin(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = draw_log(120, KINDS, rng, empty_lists=True)
    raw = write_parquet(tmp_path / "log", log)
    config = recipe(log, "parquet")
    preprocess([raw], config, tmp_path / "frequency", Resources(workers=1))
    floor = 5
    monkeypatch.setattr("hotset.pipeline.stages.rank.PEEL_FLOOR", floor)
    peeled = replace(config, rank=RankConfig(rank_by="peel"))
    preprocess([raw], peeled, tmp_path / "peel", Resources(workers=2))
    assert verify(tmp_path / "peel") == []
    before, after = (bags_of(tmp_path / name, 80) for name in ("frequency", "peel"))
    vocabulary = Manifest.read(tmp_path / "peel" / "vocabulary")
    cuts, num_rows = vocabulary.totals["peel"]["cuts"], vocabulary.totals["num_rows"]
    samples = [sorted(place - floor for place in bag if place >= floor) for bag in before]
    stops, order = [floor, *cuts, num_rows], list(range(floor))
    for first, stop in itertools.pairwise(stops):
        dropped = naive_peel(samples, [0] * (num_rows - floor), [1], first - floor, stop - floor)
        order += [row + floor for row in reversed(dropped)]
    new_place = {old: new for new, old in enumerate(order)}
    assert after == [{new_place[place] for place in bag} for bag in before]


@pytest.mark.parametrize("mode", ["fae-paper", "fae-code"])
def test_bags_are_sampled(tmp_path: Path, mode: Any, rng: np.random.Generator) -> None:
    log = draw_log(120, KINDS, rng)
    config = recipe(log, "csv")
    split = SplitConfig(mode=mode)
    sampled = RankConfig(rank_by="sampled", sampling_rate=1.0)
    config = replace(config, split=split, rank=sampled)
    preprocess([write_csv(tmp_path / "log", log)], config, tmp_path / "out", Resources(workers=2))
    assert verify(tmp_path / "out") == []
    vocabulary = Manifest.read(tmp_path / "out" / "vocabulary")
    for sampled_counts, counts in zip(
        read_tables(vocabulary, "sampled"), read_tables(vocabulary, "count"), strict=True
    ):
        np.testing.assert_array_equal(sampled_counts, counts)
    assert Manifest.read(tmp_path / "out" / "plan").totals["calibration"]["exact"]["hot_samples"] == 80


@pytest.mark.diagonal(2)
@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("criteo_kaggle_head_contiguous_15k.tsv.gz", "criteo-kaggle"),
        ("criteo_kaggle_uniform_110k.tsv.gz", "criteo-kaggle"),
        ("criteo_1tb_day0_head_8k.tsv.gz", "criteo-kaggle"),
        ("avazu_train_head_10k.csv.gz", "avazu"),
    ],
)
def test_on_real_samples_peeling_is_never_worse(
    tmp_path: Path, real_data: Path, name: str, schema: str
) -> None:
    budgets = [1 << power for power in range(12, 31)]
    hot = {}
    for rank_by in ("frequency", "peel"):
        order: Any = rank_by
        config = PreprocessConfig(ingest=IngestConfig(schema=schema), rank=RankConfig(rank_by=order))
        out = tmp_path / rank_by
        preprocess([real_data / name], config, out, until="encode")
        vocabulary = Manifest.read(out / "vocabulary")
        samples = Manifest.read(out / "samples")
        totals = VocabularyTotals.of(vocabulary)
        tables = totals.tables
        by_place = HotOrder(vocabulary, [64] * len(tables))
        levels = levels_of_tables(np.array([by_place.num_hot(budget)[0] for budget in budgets]), tables)
        (curve,) = hot_curves(samples, [levels], len(budgets), totals.num_train_samples)
        hot[rank_by] = curve.samples
    assert (hot["peel"] >= hot["frequency"]).all()
    assert hot["peel"].sum() > hot["frequency"].sum()
