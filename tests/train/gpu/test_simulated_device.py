"""The simulated device keeps the order of its streams and events, and no other.

`verbs` names its calls, which are those of `device`, too.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable

import pytest
import torch

from hotset.train.device import CudaDevice, Device
from hotset.train.gpu.simulated_device import LateDevice


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
