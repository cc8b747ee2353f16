"""Copies rows with their state between a tier on the host and one on any device."""

from __future__ import annotations

import torch

from .initial_values import InitialValues
from .row_kernels import copy_rows
from .step_plan import Moves
from .tiers import Tier


class HostMover:
    """Between two tiers on the host: one pass over the rows, and nothing else to wait for."""

    def __init__(self, fast: Tier, slow: Tier, initial: InitialValues) -> None:
        self._fast, self._slow, self._initial = fast, slow, initial

    def write_back(self, moves: Moves) -> None:
        """Copy staged rows to the slow tier."""
        for fast, slow in self._pairs():
            copy_rows(fast.numpy(), moves.slots_N, slow.numpy(), moves.rows_N)

    def fetch(self, moves: Moves) -> None:
        """Copy rows of the slow tier to staging slots."""
        for fast, slow in self._pairs():
            copy_rows(slow.numpy(), moves.rows_N, fast.numpy(), moves.slots_N)

    def make(self, moves: Moves) -> None:
        """Give rows their initial values in staging slots."""
        make_rows(self._fast, self._slow, self._initial, moves)

    def _pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            (self._fast.weights_SD, self._slow.weights_SD),
            (self._fast.state_SW, self._slow.state_SW),
        ]


def make_rows(fast: Tier, slow: Tier, initial: InitialValues, moves: Moves) -> None:
    """Give rows that live on the slow tier their initial values, and no state, in slots of the fast one."""
    tables_N, ids_N = slow.layout.rows_at(moves.rows_N)
    initial.make(tables_N, ids_N, fast.weights_SD, moves.slots_N)
    fast.state_SW[torch.from_numpy(moves.slots_N).to(fast.device)] = 0
