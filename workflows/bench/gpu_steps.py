"""The parts of a training step on a GPU: their lower bounds, and what they take.

Lower bounds are arithmetic. A part is bound by the bytes it moves in the GPU's memory or by its products,
whichever takes longer; nothing is assumed to be found in a cache.

For measurements a trainer queues its steps on a device that records the last one; then the kernels of each
part run again and again, by themselves. On a GPU a part is recorded as one graph, so the host's calls do not
count. It finds in the caches what its last run left there, which the lower bounds do not assume.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from ...stats.ranking.row_bytes import row_bytes
from ...train.build import build_trainer
from ...train.build_embeddings import open_device_api
from ...train.config import TrainConfig
from ...train.data.batch_order import RecordedOrder
from ...train.data.shards import Shards
from ...train.device import Device, Graph, StreamName
from ...train.gpu.twins import is_twin
from ...train.loop import read_ahead
from ...train.model.shapes import dlrm_shape
from .gpu_checks import base_config, drawn_samples, packed_shards
from .gpu_day import PartSettings, Records
from .train_step import samples_of, train_timed

NUM_TABLES, NUM_DENSE = 26, 13
"""Numbers of tables and of dense features of the Criteo logs."""
_PADDED_DENSE = 16
"""Dense values as the first product reads them."""
_HALF, _FLOAT, _INT = 2, 4, 4
"""Bytes of a bfloat16, a float32 and an int32 number."""
LAST = "last layer, loss, dense values"
_LINK_BYTES, _FEW_LINK_BYTES = 1 << 28, 1 << 22
"""Bytes of a copy on a GPU, some 5 ms, so that its beginning does not count; and on a simulated device, whose
figures mean nothing."""
_LINK_TRIALS = 5
SERIAL = ("hybrid", "hybrid-dedup", "fae")
"""Placements whose vectors arrive before the gradients of the same batch, and after those of the previous
one: the two directions alternate. The others move rows ahead, in both directions simultaneously."""
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
_NANOSECONDS = 1e9
_SHAPES = ((16, 65_536), (128, 65_536), (16, 16_384), (16, 2_048))
_SMALL_SHAPES = ((16, 256),)
"""Embedding dimension and batch size."""
_WARM_UP_STEPS, _STEPS, _SMALL_STEPS = 5, 30, 3

Launch = tuple[Callable[..., object], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class GpuRates:
    """The ceilings of a GPU."""

    memory_bytes: float
    """Bytes per second of its memory."""
    flops: float
    """Operations per second of products in bfloat16."""
    link_bytes: float
    """Bytes per second from pinned host memory, and as many back."""


def part_floors(
    embedding_dim: int, batch_size: int, rates: GpuRates, *, distinct_rows: float
) -> dict[str, float]:
    """Return the seconds that each part of a step takes per sample, at least.

    Args:
        embedding_dim: floats per row.
        batch_size: samples.
        rates: ceilings of the GPU.
        distinct_rows: per sample of a batch.
    """
    shape = dlrm_shape("auto", NUM_DENSE, NUM_TABLES, embedding_dim)
    # A sample reads a row and its slot in each table; inputs of dense layers are in half precision.
    gathered = NUM_TABLES * (_FLOAT * embedding_dim + _INT)
    inputs = _HALF * (shape.top_inputs + embedding_dim)
    row_gradients = NUM_TABLES * _FLOAT * embedding_dim
    moved = {
        # Sample numbers are read, slots of rows and lookups written.
        "decode": NUM_TABLES * (2 + _INT) + distinct_rows * (2 + 3 * _INT),
        "rows and dots": gathered + inputs,
        "rows and dots, backward": gathered + inputs + row_gradients + _HALF * embedding_dim,
        # Only backward: forward they are part of the product. Gradient and outputs are read, one is written.
        "ReLU and bias": 3 * _HALF * sum(shape.bottom[1:] + shape.top[1:-1]),
        "sum and step of rows": row_gradients
        + 2 * NUM_TABLES
        + 2 * distinct_rows * row_bytes(embedding_dim, "sgd"),
        # The last hidden layer is read, its gradient written; dense values are rounded, with zeros appended.
        LAST: 2 * _HALF * shape.top[-2] + 1 + _FLOAT * NUM_DENSE + _HALF * _PADDED_DENSE,
        # Weight, gradient, weight again, and its rounded copy.
        "step of dense layers": (3 * _FLOAT + _HALF) * shape.num_weights / batch_size,
    }
    seconds = {name: num_bytes / rates.memory_bytes for name, num_bytes in moved.items()}
    # The product of the last layer is one of vectors, and part of what reads its inputs.
    hidden = shape.layers[:-1]
    seconds["products"] = sum(_product_seconds(inputs, outputs, rates) for inputs, outputs in hidden)
    return seconds


def _product_seconds(inputs: int, outputs: int, rates: GpuRates) -> float:
    """Return the time of the three products of a layer: outputs, gradients of weights and of inputs."""
    flops = 2 * inputs * outputs / rates.flops
    return 3 * max(flops, _HALF * (inputs + outputs) / rates.memory_bytes)


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bytes per second of pinned memory."""

    up: float
    """From the host to the device."""
    down: float

    def seconds(self, placement: str, bytes_up: float, bytes_down: float) -> float:
        """Return the seconds that the link needs at least for what a placement moves."""
        both = bytes_up / self.up, bytes_down / self.down
        return sum(both) if placement in SERIAL else max(both)


def _is_gpu(device: Device) -> bool:
    """Return whether figures of a device mean something."""
    return device.torch_device.type == "cuda"


def measure_link(name: str) -> LinkRates | None:
    """Measure the link of a device; None for the host, which has none."""
    device = open_device_api(name)
    if device is None:
        return None
    num_bytes = _LINK_BYTES if _is_gpu(device) else _FEW_LINK_BYTES
    pinned = device.allocate_pinned([num_bytes], torch.uint8)
    near = device.allocate([num_bytes], torch.uint8)
    up = _least_seconds(partial(device.copy, "copies", pinned, near), device)
    down = _least_seconds(partial(device.copy, "moves", near, pinned), device)
    device.close()
    return LinkRates(num_bytes / up, num_bytes / down)


def _least_seconds(queue: Callable[[], None], device: Device) -> float:
    """Return the seconds of the quickest of a few copies, after one that wakes the link."""
    return min(seconds_of_calls(queue, device.synchronize, 1 + _LINK_TRIALS)[1:])


def seconds_of_calls(
    work: Callable[[], object], synchronize: Callable[[], object], number: int
) -> list[float]:
    """Return the seconds of each of some calls, until the device has done their work."""
    found = []
    for _ in range(number):
        synchronize()
        begin = time.perf_counter()
        work()
        synchronize()
        found.append(time.perf_counter() - begin)
    return found


class WritingDevice:
    """A device that records what is launched, and runs recorded work again each time.

    Args:
        device: does the work, and all other calls.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.launches: dict[str, list[Launch]] | None = None
        """By part, while they are written down."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def copy(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        if stream == "copies":
            self._write_down("copy", _copy, (source, target))
        self._device.copy(stream, source, target)

    def launch(self, stream: StreamName, kernel: Callable[..., object], *arguments: Any) -> None:
        if stream == "compute":
            self._write_down(kernel.__name__, kernel, arguments)
        self._device.launch(stream, kernel, *arguments)

    def capture(self, stream: StreamName, queue_work: Callable[[], None]) -> Graph:
        return queue_work

    def replay(self, stream: StreamName, graph: Graph) -> None:
        assert callable(graph)
        graph()

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
    num_bytes = _COPIED_BYTES if _is_gpu(device) else _FEW_COPIED_BYTES
    source, target = (torch.zeros(num_bytes, dtype=torch.uint8, device=on) for _ in range(2))
    memory_bytes = 2 * num_bytes / _seconds(device, [(_copy, (source, target))])
    # Products in the type that lower bounds assume, where it is quick.
    size = _PRODUCT_SIZE if _is_gpu(device) else _SMALL_PRODUCT_SIZE
    dtype = torch.bfloat16 if _is_gpu(device) else torch.float32
    left, right, product = (torch.zeros(size, size, dtype=dtype, device=on) for _ in range(3))
    flops = 2 * size**3 / _seconds(device, [(_multiply, (left, right, product))])
    device.close()
    return GpuRates(memory_bytes=memory_bytes, flops=flops, link_bytes=link.up)


def measure_device_step(
    shards: Shards, config: TrainConfig, order: list[int], num_warm_up: int, rates: GpuRates
) -> dict[str, Any]:
    """Train on batches of a device, measure the last step part by part, and return nanoseconds per sample.

    Args:
        shards: with a row width, one lookup per feature, and the features of Criteo.
        config: of a placement whose last batch looks up rows of the fast tier alone, such as all-fast.
        order: batches; the first ``num_warm_up`` are not timed.
        num_warm_up: steps that compile, allocate, and record.
        rates: ceilings of the device.
    """
    recorded = RecordedOrder(np.array(order, np.int32))
    trained, (wall, _) = train_timed(shards, config, order, num_warm_up)
    seconds = wall / (trained.num_samples - samples_of(shards, order[:num_warm_up]))
    verbs = open_device_api(config.device)
    assert verbs is not None
    device = WritingDevice(verbs)
    trainer = build_trainer(shards, config, recorded, device_api=cast(Device, device))
    with closing(trainer.embeddings.transfers), closing(read_ahead(trainer)) as steps:
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
        parts = {
            name: _seconds(verbs, of_part) / step.num_samples
            for name in dict.fromkeys([*_PARTS.values(), LAST])
            if (of_part := launches.get(name))
        }
    return {
        "whole": _NANOSECONDS * seconds,
        "parts": {name: _NANOSECONDS * taken for name, taken in parts.items()},
        "lower_bounds": {name: _NANOSECONDS * floors.get(name, 0.0) for name in parts},
    }


def _seconds(device: Device, launches: Sequence[Launch]) -> float:
    """Return the median seconds of some kernels, one after the other."""
    repetitions = _REPETITIONS if _is_gpu(device) else _FEW_REPETITIONS

    def queue_once() -> None:
        for kernel, arguments in launches:
            device.launch("compute", kernel, *arguments)

    def queue_all() -> None:
        for _ in range(repetitions):
            queue_once()

    # Once plainly, since what kernels compile and load cannot be recorded.
    queue_once()
    device.synchronize()
    is_recorded = not any(is_twin(kernel) for kernel, _ in launches)
    work = queue_all
    if is_recorded:
        work = partial(device.replay, "compute", device.capture("compute", queue_all))
    return statistics.median(seconds_of_calls(work, device.synchronize, 1 + _TRIALS)[1:]) / repetitions


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _multiply(left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> None:
    torch.mm(left, right, out=product)


def measure_step_parts(settings: PartSettings, records: Records) -> None:
    """Write a row for each shape: nanoseconds per sample of a step, of its parts, and their lower bounds."""
    shapes = {
        f"parts of a step at dim {dim} and {batch_size}": (dim, batch_size)
        for dim, batch_size in (_SMALL_SHAPES if settings.is_small else _SHAPES)
    }
    rates = measure_device_rates(settings.device)
    records.row(what="ceilings, by the verbs of training", **asdict(rates))
    samples = drawn_samples(settings)
    # A separate folder: the parts that measure speeds pack the same samples.
    own = replace(settings, scratch=settings.scratch / "parts")
    config = base_config(settings)
    num_steps = _WARM_UP_STEPS + (_SMALL_STEPS if settings.is_small else _STEPS)
    for piece in records.pieces(list(shapes)):
        dim, batch_size = shapes[piece]
        with records.catching(piece):
            shards = packed_shards(own, samples, batch_size, dim)
            # The last batch may be short.
            order = np.resize(np.arange(shards.num_training_batches - 1), num_steps).tolist()
            step = measure_device_step(shards, config, order, _WARM_UP_STEPS, rates)
            records.row(
                what="parts of a step, ns/sample",
                embedding_dim=dim,
                batch_size=batch_size,
                **step,
            )
        gc.collect()
