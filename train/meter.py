"""Counts seconds and bytes by kind of work, without stopping the device.

On the GPU the host runs ahead, so laps there are measured between events in the stream and read when
they have long passed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import torch

Kind = Literal["hot_only", "mixed", "switch", "flush", "evaluation", "checkpoint"]
TRAINING_KINDS: tuple[Kind, ...] = ("hot_only", "mixed", "switch", "flush")
KINDS: tuple[Kind, ...] = (*TRAINING_KINDS, "evaluation", "checkpoint")
_MAX_OPEN_LAPS = 256
"""Laps whose events are kept before those that have passed are read."""

_Instant = float | torch.cuda.Event
"""Seconds of the host's clock, or an event in the stream of a GPU."""


class Meter:
    """A clock that is always in one kind of work, or stopped."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self.bytes_to_fast: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self.bytes_to_slow: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        # The loop and the transfer thread both count bytes; the clock is the loop's alone.
        self._lock = threading.Lock()
        self._on_gpu = device.type == "cuda"
        self._kind: Kind | None = None
        self._start: _Instant = 0.0
        self._laps: deque[tuple[Kind, _Instant, _Instant]] = deque()

    def enter(self, kind: Kind | None) -> None:
        """Count what follows as work of ``kind``; None stops the clock."""
        if kind == self._kind:
            return
        now = self._now()
        if self._kind is not None:
            self._laps.append((self._kind, self._start, now))
        self._kind = kind
        self._start = now
        # Open laps hold events, so those that the GPU has passed are read now and then; the last ones are
        # waited for.
        if kind is None:
            self._add_up()
        elif len(self._laps) > _MAX_OPEN_LAPS:
            self._add_up(only_passed=True)

    @contextmanager
    def during(self, kind: Kind) -> Iterator[None]:
        """Count the block as work of ``kind`` inside other work."""
        before = self._kind
        self.enter(kind)
        try:
            yield
        finally:
            self.enter(before)

    def moved(self, *, to_fast: int = 0, to_slow: int = 0, kind: Kind | None = None) -> None:
        """Count bytes that moved between the tiers for ``kind`` of work, the current one if None.

        A thread that does not run the clock has to name the kind.
        """
        kind = kind or self._kind
        if kind is not None:
            with self._lock:
                self.bytes_to_fast[kind] += to_fast
                self.bytes_to_slow[kind] += to_slow

    @property
    def kind(self) -> Kind | None:
        """The kind of work that the clock counts now; None where it is stopped."""
        return self._kind

    @property
    def training_seconds(self) -> float:
        """Seconds of the training steps and switches, evaluation apart; the clock must be stopped."""
        return sum(self.seconds[kind] for kind in TRAINING_KINDS)

    def training_bytes(self) -> tuple[int, int]:
        """Bytes to the fast and to the slow tier, evaluation apart."""
        to_fast = sum(self.bytes_to_fast[kind] for kind in TRAINING_KINDS)
        return to_fast, sum(self.bytes_to_slow[kind] for kind in TRAINING_KINDS)

    def restore(
        self, seconds: Mapping[str, float], bytes_to_fast: Mapping[str, int], bytes_to_slow: Mapping[str, int]
    ) -> None:
        """Go on from what an earlier process counted; other kinds than there are now are left out."""
        for kind in KINDS:
            self.seconds[kind] = seconds.get(kind, 0.0)
            self.bytes_to_fast[kind] = bytes_to_fast.get(kind, 0)
            self.bytes_to_slow[kind] = bytes_to_slow.get(kind, 0)

    def _now(self) -> _Instant:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _add_up(self, *, only_passed: bool = False) -> None:
        # On a GPU the time between two events is read once the later one has passed.
        while self._laps:
            kind, start, end = self._laps[0]
            if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
                if only_passed and not end.query():  # type: ignore[no-untyped-call]
                    return
                end.synchronize()
                self.seconds[kind] += start.elapsed_time(end) / 1e3
            elif isinstance(start, float) and isinstance(end, float):
                self.seconds[kind] += end - start
            self._laps.popleft()
