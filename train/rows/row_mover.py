"""Copies rows with their state between a tier on the host and one on any device, while nothing else runs.

The rows of a step are moved by kernels of the device (`steps.queued_steps`); these copies are for what a run
does now and then: flushes, evaluation, batches in passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch

from .initial_values import InitialValues
from .row_kernels import copy_rows
from .step_plan import Moves
from .tiers import Tier

MAX_ROWS = 50_000
"""Rows that are copied to or from a GPU at a time, which bounds the memory for them."""


class RowMover(Protocol):
    """Copies between the two tiers of an executor."""

    def write_back(self, moves: Moves) -> None:
        """Copy staged rows to the slow tier; they are there when this returns."""

    def fetch(self, moves: Moves) -> None:
        """Copy rows of the slow tier to staging slots."""


class HostMover:
    """Copies between two tiers on the host."""

    def __init__(self, fast: Tier, slow: Tier) -> None:
        self._pairs = [
            (fast.weights_SD.numpy(), slow.weights_SD.numpy()),
            (fast.state_SW.numpy(), slow.state_SW.numpy()),
        ]

    def write_back(self, moves: Moves) -> None:
        for fast, slow in self._pairs:
            copy_rows(fast, moves.slots_N, slow, moves.rows_N)

    def fetch(self, moves: Moves) -> None:
        for fast, slow in self._pairs:
            copy_rows(slow, moves.rows_N, fast, moves.slots_N)


class DeviceMover:
    """Copies between a tier on a GPU and one on the host, done when a call returns."""

    def __init__(self, fast: Tier, slow: Tier) -> None:
        # Weights and state; plain SGD has no state.
        pairs = [(fast.weights_SD, slow.weights_SD), (fast.state_SW, slow.state_SW)]
        self._pairs = [(on_fast, on_slow) for on_fast, on_slow in pairs if on_fast.shape[1]]

    def write_back(self, moves: Moves) -> None:
        for part in _bounded(moves):
            for fast, slow in self._pairs:
                slots_N = torch.from_numpy(part.slots_N).to(fast.device)
                rows_NW = fast.index_select(0, slots_N).cpu().numpy()
                copy_rows(rows_NW, np.arange(part.num_rows), slow.numpy(), part.rows_N)

    def fetch(self, moves: Moves) -> None:
        for part in _bounded(moves):
            for fast, slow in self._pairs:
                slots_N = torch.from_numpy(part.slots_N).to(fast.device)
                rows_NW = torch.empty(part.num_rows, slow.shape[1])
                copy_rows(slow.numpy(), part.rows_N, rows_NW.numpy(), np.arange(part.num_rows))
                fast.index_copy_(0, slots_N, rows_NW.to(fast.device))


def _bounded(moves: Moves) -> Iterator[Moves]:
    for first in range(0, moves.num_rows, MAX_ROWS):
        part = slice(first, first + MAX_ROWS)
        yield Moves(moves.rows_N[part], moves.slots_N[part])


def mover_of(fast: Tier, slow: Tier) -> RowMover:
    """The mover between these tiers."""
    return HostMover(fast, slow) if fast.device.type == "cpu" else DeviceMover(fast, slow)


def initialize_rows(fast: Tier, slow: Tier, initial: InitialValues, moves: Moves) -> None:
    """Give rows that live on the slow tier their initial values, and no state, in slots of the fast one."""
    if moves.num_rows == 0:
        return
    tables_N, ids_N = slow.layout.rows_at(moves.rows_N)
    initial.write(tables_N, ids_N, fast.weights_SD, moves.slots_N)
    fast.state_SW.index_fill_(0, torch.from_numpy(moves.slots_N).to(fast.device), 0)
