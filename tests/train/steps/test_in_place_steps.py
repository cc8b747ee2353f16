"""Steps around rows that stay on the host give the bits of the host, and planted faults are found.

Tests the rows that `device_passes` sends with a step, too.
"""

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
from hotset.train.placements.fae import Fae
from hotset.train.steps.in_place_steps import InPlaceSteps
from hotset.train.steps.queued_steps import QueuedSteps
from hotset.train.steps.step_runner import StepsAtOnce


def hold_against_the_host(seed: int, folder: Path) -> None:
    run = draw_run(seed, folder)
    wanted = trained(run.shards, placement="all-fast", **run.fields)
    assert_equal_bits(train_late(run, seed, placement="hybrid"), wanted)
    assert_equal_bits(train_late(run, seed, placement="hybrid-dedup"), wanted)
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
    for name in ("hybrid", "hybrid-dedup", "fae"):
        train_late(run, 1, placement=name)
    # Shares of a batch are summed apart, which no kernel does.
    with pytest.raises(AssertionError, match="stands still"):
        train_late(run, 1, placement="hybrid-dedup", micro_batches=2)


@pytest.mark.parametrize("fields", [{"multi_hot": (1,)}, {"num_dense": 0}], ids=str)
@pytest.mark.parametrize("settings", [{}, {"micro_batches": 2}], ids=str)
@pytest.mark.parametrize("placement", ["hybrid", "hybrid-dedup"])
def test_other_shards_give_the_bits_of_the_host(
    fields: dict[str, Any], settings: dict[str, Any], placement: str, tmp_path: Path
) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec(**fields)))
    wanted = trained(shards, placement="hybrid", **settings)
    assert_equal_bits(trained(shards, device="late:2", placement=placement, **settings), wanted)


def test_kernels_of_the_dense_layers_give_the_bits_of_all_fast(tmp_path: Path) -> None:
    run = draw_run(9, tmp_path, has_one_width=True)
    wanted = train_late(run, 1, placement="all-fast", kernels="torch")
    for seed, name in enumerate(("hybrid", "hybrid-dedup")):
        assert_equal_bits(train_late(run, seed, placement=name, kernels="torch"), wanted)


def test_rows_that_are_sent_move_the_bytes_that_the_host_counts(drawn: DrawnRun) -> None:
    host = trained(drawn.shards, placement="hybrid-dedup", **drawn.fields)
    late = train_late(drawn, 3, placement="hybrid-dedup")
    assert late.embeddings.rows_by_table() == host.embeddings.rows_by_table()
    assert late.meter.training_bytes() == host.meter.training_bytes() != (0, 0)
    assert isinstance(late.runner, QueuedSteps) and late.runner.sent_samples == late.num_samples


def test_fae_may_send_distinct_rows(drawn: DrawnRun, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fast tier with rows of its own, none of which serve such a batch.
    build = Fae.__init__
    monkeypatch.setattr(Fae, "__init__", lambda fae, tables, *_: build(fae, tables, sends="rows"))
    wanted = trained(drawn.shards, placement="fae", **drawn.fields)
    late = train_late(drawn, 1, placement="fae")
    assert_equal_bits(late, wanted)
    assert isinstance(late.runner, QueuedSteps) and late.runner.sent_samples == late.num_samples


@pytest.fixture
def drawn(tmp_path: Path) -> DrawnRun:
    return draw_run(9, tmp_path)


@pytest.mark.parametrize("placement", ["hybrid", "hybrid-dedup"])
@pytest.mark.parametrize(
    ("waiting", "recorded"),
    [
        # Dense layers without their batch, and gradients that come down before they are there.
        ("compute", "copies"),
        ("moves", "compute"),
    ],
)
def test_a_missing_wait_is_found(
    waiting: StreamName,
    recorded: StreamName,
    placement: str,
    drawn: DrawnRun,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = trained(drawn.shards, placement="all-fast", **drawn.fields)
    keep_slow(monkeypatch, recorded)
    assert not is_wrong(drawn, wanted, 0, placement=placement)
    ignore_waits(monkeypatch, waiting, recorded)
    assert any(is_wrong(drawn, wanted, seed, placement=placement) for seed in range(4))


@pytest.mark.parametrize("placement", ["hybrid", "hybrid-dedup"])
def test_rows_updated_before_their_gradients_are_there_are_found(
    placement: str, drawn: DrawnRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = trained(drawn.shards, placement="all-fast", **drawn.fields)
    keep_slow(monkeypatch, "moves")
    wait = LateDevice.wait_on_host

    def wait_for_others(device: LateDevice, event: Event) -> None:
        if getattr(event, "stream", None) != "moves":
            wait(device, event)

    monkeypatch.setattr(LateDevice, "wait_on_host", wait_for_others)
    assert any(is_wrong(drawn, wanted, seed, placement=placement) for seed in range(4))


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
