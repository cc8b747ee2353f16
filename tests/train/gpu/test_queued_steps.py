"""Steps around rows that stay on the host give the bits of the host, and planted faults are found.

Tests the rows that `passes` sends with a step, too.

Steps queued on a device that runs late give the bits of steps on the host, and planted faults are found.

Tests `transfers`, `passes` and `step`, too.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.tests.support.late_runs import (
    PLACEMENTS,
    DrawnRun,
    draw_run,
    ignore_waits,
    is_wrong,
    keep_slow,
    train_late,
)
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import assert_equal_bits, trained
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.device import Device, Event, Graph, StreamName
from hotset.train.gpu import queued_steps as step_module
from hotset.train.gpu import twins
from hotset.train.gpu.packed_batch import InputRing, RowMoves, RowTensors
from hotset.train.gpu.queued_steps import QueuedSteps
from hotset.train.gpu.simulated_device import LateDevice
from hotset.train.gpu.transfers import QueuedTransfers
from hotset.train.gpu.twins import move_rows
from hotset.train.loop import HostSteps, Trainer
from hotset.train.placements.choose_placement import num_steps_ahead
from hotset.train.placements.fae import Fae, HotCopies
from hotset.train.rows.step_plan import PlannedStep
from hotset.train.run import train


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

    monkeypatch.setattr(HostSteps, "train", refuse)
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
    monkeypatch.setattr(Fae, "__init__", lambda fae, tables, **_: build(fae, tables, sends="rows"))
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
    before_step = HotCopies.before_step

    def copy_without_waiting(copies: HotCopies, step: PlannedStep) -> None:
        with monkeypatch.context() as within:
            within.setattr(LateDevice, "synchronize", lambda device: None)
            before_step(copies, step)

    keep_slow(monkeypatch, "compute")
    assert not is_wrong(drawn, wanted, 0, **fields)
    monkeypatch.setattr(HotCopies, "before_step", copy_without_waiting)
    assert any(is_wrong(drawn, wanted, seed, **fields) for seed in range(8))


def compare_with_host(seed: int, folder: Path) -> None:
    run = draw_run(seed, folder)
    fields = PLACEMENTS[seed % len(PLACEMENTS)]
    # fae orders its batches by itself; the others follow the order of all-fast.
    placement = fields if fields["placement"] == "fae" else {"placement": "all-fast"}
    assert_equal_bits(train_late(run, seed, **fields), trained(run.shards, **run.fields, **placement))


def test_every_placement_gives_the_bits_of_the_host(tmp_path: Path) -> None:
    for seed in range(len(PLACEMENTS)):
        compare_with_host(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(9, 270, 9))
def test_every_placement_gives_the_bits_of_the_host_in_many_runs(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 9):
        compare_with_host(seed, tmp_path)


@pytest.mark.parametrize(
    ("placement", "waiting", "recorded", "drawn"),
    [
        # The next batch arrives over that of a step; a step without its batch, and without its rows.
        ("lookahead", "copies", "compute", 12),
        ("lookahead", "compute", "copies", 9),
        ("lookahead", "compute", "moves", 9),
        # Transfers by lists that have not arrived, and before their victims are computed.
        ("lookahead", "moves", "copies", 9),
        ("lookahead", "moves", "compute", 5),
        # The same where every batch moves its rows, behind whose copy the moves are.
        ("hybrid-uva", "copies", "compute", 12),
        ("hybrid-uva", "compute", "moves", 12),
        ("hybrid-uva", "moves", "copies", 12),
        ("hybrid-uva", "moves", "compute", 12),
    ],
)
def test_a_missing_wait_is_found_in_queued_steps(
    placement: str,
    waiting: StreamName,
    recorded: StreamName,
    drawn: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = draw_run(drawn, tmp_path)
    wanted = trained(run.shards, placement="all-fast", **run.fields)
    assert not is_wrong(run, wanted, 0, placement=placement)
    ignore_waits(monkeypatch, waiting, recorded)
    assert any(is_wrong(run, wanted, seed, placement=placement) for seed in range(6))


def test_a_fetch_before_the_write_back_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = draw_run(9, tmp_path)
    wanted = trained(run.shards, placement="all-fast", **run.fields)
    held: list[tuple[Any, ...]] = []

    def move_later(moves: RowMoves, source: RowTensors, target: RowTensors) -> None:
        move_rows(moves, source, target)
        if held:
            move_rows(*held.pop())
        # What a write-back has read is kept until the fetch behind it is done.
        held.append((RowMoves(*(each.clone() for each in moves)), source, target))

    monkeypatch.setattr(twins, "move_rows", move_later)
    assert any(is_wrong(run, wanted, seed, placement="lookahead") for seed in range(3))


def test_a_slot_of_the_ring_that_is_used_too_early_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = draw_run(9, tmp_path)
    wanted = trained(run.shards, placement="all-fast", **run.fields)
    begin = InputRing.__init__

    def begin_with_few_slots(ring: InputRing, device: Device, num_ahead: int) -> None:
        begin(ring, device, num_ahead)
        # So few that a slot in use is filled again however little runs ahead.
        del ring._slots[2:]

    keep_slow(monkeypatch, "copies")
    assert not is_wrong(run, wanted, 0, placement="lookahead")
    monkeypatch.setattr(InputRing, "__init__", begin_with_few_slots)
    assert any(is_wrong(run, wanted, seed, placement="lookahead") for seed in range(6))


def test_batches_packed_by_other_threads_into_a_slot_in_use_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = draw_run(9, tmp_path)
    wanted = trained(run.shards, placement="all-fast", **run.fields)
    assert not is_wrong(run, wanted, 0, placement="lookahead", threads=3)
    shared = torch.zeros(1 << 20, dtype=torch.uint8)
    take = InputRing.take

    def take_the_same(ring: InputRing, num_bytes: int) -> torch.Tensor:
        take(ring, num_bytes)
        return shared

    monkeypatch.setattr(InputRing, "take", take_the_same)
    assert any(is_wrong(run, wanted, seed, placement="lookahead", threads=3) for seed in range(6))


def test_a_batch_whose_views_are_of_anothers_memory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = draw_run(9, tmp_path)
    wanted = trained(run.shards, placement="all-fast", **run.fields)
    pack = QueuedSteps._pack
    monkeypatch.setattr(QueuedSteps, "_pack", lambda steps, number, *rest: pack(steps, number + 1, *rest))
    assert any(is_wrong(run, wanted, seed, placement="lookahead") for seed in range(6))


def test_a_flush_that_does_not_wait_for_the_last_step_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = draw_run(9, tmp_path)
    wanted = trained(run.shards, placement="all-fast", **run.fields)

    def flush_at_once(transfers: QueuedTransfers[Any], number: int) -> None:
        while transfers._queue and transfers._queue[0].number < number:
            transfers._run(transfers._queue.popleft().work)

    monkeypatch.setattr(QueuedTransfers, "_run_before", flush_at_once)
    assert any(is_wrong(run, wanted, seed, placement="lookahead") for seed in range(6))


def predictions(trainer: Trainer) -> NDArray[np.float32]:
    return np.concatenate([logit_B for _, logit_B in trainer.predictor.logits()])


def test_an_evaluation_without_a_pause_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = draw_run(9, tmp_path)

    def evaluated(**fields: Any) -> list[NDArray[np.float32]]:
        found = []

        def after_step(trainer: Trainer, *_: object) -> None:
            if trainer.step % 5 == 0:
                found.append(predictions(trainer))

        trained(run.shards, after_step=after_step, **run.fields, **fields)
        return found

    wanted = evaluated(placement="all-fast")
    late = {"placement": "lookahead", "device": "late:1"}
    np.testing.assert_array_equal(evaluated(**late), wanted)
    monkeypatch.setattr(QueuedTransfers, "paused", lambda transfers: nullcontext())
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(evaluated(**late), wanted)


def test_closing_with_work_queued_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = draw_run(9, tmp_path)

    def stop_at_step_4(trainer: Trainer, *_: object) -> None:
        if trainer.step == 4:
            raise KeyError

    with pytest.raises(KeyError):
        trained(run.shards, after_step=stop_at_step_4, device="late:1", placement="lookahead", **run.fields)
    monkeypatch.setattr(QueuedTransfers, "close", lambda transfers: transfers._device.close())
    with pytest.raises(RuntimeError, match="work queued"):
        trained(run.shards, after_step=stop_at_step_4, device="late:1", placement="lookahead", **run.fields)


@pytest.mark.parametrize("fields", [{"multi_hot": (1,)}, {"num_dense": 0}], ids=str)
def test_other_shards_give_the_bits_of_the_host_in_queued_steps(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec(**fields)))
    settings: dict[str, Any] = {"staging_bytes": 3_000, "evaluate_every": 3}
    wanted = trained(shards, placement="all-fast", **settings)
    for name in ("all-fast", "lookahead", "hybrid"):
        assert_equal_bits(trained(shards, device="late:2", placement=name, **settings), wanted)


def test_work_that_is_not_recorded_gives_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = draw_run(9, tmp_path)
    wanted = trained(run.shards, placement="all-fast", **run.fields)
    begin = QueuedSteps.__init__
    monkeypatch.setattr(
        QueuedSteps, "__init__", lambda *args, **kwargs: begin(*args, **(kwargs | {"is_recorded": False}))
    )
    assert not is_wrong(run, wanted, 1, placement="lookahead")
    assert not is_wrong(run, wanted, 2, placement="cache")


def test_the_second_step_records_the_work_of_all_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec(skew=0.0)))
    capture = LateDevice.capture
    num_recorded = 0
    after_steps = []

    def count(device: LateDevice, stream: StreamName, queue_work: Callable[[], None]) -> Graph:
        nonlocal num_recorded
        num_recorded += 1
        return capture(device, stream, queue_work)

    def after_step(trainer: Trainer, *_: object) -> None:
        after_steps.append(num_recorded)

    monkeypatch.setattr(LateDevice, "capture", count)
    fields: dict[str, Any] = {"device": "late:1", "kernels": "torch", "prefetch": 2}
    trained(shards, placement="all-fast", after_step=after_step, **fields)
    num_places = 4
    assert after_steps[:2] == [0, num_places] and set(after_steps[1:-1]) == {num_places}


def test_a_device_that_refuses_to_record_costs_speed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = draw_run(9, tmp_path)
    wanted = trained(run.shards, placement="all-fast", **run.fields)
    capture = LateDevice.capture
    refused: list[StreamName] = []

    def refuse(device: LateDevice, stream: StreamName, queue_work: Callable[[], None]) -> Graph:
        # As a GPU does: after some of the work, none of which has been queued.
        capture(device, stream, queue_work)
        refused.append(stream)
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(LateDevice, "capture", refuse)
    trainer = train_late(run, 1, placement="lookahead")
    assert_equal_bits(trainer, wanted)
    assert isinstance(trainer.runner, QueuedSteps) and not trainer.runner.is_recorded
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "queued by itself: operation not permitted when stream is capturing" in warning
    assert len(refused) == 1


def test_the_memory_of_steps_that_are_done_is_given_back_by_readers(tmp_path: Path) -> None:
    run = draw_run(12, tmp_path)
    kept = []

    def after_step(trainer: Trainer, *_: object) -> None:
        assert isinstance(trainer.runner, QueuedSteps)
        kept.append(len(trainer.runner._done))

    trainer = trained(run.shards, device="late:1", placement="lookahead", after_step=after_step, **run.fields)
    # Those of the loop, and of the batches that were packed before.
    ahead = num_steps_ahead(trainer.config, run.shards.mixed_share) + trainer.step_source.readers.num_threads
    assert 0 < max(kept) <= ahead + 5 < len(kept)
    # Those of the last steps go once all is done, and not with the trainer.
    assert isinstance(trainer.runner, QueuedSteps)
    trainer.runner.synchronize()
    assert not trainer.runner._done


def test_rows_move_beside_every_hot_only_step_between_two_mixed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where nothing is prefetched, and so a transfer waits for the mixed batch before its own."""
    spec = ShardSpec(num_rows=(5, 40, 900), num_hot_only=32 * 30, num_mixed=32 * 10)
    shards = Shards.open(write_shards(tmp_path / "shards", spec))
    num_computed = 0
    begun: list[int] = []
    sum_and_step = twins.sum_and_step

    def count(*args: Any) -> None:
        nonlocal num_computed
        sum_and_step(*args)
        num_computed += 1

    def note(moves: RowMoves, source: RowTensors, target: RowTensors) -> None:
        begun.append(num_computed)
        move_rows(moves, source, target)

    monkeypatch.setattr(twins, "sum_and_step", count)
    monkeypatch.setattr(twins, "move_rows", note)
    keep_slow(monkeypatch, "compute")
    settings: dict[str, Any] = {"staging_bytes": 16_000, "prefetch": 0}
    found = trained(shards, device="late:1", placement="lookahead", **settings)
    mixed = [step for step, number in enumerate(found.batch_numbers) if not shards.is_hot_only[number]]
    # Rows of a batch are written back and fetched by one kernel each.
    ahead = [step - computed for step, computed in zip(mixed, begun[::2], strict=True)]
    assert max(ahead) == 3
    assert_equal_bits(found, trained(shards, placement="all-fast", **settings))


def test_nothing_that_orders_work_asks_which_device_it_has() -> None:
    root = Path(step_module.__file__).parents[1]
    # Rows for checkpoints are gathered on the device first; and the memory of widths is counted where it is.
    others = {"embeddings.py"}
    names = ("fused_dlrm", "passes", "queued_steps", "row_moves")
    paths = [
        *(root / "gpu" / f"{name}.py" for name in names),
        *(root / "execution").glob("*.py"),
        root / "loop.py",
    ]
    for path in paths:
        text = path.read_text()
        if path.name not in others:
            assert not re.search(r"LateDevice|CudaDevice|is_cuda|device\.type|torch\.cuda", text), path


@pytest.mark.slow
def test_a_run_stopped_and_evaluated_on_the_late_device_ends_with_the_bits_of_the_host(
    tmp_path: Path,
) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec(num_mixed=400))
    wanted = train(folder, TrainConfig(placement="lookahead", evaluate_every=4), tmp_path / "host")
    found = train(
        folder, TrainConfig(placement="lookahead", evaluate_every=4, device="late:5"), tmp_path / "late"
    )
    assert (tmp_path / "host" / "weights.safetensors").read_bytes() == (
        tmp_path / "late" / "weights.safetensors"
    ).read_bytes()
    assert wanted.auc == found.auc
    losses = [
        [line for line in map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())]
        for name in ("host", "late")
    ]
    assert losses[0] == losses[1]
