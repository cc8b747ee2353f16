"""Steps queued on the simulated device give the bits of steps on the host, and planted faults are found.

Tests `transfers` and `passes`, too.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotset.tests.support.late_runs import (
    PLACEMENTS,
    DrawnRun,
    draw_run,
    forget_moves_on_host,
    ignore_waits,
    is_wrong,
    keep_slow,
    train_late,
    wanted_of,
)
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import assert_equal_bits, trained
from hotset.train.config import TrainConfig
from hotset.train.data.shards import ShardSet
from hotset.train.device import Device, Graph, LateDevice, StreamName
from hotset.train.gpu import queued_steps as step_module
from hotset.train.gpu import twins
from hotset.train.gpu.packed_batch import InputRing, RowMoves, RowTensors
from hotset.train.gpu.queued_steps import QueuedSteps, QueuedTransfers
from hotset.train.gpu.twins import move_rows
from hotset.train.loop import Trainer
from hotset.train.placements.fae import Fae
from hotset.train.placements.placements import num_steps_ahead
from hotset.train.run import train
from hotset.train.run_log import summarize_transfers
from hotset.train.step import HostSteps
from hotset.train.threads import PLACES_AT_A_TIME


@pytest.fixture
def drawn(tmp_path: Path) -> DrawnRun:
    return draw_run(9, tmp_path)


def hold_against_the_host(seed: int, folder: Path) -> None:
    run = draw_run(seed, folder)
    fields = PLACEMENTS[seed % len(PLACEMENTS)]
    assert_equal_bits(train_late(run, seed, **fields), wanted_of(run, fields["placement"]))


def test_every_placement_gives_the_bits_of_the_host(tmp_path: Path) -> None:
    for seed in range(len(PLACEMENTS)):
        hold_against_the_host(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(8, 100, 12))
def test_every_placement_gives_the_bits_of_the_host_in_many_runs(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 12):
        hold_against_the_host(seed, tmp_path)


FUSED: dict[str, Any] = {"kernels": "torch"}


@pytest.mark.parametrize("fields", [{"multi_hot": (1,)}, {"num_dense": 0}], ids=str)
@pytest.mark.parametrize("settings", [{}, {"micro_batches": 2}], ids=str)
def test_other_shards_give_the_bits_of_the_host(
    fields: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", ShardSpec(**fields)))
    settings |= {"staging_bytes": 3_000, "evaluate_every": 3}
    wanted = trained(shards, placement="all-fast", **settings)
    names = ("all-fast", "lookahead", "hybrid", "hybrid-dedup")
    for name in names:
        assert_equal_bits(trained(shards, device="late:2", placement=name, **settings), wanted)


@pytest.mark.parametrize(
    ("placement", "waiting", "recorded", "draw", "how"),
    [
        # The next batch arrives over that of a step; a step without its batch, and without its rows.
        ("lookahead", "copies", "compute", 12, {}),
        ("lookahead", "compute", "copies", 9, {}),
        ("lookahead", "compute", "moves", 9, {}),
        # Transfers by lists that have not arrived, and before their victims are computed.
        ("lookahead", "moves", "copies", 9, {}),
        ("lookahead", "moves", "compute", 5, {}),
        # The same where every batch moves its rows, behind whose copy the moves are.
        ("hybrid-uva", "copies", "compute", 12, {}),
        ("hybrid-uva", "compute", "moves", 12, {}),
        ("hybrid-uva", "moves", "copies", 12, {}),
        ("hybrid-uva", "moves", "compute", 12, {}),
        # Dense layers without their batch, and gradients that come down before they are there.
        ("hybrid", "compute", "copies", 9, {}),
        ("hybrid", "moves", "compute", 9, {}),
        ("hybrid-dedup", "compute", "copies", 9, {}),
        ("hybrid-dedup", "moves", "compute", 9, {}),
        # The kernels of a whole step are one piece of recorded work: its waits are those of the whole.
        ("lookahead", "copies", "compute", 12, FUSED),
        ("lookahead", "compute", "copies", 12, FUSED),
    ],
)
def test_a_missing_wait_is_found(
    placement: str,
    waiting: StreamName,
    recorded: StreamName,
    draw: int,
    how: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = draw_run(draw, tmp_path, has_one_width="kernels" in how)
    wanted = wanted_of(run, placement, **(FUSED | {"device": "late:0"} if "kernels" in how else {}))
    keep_slow(monkeypatch, recorded)
    assert not is_wrong(run, wanted, 1, placement=placement, **how)
    ignore_waits(monkeypatch, waiting, recorded)
    assert any(is_wrong(run, wanted, seed, placement=placement, **how) for seed in range(12))


def fetch_first_by_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[tuple[Any, ...]] = []

    def move_later(moves: RowMoves, source: RowTensors, target: RowTensors) -> None:
        move_rows(moves, source, target)
        if held:
            move_rows(*held.pop())
        # What a write-back has read is kept until the fetch behind it is done.
        held.append((RowMoves(*(each.clone() for each in moves)), source, target))

    monkeypatch.setattr(twins, "move_rows", move_later)


def keep_two_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that a slot in use is filled again however little runs ahead."""
    begin = InputRing.__init__

    def begin_with_few_slots(ring: InputRing, device: Device, num_ahead: int) -> None:
        begin(ring, device, num_ahead)
        del ring._slots[2:]

    keep_slow(monkeypatch, "copies")
    monkeypatch.setattr(InputRing, "__init__", begin_with_few_slots)


def flush_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def flush_at_once(transfers: QueuedTransfers[Any], number: int) -> None:
        while transfers._queue and transfers._queue[0].number < number:
            transfers._run(transfers._queue.popleft().work)

    monkeypatch.setattr(QueuedTransfers, "_run_before", flush_at_once)


def update_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_slow(monkeypatch, "moves")
    forget_moves_on_host(monkeypatch)


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], int, dict[str, Any]]] = {
    "a fetch before the write-back": (fetch_first_by_kernel, 9, {}),
    "a slot of the ring used too early": (keep_two_slots, 9, {}),
    "a flush that does not wait for the last step": (flush_without_waiting, 9, {}),
    "rows updated before their gradients": (update_without_gradients, 9, {"placement": "hybrid"}),
}
"""What is planted, the drawn run, and its settings."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, draw, fields = FAULTS[name]
    run = draw_run(draw, tmp_path)
    wanted = wanted_of(run)
    fields = {"placement": "lookahead"} | fields
    assert not is_wrong(run, wanted, 0, **fields)
    plant(monkeypatch)
    assert any(is_wrong(run, wanted, seed, **fields) for seed in range(12))


def test_closing_with_work_queued_is_found(drawn: DrawnRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_at_step_4(trainer: Trainer, *_: object) -> None:
        if trainer.step == 4:
            raise KeyError

    fields: dict[str, Any] = {"placement": "lookahead", "after_step": stop_at_step_4}
    with pytest.raises(KeyError):
        train_late(drawn, 1, **fields)
    monkeypatch.setattr(QueuedTransfers, "close", lambda transfers: transfers._device.close())
    with pytest.raises(RuntimeError, match="work queued"):
        train_late(drawn, 1, **fields)


def test_no_such_step_is_taken_at_once(drawn: DrawnRun, monkeypatch: pytest.MonkeyPatch) -> None:

    def refuse(*_: object) -> None:
        raise AssertionError("the device stands still for this step")

    monkeypatch.setattr(HostSteps, "train", refuse)
    for name in ("hybrid", "hybrid-dedup", "fae"):
        train_late(drawn, 1, placement=name)
    # Shares of a batch are summed apart, which no kernel does.
    with pytest.raises(AssertionError, match="stands still"):
        train_late(drawn, 1, placement="hybrid-dedup", micro_batches=2)


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


def test_the_second_step_records_the_work_of_all_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", ShardSpec(skew=0.0)))
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
    drawn: DrawnRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = wanted_of(drawn)
    capture = LateDevice.capture
    refused: list[StreamName] = []

    def refuse(device: LateDevice, stream: StreamName, queue_work: Callable[[], None]) -> Graph:
        # As a GPU does: after some of the work, none of which has been queued.
        capture(device, stream, queue_work)
        refused.append(stream)
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(LateDevice, "capture", refuse)
    trainer = train_late(drawn, 1, placement="lookahead")
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
    # After the last reader that let steps go, the loop may train all that were packed: those in the queue,
    # one that waits for a place there, and its own. Two are kept in any case.
    ahead = num_steps_ahead(trainer.config, run.shards.mixed_share) + trainer.step_source.readers.num_threads
    most = ahead + PLACES_AT_A_TIME - 1 + 1 + 1 + 2
    assert 0 < max(kept) <= most < len(kept)
    # Those of the last steps go once all is done, and not with the trainer.
    assert isinstance(trainer.runner, QueuedSteps)
    trainer.runner.synchronize()
    assert not trainer.runner._done


def test_rows_move_beside_every_hot_only_step_between_two_mixed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where nothing is prefetched, and so a transfer waits for the mixed batch before its own."""
    spec = ShardSpec(num_rows=(5, 40, 900), num_hot_only=32 * 30, num_mixed=32 * 10)
    shards = ShardSet.open(write_shards(tmp_path / "shards", spec))
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
    names = ("fused_dlrm", "passes", "queued_steps")
    paths = [
        *(root / "gpu" / f"{name}.py" for name in names),
        *(root / "rows" / f"{name}.py" for name in ("embeddings", "table_group", "step_plan")),
        root / "placements" / "placements.py",
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


STAGED = tuple(fields for fields in PLACEMENTS if fields["placement"] in ("lookahead", "cache", "hybrid-uva"))


@pytest.mark.parametrize("fields", STAGED, ids=str)
def test_the_host_moves_rows_that_cannot_be_pinned(
    fields: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = draw_run(9, tmp_path)
    assert summarize_transfers(train_late(run, 1, **fields)).mover == "kernel" and not caplog.records
    monkeypatch.setattr(LateDevice, "pin", lambda device, tensor: False)
    found = train_late(run, 1, **fields)
    assert summarize_transfers(found).mover is None
    assert "cannot be pinned" in caplog.text
    assert_equal_bits(found, wanted_of(run))


@pytest.mark.parametrize("placement", ["all-fast", "hybrid"])
def test_nothing_moves_the_rows_of_a_placement_without_staging(placement: str, tmp_path: Path) -> None:
    run = draw_run(9, tmp_path)
    assert summarize_transfers(train_late(run, 1, placement=placement)).mover is None
