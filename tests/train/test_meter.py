"""Seconds and bytes by kind of work."""

from __future__ import annotations

import pytest
import torch

from hotset.train.meter import Meter


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """A meter whose clock ticks one second a look."""
    ticks = iter(range(10_000))
    monkeypatch.setattr("hotset.train.meter.time.perf_counter", lambda: float(next(ticks)))
    return Meter(torch.device("cpu"))


def test_seconds_go_to_the_kind_of_work(meter: Meter) -> None:
    for kind in ("hot_only", "mixed", "mixed", "hot_only", None):
        meter.enter(kind)
    assert meter.seconds == {
        "hot_only": 2.0,
        "mixed": 1.0,
        "switch": 0.0,
        "flush": 0.0,
        "evaluation": 0.0,
        "checkpoint": 0.0,
    }


def test_work_inside_other_work_is_not_counted_twice(meter: Meter) -> None:
    meter.enter("mixed")
    with meter.during("evaluation"):
        meter.moved(to_fast=5)
    meter.moved(to_fast=3, to_slow=2)
    meter.enter(None)
    assert meter.seconds["mixed"] == 2.0 and meter.seconds["evaluation"] == 1.0
    assert meter.training_seconds == 2.0
    assert meter.training_bytes() == (3, 2)
    assert meter.bytes_to_fast["evaluation"] == 5


def test_a_stopped_clock_counts_nothing(meter: Meter) -> None:
    meter.moved(to_fast=7)
    with meter.during("evaluation"):
        pass
    assert meter.training_bytes() == (0, 0)
    assert meter.seconds["evaluation"] == 1.0


def test_many_laps_are_added_up(meter: Meter) -> None:
    for _ in range(1000):
        meter.enter("mixed")
        meter.enter("hot_only")
    meter.enter(None)
    assert meter.seconds["mixed"] == meter.seconds["hot_only"] == 1000.0
