"""Copies rows with their state between a tier on the host and one on any device.

On the host one pass over the rows does it. On a GPU rows pass through pinned buffers, two each way, in the
streams of transfers: a gather on the one side, one copy, a scatter on the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch

from ..device_streams import CudaStreams, DeviceStreams
from .initial_values import InitialValues
from .row_kernels import copy_rows
from .step_plan import Moves
from .tiers import Tier

MAX_ROWS = 50_000
"""Rows that pass through a pinned buffer at a time, which bounds it (FreqCache's default)."""


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


class CudaMover:
    """Copies between a tier on a GPU and one on the host; for one thread at a time."""

    def __init__(self, fast: Tier, slow: Tier, streams: CudaStreams) -> None:
        self._streams = streams
        # Weights and state; plain SGD has no state.
        pairs = [(fast.weights_SD, slow.weights_SD), (fast.state_SW, slow.state_SW)]
        self._pairs = [(on_fast, on_slow) for on_fast, on_slow in pairs if on_fast.shape[1]]
        # By pair, turn and direction. Fetches take two buffers in turns: one is filled while the other is
        # sent.
        self._buffers: dict[tuple[int, int, bool], torch.Tensor] = {}
        self._last_copy: dict[tuple[int, int, bool], torch.cuda.Event] = {}
        self._turn = 0

    def write_back(self, moves: Moves) -> None:
        for part in _bounded(moves):
            self._write_back(part)

    def fetch(self, moves: Moves) -> None:
        for part in _bounded(moves):
            self._fetch(part)

    def _write_back(self, moves: Moves) -> None:
        # The rows must be on the slow tier when this returns: a later fetch reads them there.
        with torch.cuda.stream(self._stream(self._streams.d2h)):
            slots_N = torch.from_numpy(moves.slots_N).to(self._streams.device)
            staged = [self._buffer(pair, moves.num_rows, is_h2d=False) for pair in range(len(self._pairs))]
            for (fast, _), buffer in zip(self._pairs, staged, strict=True):
                buffer.copy_(fast.index_select(0, slots_N), non_blocking=True)
            torch.cuda.current_stream().synchronize()
        order = np.arange(moves.num_rows)
        for (_, slow), buffer in zip(self._pairs, staged, strict=True):
            copy_rows(buffer.numpy(), order, slow.numpy(), moves.rows_N)

    def _fetch(self, moves: Moves) -> None:
        order = np.arange(moves.num_rows)
        self._turn = 1 - self._turn
        slots_N = torch.from_numpy(moves.slots_N).to(self._streams.device)
        for pair, (fast, slow) in enumerate(self._pairs):
            key = (pair, self._turn, True)
            # The host may fill a buffer once the copy that last read it is done.
            if key in self._last_copy:
                self._last_copy[key].synchronize()
            buffer = self._buffer(pair, moves.num_rows, is_h2d=True)
            copy_rows(slow.numpy(), moves.rows_N, buffer.numpy(), order)
            fast.index_copy_(0, slots_N, buffer.to(self._streams.device, non_blocking=True))
            self._last_copy[key] = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._last_copy[key].record()

    def _stream(self, wanted: torch.cuda.Stream) -> torch.cuda.Stream:
        """``wanted`` in the transfer thread; in that of compute its own stream, which is in order."""
        current = torch.cuda.current_stream(self._streams.device)
        return wanted if current == self._streams.h2d else current

    def _buffer(self, pair: int, num_rows: int, *, is_h2d: bool) -> torch.Tensor:
        """(num_rows, width) pinned memory, kept and grown."""
        key = (pair, self._turn, is_h2d)
        if key not in self._buffers or self._buffers[key].shape[0] < num_rows:
            width = self._pairs[pair][0].shape[1]
            room = min(num_rows + num_rows // 2, MAX_ROWS)
            self._buffers[key] = torch.empty(room, width, pin_memory=True)
        return self._buffers[key][:num_rows]


def _bounded(moves: Moves) -> Iterator[Moves]:
    for first in range(0, moves.num_rows, MAX_ROWS):
        part = slice(first, first + MAX_ROWS)
        yield Moves(moves.rows_N[part], moves.slots_N[part])


def mover_of(fast: Tier, slow: Tier, streams: DeviceStreams) -> RowMover:
    """The mover between these tiers."""
    return CudaMover(fast, slow, streams) if isinstance(streams, CudaStreams) else HostMover(fast, slow)


def initialize_rows(fast: Tier, slow: Tier, initial: InitialValues, moves: Moves) -> None:
    """Give rows that live on the slow tier their initial values, and no state, in slots of the fast one."""
    if moves.num_rows == 0:
        return
    tables_N, ids_N = slow.layout.rows_at(moves.rows_N)
    initial.write(tables_N, ids_N, fast.weights_SD, moves.slots_N)
    fast.state_SW.index_fill_(0, torch.from_numpy(moves.slots_N).to(fast.device), 0)
