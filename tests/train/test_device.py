"""Recording on a GPU leaves the streams as they were, even if it refuses; with a stand-in for torch's calls.

What a GPU does with them is tested where there is one (`tests/system/test_gpu.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotset.train.device import CudaDevice


class FakeCuda:
    """The calls of ``torch.cuda`` that a device makes to record, and what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = "default"
        self.launched: list[str] = []
        """The stream of each piece of work."""
        self.ended_pools: list[tuple[int | None, str]] = []
        self.refuses = False
        self._num_streams = 0
        fake = self

        class Graph:
            def capture_begin(self, pool: str, capture_error_mode: str) -> None:
                assert capture_error_mode == "thread_local" and fake.current != "default"
                self.stream = fake.current

            def capture_end(self) -> None:
                assert fake.current == self.stream
                if fake.refuses:
                    raise RuntimeError("operation not permitted when stream is capturing")

        for name, value in {
            "Stream": self._new_stream,
            "current_stream": lambda *_: self.current,
            "stream": self._using,
            "CUDAGraph": Graph,
            "graph_pool_handle": lambda: "a pool",
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(
            torch._C, "_cuda_endAllocateToPool", lambda *pool: self.ended_pools.append(pool), raising=False
        )

    def _new_stream(self, *_: Any, priority: int = 0) -> str:
        self._num_streams += 1
        return f"stream {self._num_streams}"

    @contextmanager
    def _using(self, stream: str) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def launching(device: CudaDevice, cuda: FakeCuda, stream: Any) -> Callable[[], None]:
    return lambda: device.launch(stream, lambda: cuda.launched.append(cuda.current))


@pytest.mark.parametrize("stream", ["compute", "moves"])
def test_work_is_recorded_in_a_stream_that_can_be_and_queued_in_its_own_again(
    stream: str, cuda: FakeCuda
) -> None:
    device = CudaDevice(torch.device("cuda", 1))
    launch = launching(device, cuda, stream)
    launch()
    device.capture(stream, launch)  # type: ignore[arg-type]
    launch()
    own, recorded, again = cuda.launched
    assert own == again and cuda.current == "default"
    assert (own, recorded != own) == (("default", True) if stream == "compute" else (own, False))


@pytest.mark.parametrize("stream", ["compute", "moves"])
def test_a_device_that_refuses_to_record_leaves_its_streams_as_they_were(stream: str, cuda: FakeCuda) -> None:
    device = CudaDevice(torch.device("cuda", 1))
    launch = launching(device, cuda, stream)
    launch()
    cuda.refuses = True
    with pytest.raises(RuntimeError, match="not permitted"):
        device.capture(stream, launch)  # type: ignore[arg-type]
    launch()
    assert cuda.launched[0] == cuda.launched[2] and cuda.current == "default"
    # Else torch would take everything that is freed for memory that a recording may still use.
    assert cuda.ended_pools == [(1, "a pool")]


@pytest.mark.parametrize("refuses", [False, True])
def test_work_that_raises_while_it_is_recorded_is_what_the_caller_hears_of(
    refuses: bool, cuda: FakeCuda
) -> None:
    device = CudaDevice(torch.device("cuda", 0))
    cuda.refuses = refuses

    def fail() -> None:
        raise ValueError("a kernel that does not compile")

    with pytest.raises(ValueError, match="does not compile"):
        device.capture("compute", fail)
    assert cuda.current == "default"
    launching(device, cuda, "compute")()
    assert cuda.launched == ["default"]


def test_pinned_memory_is_kept_until_it_is_pinned_no_more(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: set[int] = set()

    def register(address: int, num_bytes: int, flags: int) -> int:
        registered.add(address)
        return 0

    calls = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=registered.remove)
    idle = SimpleNamespace(query=lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: calls)
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: idle)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: idle)
    device = CudaDevice(torch.device("cuda", 0))
    rows = torch.zeros(5, 4)
    assert device.pin(rows) and device.pin(torch.zeros(0)) and registered == {rows.data_ptr()}
    # Addresses that are pinned must not be those of other memory, which could not be pinned then.
    memory = weakref.ref(rows)
    del rows
    assert memory() is not None
    device.close()
    assert memory() is None and not registered
