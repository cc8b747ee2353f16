"""Steps around rows that stay on the host give the bits of the host, and planted faults are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotset.tests.support.late_runs import DrawnRun, draw_run, ignore_waits, is_wrong, keep_slow, train_late
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import assert_equal_bits, trained
from hotset.train.data.shards import Shards
from hotset.train.device.late_device import LateDevice
from hotset.train.device.verbs import Event, StreamName
from hotset.train.steps.in_place_steps import InPlaceSteps
from hotset.train.steps.step_runner import StepsAtOnce


def hold_against_the_host(seed: int, folder: Path) -> None:
    run = draw_run(seed, folder)
    assert_equal_bits(
        train_late(run, seed, placement="hybrid"), trained(run.shards, placement="all-fast", **run.fields)
    )
    # fae orders its batches by itself.
    assert_equal_bits(
        train_late(run, seed, placement="fae"), trained(run.shards, placement="fae", **run.fields)
    )


def test_hybrid_and_fae_give_the_bits_of_the_host(tmp_path: Path) -> None:
    for seed in range(5):
        hold_against_the_host(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(5, 105, 10))
def test_hybrid_and_fae_give_the_bits_of_the_host_in_many_runs(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        hold_against_the_host(seed, tmp_path)


def test_no_such_step_is_taken_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = draw_run(9, tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("the device stands still for this step")

    monkeypatch.setattr(StepsAtOnce, "train", refuse)
    train_late(run, 1, placement="hybrid")
    train_late(run, 1, placement="fae")
    with pytest.raises(AssertionError, match="stands still"):
        train_late(run, 1, placement="hybrid-dedup")


@pytest.mark.parametrize("fields", [{"multi_hot": (1,)}, {"num_dense": 0}], ids=str)
@pytest.mark.parametrize("settings", [{}, {"shares": 2}], ids=str)
def test_other_shards_give_the_bits_of_the_host(
    fields: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec(**fields)))
    wanted = trained(shards, placement="hybrid", **settings)
    assert_equal_bits(trained(shards, device="late:2", placement="hybrid", **settings), wanted)


def test_kernels_of_the_dense_layers_give_the_bits_of_all_fast(tmp_path: Path) -> None:
    run = draw_run(9, tmp_path, has_one_width=True)
    wanted = train_late(run, 1, placement="all-fast", kernels="torch")
    assert_equal_bits(train_late(run, 2, placement="hybrid", kernels="torch"), wanted)


@pytest.fixture
def drawn(tmp_path: Path) -> DrawnRun:
    return draw_run(9, tmp_path)


@pytest.mark.parametrize(
    ("waiting", "recorded"),
    [
        # Dense layers without their batch, and gradients that come down before they are there.
        ("compute", "copies"),
        ("moves", "compute"),
    ],
)
def test_a_missing_wait_is_found(
    waiting: StreamName, recorded: StreamName, drawn: DrawnRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = trained(drawn.shards, placement="all-fast", **drawn.fields)
    keep_slow(monkeypatch, recorded)
    assert not is_wrong(drawn, wanted, 0, placement="hybrid")
    ignore_waits(monkeypatch, waiting, recorded)
    assert any(is_wrong(drawn, wanted, seed, placement="hybrid") for seed in range(4))


def test_rows_updated_before_their_gradients_are_there_are_found(
    drawn: DrawnRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = trained(drawn.shards, placement="all-fast", **drawn.fields)
    keep_slow(monkeypatch, "moves")
    wait = LateDevice.wait_on_host

    def wait_for_others(device: LateDevice, event: Event) -> None:
        if getattr(event, "stream", None) != "moves":
            wait(device, event)

    monkeypatch.setattr(LateDevice, "wait_on_host", wait_for_others)
    assert any(is_wrong(drawn, wanted, seed, placement="hybrid") for seed in range(4))


def test_a_switch_of_fae_that_does_not_wait_for_the_device_is_found(
    drawn: DrawnRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No test loss comes before this variant's switch, which would wait for the device.
    fields: dict[str, Any] = {"placement": "fae", "fae_variant": "code", "epochs": 3}
    wanted = trained(drawn.shards, **fields, **drawn.fields)
    train = InPlaceSteps.train

    def train_at_once(steps: InPlaceSteps, *arguments: Any) -> None:
        with monkeypatch.context() as within:
            within.setattr(LateDevice, "synchronize", lambda device: None)
            train(steps, *arguments)

    keep_slow(monkeypatch, "compute")
    assert not is_wrong(drawn, wanted, 0, **fields)
    monkeypatch.setattr(InPlaceSteps, "train", train_at_once)
    assert any(is_wrong(drawn, wanted, seed, **fields) for seed in range(8))
