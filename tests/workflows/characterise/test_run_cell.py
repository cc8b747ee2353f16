"""What a cell's steps are summed up to, from laps that are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hotset.tests.support.planning.made_up_cells import TINY, made_up_record
from hotset.workflows.characterise import run_cell as module
from hotset.workflows.characterise.cell_batches import WARM_UP_STEPS, num_steps_of
from hotset.workflows.characterise.run_cell import CellRecord, mean_record, run_cell, training_of
from hotset.workflows.characterise.timed_steps import StepLaps, TimedRun


def made_up_run(seconds: list[float]) -> TimedRun:
    """Steps of which the even ones have a part that the odd ones lack."""
    laps = [
        StepLaps(each, {"lookup": 0.75 * each, "idle" if number % 2 else "update": 0.25 * each}, number)
        for number, each in enumerate(seconds)
    ]
    rows = {"to_fast": 54, "to_slow": 27, "made": 9}
    return TimedRun(laps, 8.0, 4.0, rows, {"to fast": 270, "dense": 54}, 0.25)


def measured(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], placement: str = "all-fast"
) -> CellRecord:
    def time_steps(trainer: Any, num_warm_up: int) -> TimedRun:
        return made_up_run(seconds)

    monkeypatch.setattr(module, "time_steps", time_steps)
    monkeypatch.setattr(module, "build_trainer", lambda *_, **__: None)
    return run_cell(replace(TINY, batch_size=8, placement=placement), 2)


def test_single_slow_steps_change_nothing_and_parts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = measured(monkeypatch, [4.0, 1.0, 2.0, 3.0, 3.0, 2.0, 3.0, 9.0])
    disturbed = measured(monkeypatch, [4.0, 1.0, 2.0, 3.0, 3.0, 2.0, 3.0, 900.0])
    assert quiet.step_seconds == disturbed.step_seconds == (2 + 3 + 3 + 3) / 4
    for record in (quiet, disturbed):
        assert sum(record.parts.values()) == pytest.approx(record.step_seconds)
        assert record.parts["lookup"] == pytest.approx(0.75 * record.step_seconds)
        assert record.num_steps == 8 and record.distinct_rows == 3.5
        assert record.beside == {"load": 1.0, "transfers": 0.5}


def test_both_kinds_of_batches_count_as_often_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [1.0, 1.0, 1.0, 4.0, 4.0, 7.0]
    found = measured(monkeypatch, turns * 2, "fae")
    # The slow steps are those of mixed batches and of copies, and no disturbance that would be left out.
    assert found.step_seconds == pytest.approx(3.0) and found.num_steps == 12
    assert sum(found.parts.values()) == pytest.approx(3.0)
    assert found.distinct_rows == pytest.approx(5.5)
    assert measured(monkeypatch, turns * 2).step_seconds == pytest.approx(2.5)
    # Of several cycles those between the quartiles count, as single steps do elsewhere.
    assert measured(monkeypatch, [*turns * 3, *[9.0] * 6], "fae").step_seconds == pytest.approx(3.0)


def test_rows_are_those_of_a_step_of_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    record = measured(monkeypatch, [1.0] * 4)
    num_steps = WARM_UP_STEPS + num_steps_of(replace(TINY, batch_size=8))
    assert num_steps == 27
    assert (record.to_fast_rows, record.to_slow_rows) == (2.0, 1.0)
    assert record.initialized_rows == pytest.approx(1 / 3)
    assert record.link_bytes == {"to fast": 10.0, "dense": 2.0}
    assert record.probe_seconds == 0.25


def test_the_record_of_several_ranks_is_their_mean_with_the_most_memory() -> None:
    first = replace(made_up_record(TINY), step_seconds=2.0, parts={"lookup": 1.0}, memory_bytes=5)
    first = replace(first, probe_seconds=1.0)
    parts = {"lookup": 2.0, "exchange": 1.0}
    second = replace(first, step_seconds=4.0, parts=parts, memory_bytes=3, probe_seconds=2.0)
    found = mean_record([first, second])
    assert (found.step_seconds, found.memory_bytes, found.probe_seconds) == (3.0, 5, 1.5)
    assert found.parts == {"lookup": 1.5, "exchange": 0.5}
    assert mean_record([first]) == first


def test_a_cell_of_several_ranks_needs_their_processes() -> None:
    with pytest.raises(AssertionError, match="several ranks need"):
        run_cell(replace(TINY, ranks=2), 2)


@pytest.mark.parametrize(
    ("batch_size", "num_steps"), [(1, 24), (1366, 23), (2048, 16), (5461, 6), (16_384, 6)]
)
def test_large_batches_have_fewer_steps_within_limits(batch_size: int, num_steps: int) -> None:
    assert num_steps_of(replace(TINY, batch_size=batch_size)) == num_steps


@pytest.mark.parametrize("placement", ["all-fast", "hybrid", "cache", "lookahead", "fae"])
def test_a_cell_is_trained_with_its_factors(placement: str) -> None:
    config = training_of(replace(TINY, placement=placement, optimizer="adam", fast_share=1e-9), 3)
    assert (config.placement, config.embedding_optimizer, config.threads) == (placement, "adam", 3)
    assert (config.bottom_mlp, config.top_mlp) == (TINY.bottom_mlp, TINY.top_mlp)
    # However small its share, a placement that stages has a byte at least, which training takes up to a row.
    assert (config.staging_bytes is not None) is (placement in ("cache", "lookahead"))
