"""Copies rows with their state between a tier on the host and one on any device.

On the host one pass over the rows does it. On a GPU rows go through pinned buffers, two each way, in the
streams of the lanes: a gather on the one side, one copy, a scatter on the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch

from ..device_streams import CudaLanes, Lanes
from .initial_values import InitialValues
from .row_kernels import copy_rows
from .step_plan import Moves
from .tiers import Tier

MAX_ROWS = 50_000
"""Rows that go through a pinned buffer at a time, which bounds it (FreqCache's default)."""


class RowMover(Protocol):
    """Between the two tiers of an executor."""

    def write_back(self, moves: Moves) -> None:
        """Copy staged rows to the slow tier; they are there when this returns."""

    def fetch(self, moves: Moves) -> None:
        """Copy rows of the slow tier to staging slots."""


class HostMover:
    """Between two tiers on the host."""

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


class CudaMover:
    """Between a tier on a GPU and one on the host; asked by one thread at a time."""

    def __init__(self, fast: Tier, slow: Tier, lanes: CudaLanes) -> None:
        self._lanes = lanes
        self._pairs = [(fast.weights_SD, slow.weights_SD), (fast.state_SW, slow.state_SW)]
        self._pairs = [(fast, slow) for fast, slow in self._pairs if fast.shape[1]]
        self._buffers: dict[tuple[int, int, bool], torch.Tensor] = {}
        self._used: dict[tuple[int, int, bool], torch.cuda.Event] = {}
        self._turn = 0

    def write_back(self, moves: Moves) -> None:
        for part in _parts(moves):
            self._write_back(part)

    def fetch(self, moves: Moves) -> None:
        for part in _parts(moves):
            self._fetch(part)

    def _write_back(self, moves: Moves) -> None:
        # The rows must be home when this returns: a later fetch reads them there.
        with torch.cuda.stream(self._stream(self._lanes.down)):
            slots_N = torch.from_numpy(moves.slots_N).to(self._lanes.device)
            staged = [self._buffer(pair, moves.num_rows, up=False) for pair in range(len(self._pairs))]
            for (fast, _), buffer in zip(self._pairs, staged, strict=True):
                buffer.copy_(fast.index_select(0, slots_N), non_blocking=True)
            torch.cuda.current_stream().synchronize()
        order = np.arange(moves.num_rows)
        for (_, slow), buffer in zip(self._pairs, staged, strict=True):
            copy_rows(buffer.numpy(), order, slow.numpy(), moves.rows_N)

    def _fetch(self, moves: Moves) -> None:
        order = np.arange(moves.num_rows)
        self._turn = 1 - self._turn
        slots_N = torch.from_numpy(moves.slots_N).to(self._lanes.device)
        for pair, (fast, slow) in enumerate(self._pairs):
            key = (pair, self._turn, True)
            if key in self._used:
                self._used[key].synchronize()  # the copy that last read this buffer
            buffer = self._buffer(pair, moves.num_rows, up=True)
            copy_rows(slow.numpy(), moves.rows_N, buffer.numpy(), order)
            fast.index_copy_(0, slots_N, buffer.to(self._lanes.device, non_blocking=True))
            self._used[key] = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._used[key].record()

    def _stream(self, wanted: torch.cuda.Stream) -> torch.cuda.Stream:
        """``wanted`` in the thread of transfers; in that of compute its own stream, which is in order."""
        current = torch.cuda.current_stream(self._lanes.device)
        return wanted if current == self._lanes.up else current

    def _buffer(self, pair: int, num_rows: int, *, up: bool) -> torch.Tensor:
        """(num_rows, width) pinned memory, kept and grown."""
        key = (pair, self._turn, up)
        if key not in self._buffers or self._buffers[key].shape[0] < num_rows:
            width = self._pairs[pair][0].shape[1]
            room = min(num_rows + num_rows // 2, MAX_ROWS)
            self._buffers[key] = torch.empty(room, width, pin_memory=True)
        return self._buffers[key][:num_rows]


def _parts(moves: Moves) -> Iterator[Moves]:
    for first in range(0, moves.num_rows, MAX_ROWS):
        part = slice(first, first + MAX_ROWS)
        yield Moves(moves.rows_N[part], moves.slots_N[part])


def mover_of(fast: Tier, slow: Tier, lanes: Lanes) -> RowMover:
    """What copies rows between these tiers."""
    return CudaMover(fast, slow, lanes) if isinstance(lanes, CudaLanes) else HostMover(fast, slow)


def make_rows(fast: Tier, slow: Tier, initial: InitialValues, moves: Moves) -> None:
    """Give rows that live on the slow tier their initial values, and no state, in slots of the fast one."""
    if moves.num_rows == 0:
        return
    tables_N, ids_N = slow.layout.rows_at(moves.rows_N)
    initial.make(tables_N, ids_N, fast.weights_SD, moves.slots_N)
    fast.state_SW.index_fill_(0, torch.from_numpy(moves.slots_N).to(fast.device), 0)
