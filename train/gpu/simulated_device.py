"""A simulated device on the host that runs work late and reordered.

Each stream is a queue. Now and then, and when the host waits, the device takes the next piece of work of one
stream, chosen by a seeded generator; one stream at a time is slow, so that the others run far ahead of it.
Nothing else makes work run: the host sees results only after it has waited for them.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..device import STREAMS, Event, Graph, StreamName
from ..threads import one_torch_thread

_MOST_AT_ONCE = (0, 1, 3)
"""Most pieces of work that run when another is queued, for a while: the device idles, lags, or keeps up."""
_SLOW_SHARE = 0.8
"""How often the slow stream is passed over while others have work."""
_CALLS_OF_A_WHILE = 64
_POISON = float("nan")
"""Content of new memory of the device."""


@dataclass(eq=False, slots=True)
class LateEvent:
    """A position in a stream of a late device."""

    stream: StreamName
    has_happened: bool = False


@dataclass(frozen=True, slots=True)
class LateGraph:
    """Recorded work of a late device."""

    stream: StreamName
    work: tuple[Callable[[], object], ...]


@dataclass(frozen=True, slots=True)
class _Wait:
    """An entry that blocks its stream until an event has happened."""

    event: LateEvent


_Entry = Callable[[], object] | LateEvent | _Wait
"""Work, an event that happens in its turn, or a wait."""


class LateDevice:
    """A device whose work runs late.

    Args:
        seed: decides what runs when; with calls from one thread alone a run can be repeated.
    """

    def __init__(self, seed: int = 0) -> None:
        self.torch_device = torch.device("cpu")
        self._random = random.Random(seed)
        self._queues: dict[StreamName, deque[_Entry]] = {name: deque() for name in STREAMS}
        self._begin_while()
        self._num_calls = 0
        self._recording: tuple[StreamName, list[Callable[[], object]]] | None = None
        # Threads that fill input slots wait for copies, too.
        self._lock = threading.RLock()

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        poison = _POISON if dtype.is_floating_point else torch.iinfo(dtype).max
        return torch.full(tuple(shape), poison, dtype=dtype, device="cpu")

    def allocate_pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self.allocate(shape, dtype)

    def pin(self, tensor: torch.Tensor) -> bool:
        return True

    def copy(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        self._queue(stream, lambda: target.copy_(source))

    def launch(self, stream: StreamName, kernel: Callable[..., object], *arguments: Any) -> None:
        self._queue(stream, lambda: kernel(*arguments))

    def record(self, stream: StreamName) -> Event:
        event = LateEvent(stream)
        # Within the lock: another thread may be recording meanwhile.
        with self._lock:
            assert self._recording is None, (
                "events are for work that is queued, not for work that is recorded"
            )
            self._queues[stream].append(event)
        return event

    def wait(self, stream: StreamName, event: Event) -> None:
        assert isinstance(event, LateEvent)
        with self._lock:
            assert self._recording is None
            self._queues[stream].append(_Wait(event))

    def wait_on_host(self, event: Event) -> None:
        assert isinstance(event, LateEvent)
        with self._lock:
            while not event.has_happened:
                self._run_one()

    def synchronize(self) -> None:
        with self._lock:
            while any(self._queues.values()):
                self._run_one()

    def capture(self, stream: StreamName, queue_work: Callable[[], None]) -> Graph:
        with self._lock:
            assert self._recording is None, "a graph holds no other"
            work: list[Callable[[], object]] = []
            self._recording = stream, work
            try:
                queue_work()
                return LateGraph(stream, tuple(work))
            finally:
                self._recording = None

    def replay(self, stream: StreamName, graph: Graph) -> None:
        assert isinstance(graph, LateGraph) and graph.stream == stream
        for work in graph.work:
            self._queue(stream, work)

    def close(self) -> None:
        queued = {name: len(queue) for name, queue in self._queues.items() if queue}
        if queued:
            raise RuntimeError(f"the device was closed with work queued: {queued}")

    def _queue(self, stream: StreamName, work: Callable[[], object]) -> None:
        with self._lock:
            if self._recording is not None:
                recorded, work_of_graph = self._recording
                assert stream == recorded, "only one stream is recorded"
                work_of_graph.append(work)
                return
            # A stream is a queue: what is queued runs later, in any order that its events allow.
            self._queues[stream].append(work)
            self._num_calls += 1
            if self._num_calls % _CALLS_OF_A_WHILE == 0:
                self._begin_while()
            # Sometimes nothing runs and sometimes much, so that hosts that wait too little are found.
            for _ in range(self._random.randint(0, self._most_at_once)):
                if not self._ready():
                    return
                self._run_one()

    def _begin_while(self) -> None:
        """Choose a slow stream and the haste of the device, until others are chosen."""
        self._slow: StreamName = self._random.choice(STREAMS)
        self._most_at_once = self._random.choice(_MOST_AT_ONCE)

    def _ready(self) -> list[StreamName]:
        """Streams whose next entry may run."""
        return [
            name
            for name, queue in self._queues.items()
            if queue and not (isinstance(queue[0], _Wait) and not queue[0].event.has_happened)
        ]

    def _run_one(self) -> None:
        """Run the next entry of a stream that is ready."""
        ready = self._ready()
        if not ready:
            raise RuntimeError("the streams wait for each other, or for an event that was never recorded")
        # For a while one stream is slower than the others, which is how most races show.
        if len(ready) > 1 and self._slow in ready and self._random.random() < _SLOW_SHARE:
            ready.remove(self._slow)
        entry = self._queues[self._random.choice(ready)].popleft()
        if isinstance(entry, LateEvent):
            entry.has_happened = True
        elif not isinstance(entry, _Wait):
            # Torch adds in an order that depends on its own threads, of which each thread may have others.
            with one_torch_thread():
                entry()
