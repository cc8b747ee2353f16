"""Measure the parts of a training step on a device, each with its lower bound.

A trainer queues its steps on a device that records the last one; then the kernels of each part run again and
again, by themselves. On a GPU a part is recorded as one graph, so the host's calls do not count. It finds in
the caches what its last run left there, which the lower bounds do not assume.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ....train.build import build_trainer
from ....train.build_embeddings import open_device_api
from ....train.config import TrainConfig
from ....train.data.batch_order import RecordedOrder
from ....train.data.shards import Shards
from ....train.device import Device, Event, Graph, StreamName
from ....train.gpu.twins import TWINS
from ....train.loop import Trainer, read_ahead, run_steps
from .link_rates import measure_link
from .step_floors import LAST, GpuRates, part_floors

_PARTS = {
    "decode_batch": "decode",
    "gather_dots": "rows and dots",
    "gather_dots_backward": "rows and dots, backward",
    "relu_backward": "ReLU and bias",
    "sum_and_step": "sum and step of rows",
    "step_dense": "step of dense layers",
    "_forward": "products",
    "_backward": "products",
    "copy": "copy of the batch",
}
"""The part that each kernel belongs to; the others are `LAST`."""
_TRIALS = 5
_REPETITIONS, _FEW_REPETITIONS = 20, 1
_COPIED_BYTES, _FEW_COPIED_BYTES = 1 << 30, 1 << 22
_PRODUCT_SIZE, _SMALL_PRODUCT_SIZE = 8192, 1024
_MICROSECONDS = 1e6

Launch = tuple[Callable[..., object], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class StepPart:
    """One part of a step."""

    part: str
    us: float
    """Microseconds per sample."""
    floor_us: float
    """Lower bound of ``us``."""
    bound: str
    """The rate that gives the bound."""


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A step on a device, whole and in parts."""

    us: float
    """Microseconds per sample of a step as it is trained, reading and transfers included."""
    parts: tuple[StepPart, ...]


class WritingDevice:
    """A device that records what is launched, and runs recorded work again each time.

    Args:
        device: does the work.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.torch_device = device.torch_device
        self.is_timed = False
        self.launches: dict[str, list[Launch]] | None = None
        """By part, while they are written down."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self._device.allocate(shape, dtype)

    def allocate_pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self._device.allocate_pinned(shape, dtype)

    def pin(self, tensor: torch.Tensor) -> bool:
        return self._device.pin(tensor)

    def copy(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        if stream == "copies":
            self._write_down("copy", _copy, (source, target))
        self._device.copy(stream, source, target)

    def launch(self, stream: StreamName, kernel: Callable[..., object], *arguments: Any) -> None:
        if stream == "compute":
            self._write_down(kernel.__name__, kernel, arguments)
        self._device.launch(stream, kernel, *arguments)

    def record(self, stream: StreamName) -> Event:
        return self._device.record(stream)

    def wait(self, stream: StreamName, event: Event) -> None:
        self._device.wait(stream, event)

    def wait_on_host(self, event: Event) -> None:
        self._device.wait_on_host(event)

    def synchronize(self) -> None:
        self._device.synchronize()

    def capture(self, stream: StreamName, queue_work: Callable[[], None]) -> Graph:
        return queue_work

    def replay(self, stream: StreamName, graph: Graph) -> None:
        assert callable(graph)
        graph()

    def close(self) -> None:
        self._device.close()

    def _write_down(self, name: str, kernel: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        if self.launches is not None:
            self.launches.setdefault(_PARTS.get(name, LAST), []).append((kernel, arguments))


def measure_device_rates(name: str) -> GpuRates:
    """Measure the ceilings of a device: its memory, its products, and the link to it."""
    device = open_device_api(name)
    link = measure_link(name)
    assert device is not None and link is not None
    on = device.torch_device
    # A copy reads each byte and writes it.
    num_bytes = _COPIED_BYTES if device.is_timed else _FEW_COPIED_BYTES
    source, target = (torch.zeros(num_bytes, dtype=torch.uint8, device=on) for _ in range(2))
    memory_bytes = 2 * num_bytes / _seconds(device, [(_copy, (source, target))])
    # Products in the type that lower bounds assume, where it is quick.
    size = _PRODUCT_SIZE if device.is_timed else _SMALL_PRODUCT_SIZE
    dtype = torch.bfloat16 if device.is_timed else torch.float32
    left, right, product = (torch.zeros(size, size, dtype=dtype, device=on) for _ in range(3))
    flops = 2 * size**3 / _seconds(device, [(_multiply, (left, right, product))])
    device.close()
    return GpuRates(memory_bytes=memory_bytes, flops=flops, link_bytes=link.up)


def measure_device_step(
    shards: Shards, config: TrainConfig, order: list[int], num_warm_up: int, rates: GpuRates
) -> DeviceStep:
    """Train on batches of a device, and measure the last step part by part.

    Args:
        shards: with a row width, one lookup per feature, and the features of Criteo.
        config: of a placement whose last batch looks up rows of the fast tier alone, such as all-fast.
        order: batches; the first ``num_warm_up`` are not timed.
        num_warm_up: steps that compile, allocate, and record.
        rates: ceilings of the device.
    """
    recorded = RecordedOrder(np.array(order, np.int32))
    us = _trained(build_trainer(shards, config, recorded), num_warm_up)
    verbs = open_device_api(config.device)
    assert verbs is not None
    device = WritingDevice(verbs)
    trainer = build_trainer(shards, config, recorded, device_api=device)
    with closing(trainer.embeddings), closing(read_ahead(trainer)) as steps:
        for number, step in enumerate(steps):
            if number == len(order) - 1:
                device.synchronize()
                device.launches = {}
            trainer.runner.train(step, trainer.step, trainer.rates.of_step(trainer.step))
            trainer.step += 1
        device.synchronize()
        launches, device.launches = device.launches, None
        assert launches is not None
        lookups = step.parts[0].lookups
        distinct = lookups.num_rows / step.num_samples
        floors = part_floors(shards.embedding_dim, shards.batch_size, rates, distinct_rows=distinct)
        [(_, (sent, _))] = launches["copy of the batch"]
        floors["copy of the batch"] = sent.numel() / step.num_samples / rates.link_bytes
        parts = tuple(
            StepPart(
                name,
                _seconds(verbs, of_part) / step.num_samples * _MICROSECONDS,
                floors.get(name, 0.0) * _MICROSECONDS,
                _bound_by(name),
            )
            for name in dict.fromkeys([*_PARTS.values(), LAST])
            if (of_part := launches.get(name))
        )
    return DeviceStep(us, parts)


def _trained(trainer: Trainer, num_warm_up: int) -> float:
    """Train, and return the microseconds per sample of the steps after the first few."""
    begin = 0.0
    before = 0

    def after_step(running: Trainer, *_: object) -> None:
        nonlocal begin, before
        if running.step == num_warm_up:
            running.runner.synchronize()
            begin = time.perf_counter()
            before = running.num_samples

    run_steps(trainer, after_step)
    trainer.runner.synchronize()
    return (time.perf_counter() - begin) / (trainer.num_samples - before) * _MICROSECONDS


def _seconds(device: Device, launches: Sequence[Launch]) -> float:
    """Return the median seconds of some kernels, one after the other."""
    repetitions = _REPETITIONS if device.is_timed else _FEW_REPETITIONS

    def queue_once() -> None:
        for kernel, arguments in launches:
            device.launch("compute", kernel, *arguments)

    def queue_all() -> None:
        for _ in range(repetitions):
            queue_once()

    # Once plainly, since what kernels compile and load cannot be recorded.
    queue_once()
    device.synchronize()
    is_recorded = all(_can_be_recorded(kernel) for kernel, _ in launches)
    graph = device.capture("compute", queue_all) if is_recorded else None
    found = []
    for _ in range(1 + _TRIALS):
        begin = time.perf_counter()
        if graph is None:
            queue_all()
        else:
            device.replay("compute", graph)
        device.synchronize()
        found.append((time.perf_counter() - begin) / repetitions)
    return statistics.median(found[1:])


def _can_be_recorded(kernel: Callable[..., object]) -> bool:
    """Return whether a kernel does not wait for the device, as twins do."""
    # Methods of tensors are of no module.
    return str(kernel.__module__).rpartition(".")[2] not in TWINS.values()


def _bound_by(name: str) -> str:
    if name == "products":
        return "products or memory"
    return "link" if name == "copy of the batch" else "memory"


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _multiply(left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> None:
    torch.mm(left, right, out=product)
