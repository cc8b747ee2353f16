"""The device API of training steps, and its implementation on a GPU.

A device has three streams. Work in one stream runs in the order in which it was queued; between streams only
events decide. `CudaDevice` is a GPU; its compute stream is the one that is current when the device is opened,
so whatever torch runs in that thread is in order with the steps. `LateDevice` simulates a device on the host
and runs work as late and in as odd an order as streams and events allow, so that a missing wait shows without
a GPU. The same code drives both and must not ask which one it has.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import torch

from .threads import one_torch_thread

StreamName = Literal["copies", "moves", "compute"]
"""Inputs that go up; rows that move between the tiers; everything else."""
STREAMS: tuple[StreamName, ...] = ("copies", "moves", "compute")


class Event(Protocol):
    """A position in a stream."""


class Graph(Protocol):
    """Work that was recorded once and is queued as a whole."""


class Device(Protocol):
    """A device and its streams; calls return early, except those that wait."""

    torch_device: torch.device
    """Where tensors of the device are."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return memory of the device, with any content."""

    def allocate_pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return uninitialized host memory that copies of the device can use."""

    def pin(self, tensor: torch.Tensor) -> bool:
        """Let kernels access host memory, mapped files excepted; return whether they can."""

    def copy(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        """Queue a copy between pinned host memory and the device."""

    def launch(self, stream: StreamName, kernel: Callable[..., object], *arguments: Any) -> None:
        """Queue a kernel: a call that gives the device work without reading results."""

    def record(self, stream: StreamName) -> Event:
        """Return an event after all work that the stream has so far."""

    def wait(self, stream: StreamName, event: Event) -> None:
        """Make later work of the stream run after ``event``; the host does not wait."""

    def wait_on_host(self, event: Event) -> None:
        """Return once ``event`` has happened."""

    def synchronize(self) -> None:
        """Return once the device has done all that it was given."""

    def capture(self, stream: StreamName, queue_work: Callable[[], None]) -> Graph:
        """Record what ``queue_work`` launches in a stream, without running it.

        The work is of this stream alone, and reads and writes the same memory whenever it runs.

        Raises:
            RuntimeError: some of the work cannot be recorded; nothing has run.
        """

    def replay(self, stream: StreamName, graph: Graph) -> None:
        """Queue work that was recorded in this stream."""

    def close(self) -> None:
        """End the use of the device.

        Raises:
            RuntimeError: work is still queued, whose memory could be freed before it runs.
        """


_MAPPED = 2
"""``cudaHostRegisterMapped``: kernels find the memory at the host's own addresses."""
_URGENT = -1
"""Priority of streams whose small pieces of work the next step waits for: before that of compute, 0, wherever
a core of the GPU gets free."""


class CudaDevice:
    """One GPU.

    Args:
        torch_device: which one; it is the current device of the calling thread.
    """

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self._streams: dict[StreamName, Any] = {
            "copies": torch.cuda.Stream(torch_device, priority=_URGENT),  # type: ignore[no-untyped-call]
            "moves": torch.cuda.Stream(torch_device, priority=_URGENT),  # type: ignore[no-untyped-call]
            "compute": torch.cuda.current_stream(torch_device),
        }
        # Compute is the default stream, which cannot be recorded, so another one stands for it.
        self._recorded_compute = torch.cuda.Stream(torch_device)  # type: ignore[no-untyped-call]
        self._pinned: list[torch.Tensor] = []
        """Memory of others, kept for as long as it is pinned: its addresses must not become those of new
        memory."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(tuple(shape), dtype=dtype, device=self.torch_device)
        # Memory is given to others only after work that may still use it.
        for stream in self._streams.values():
            tensor.record_stream(stream)
        return tensor

    def allocate_pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        # Memory is pinned for the current device of a thread, and threads begin with the first one.
        with torch.cuda.device(self.torch_device):
            return torch.empty(tuple(shape), dtype=dtype, pin_memory=True, device="cpu")

    def pin(self, tensor: torch.Tensor) -> bool:
        if tensor.numel() == 0:
            return True
        # Not torch's own pinned memory, which is rounded up to a power of two.
        cudart = cast(Any, torch.cuda.cudart())  # type: ignore[no-untyped-call]
        num_bytes = tensor.numel() * tensor.element_size()
        if int(cudart.cudaHostRegister(tensor.data_ptr(), num_bytes, _MAPPED)) != 0:
            # CUDA reports the error once more at the next kernel launch, so launch one here.
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self.torch_device, dtype=torch.float32)
            return False
        self._pinned.append(tensor)
        return True

    def copy(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        with torch.cuda.stream(self._streams[stream]):
            target.copy_(source, non_blocking=True)

    def launch(self, stream: StreamName, kernel: Callable[..., object], *arguments: Any) -> None:
        with torch.cuda.stream(self._streams[stream]):
            kernel(*arguments)

    def record(self, stream: StreamName) -> Event:
        # A thread that waits for a blocking event sleeps, and leaves its core to those that pack.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._streams[stream])
        return cast(Event, event)

    def wait(self, stream: StreamName, event: Event) -> None:
        self._streams[stream].wait_event(event)

    def wait_on_host(self, event: Event) -> None:
        cast(Any, event).synchronize()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def capture(self, stream: StreamName, queue_work: Callable[[], None]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle()
        # What is recorded keeps the priority of the stream where that is done.
        before = self._streams[stream]
        recorded = self._recorded_compute if stream == "compute" else before
        # Not `torch.cuda.graph`: where the device refuses, it leaves the recorded stream current, in which
        # later work would not wait for that of compute. It also frees all cached memory each time.
        with torch.cuda.stream(recorded):
            # Other threads go on using pinned memory and events meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            self._streams[stream] = recorded
            try:
                queue_work()
            except BaseException:
                with contextlib.suppress(RuntimeError):
                    self._end_capture(graph, pool)
                raise
            finally:
                self._streams[stream] = before
            self._end_capture(graph, pool)
        return cast(Graph, graph)

    def replay(self, stream: StreamName, graph: Graph) -> None:
        with torch.cuda.stream(self._streams[stream]):
            cast(Any, graph).replay()

    def _end_capture(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        try:
            graph.capture_end()
        except RuntimeError:
            # Torch forgets here that nothing is recorded any more, and would never use memory again that
            # another stream has used.
            with contextlib.suppress(RuntimeError, AttributeError):
                torch._C._cuda_endAllocateToPool(self.torch_device.index, pool)
            raise

    def close(self) -> None:
        if not all(stream.query() for stream in self._streams.values()):
            raise RuntimeError("the device was closed with work queued")
        cudart = cast(Any, torch.cuda.cudart())  # type: ignore[no-untyped-call]
        while self._pinned:
            cudart.cudaHostUnregister(self._pinned.pop().data_ptr())


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
    """A simulated device on the host that runs work late and reordered.

    Each stream is a queue. Now and then, and when the host waits, the device takes the next piece of work of
    one stream, chosen by a seeded generator; one stream at a time is slow, so that the others run far ahead
    of it. Nothing else makes work run: the host sees results only after it has waited for them.

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
