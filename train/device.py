"""The device API of training steps, and its implementation on a GPU.

A device has three streams. Work in one stream runs in the order in which it was queued; between streams only
events decide. `CudaDevice` is a GPU; its compute stream is the one that is current when the device is opened,
so whatever torch runs in that thread is in order with the steps. `LateDevice` simulates a device on the host
and runs work as late and in as odd an order as streams and events allow, so that a missing wait shows without
a GPU. The same code drives both and must not ask which one it has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast

import torch

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
