"""The miss-ratio series of a folder: held against caches simulated batch by batch from its ids."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.inspect.miss_ratio_series import MissRatios, miss_ratios
from hotset.pipeline.inspect.training_trace import draw_trace
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.preprocess import PreprocessConfig
from hotset.tests.support.logs.criteo_text import draw_samples
from hotset.tests.support.naive.naive_stages import run_to

BATCH_SIZE, ROW_BYTES, NUM_TRAIN = 16, 128, 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    config = PreprocessConfig(count=CountConfig(eval_fraction=0.2))
    run_to("encode", folder, draw_samples(150, np.random.default_rng(4)), config)
    return folder


def series(folder: Path, batch_size: int = BATCH_SIZE, workers: int = 1) -> MissRatios:
    vocabulary, samples = Manifest.read(folder / "vocabulary"), Manifest.read(folder / "samples")
    return miss_ratios(
        vocabulary, samples, batch_size, ROW_BYTES, Resources(workers=workers), seed=3, num_batches=5
    )


def batches_of(folder: Path) -> list[list[int]]:
    """Distinct rows of each whole batch of the trace, in order of first appearance."""
    trace = draw_trace(Manifest.read(folder / "samples"), NUM_TRAIN, 5 * BATCH_SIZE, seed=3)
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
