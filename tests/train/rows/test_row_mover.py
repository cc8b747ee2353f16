"""Rows move with their state, between tiers of any device.

Tests `step_plan`, too.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hotset.train.rows.initial_values import InitialValues
from hotset.train.rows.row_mover import DeviceMover, HostMover, initialize_rows, mover_of
from hotset.train.rows.step_plan import Moves
from hotset.train.rows.tiers import Layout, Tier

NUM_ROWS = [5, 9]


def tiers(device: str = "cpu") -> tuple[Tier, Tier, InitialValues]:
    fast = Tier(Layout.of([0, 0], [2, 3]), 4, 1, num_staging=3, device=device)
    slow = Tier(Layout.of([2, 3], NUM_ROWS), 4, 1)
    initial = InitialValues.of(0, [0, 1], NUM_ROWS)
    for tier in (fast, slow):
        tier.initialize(initial)
        tier.state_SW.copy_(torch.arange(tier.num_slots, dtype=torch.float32).unsqueeze(1))
    return fast, slow, initial


def moves(rows: list[int], slots: list[int]) -> Moves:
    return Moves(np.array(rows, np.int64), np.array(slots, np.int64))


@pytest.mark.parametrize("max_rows", [1, 50_000])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_row_is_loaded_and_written_back_with_its_state(
    device: str, max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.train.rows.row_mover.MAX_ROWS", max_rows)
    fast, slow, _ = tiers(device)
    mover = mover_of(fast, slow)
    assert isinstance(mover, HostMover if device == "cpu" else DeviceMover)
    before = slow.weights_SD.clone()
    for _ in range(3):
        mover.fetch(moves([8, 0], [5, 7]))
    assert torch.equal(fast.weights_SD[[5, 7]].cpu(), before[[8, 0]])
    assert fast.state_SW[[5, 7], 0].tolist() == [8, 0]
    fast.weights_SD[5], fast.state_SW[5] = 3.0, 9.0
    mover.write_back(moves([8], [5]))
    assert slow.weights_SD[8].eq(3.0).all() and slow.state_SW[8] == 9.0
    assert torch.equal(slow.weights_SD[:8], before[:8])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_row_is_initialized_as_on_the_slow_tier(device: str) -> None:
    fast, slow, initial = tiers(device)
    initialize_rows(fast, slow, initial, moves([3, 1, 8], [6, 5, 7]))
    assert torch.equal(fast.weights_SD[[6, 5, 7]].cpu(), slow.weights_SD[[3, 1, 8]])
    assert not fast.state_SW[5:].any()


@pytest.mark.parametrize("max_rows", [1, 50_000])
def test_the_mover_of_a_gpu_moves_what_that_of_the_host_moves(
    max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.train.rows.row_mover.MAX_ROWS", max_rows)
    both = [tiers()[:2], tiers()[:2]]
    for fast, _ in both:
        fast.weights_SD[5:] = 0
    kinds: tuple[type[HostMover] | type[DeviceMover], ...] = (HostMover, DeviceMover)
    for kind, (fast, slow) in zip(kinds, both, strict=True):
        mover = kind(fast, slow)
        mover.fetch(moves([8, 0], [5, 7]))
        fast.weights_SD[5], fast.state_SW[5] = 3.0, 9.0
        mover.write_back(moves([8, 2], [5, 7]))
    for host, device in zip(*both, strict=True):
        assert torch.equal(host.weights_SD, device.weights_SD)
        assert torch.equal(host.state_SW, device.state_SW)
