"""Seconds and bytes by kind of work, counted without stopping the device.

On the GPU the host runs ahead, so laps there are measured between events in the stream and read when
they have long passed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

KINDS = ("hot_only", "mixed", "switch", "flush", "evaluation")
TRAINING_KINDS = KINDS[:4]
_MAX_OPEN_LAPS = 256


class Meter:
    """A clock that is always in one kind of work, or stopped."""

    def __init__(self, device: torch.device) -> None:
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self.bytes_to_fast = dict.fromkeys(KINDS, 0)
        self.bytes_to_slow = dict.fromkeys(KINDS, 0)
        self._lock = threading.Lock()
        self._on_gpu = device.type == "cuda"
        self._kind: str | None = None
        self._start: Any = None
        self._laps: list[tuple[str, Any, Any]] = []

    def enter(self, kind: str | None) -> None:
        """What follows is work of ``kind``; None stops the clock."""
        if kind == self._kind:
            return
        now = self._now()
        if self._kind is not None:
            self._laps.append((self._kind, self._start, now))
        self._kind, self._start = kind, now
        if len(self._laps) > _MAX_OPEN_LAPS or kind is None:
            self._add_up()

    @contextmanager
    def during(self, kind: str) -> Iterator[None]:
        """Work of ``kind`` inside other work."""
        before = self._kind
        self.enter(kind)
        try:
            yield
        finally:
            self.enter(before)

    def moved(self, *, to_fast: int = 0, to_slow: int = 0, kind: str | None = None) -> None:
        """Count bytes that went between the tiers for ``kind`` of work, the current one if None.

        A thread that is not the clock's says which.
        """
        kind = kind or self._kind
        if kind is not None:
            with self._lock:
                self.bytes_to_fast[kind] += to_fast
                self.bytes_to_slow[kind] += to_slow

    @property
    def kind(self) -> str | None:
        """What the clock is in."""
        return self._kind

    @property
    def training_seconds(self) -> float:
        """Of the training steps and switches, evaluation apart; the clock must be stopped."""
        return sum(self.seconds[kind] for kind in TRAINING_KINDS)

    def training_bytes(self) -> tuple[int, int]:
        """Bytes to the fast and to the slow tier, evaluation apart."""
        to_fast = sum(self.bytes_to_fast[kind] for kind in TRAINING_KINDS)
        return to_fast, sum(self.bytes_to_slow[kind] for kind in TRAINING_KINDS)

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _add_up(self) -> None:
        for kind, start, end in self._laps:
            if self._on_gpu:
                end.synchronize()
                self.seconds[kind] += start.elapsed_time(end) / 1e3
            else:
                self.seconds[kind] += end - start
        self._laps.clear()
