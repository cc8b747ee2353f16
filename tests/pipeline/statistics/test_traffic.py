"""Rows between ranks, of few samples and of the real ones; `hotset stats` has a generated log.

The miss-ratio series of a folder: held against caches simulated batch by batch from its ids.

A stretch of the shuffled order holds the samples that pack would put first.

Tests `lookups`, too.

The bytes that `hotset stats` simulates are those that `hotset train` counts without any option.
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hotset.pipeline.errors import ByteSize, ConfigError, ManifestError
from hotset.pipeline.formats.arrow_files import fixed_lists, read_batch
from hotset.pipeline.formats.ids import ONE_EACH, TableLookups
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.statistics import traffic
from hotset.pipeline.statistics import traffic as module
from hotset.pipeline.statistics.folder import Inspected
from hotset.pipeline.statistics.frequencies import frequency_statistics
from hotset.pipeline.statistics.traffic import Trace, draw_trace, exchange_of_ranks, miss_ratios
from hotset.stats.id_tables import mix64_pair
from hotset.stats.lookahead import planner as staging_planner
from hotset.tests.support.logs.criteo_text import draw_samples
from hotset.tests.support.logs.list_logs import KINDS, recipe
from hotset.tests.support.logs.other_logs import draw_log, write_parquet
from hotset.tests.support.naive.naive_exchange import least_messages
from hotset.tests.support.naive.naive_stages import run_to
from hotset.tests.support.resealed import write_manifest
from hotset.tests.support.trained_models import trained
from hotset.train.config import TrainConfig
from hotset.train.data.shards import ShardSet
from hotset.train.placements import placements
from hotset.workflows.recipes import recipe_for


@pytest.mark.slow
def test_the_theory_is_within_a_tenth_on_the_real_sample(real_data: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    log.write_bytes(gzip.decompress((real_data / "criteo_kaggle_uniform_110k.tsv.gz").read_bytes()))
    recipe = recipe_for("criteo-kaggle")
    preprocess([log], replace(recipe, pack=replace(recipe.pack, batch_size=2048)), tmp_path / "data")
    for row in exchange_of_ranks(Inspected.open(tmp_path / "data"), (2, 4, 8))["ranks"]:
        for each in row["schemes"]:
            if each["expected"] is not None:
                assert each["expected"] == pytest.approx(each["counted"], rel=0.1), each["scheme"]


class _Unread:
    """A folder of which only the sizes are looked at."""

    def __init__(self, *num_rows: int) -> None:
        self.folder = Path("data")
        self.tables = [SimpleNamespace(num_rows=each) for each in num_rows]
        self.counts = [np.full(each, 2) for each in num_rows if each < 100]
        self.samples = self.plan = None
        self.num_train = 10
        self.resources = Resources()


def opened(
    monkeypatch: pytest.MonkeyPatch, trace: Trace, batch_size: int | None, *num_rows: int
) -> Inspected:
    """A folder of tables with so many rows, whose samples are a trace."""
    monkeypatch.setattr(module, "draw_trace", lambda *arguments: trace)
    monkeypatch.setattr(module, "packed_batch_size", lambda folder: batch_size)
    return cast(Inspected, _Unread(*num_rows))


def test_rows_between_ranks_are_those_of_sets_of_users(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    # Ten samples of no to three lookups, in steps of 4, 4 and 2 samples: the last is of the first ranks.
    lengths = rng.integers(0, 4, 10)
    rows = rng.integers(0, 9, lengths.sum())
    trace = Trace(rows, np.concatenate([[0], np.cumsum(lengths)]))
    found = exchange_of_ranks(opened(monkeypatch, trace, 4, 5, 4), (2, 4))
    assert (found["batch_size"], found["num_samples"], found["num_train_samples"]) == (4, 10, 10)
    samples = np.split(rows, np.cumsum(lengths)[:-1])
    for row, num_ranks in zip(found["ranks"], (2, 4), strict=True):
        assert row["ranks"] == num_ranks and row["rank_samples"] == pytest.approx(10 / 3 / num_ranks)
        remote = 0
        uses: dict[int, list[set[int]]] = {key: [] for key in range(9)}
        for first in (0, 4, 8):
            users: dict[int, set[int]] = {}
            for i, keys in enumerate(samples[first : first + 4]):
                rank = i * num_ranks // 4
                for key in keys.tolist():
                    remote += key % num_ranks != rank
                    users.setdefault(key, set()).add(rank)
            for key, ranks in users.items():
                uses[key].append(ranks)
        away = {key: [len(ranks - {key % num_ranks}) for ranks in steps] for key, steps in uses.items()}
        gradients = sum(sum(each) for each in away.values())
        wanted = {
            "every lookup": 2 * remote,
            "deduplicated": 2 * gradients,
            "first uses computed": gradients + sum(sum(each[1:]) for each in away.values()),
            "least possible": sum(
                least_messages([frozenset(each) for each in steps]) for steps in uses.values()
            ),
        }
        schemes = {each["scheme"]: each for each in row["schemes"]}
        # Of each rank and step.
        for name, number in wanted.items():
            assert schemes[name]["counted"] == pytest.approx(number / num_ranks / 3), name
        least, by_use = (schemes[name]["expected"] for name in ("least possible", "owners by use"))
        assert least is not None and by_use is not None and 0 < least <= by_use
        remote_share = (num_ranks - 1) / num_ranks / (num_ranks * 3)
        # The whole epoch has two lookups of each of nine rows.
        assert schemes["every lookup"]["expected_of_epoch"] == pytest.approx(2 * 18 * remote_share)
        assert schemes["every lookup"]["expected"] == pytest.approx(2 * rows.size * remote_share)


@pytest.mark.parametrize(
    ("batch_size", "num_rows", "ranks", "message"),
    [
        (3, (5,), (2, 4), "--ranks: want 2 to 3 ranks for batches of 3, got 4"),
        (128, (5,), (1,), "--ranks: want 2 to 64 ranks for batches of 128, got 1"),
        (None, (5,), (65,), "--ranks: want 2 to 64 ranks for batches of 2048, got 65"),
        (8, (2**31 - 1, 1), (2,), "--ranks: 2,147,483,648 rows, at most 2,147,483,647 can be numbered"),
        (8, (2**31 - 1,), (2,), "--ranks: the log has no training samples"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    batch_size: int | None,
    num_rows: tuple[int, ...],
    ranks: tuple[int, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = Trace(np.empty(0, np.int64), np.zeros(1, np.int64))
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        exchange_of_ranks(opened(monkeypatch, nothing, batch_size, *num_rows), ranks)


BATCH_SIZE, ROW_BYTES, NUM_TRAIN = 16, 128, 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    config = PreprocessConfig(count=CountConfig(eval_fraction=0.2))
    run_to("split", folder, draw_samples(150, np.random.default_rng(4)), config)
    return folder


def series(folder: Path, batch_size: int = BATCH_SIZE, workers: int = 1) -> dict[str, Any]:
    inspected = Inspected.open(folder, Resources(workers=workers))
    return miss_ratios(inspected, batch_size=batch_size, seed=3, num_batches=5)


def batches_of(folder: Path) -> list[list[int]]:
    """Distinct rows of each whole batch of the trace, in order of first appearance."""
    trace = draw_trace(Inspected.open(folder), 5 * BATCH_SIZE, seed=3)
    starts = trace.batch_starts(BATCH_SIZE)
    return [list(dict.fromkeys(trace.rows[first:stop].tolist())) for first, stop in pairwise(starts)]


def naive_lru(batches: list[list[int]], num_slots: int) -> int:
    """Rows that are loaded although they were there before, with a list from the oldest to the newest use."""
    held: list[int] = []
    seen: set[int] = set()
    again = 0
    for batch in batches:
        again += len(set(batch) & seen - set(held))
        seen |= set(batch)
        kept = [row for row in held if row not in batch]
        held = [*kept[max(0, len(kept) + len(batch) - num_slots) :], *batch]
    return again


def test_shares_are_of_the_rows_that_all_batches_need(folder: Path) -> None:
    found = series(folder)
    batches = batches_of(folder)
    needed = sum(map(len, batches))
    assert len(batches) == found["num_batches"] >= 4
    assert (found["num_needed"], found["num_first_uses"]) == (needed, len(set().union(*batches)))
    assert 0 < found["num_first_uses"] < found["num_needed"]
    for one in found["curve"]:
        assert one["refetched_share"] == one["num_refetched"] / needed
        assert one["bytes"] == one["num_slots"] * ROW_BYTES


def test_each_size_of_lru_is_that_of_a_cache_that_runs(folder: Path) -> None:
    batches = batches_of(folder)
    curve = [one for one in series(folder)["curve"] if one["policy"] == "lru"]
    slots = [one["num_slots"] for one in curve]
    assert slots[0] == max(map(len, batches)) and slots[-1] == len(set().union(*batches))
    assert curve[0]["num_refetched"] > 0 == curve[-1]["num_refetched"]
    assert [one["num_refetched"] for one in curve] == [naive_lru(batches, each) for each in slots]


def test_no_policy_refetches_less_than_lookahead(folder: Path) -> None:
    curve = series(folder)["curve"]
    best = {one["num_slots"]: one["num_refetched"] for one in curve if one["policy"] == "lookahead"}
    assert {one["policy"] for one in curve} == {"lookahead", "lru", "lfu", "dataset", "static"}
    assert all(one["num_refetched"] >= best[one["num_slots"]] for one in curve)


def test_workers_change_nothing_and_a_log_below_a_batch_has_no_curve(folder: Path) -> None:
    assert series(folder, workers=2) == series(folder)
    empty = series(folder, batch_size=1_000)
    assert empty["curve"] == [] and empty["num_needed"] == empty["num_batches"] == 0


@pytest.fixture
def inspected(tmp_path: Path, rng: np.random.Generator) -> Inspected:
    config = PreprocessConfig(count=CountConfig(eval_fraction=0.25))
    run_to("split", tmp_path, draw_samples(200, rng), config)
    return Inspected.open(tmp_path, Resources(workers=1))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_whole_training_part_comes_in_the_shuffled_order(inspected: Inspected, workers: int) -> None:
    told: list[tuple[int, int]] = []
    resources = Resources(workers=workers, progress=lambda _, done, total: told.append((done, total)))
    drawn = draw_trace(replace(inspected, resources=resources), 10**6, seed=5)
    samples = inspected.samples
    assert told[-1] == (150, 150) and [done for done, _ in told] == sorted({done for done, _ in told})
    ids = np.concatenate(
        [fixed_lists(read_batch(samples, entry).column("ids"), 26, np.int32) for entry in samples.files]
    )
    order = sorted(range(150), key=lambda sample: int(mix64_pair(np.uint64(5), np.uint64(sample))))
    first_row = np.cumsum([0, *(table["num_rows"] for table in samples.totals["tables"])])[:-1]
    np.testing.assert_array_equal(drawn.rows.reshape(150, 26), ids[order] + first_row)
    assert drawn.batch_starts(64).tolist() == [0, 64 * 26, 128 * 26]


def test_a_shorter_trace_is_the_beginning_of_a_longer_one(
    inspected: Inspected, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, part = (draw_trace(inspected, number) for number in (150, 60))
    assert 20 < part.num_samples < 110
    np.testing.assert_array_equal(part.rows, whole.rows[: part.rows.shape[0]])
    monkeypatch.setattr(traffic, "MAX_LOOKUPS", 26 * 40)
    assert draw_trace(inspected, 150).num_samples < 80
    assert draw_trace(inspected, 0).num_samples == 0


def test_lists_are_cut_with_their_samples() -> None:
    lists = TableLookups(np.arange(6, dtype=np.int32), np.array([0, 2, 2, 6], np.int32))
    assert lists.num_samples == 3
    part = lists.of_samples(1, 3)
    assert part.ids.tolist() == [2, 3, 4, 5] and part.offsets.tolist() == [0, 0, 4]
    assert TableLookups(np.arange(6, dtype=np.int32), ONE_EACH).of_samples(2, 4).ids.tolist() == [2, 3]


def runs_of(folder: Path, workers: int = 1) -> Any:
    return frequency_statistics(folder, Resources(workers=workers), series=["default_runs"])


@pytest.fixture(scope="module", params=["grouped", "original", "lists of two widths"])
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(4)
    if request.param == "lists of two widths":
        log = draw_log(180, KINDS, rng, empty_lists=True)
        config = recipe(log, "parquet")
        split = SplitConfig(
            hot_bytes=ByteSize(128 * 12), feature_dims=FeatureSettings([("user", 8), ("tags", 8)])
        )
        config = PreprocessConfig(ingest=config.ingest, count=config.count, split=split, pack=config.pack)
        preprocess([write_parquet(folder / "log.parquet", log)], config, folder, Resources(workers=1))
    else:
        split = SplitConfig(hot_bytes=ByteSize(128 * 40))
        pack = PackConfig(batch_size=3, order=request.param)
        run_to("pack", folder, draw_samples(180, rng), PreprocessConfig(split=split, pack=pack))
    return folder


@pytest.fixture(scope="module")
def simulated(packed: Path) -> Any:
    """Return the series of all placements at once."""
    return runs_of(packed)["default_runs"]


@pytest.mark.diagonal(3)
@pytest.mark.parametrize("placement", ["all-fast", "hybrid", "hybrid-dedup", "fae", "lookahead", "cache"])
def test_a_run_moves_what_the_series_says(packed: Path, simulated: Any, placement: Any) -> None:
    found = simulated
    shards = ShardSet.open(packed)
    trainer = trained(shards, placement=placement, fae_variant="code")
    (row,) = (row for row in found["placements"] if row["placement"] == placement)
    assert (row["bytes_to_fast"], row["bytes_to_slow"]) == trainer.meter.training_bytes()
    settings = found["settings"]
    assert (
        settings["num_samples"] == shards.num_training_samples and settings["batch_size"] == shards.batch_size
    )
    assert settings["num_batches"] == settings["num_epoch_batches"] == shards.num_training_batches
    assert row["bytes_to_fast_per_sample"] == row["bytes_to_fast"] / shards.num_training_samples
    if placement in ("lookahead", "cache"):
        source = trainer.step_source
        assert (row["shortened"], row["split"]) == (source.num_shortened, source.num_split)
        assert row["rows_initialized"] > 0
        # With few slots rows come back, so that the depth and the slots make a difference.
        assert row["bytes_to_fast"] > 0 or shards.tables[0].is_multi_hot
        config = placements.with_staging(TrainConfig(placement=placement), shards)
        slots = placements.staging_slots(config, shards)
        assert (settings["prefetch"], settings["num_slots"]) == (config.prefetch, sum(slots.values()))


def test_the_settings_are_the_defaults_of_training() -> None:
    config = TrainConfig()
    assert (config.seed, config.cache_policy) == (traffic.SEED, traffic.CACHE_POLICY)
    assert config.cache_warmup == staging_planner.DEFAULT_WARMUP_RATIO and config.cache_batches == 1


def test_a_long_epoch_is_cut_off_and_said(
    packed: Path, simulated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = simulated["settings"]
    monkeypatch.setattr(traffic, "EPOCH_LOOKUPS", 4 * 3 * 26)
    cut_off = runs_of(packed)
    found = cut_off["default_runs"]
    assert found == runs_of(packed, workers=2)["default_runs"]
    assert (
        1 <= found["settings"]["num_batches"] < whole["num_batches"] == found["settings"]["num_epoch_batches"]
    )
    # The copies of fae's hot rows are those of a whole epoch.
    assert "fae" not in [row["placement"] for row in found["placements"]]
    assert any("placement fae" in line for line in cut_off["left_out"])
    hybrid = next(row for row in found["placements"] if row["placement"] == "hybrid")
    vectors = found["settings"]["num_samples"] * sum(
        4 * table.embedding_dim for table in ShardSet.open(packed).tables
    )
    assert hybrid["bytes_to_fast"] == vectors


def test_without_shards_nothing_is_simulated(tmp_path: Path) -> None:
    run_to("split", tmp_path, draw_samples(60, np.random.default_rng(4)), PreprocessConfig())
    found = runs_of(tmp_path)
    assert found["default_runs"] == {"settings": {}, "placements": []}
    assert found["left_out"] == ["what the placements move: there are no shards yet (hotset pack)"]


def test_shards_with_more_rows_than_the_vocabulary_are_refused(tmp_path: Path) -> None:
    """A planner indexes its arrays by the rows of the shards: a crafted manifest must not lead it outside."""
    pack = PackConfig(batch_size=16)
    run_to("pack", tmp_path, draw_samples(60, np.random.default_rng(4)), PreprocessConfig(pack=pack))
    parts = json.loads((tmp_path / "shards" / "manifest.json").read_text())
    parts["totals"]["tables"][0]["num_rows"] += 10**6
    parts["totals"]["num_rows"] += 10**6
    write_manifest(tmp_path / "shards", parts)
    with pytest.raises(ManifestError, match=r"shards has tables of other rows than .*vocabulary"):
        runs_of(tmp_path)
