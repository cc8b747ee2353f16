"""Rows moved by threads give the bits of rows moved by none, and planted faults are found.

Tests `transfers`, too.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotset.tests.support.late_runs import PLACEMENTS, draw_run, ignore_waits, is_wrong, keep_slow, train_late
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import assert_equal_bits, trained
from hotset.train.data.shards import Shards
from hotset.train.device import Event, StreamName
from hotset.train.gpu import row_moves
from hotset.train.gpu import row_moves as piece_ring
from hotset.train.gpu.packed_batch import WidthTensors
from hotset.train.gpu.row_moves import PieceRing, PieceShape, ThreadMover, pieces_of
from hotset.train.gpu.simulated_device import LateDevice
from hotset.train.gpu.transfers import ThreadedTransfers
from hotset.train.loop import Trainer
from hotset.train.rows.step_plan import Moves
from hotset.train.run_log import summarize_transfers

STAGED = tuple(fields for fields in PLACEMENTS if fields["placement"] in ("lookahead", "cache", "hybrid-uva"))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let most transfers take several pieces, and some of them each slot of a ring more than once."""
    monkeypatch.setattr(piece_ring, "PIECE_BYTES", 640)


def train_with_threads(run: Any, seed: int, **fields: Any) -> Trainer:
    return train_late(run, seed, mover="threads", **fields)


def is_wrong_with_threads(run: Any, wanted: Trainer, seed: int, **fields: Any) -> bool:
    return is_wrong(run, wanted, seed, mover="threads", **fields)


def hold_against_the_host(seed: int, folder: Path) -> None:
    run = draw_run(seed, folder)
    trainer = train_with_threads(run, seed, **STAGED[seed % len(STAGED)])
    assert summarize_transfers(trainer).mover == "threads"
    assert_equal_bits(trainer, trained(run.shards, placement="all-fast", **run.fields))


def test_threads_give_the_bits_of_all_fast(tmp_path: Path) -> None:
    for seed in range(len(STAGED)):
        hold_against_the_host(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(3, 120, 9))
def test_threads_give_the_bits_of_all_fast_in_many_runs(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 9):
        hold_against_the_host(seed, tmp_path)


@pytest.mark.parametrize("kernels", [None, "torch"])
@pytest.mark.parametrize(
    ("waiting", "recorded", "drawn"),
    [
        # A step without its rows; a transfer before its victims are computed.
        ("compute", "moves", 9),
        ("moves", "compute", 5),
    ],
)
def test_a_missing_wait_is_found(
    waiting: StreamName,
    recorded: StreamName,
    drawn: int,
    kernels: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = draw_run(drawn, tmp_path, has_one_width=True)
    wanted = train_late(run, 0, placement="all-fast", kernels=kernels)
    keep_slow(monkeypatch, recorded)
    fields: dict[str, Any] = {"placement": "lookahead", "kernels": kernels}
    assert not is_wrong_with_threads(run, wanted, 0, **fields)
    ignore_waits(monkeypatch, waiting, recorded)
    assert any(is_wrong_with_threads(run, wanted, seed, **fields) for seed in range(12))


def test_a_slot_of_a_ring_that_is_used_too_early_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = draw_run(9, tmp_path)
    wanted = trained(run.shards, placement="all-fast", **run.fields)
    # One slot is enough, as long as each copy is waited for.
    monkeypatch.setattr(piece_ring, "_SLOTS", 1)
    assert not is_wrong_with_threads(run, wanted, 0, placement="lookahead")
    monkeypatch.setattr(PieceRing, "take", lambda ring: ring._slots[0])
    assert any(is_wrong_with_threads(run, wanted, seed, placement="lookahead") for seed in range(12))


def test_a_fetch_before_the_write_back_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = draw_run(9, tmp_path)
    wanted = trained(run.shards, placement="all-fast", **run.fields)
    write_back, fetch = ThreadMover.write_back, ThreadMover.fetch

    # The slots of a fetch may be those of a write-back, and its rows those of the one before.
    def fetch_first(mover: ThreadMover, width: WidthTensors, moves: Moves) -> None:
        held.append((width, moves))

    def then_write_back(mover: ThreadMover, width: WidthTensors, moves: Moves) -> None:
        fetch(mover, width, moves)
        write_back(mover, *held.pop())

    held: list[tuple[WidthTensors, Moves]] = []
    monkeypatch.setattr(ThreadMover, "write_back", fetch_first)
    monkeypatch.setattr(ThreadMover, "fetch", then_write_back)
    assert is_wrong_with_threads(run, wanted, 1, placement="lookahead")


def test_rows_that_land_before_their_copy_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = draw_run(9, tmp_path)
    wanted = trained(run.shards, placement="all-fast", **run.fields)
    wait = LateDevice.wait_on_host

    def wait_for_others(device: LateDevice, event: Event) -> None:
        # Events of the moves are those that the mover's thread waits for.
        if getattr(event, "stream", None) != "moves":
            wait(device, event)

    monkeypatch.setattr(LateDevice, "wait_on_host", wait_for_others)
    assert any(is_wrong_with_threads(run, wanted, seed, placement="lookahead") for seed in range(6))


def test_a_transfer_that_begins_before_its_batch_is_queued_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = draw_run(5, tmp_path)
    wanted = trained(run.shards, placement="all-fast", **run.fields)
    monkeypatch.setattr(ThreadedTransfers, "_may_start", lambda transfers: bool(transfers._queue))
    assert any(is_wrong_with_threads(run, wanted, seed, placement="lookahead") for seed in range(6))


def test_what_a_thread_raises_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = draw_run(9, tmp_path)

    def fail(mover: ThreadMover, width: WidthTensors, moves: Moves) -> None:
        raise OSError("no rows today")

    monkeypatch.setattr(ThreadMover, "fetch", fail)
    with pytest.raises(OSError, match="no rows today"):
        train_with_threads(run, 1, placement="lookahead")


def test_a_run_that_stops_early_leaves_nothing_queued(tmp_path: Path) -> None:
    run = draw_run(9, tmp_path)

    def stop_at_step_4(trainer: Trainer, *_: object) -> None:
        if trainer.step == 4:
            raise KeyError

    with pytest.raises(KeyError):
        train_with_threads(run, 1, placement="lookahead", after_step=stop_at_step_4)


def test_evaluation_in_between_reads_the_newest_rows(tmp_path: Path) -> None:
    run = draw_run(9, tmp_path)

    def evaluated(**fields: Any) -> list[np.ndarray]:
        found = []

        def after_step(trainer: Trainer, *_: object) -> None:
            if trainer.step % 5 == 0:
                found.append(np.concatenate([logit_B for _, logit_B in trainer.predictor.logits()]))

        trained(run.shards, after_step=after_step, **run.fields, **fields)
        return found

    late = {"placement": "lookahead", "device": "late:1", "mover": "threads"}
    np.testing.assert_array_equal(evaluated(**late), evaluated(placement="all-fast"))


@pytest.mark.parametrize("fields", [{"multi_hot": (1,)}, {"num_dense": 0}], ids=str)
def test_steps_that_are_taken_at_once_wait_for_the_thread(fields: dict[str, Any], tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec(**fields)))
    settings: dict[str, Any] = {"staging_bytes": 3_000, "evaluate_every": 3}
    wanted = trained(shards, placement="all-fast", **settings)
    late = trained(shards, placement="lookahead", device="late:2", mover="threads", **settings)
    assert_equal_bits(late, wanted)


def unpinnable(device: LateDevice, tensor: torch.Tensor) -> bool:
    return False


def test_rows_that_cannot_be_pinned_are_moved_by_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = draw_run(9, tmp_path)
    wanted = trained(run.shards, placement="all-fast", **run.fields)
    monkeypatch.setattr(LateDevice, "pin", unpinnable)
    with caplog.at_level(logging.WARNING):
        found = train_late(run, 1, placement="lookahead")
        assert not caplog.records
        train_late(run, 1, placement="lookahead", mover="kernel")
    assert summarize_transfers(found).mover == "threads"
    assert "cannot be pinned for --mover kernel" in caplog.text
    assert_equal_bits(found, wanted)


@pytest.mark.parametrize("quicker", ["kernel", "threads"])
def test_the_quicker_mover_is_taken_on_a_device_that_is_timed(
    quicker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = draw_run(9, tmp_path)
    wanted = trained(run.shards, placement="all-fast", **run.fields)
    monkeypatch.setattr(LateDevice, "is_timed", True)
    measure = row_moves._least_seconds
    seconds = {"kernel": iter([1.0, 2.0]), "threads": iter([2.0, 1.0])}[quicker]

    def measured(work: Any, device: Any) -> float:
        assert measure(work, device) > 0  # both really move rows
        return next(seconds)

    monkeypatch.setattr(row_moves, "_least_seconds", measured)
    found = train_late(run, 1, placement="lookahead")
    summary = summarize_transfers(found)
    assert summary.mover == quicker
    rates = summary.mover_rows_per_second
    assert max(rates, key=lambda name: rates[name]) == quicker and len(rates) == 2
    assert_equal_bits(found, wanted)


@pytest.mark.parametrize("placement", ["all-fast", "hybrid"])
def test_nothing_moves_the_rows_of_a_placement_without_staging(placement: str, tmp_path: Path) -> None:
    run = draw_run(9, tmp_path)
    assert summarize_transfers(train_with_threads(run, 1, placement=placement)).mover is None


@pytest.mark.parametrize("num_lists", [1, 2])
@pytest.mark.parametrize(("width", "state_width"), [(16, 0), (3, 1), (128, 257), (0, 0)])
def test_pieces_fit_their_slots_and_their_parts_do_not_overlap(
    num_lists: int, width: int, state_width: int
) -> None:
    moves = Moves(np.arange(500), np.arange(500) + 7)
    num_bytes = piece_ring.slot_bytes(iter([(width, state_width)]))
    parts = list(pieces_of(moves, num_bytes, width, state_width))
    np.testing.assert_array_equal(np.concatenate([part.rows_N for part in parts]), moves.rows_N)
    np.testing.assert_array_equal(np.concatenate([part.slots_N for part in parts]), moves.slots_N)
    for part in (parts[0], parts[-1]):
        shape = PieceShape(num_lists, part.num_rows, width, state_width)
        assert shape.num_bytes <= num_bytes
        memory = torch.zeros(num_bytes, dtype=torch.uint8)
        piece = shape.on(memory)
        tensors = [piece.place_3, *piece.lists, *piece.rows]
        # Every byte of every tensor is its own.
        for tensor in tensors:
            if tensor.numel():
                assert (tensor.data_ptr() - memory.data_ptr()) % 16 == 0
                tensor.view(torch.int32).add_(1)
        written = memory[: num_bytes // 4 * 4].view(torch.int32)
        assert written.sum() == sum(tensor.numel() for tensor in tensors) and written.max() == 1
        # What comes down is behind the lists.
        first = piece.rows.weights_SD.storage_offset() * 4 if width else shape.list_bytes
        assert first == shape.list_bytes
