"""A schedule on disk is what a run would have planned, and is used only where it is for the run.

Tests `choose_placement`, too.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.stages.schedule import ScheduleConfig, schedule
from hotset.tests.support.shard_factory import write_shards
from hotset.tests.support.trained_models import assert_equal_bits, trained
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.placements.plan_queue import PlanQueue
from hotset.train.placements.schedule_file import Schedule
from hotset.train.placements.staging_placements import Lookahead

SETTINGS: dict[str, Any] = {"staging_bytes": ByteSize(1500), "prefetch": 1, "epochs": 2}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    shards = write_shards(tmp_path / "shards", skew=1.2, table_dims=(4, 8, 4), multi_hot=(1,))
    schedule(ScheduleConfig(split_batches=True, **SETTINGS), Manifest.read(shards), tmp_path / "schedule")
    return tmp_path


def test_training_runs_the_schedule_and_moves_what_it_says(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Shards.open(data)
    planned = trained(shards, placement="lookahead", plan="epoch", **SETTINGS)
    monkeypatch.setattr(PlanQueue, "finish", None)  # no plan is made any more
    scheduled = trained(shards, placement="lookahead", **SETTINGS)
    assert_equal_bits(scheduled, planned)
    totals = Manifest.read(data / "schedule").totals
    assert scheduled.meter.training_bytes() == planned.meter.training_bytes()
    assert scheduled.meter.training_bytes() == (totals["bytes_to_fast"], totals["bytes_to_slow"])


def test_large_epochs_are_planned_online_unless_there_is_a_schedule(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Shards.open(data)
    planned = trained(shards, placement="lookahead", plan="epoch", **SETTINGS)
    monkeypatch.setattr("hotset.train.placements.choose_placement.MOST_LOOKUPS", 10)
    scheduled = trained(shards, placement="lookahead", **SETTINGS)
    assert scheduled.meter.training_bytes() == planned.meter.training_bytes()
    monkeypatch.setattr(Schedule, "find", lambda *_: None)
    online = trained(shards, placement="lookahead", window=1, **SETTINGS)
    for trainer in (scheduled, online):
        assert_equal_bits(trainer, planned)
    (placement,) = {type(width.placement) for width in online.embeddings.widths}
    assert placement is Lookahead and not online.embeddings.widths[0].placement.needs_whole_epoch  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 3}, "it has seed 0, the run 3"),
        ({"prefetch": 2}, "it has prefetch 1, the run 2"),
        ({"epochs": 3}, "it has 2 epochs, the run 3"),
        ({"embedding_optimizer": "adagrad"}, "it is for rows of sgd, the run uses adagrad"),
    ],
)
def test_a_schedule_of_another_run_is_left_alone(
    change: dict[str, Any], message: str, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(Shards.open(data), placement="lookahead", **(SETTINGS | change))
    assert message in caplog.text


def test_a_schedule_with_a_window_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shards = Manifest.read(write_shards(tmp_path / "shards"))
    config = ScheduleConfig(window=4, split_batches=True, **SETTINGS)
    schedule(config, shards, tmp_path / "schedule")
    assert Schedule.find(Shards.open(tmp_path), TrainConfig(placement="lookahead", **SETTINGS)) is None
    assert "it has window 4, the run None" in caplog.text


def test_a_schedule_for_other_hot_rows_is_left_alone(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shards = Shards.open(data)
    other = shards.with_hot_rows([0] * len(shards.tables))
    assert Schedule.find(other, TrainConfig(placement="lookahead", **SETTINGS)) is None
    assert "it was written for other hot rows" in caplog.text


def test_the_defaults_of_schedule_are_those_of_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    shards = write_shards(tmp_path / "shards", skew=1.2, table_dims=(4, 8, 4), multi_hot=(1,))
    manifest = schedule(ScheduleConfig(), Manifest.read(shards), tmp_path / "schedule")
    monkeypatch.setattr(PlanQueue, "finish", None)  # no plan is made any more
    trainer = trained(Shards.open(shards), placement="lookahead")
    assert "does not fit" not in caplog.text
    assert manifest.config["prefetch"] == trainer.config.prefetch


def test_other_slots_or_another_order_are_planned_here(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    shards = Shards.open(data)
    other = trained(shards, placement="lookahead", **(SETTINGS | {"staging_bytes": ByteSize(900)}))
    # Said once for each width, and not in each epoch.
    assert [" slots, the run " in line for line in caplog.messages] == [True, True]
    reference = trained(shards, placement="all-fast", **SETTINGS)
    assert_equal_bits(other, reference)
    order = reference.numbers[::-1]
    caplog.clear()
    replayed = trained(shards, order, placement="lookahead", **SETTINGS)
    assert ["in another order" in line for line in caplog.messages] == [True, True]
    assert_equal_bits(replayed, trained(shards, order, placement="all-fast", **SETTINGS))


def test_a_schedule_that_lost_its_manifest_or_was_not_finished_is_refused(data: Path) -> None:
    shards = Shards.open(data)
    (data / "schedule" / "manifest.json").unlink()
    with pytest.raises(ManifestError, match=r"schedule is unfinished: it has no manifest\.json") as caught:
        trained(shards, placement="lookahead", **SETTINGS)
    assert caught.value.hint is not None and "hotset schedule" in caught.value.hint
    # A run that makes its own plans does not look at it.
    trained(shards, placement="lookahead", plan="epoch", **SETTINGS)


def test_no_schedule_is_none(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards"))
    trainer = trained(shards, placement="lookahead")
    assert Schedule.find(shards, trainer.config) is None
