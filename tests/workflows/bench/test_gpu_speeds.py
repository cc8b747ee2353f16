"""Runs of a group take turns in rounds, and one that breaks or has no time costs no other its figures."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hotset.train.config import PlacementName, TrainConfig
from hotset.train.data.shards import ShardSet
from hotset.train.gpu.queued_steps import QueuedTransfers
from hotset.train.loop import Trainer
from hotset.workflows.bench import gpu_speeds
from hotset.workflows.bench.gpu_checks import STAGING_BYTES, small_shards
from hotset.workflows.bench.gpu_day import PartSettings, Records
from hotset.workflows.bench.gpu_speeds import (
    Contestant,
    HotsetRun,
    RunInTurns,
    Turn,
    Turns,
    _fitting,
    _in_order,
    _most_runs,
    measure_in_turns,
    train_an_epoch,
)

_TURNS = Turns(rounds=3, seconds=1.0, most_steps=9, steps_ahead=0)


class Table:
    """The runs of a test: notes what each does, and lets time pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self.now = 0.0
        self.build_seconds = self.turn_seconds = 1.0
        self.speeds: dict[str, list[float]] = {}
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(gc, "collect", lambda: None)  # quick only in a small process
        monkeypatch.setattr(gpu_speeds, "RunInTurns", lambda contestant, turns: Run(self, contestant.name))

    def say(self, text: str) -> None:
        self.said.append(text)

    def measure(self, folder: Path, seconds: float, *names: str) -> dict[str, dict[str, Any]]:
        """Measure, and return the content of all records by their kinds and names."""
        path = folder / "records"
        path.unlink(missing_ok=True)
        records = Records(path, seconds)
        shards = cast(ShardSet, None)
        contestants = [
            Contestant(name=name, shards=shards, config=TrainConfig(), facts={"name": name}) for name in names
        ]
        for piece in records.pieces(["all"]):
            measure_in_turns(piece, contestants, _TURNS, records)
        found: dict[str, dict[str, Any]] = {"row": {}, "check": {}, "done": {}, "fact": {}, "pieces": {}}
        for line in path.read_text().splitlines():
            ((kind, content),) = json.loads(line).items()
            found[kind][content.get("name", "")] = content
        return found


class Run:
    """Stands for a run that takes turns."""

    def __init__(self, table: Table, name: str) -> None:
        self.run = self
        self._table = table
        self._name = name
        table.now += table.build_seconds
        self._speeds = iter(table.speeds.get(name, [10.0] * _TURNS.rounds))
        if name == "not built":
            raise ZeroDivisionError("while it is built")

    def warm_up(self) -> None:
        self._table.say(f"warm {self._name}")
        if self._name == "not warm":
            raise ZeroDivisionError("in the first steps")

    def turn(self) -> Turn:
        self._table.say(self._name)
        self._table.now += self._table.turn_seconds
        speed = next(self._speeds)
        if not speed:
            raise ZeroDivisionError("in a turn")
        return Turn(num_samples=int(2 * speed), steps=4, seconds=2.0)

    def counted(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._table.say(f"close {self._name}")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(monkeypatch)


def test_runs_take_turns_in_one_order_and_in_the_other(table: Table, tmp_path: Path) -> None:
    table.speeds = {"all-fast": [10.0, 20.0, 90.0], "b": [5.0, 20.0, 9.0], "c": [20.0, 30.0, 270.0]}
    found = table.measure(tmp_path, 1000.0, "all-fast", "b", "c")
    assert table.said[:3] == ["warm all-fast", "warm b", "warm c"]
    assert table.said[3:12] == ["all-fast", "b", "c", "c", "b", "all-fast", "all-fast", "b", "c"]
    assert table.said[12:15] == ["close all-fast", "close b", "close c"]
    row = found["row"]["b"]
    assert (row["samples_per_second"], row["rounds"], row["group"]) == (9.0, [5.0, 20.0, 9.0], "all")
    assert (row["steps"], row["seconds"]) == (12, 6.0)
    # The median of the ratios 0.5, 1 and 0.1, not the ratio of the medians.
    assert row["of_all_fast"] == 0.5 and found["row"]["c"]["of_all_fast"] == 2.0
    assert found["check"] == {} and found["done"].keys() == {"all"}
    # Each round is written down, so that a later turn that hangs costs nothing before it.
    assert found["fact"][""]["turns of all"]["c"] == [20.0, 30.0, 270.0]


@pytest.mark.parametrize(
    ("name", "speeds", "detail"),
    [
        ("not built", [10.0], "while it is built"),
        ("not warm", [10.0], "in the first steps"),
        ("breaks", [10.0, 0.0], "in a turn"),
    ],
)
def test_a_run_that_raises_is_a_check_that_failed_and_the_others_go_on(
    name: str, speeds: list[float], detail: str, table: Table, tmp_path: Path
) -> None:
    table.speeds = {name: speeds}
    found = table.measure(tmp_path, 1000.0, "all-fast", name, "c")
    assert found["row"].keys() == {"all-fast", "c"} and found["check"].keys() == {f"speed of {name}, all"}
    check = found["check"][f"speed of {name}, all"]
    assert not check["is_right"] and detail in check["detail"]
    assert len(found["row"]["c"]["rounds"]) == _TURNS.rounds and found["done"].keys() == {"all"}
    # It is released at once, and has no turn any more.
    if name != "not built":
        assert name not in table.said[table.said.index(f"close {name}") + 1 :]


def test_without_the_reference_there_is_no_ratio(table: Table, tmp_path: Path) -> None:
    table.speeds = {"all-fast": [10.0, 0.0]}
    found = table.measure(tmp_path, 1000.0, "all-fast", "b")
    assert "of_all_fast" not in found["row"]["b"] and found["row"].keys() == {"b"}


def test_where_time_runs_out_the_round_is_the_last_one(table: Table, tmp_path: Path) -> None:
    table.turn_seconds = 10.0
    # Two runs are built in 2 seconds, and a round takes 20.
    found = table.measure(tmp_path, 60.0, "all-fast", "b")
    assert [len(row["rounds"]) for row in found["row"].values()] == [2, 2]
    assert found["done"].keys() == {"all"}
    # There is one round in any case.
    found = table.measure(tmp_path, table.now + 3.0, "all-fast", "b")
    assert [len(row["rounds"]) for row in found["row"].values()] == [1, 1]


def test_without_time_to_build_a_run_the_group_is_left_open(table: Table, tmp_path: Path) -> None:
    table.build_seconds = 20.0
    found = table.measure(tmp_path, 60.0, "all-fast", "b", "c")
    assert found["row"].keys() == {"all-fast", "b"}
    assert found["done"] == {} and found["check"] == {}


def trainer_of(run: RunInTurns) -> Trainer:
    assert isinstance(run.run, HotsetRun)
    return run.run.trainer


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    return small_shards(PartSettings("late", tmp_path_factory.mktemp("shards"), True), "turns", "sgd")


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["lookahead", "hybrid"])
def test_steps_that_were_read_ahead_do_not_count(placement: PlacementName, shards: ShardSet) -> None:
    config = TrainConfig(placement=placement, device="late", kernels="torch", staging_bytes=STAGING_BYTES)
    long = Turns(rounds=2, seconds=1000.0, most_steps=4, steps_ahead=3)
    run = RunInTurns(Contestant(name="a", shards=shards, config=config), long)
    run.warm_up()
    assert trainer_of(run).step == 5
    for number in (1, 2):
        turn = run.turn()
        assert turn.steps == 4 and trainer_of(run).step == 5 + number * (3 + 4)
        assert 0 < turn.num_samples <= 4 * shards.batch_size and turn.samples_per_second > 0
    # No turn more was asked for than the run has steps.
    with pytest.raises(ValueError, match="the run ended after 19 steps"):
        run.turn()
    run.run.close()


def test_a_turn_ends_with_its_time_and_not_before_a_few_steps(shards: ShardSet) -> None:
    config = TrainConfig(placement="all-fast", device="late", kernels="torch")
    short = Turns(rounds=1, seconds=1e-9, fewest_steps=3, most_steps=40, steps_ahead=9)
    run = RunInTurns(Contestant(name="a", shards=shards, config=config), short)
    run.warm_up()
    assert run.turn().steps == 3
    # Of the steps that do not count one was enough.
    assert trainer_of(run).step == 5 + 1 + 3
    run.run.close()


def test_the_clock_is_read_with_the_device_at_rest(shards: ShardSet, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(placement="all-fast", device="late", kernels="torch")
    long = Turns(rounds=1, seconds=1000.0, most_steps=2, steps_ahead=0)
    run = RunInTurns(Contestant(name="a", shards=shards, config=config), long)
    run.warm_up()
    seen: list[str] = []

    def noting(name: str, call: Callable[[], Any]) -> Callable[[], Any]:
        def noted() -> Any:
            seen.append(name)
            return call()

        return noted

    monkeypatch.setattr(run.run, "take", noting("step", run.run.take))
    monkeypatch.setattr(run.run, "synchronize", noting("rest", run.run.synchronize))
    clock = SimpleNamespace(perf_counter=noting("clock", time.perf_counter))
    with monkeypatch.context() as patch:
        patch.setattr(gpu_speeds, "time", clock)
        run.turn()
    run.run.close()
    assert " ".join(seen).endswith("rest clock step step rest clock")


def test_a_turn_of_fae_has_whole_epochs(shards: ShardSet) -> None:
    config = TrainConfig(placement="fae", device="late", kernels="torch")
    short = Turns(rounds=1, seconds=1e-9, fewest_steps=1, most_steps=2, steps_ahead=9)
    run = RunInTurns(Contestant(name="a", shards=shards, config=config), short)
    run.warm_up()
    assert run.turn().steps == shards.num_training_batches
    run.run.close()


def test_a_run_without_batches_of_its_kind_says_so(shards: ShardSet) -> None:
    cold = shards.with_hot_rows([1] * len(shards.tables))
    assert not cold.is_hot_only.any()
    contestant = Contestant(name="a", shards=cold, config=TrainConfig(device="late"), is_hot_only=True)
    with pytest.raises(ValueError, match="no batch looks up hot rows alone"):
        RunInTurns(contestant, _TURNS)


def test_what_is_asked_first_is_measured_first_and_all_fast_in_every_group() -> None:
    names = ["all-fast", "lookahead", "hybrid", "fae", "hot-only", "cache"]
    found = _in_order(names, [64, 16])
    assert found == [
        (["all-fast", "lookahead", "hybrid", "fae"], 64),
        (["all-fast", "lookahead", "hot-only"], 16),
        (["all-fast", "hot-only", "cache"], 64),
        (["all-fast", "hybrid", "fae", "cache"], 16),
    ]


@pytest.mark.parametrize(("most_runs", "wanted"), [(9, "rabcd"), (2, "rab rcd"), (-1, "ra rb rc rd")])
def test_groups_are_divided_where_memory_does_not_hold_them(most_runs: int, wanted: str) -> None:
    # A pair is tried in any case.
    assert ["".join(group) for group in _fitting("rabcd", most_runs)] == wanted.split()


def test_runs_have_their_rows_on_the_host_and_without_a_gpu_all_fast_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = SimpleNamespace(torch_device=SimpleNamespace(type="cuda"))
    monkeypatch.setattr(gpu_speeds, "available_bytes", lambda: 10 * 1000 * 4 * 128)
    assert _most_runs(cast(PartSettings, settings), 1000, 128) == 6
    settings.torch_device.type = "cpu"
    assert _most_runs(cast(PartSettings, settings), 1000, 128) == 5


_EQUAL = "lookahead ends an epoch with the weights of all-fast"


def trained_epochs(folder: Path) -> tuple[list[dict[str, Any]], dict[str, bool]]:
    """Train, and return the rows and the checks."""
    folder.mkdir()
    train_an_epoch(PartSettings("late", folder, True), Records(folder / "records", 60))
    found = [json.loads(line) for line in (folder / "records").read_text().splitlines()]
    checks = [each["check"] for each in found if "check" in each]
    return [each["row"] for each in found if "row" in each], {one["name"]: one["is_right"] for one in checks}


@pytest.mark.slow
def test_two_epochs_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (inputs, *rows), checks = trained_epochs(tmp_path / "epoch")
    assert checks == {_EQUAL: True}
    assert inputs["seconds"].keys() == {"draw", "pack"}
    assert [row["placement"] for row in rows] == ["all-fast", "lookahead"]
    for row in rows:
        assert row["samples"] == inputs["samples"] == 6_000
        assert 0 < row["training_seconds"] < row["whole_seconds"] and row["samples_per_second"] > 0
        assert 0.4 < row["auc"] < 1 and row["auc"] == rows[0]["auc"]
    # The runs, of 4 GB at full size, are gone.
    assert rows[1]["mover"] == "kernel"
    assert sorted(path.name for path in (tmp_path / "epoch").iterdir()) == ["epoch", "records"]
    monkeypatch.setattr(gpu_speeds, "_SMALL_EPOCH", (500, 500, 64))
    # Other weights, and a run that raises, are checks that failed.
    checksums = iter("ab")
    with monkeypatch.context() as patch:
        patch.setattr(gpu_speeds, "checksum_of_weights", lambda run: next(checksums))
        rows, checks = trained_epochs(tmp_path / "other")
    assert checks == {_EQUAL: False} and len(rows) == 3

    def begin(self: object, number: int) -> None:
        raise ZeroDivisionError("a transfer")

    monkeypatch.setattr(QueuedTransfers, "begin", begin)
    monkeypatch.setattr(QueuedTransfers, "wait_for", begin)
    rows, checks = trained_epochs(tmp_path / "raises")
    assert checks == {"an epoch of lookahead": False} and len(rows) == 2
