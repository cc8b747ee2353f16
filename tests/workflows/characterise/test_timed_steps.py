"""The parts of a step on a clock that only its work moves: they are the whole step, unless one is missed."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotset.tests.support.planning.made_up_cells import TINY
from hotset.train.execution.embeddings import Embeddings
from hotset.train.model import dense_tile
from hotset.train.model.dense_step import StepTile, TiledStep
from hotset.train.model.mlp_tiles import Fp32Mlp, PackedMlp
from hotset.train.model.tile_gradients import TileGradients
from hotset.train.work_threads import WorkThreads
from hotset.workflows.characterise import timed_steps as module
from hotset.workflows.characterise.cell_batches import WARM_UP_STEPS
from hotset.workflows.characterise.run_cell import CellRecord, run_cell

WORK = {"wait": 2.0, "look_up": 3.0, "update": 5.0, "mlp": 7.0, "interact": 11.0, "add": 13.0, "tile": 17.0}
"""Seconds of one call of each."""


class Clock:
    """Time that passes where it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waited = 0.0

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.now - self.waited

    def wait(self, seconds: float) -> None:
        """Let time pass in which no thread works."""
        self.now += seconds
        self.waited += seconds

    def slow(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, work: str) -> None:
        """Let each call take its time."""
        own: Callable[..., Any] = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            self.now += WORK[work]
            return own(*args, **options)

        monkeypatch.setattr(owner, name, call)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    for owner, name, work in (
        (Embeddings, "wait_for_rows", "wait"),
        (Embeddings, "look_up", "look_up"),
        (Embeddings, "update", "update"),
        (Fp32Mlp, "forward", "mlp"),
        (Fp32Mlp, "backward", "mlp"),
        (PackedMlp, "forward", "mlp"),
        (PackedMlp, "backward", "mlp"),
        (dense_tile, "interact", "interact"),
        (dense_tile, "interact_backward", "interact"),
        (TileGradients, "add", "add"),
        (TiledStep, "_make_room", "tile"),
    ):
        clock.slow(monkeypatch, owner, name, work)
    return clock


def measured(tmp_path: Path) -> CellRecord:
    # Two tiles of 350 samples, on one thread: nothing runs beside the clock.
    return run_cell(replace(TINY, batch_size=700), 1, tmp_path)


def test_parts_are_measured_one_by_one_and_are_the_whole_step(tmp_path: Path) -> None:
    record = measured(tmp_path)
    mlp, dots = WORK["mlp"], WORK["interact"]
    assert record.parts == {
        "load": 0.0,
        "transfers": WORK["wait"],
        "lookup": WORK["look_up"],
        "bottom": 2 * mlp,
        "interaction": 4 * dots,
        "top": 2 * mlp,
        "backward": 4 * mlp,
        "reduce": WORK["add"],
        "update": WORK["update"],
        # The interpreter prepares the pass; a single thread never waits for another one.
        "idle": WORK["tile"],
    }
    assert sum(record.parts.values()) == record.step_seconds and record.adds_up


@pytest.mark.parametrize("part", ["transfers", "lookup", "interaction", "update"])
def test_a_part_without_a_watch_is_found_missing(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = module._Watch.__call__

    def call(self: Any, name: str) -> Any:
        return nullcontext() if name == part else own(self, name)

    monkeypatch.setattr(module._Watch, "__call__", call)
    record = measured(tmp_path)
    missing = record.step_seconds - sum(record.parts.values())
    # What the tile does around its layers is missing; its layers have watches of their own.
    wanted = {"transfers": 2.0, "lookup": 3.0, "interaction": 4 * WORK["interact"], "update": 5.0}
    assert missing == pytest.approx(wanted[part]) and part not in record.parts
    assert record.adds_up is (wanted[part] <= 0.03 * record.step_seconds)


def test_a_thread_waits_for_its_first_piece_and_for_the_last_of_others(clock: Clock) -> None:
    class Turns:
        """Two threads whose pieces follow each other."""

        num_threads = 2

        def run(self, work: Callable[[int, int], object], num_pieces: int) -> None:
            clock.now += 1.0
            for piece in range(num_pieces):
                work(piece, piece % 2)

    def work(piece: int, worker: int) -> None:
        with threads.waits_of(worker).none(tiles[worker]):
            clock.now += 10.0

    tiles = [module._Watch(), module._Watch()]
    watch = module._Watch()
    threads = module._TimedThreads(Turns(), watch)  # type: ignore[arg-type]
    with watch("idle"):
        threads.run(work, 3)
        clock.now += 4.0
    # 31 seconds of two threads, of which 30 were worked; the last 4 are the loop's own.
    assert threads.take() == pytest.approx((2 * 31 - 30) / 2) and threads.take() == 0
    assert watch.take() == {"idle": 4.0, "in threads": 31.0}


def test_weights_that_are_put_in_order_for_products_count_as_updates(clock: Clock) -> None:
    def pack() -> None:
        clock.now += 8.0

    watch = module._Watch()
    threads = module._TimedThreads(WorkThreads(1), watch)
    with watch("idle"):
        threads.run_all(pack, pack)
    assert watch.take() == {"idle": 0.0, "update": 16.0} and threads.take() == 0


def test_the_interpreter_between_the_passes_of_a_tile_is_idling(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = measured(tmp_path)
    own = module.TimedStep.tile_of

    def tile_of(self: module.TimedStep, worker: int) -> StepTile:
        # Another thread holds the interpreter while this one asks for its tile, before each of both passes.
        clock.now += 19.0
        return own(self, worker)

    monkeypatch.setattr(module.TimedStep, "tile_of", tile_of)
    found = measured(tmp_path)
    assert found.parts == before.parts | {"idle": before.parts["idle"] + 4 * 19.0}
    assert sum(found.parts.values()) == found.step_seconds == before.step_seconds + 4 * 19.0


def test_waiting_between_two_parts_is_idling_and_work_there_is_missing(clock: Clock) -> None:
    clock.now = 100.0
    watch = module._Watch()
    watch.begin(98.0)
    with watch("lookup"):
        clock.now += 3.0
        clock.wait(1.0)
    clock.wait(7.0)
    clock.now += 5.0
    with watch("update"):
        clock.now += 2.0
    clock.wait(4.0)
    assert watch.end() == 122.0
    # Waiting inside of a part is the part's own; that before the first one began with the reading given.
    assert watch.take() == {"lookup": 4.0, "update": 2.0, "idle": 2.0 + 7.0 + 4.0}
    assert watch.take() == {}


def test_parts_are_the_whole_step_where_other_threads_hold_the_interpreter_between_them(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = measured(tmp_path)
    pass_dense = module._pass_dense
    mlp = module._TimedTile.forward

    def late_pass(*args: Any) -> None:
        clock.wait(23.0)
        pass_dense(*args)
        clock.wait(29.0)

    def late_tile(self: Any, *args: Any) -> Any:
        clock.wait(31.0)
        return mlp(self, *args)

    monkeypatch.setattr(module, "_pass_dense", late_pass)
    monkeypatch.setattr(module._TimedTile, "forward", late_tile)
    found = measured(tmp_path)
    waits = 23.0 + 29.0 + 2 * 31.0
    assert found.parts == before.parts | {"idle": before.parts["idle"] + waits}
    assert sum(found.parts.values()) == found.step_seconds == before.step_seconds + waits


def test_the_work_that_tells_the_speed_is_in_the_seconds_of_no_step(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = measured(tmp_path)
    calls: list[bool] = []

    class SlowProbe:
        """Takes 1,000 seconds, and ever more of them."""

        def __init__(self, threads: WorkThreads) -> None:
            self.seconds: list[float] = []

        def take(self, *, now: bool = False) -> None:
            calls.append(now)
            clock.now += 1000.0
            self.seconds.append(float(len(calls)))

    monkeypatch.setattr(module, "SpeedProbe", SlowProbe)
    found = measured(tmp_path)
    assert (found.step_seconds, found.parts) == (without.step_seconds, without.parts)
    # Once behind each step; the first of those that are measured is asked for, and the warm-up is left out.
    assert calls == [True] * (WARM_UP_STEPS + 1) + [False] * (found.num_steps - 1)
    of_steps = range(WARM_UP_STEPS + 1, len(calls) + 1)
    assert found.probe_seconds == statistics.median(of_steps)
