"""Estimates before a run: sums that follow from formats, and how they grow with the log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotset.pipeline.preview import estimate as module
from hotset.pipeline.preview.estimate import Estimate, estimate_run
from hotset.pipeline.preview.log_sample import LogSample
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.tests.support.logs.criteo_text import SCHEMA

STAGES = ["ingest", "count", "rank", "encode", "split", "pack"]
SAMPLE = LogSample(
    text_bytes=[200_000.0, 100_000.0],
    samples=[2000.0, 1000.0],
    num_sampled=3000,
    column_bytes=160.0,
    distinct={name: (100, 150, 200) for name in SCHEMA.sparse},
    num_lookups={name: 3000 for name in SCHEMA.sparse},
    category_bytes={name: 4 for name in SCHEMA.sparse},
    list_lookups=0.0,
    parse_seconds=1e-9,
)


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine as fast as the one that the costs were measured on."""
    monkeypatch.setattr(module, "yardstick_seconds", lambda: module._YARDSTICK_SECONDS)


def estimated(
    sample: LogSample = SAMPLE, count: CountConfig | None = None, *, min_count: int = 1, workers: int = 1
) -> Estimate:
    return estimate_run(
        sample,
        IngestConfig(),
        count or CountConfig(eval_fraction=0.25),
        PackConfig(batch_size=100),
        [min_count] * len(SCHEMA.sparse),
        workers=workers,
    )


def test_every_stage_has_bytes_seconds_and_memory() -> None:
    found = estimated()
    assert (found.num_samples, found.num_train) == (3000, 2250)
    for of_stages in (found.folder_bytes, found.core_seconds, found.memory_bytes):
        assert list(of_stages) == STAGES and all(value > 0 for value in of_stages.values())


@pytest.mark.parametrize(
    ("config", "num_train"),
    [
        (CountConfig(eval_fraction=0.0), 3000),
        (CountConfig(eval_fraction=0.5), 1500),
        (CountConfig(eval_files=1), 2000),
    ],
)
def test_the_training_part_is_that_of_count(config: CountConfig, num_train: int) -> None:
    assert estimated(count=config).num_train == num_train


def test_bytes_of_values_follow_from_the_formats() -> None:
    """Twice the samples of the same categories: what is stored per sample doubles, beside headers."""
    once = estimated()
    twice = estimated(replace(SAMPLE, samples=[4000.0, 2000.0], text_bytes=[400_000.0, 200_000.0]))
    assert twice.folder_bytes["ingest"] - once.folder_bytes["ingest"] == pytest.approx(3000 * 160)
    assert twice.folder_bytes["encode"] - once.folder_bytes["encode"] == pytest.approx(3000 * 4 * 26)
    assert twice.folder_bytes["split"] - once.folder_bytes["split"] == pytest.approx(3000)
    for stage in ("ingest", "encode", "split", "pack", "count"):
        assert twice.core_seconds[stage] == pytest.approx(2 * once.core_seconds[stage])


def test_rows_are_fewer_where_rare_categories_share_one() -> None:
    every, frequent = estimated(), estimated(min_count=10)
    # Two rows of each table have no category of their own: missing, and oov.
    assert 26 * 150 < every.num_rows <= 26 * 202
    assert 26 * 2 < frequent.num_rows < every.num_rows
    assert frequent.folder_bytes["count"] == every.folder_bytes["count"], "rare categories are counted too"
    assert frequent.folder_bytes["rank"] < every.folder_bytes["rank"]


def test_a_window_of_several_files_writes_the_counts_of_each() -> None:
    whole = estimated(count=CountConfig(eval_fraction=0.25))
    window = estimated(count=CountConfig(eval_fraction=0.25, count_last=2))
    assert window.folder_bytes["count"] > 1.5 * whole.folder_bytes["count"]


def test_more_workers_hold_more_and_take_no_more_core_seconds() -> None:
    one, four = estimated(), estimated(workers=4)
    assert four.memory_bytes["ingest"] == pytest.approx(4 * one.memory_bytes["ingest"])
    assert four.core_seconds == one.core_seconds


def test_a_slower_machine_takes_longer_where_it_was_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = estimated()
    monkeypatch.setattr(module, "yardstick_seconds", lambda: 3 * module._YARDSTICK_SECONDS)
    slow = estimated()
    assert slow.core_seconds["ingest"] == fast.core_seconds["ingest"], "parsing was timed on this machine"
    for stage in STAGES[1:]:
        assert slow.core_seconds[stage] == pytest.approx(3 * fast.core_seconds[stage])
