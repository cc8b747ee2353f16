"""A GPU behind the verbs of a device.

The stream of compute is that which is current when the device is opened, so that whatever torch is asked for
in that thread runs in order with the steps. Host functions run in a thread of the driver, by
`cudaLaunchHostFunc`, which torch has no call for.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from .verbs import Event, Graph, StreamName

_HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class CudaDevice:
    """One GPU.

    Args:
        torch_device: which one; it is the current device of the calling thread.
    """

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self._streams: dict[StreamName, Any] = {
            "copies": torch.cuda.Stream(torch_device),  # type: ignore[no-untyped-call]
            "moves": torch.cuda.Stream(torch_device),  # type: ignore[no-untyped-call]
            "compute": torch.cuda.current_stream(torch_device),
        }
        self._pinned: list[int] = []
        self._host_calls = _HostCalls()

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(tuple(shape), dtype=dtype, device=self.torch_device)
        # Memory is given back only after work that may still use it.
        for stream in self._streams.values():
            tensor.record_stream(stream)
        return tensor

    def allocate_pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def pin(self, tensor: torch.Tensor) -> None:
        # Not torch's own pinned memory, which is rounded up to a power of two.
        if tensor.numel() == 0:
            return
        cudart = cast(Any, torch.cuda.cudart())  # type: ignore[no-untyped-call]
        # The pages stay where they are; from here on the GPU may copy from them by itself.
        status = cudart.cudaHostRegister(tensor.data_ptr(), tensor.numel() * tensor.element_size(), 0)
        if int(status) != 0:
            raise RuntimeError(
                f"cudaHostRegister of {tensor.numel() * tensor.element_size()} bytes: {status}"
            )
        self._pinned.append(tensor.data_ptr())

    def copy(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        with torch.cuda.stream(self._streams[stream]):
            target.copy_(source, non_blocking=True)

    def launch(self, stream: StreamName, kernel: Callable[..., object], *arguments: Any) -> None:
        with torch.cuda.stream(self._streams[stream]):
            kernel(*arguments)

    def call_host(self, stream: StreamName, function: Callable[[], None]) -> None:
        self._host_calls.queue(self._streams[stream].cuda_stream, function)

    def record(self, stream: StreamName) -> Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._streams[stream])
        return cast(Event, event)

    def wait(self, stream: StreamName, event: Event) -> None:
        self._streams[stream].wait_event(event)

    def wait_on_host(self, event: Event) -> None:
        cast(Any, event).synchronize()
        self._host_calls.raise_error()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)
        self._host_calls.raise_error()

    def capture(self, queue_work: Callable[[], None]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        # Other threads go on with pinned memory and events of their own meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            compute = self._streams["compute"]
            self._streams["compute"] = torch.cuda.current_stream(self.torch_device)
            try:
                queue_work()
            finally:
                self._streams["compute"] = compute
        return cast(Graph, graph)

    def replay(self, graph: Graph) -> None:
        with torch.cuda.stream(self._streams["compute"]):
            cast(Any, graph).replay()

    def close(self) -> None:
        if not all(stream.query() for stream in self._streams.values()):
            raise RuntimeError("the device was closed with work queued")
        cudart = cast(Any, torch.cuda.cudart())  # type: ignore[no-untyped-call]
        while self._pinned:
            cudart.cudaHostUnregister(self._pinned.pop())


class _HostCalls:
    """Functions that a thread of the driver calls in the turn of their stream."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: dict[int, Callable[[], None]] = {}
        self._next = 0
        self._error: BaseException | None = None
        # Kept as long as the driver may call it.
        self._callback = _HostFunction(self._call)
        self._launch: Any = None

    def queue(self, stream: int, function: Callable[[], None]) -> None:
        """Queue a function in the stream with this handle."""
        if self._launch is None:
            self._launch = ctypes.CDLL(_loaded_library("libcudart")).cudaLaunchHostFunc
            self._launch.argtypes = [ctypes.c_void_p, _HostFunction, ctypes.c_void_p]
        with self._lock:
            # From 1: a null pointer arrives as None.
            self._next += 1
            self._functions[self._next] = function
            status = self._launch(stream, self._callback, self._next)
        if status != 0:
            raise RuntimeError(f"cudaLaunchHostFunc failed with {status}")

    def raise_error(self) -> None:
        """Raise what a function has raised."""
        if self._error is not None:
            raise self._error

    def _call(self, number: int) -> None:
        function = self._functions.pop(number)
        try:
            if self._error is None:
                function()
        except BaseException as error:
            # An exception cannot leave a thread of the driver.
            self._error = error


def _loaded_library(name: str) -> str:
    """Return the path of a library that torch has loaded."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if name in path.rsplit("/", 1)[-1]:
                return path
    raise RuntimeError(f"{name} is not loaded")
