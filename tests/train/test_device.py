"""Recording on a GPU leaves the streams as they were, even if it refuses; with a stand-in for torch's calls.

What a GPU does with them is tested where there is one (`tests/system/test_gpu.py`).

The simulated device keeps the order of its streams and events, and no other.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotset.train.device import CudaDevice, Device, LateDevice


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


def orders(queue: Callable[[LateDevice, list[str]], None], num_seeds: int = 60) -> set[str]:
    """The orders in which work was done, over seeds."""
    found = set()
    for seed in range(num_seeds):
        device = LateDevice(seed)
        done: list[str] = []
        queue(device, done)
        device.synchronize()
        found.add("".join(done))
    return found


def test_a_stream_runs_in_order_and_streams_run_in_any() -> None:
    def queue(device: LateDevice, done: list[str]) -> None:
        for name in "ab":
            device.launch("compute", done.append, name)
        for name in "cd":
            device.launch("moves", done.append, name)

    assert orders(queue) == {"abcd", "acbd", "acdb", "cabd", "cadb", "cdab"}


def test_a_wait_holds_up_its_stream_alone() -> None:
    def queue(device: LateDevice, done: list[str]) -> None:
        device.launch("compute", done.append, "a")
        event = device.record("compute")
        device.wait("moves", event)
        device.launch("moves", done.append, "c")
        device.launch("compute", done.append, "b")

    assert orders(queue) == {"abc", "acb"}


def test_the_host_waits_for_an_event_and_no_longer() -> None:
    leftovers = set()
    for seed in range(40):
        device = LateDevice(seed)
        done: list[int] = []
        for number in range(4):
            device.launch("compute", done.append, number)
            if number == 1:
                event = device.record("compute")
        device.wait_on_host(event)
        assert done[:2] == [0, 1]
        leftovers.add(len(done))
    assert leftovers == {2, 3, 4}


def test_new_memory_holds_nothing_useful() -> None:
    device = LateDevice()
    assert device.allocate([2], torch.float32).isnan().all()
    assert (device.allocate([2], torch.int32) == torch.iinfo(torch.int32).max).all()


def test_a_copy_reads_its_source_when_it_runs() -> None:
    found = set()
    for seed in range(20):
        device = LateDevice(seed)
        source, target = torch.zeros(1), torch.zeros(1)
        device.copy("copies", source, target)
        source.fill_(1)
        device.synchronize()
        found.add(target.item())
    assert found == {0.0, 1.0}


def test_another_thread_goes_on_while_work_is_recorded() -> None:
    device = LateDevice()
    other = threading.Thread(target=lambda: device.wait("moves", device.record("moves")))

    def queue_work() -> None:
        other.start()
        # The other thread comes as far as it can.
        other.join(0.05)
        device.launch("compute", list)

    device.capture("compute", queue_work)
    other.join()
    assert len(device._queues["moves"]) == 2


def test_recorded_work_runs_at_each_replay_in_its_stream_and_not_before() -> None:
    device = LateDevice()
    done: list[int] = []
    graph = device.capture("moves", lambda: device.launch("moves", done.append, 1))
    device.synchronize()
    assert done == []
    device.replay("moves", graph)
    device.replay("moves", graph)
    device.synchronize()
    assert done == [1, 1]
    with pytest.raises(AssertionError):
        device.replay("compute", graph)
    with pytest.raises(AssertionError, match="one stream"):
        device.capture("moves", lambda: device.launch("compute", done.append, 1))


def test_products_have_one_thread_whoever_runs_them() -> None:
    """Torch adds in an order that depends on the threads that a product has."""
    device = LateDevice()
    before = torch.get_num_threads()
    found: list[int] = []
    device.launch("compute", lambda: found.append(torch.get_num_threads()))
    device.synchronize()
    device.launch("compute", lambda: found.append(torch.get_num_threads()))
    other = threading.Thread(target=device.synchronize)
    other.start()
    other.join()
    assert found == [1, 1] and torch.get_num_threads() == before


def test_streams_that_wait_for_each_other_are_named_and_not_closed() -> None:
    device = LateDevice()
    device.wait("moves", LateDevice().record("compute"))
    with pytest.raises(RuntimeError, match="wait for each other"):
        device.synchronize()
    with pytest.raises(RuntimeError, match=r"work queued: \{'moves': 1\}"):
        device.close()


def verbs_of(kind: type) -> dict[str, list[str]]:
    return {
        name: list(inspect.signature(function).parameters)
        for name, function in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_the_gpu_and_the_late_device_have_the_same_verbs() -> None:
    assert verbs_of(CudaDevice) == verbs_of(LateDevice) == verbs_of(Device)
