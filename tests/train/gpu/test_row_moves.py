"""Rows moved by threads give the bits of rows moved by none; faults are planted in `test_queued_steps`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotset.tests.support.late_runs import PLACEMENTS, draw_run, train_late, wanted_of
from hotset.tests.support.trained_models import assert_equal_bits
from hotset.train.gpu import row_moves
from hotset.train.gpu.packed_batch import WidthTensors
from hotset.train.gpu.row_moves import PieceShape, ThreadMover, pieces_of
from hotset.train.gpu.simulated_device import LateDevice
from hotset.train.rows.step_plan import Moves
from hotset.train.run_log import summarize_transfers

STAGED = tuple(fields for fields in PLACEMENTS if fields["placement"] in ("lookahead", "cache", "hybrid-uva"))


def hold_against_the_host(seed: int, folder: Path) -> None:
    run = draw_run(seed, folder)
    trainer = train_late(run, seed, mover="threads", **STAGED[seed % len(STAGED)])
    assert summarize_transfers(trainer).mover == "threads"
    assert_equal_bits(trainer, wanted_of(run))


def test_threads_give_the_bits_of_all_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Most transfers take several pieces, and some of them each slot of a ring more than once.
    monkeypatch.setattr(row_moves, "PIECE_BYTES", 640)
    for seed in range(len(STAGED)):
        hold_against_the_host(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(3, 120, 9))
def test_threads_give_the_bits_of_all_fast_in_many_runs(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_moves, "PIECE_BYTES", 640)
    for seed in range(first, first + 9):
        hold_against_the_host(seed, tmp_path)


def test_what_a_thread_raises_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = draw_run(9, tmp_path)

    def fail(mover: ThreadMover, width: WidthTensors, moves: Moves) -> None:
        raise OSError("no rows today")

    monkeypatch.setattr(ThreadMover, "fetch", fail)
    with pytest.raises(OSError, match="no rows today"):
        train_late(run, 1, placement="lookahead", mover="threads")


def test_rows_that_cannot_be_pinned_are_moved_by_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = draw_run(9, tmp_path)
    wanted = wanted_of(run)
    monkeypatch.setattr(LateDevice, "pin", lambda device, tensor: False)
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
    wanted = wanted_of(run)
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
    assert summarize_transfers(train_late(run, 1, placement=placement, mover="threads")).mover is None


@pytest.mark.parametrize("num_lists", [1, 2])
@pytest.mark.parametrize(("width", "state_width"), [(16, 0), (3, 1), (128, 257), (0, 0)])
def test_pieces_fit_their_slots_and_their_parts_do_not_overlap(
    num_lists: int, width: int, state_width: int
) -> None:
    moves = Moves(np.arange(500), np.arange(500) + 7)
    num_bytes = row_moves.slot_bytes(iter([(width, state_width)]))
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
