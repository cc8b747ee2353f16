"""The parts of hotset's training step beside their lower bounds, in CPU time per sample of one thread.

A product cannot be faster than the processor multiplies, and what only moves values cannot be faster than
memory copies them. Both rates are measured first: the best of a few sizes of product, and the copying of
arrays larger than the caches. Values that stay in a cache may be moved faster than that, so the second bound
is rough.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from ....train.data.batch_shares import BatchShares
from ....train.execution.row_width import PlannedStep
from ....train.model.dense_dtype import DenseDtype
from ....train.model.dense_step import TiledStep
from ....train.model.dlrm import Dlrm
from ....train.model.dlrm_shape import DlrmShape
from ....train.model.flat_parameters import ParameterViews
from ....train.model.mlp_tiles import MlpTiles
from ....train.model.sample_tree import tile_bounds
from ....train.trainer import Trainer
from ....train.work_threads import WorkThreads
from .hidden_products import hidden_product

_PRODUCTS = (256, 512, 1024)
"""Sizes of the square products that are tried, the larger ones where they end soon."""
_MOST_PRODUCT_SECONDS = 0.2
_COPIED_FLOATS = 2**23
_ROUNDS = 5
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class MachineRates:
    """The most that one thread reached."""

    fp32_flops: float
    """Floating-point operations per second of products in fp32."""
    bf16_flops: float
    """The same in bf16, summed in fp32."""
    memory_bytes: float
    """Bytes read and written per second by copying."""


@dataclass(frozen=True, slots=True)
class StepPart:
    """One part of a step."""

    part: str
    us: float
    """CPU microseconds per sample."""
    floor_us: float
    """The lower bound in the same unit."""
    bound_by: str
    """The rate behind the lower bound: ``flops`` or ``bytes``."""


def measure_rates() -> MachineRates:
    """Measure the rates of one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # Larger than the caches, so that the rate is that of memory.
        source = np.ones(_COPIED_FLOATS, np.float32)
        target = np.ones(_COPIED_FLOATS, np.float32)
        copy_seconds = _least_seconds(partial(np.copyto, target, source))
        return MachineRates(
            fp32_flops=max(_product_rate(torch.float32), _own_product_rate()),
            bf16_flops=_product_rate(torch.bfloat16),
            memory_bytes=2 * source.nbytes / copy_seconds,
        )
    finally:
        torch.set_num_threads(threads)


def _product_rate(dtype: torch.dtype) -> float:
    best = 0.0
    for size in _PRODUCTS:
        # Without instructions for a dtype, torch takes seconds for a large product, and is no faster at it.
        if best and 2 * size**3 / best > _MOST_PRODUCT_SECONDS:
            break
        a = torch.ones(size, size, dtype=dtype)
        out = torch.empty_like(a)
        best = max(best, 2 * size**3 / _least_seconds(partial(torch.mm, a, a, out=out)))
    return best


def _own_product_rate() -> float:
    """Return the rate of the products of hidden layers, which may be our own."""
    size = _PRODUCTS[0]
    return 2 * size**3 / _least_seconds(hidden_product(size, size, size))


def _least_seconds(work: Callable[[], object]) -> float:
    """Return the least CPU seconds of several runs of ``work`` in this thread, after one to warm up."""
    work()
    least = float("inf")
    for _ in range(_ROUNDS):
        start = time.thread_time()
        work()
        least = min(least, time.thread_time() - start)
    return max(least, 1e-9)


_INNER_PARTS = (
    "bottom MLP, forward",
    "top MLP, forward",
    "top MLP, backward",
    "bottom MLP, backward",
    "add gradients of tiles",
)
_REST = "interaction and loss, both ways"
_PARTS = (
    "look up rows",
    "bottom MLP, forward",
    "top MLP, forward",
    _REST,
    "top MLP, backward",
    "bottom MLP, backward",
    "add gradients of tiles",
    "dense optimizer",
    "update rows",
)
"""The parts in the order of a step."""


class _Stopwatch:
    """CPU seconds of the calling thread by name."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.thread_time()
        yield
        self.seconds[name] += time.thread_time() - start


class _TimedMlp:
    """Hidden layers whose passes are timed."""

    def __init__(self, mlp: MlpTiles, name: str, watch: _Stopwatch) -> None:
        self._mlp = mlp
        self._name = name
        self._watch = watch

    def forward(self, inputs_TK: torch.Tensor) -> torch.Tensor:
        with self._watch(f"{self._name}, forward"):
            return self._mlp.forward(inputs_TK)

    def backward(
        self, grad_TN: torch.Tensor, gradients: ParameterViews, *, to_inputs: bool
    ) -> torch.Tensor | None:
        with self._watch(f"{self._name}, backward"):
            return self._mlp.backward(grad_TN, gradients, to_inputs=to_inputs)


class _TimedStep(TiledStep):
    """The dense step of one thread, its parts timed."""

    def __init__(self, model: Dlrm, batch_size: int, dtype: DenseDtype, watch: _Stopwatch) -> None:
        super().__init__(model, BatchShares(batch_size), WorkThreads(1), dtype)
        self._watch = watch
        tile = self.tile_of(0)
        if tile.bottom is not None:
            tile.bottom = _TimedMlp(tile.bottom, "bottom MLP", watch)
        if tile.top is not None:
            tile.top = _TimedMlp(tile.top, "top MLP", watch)

    def add_gradients(self, counts: Sequence[int]) -> ParameterViews:
        with self._watch("add gradients of tiles"):
            return super().add_gradients(counts)


def measure_parts(
    trainer: Trainer, shape: DlrmShape, rates: MachineRates, num_warm_up: int
) -> list[StepPart]:
    """Run the steps of ``trainer`` part by part; the first ``num_warm_up`` are not counted.

    Args:
        trainer: a new one with one thread, placement ``all-fast`` and SGD.
        shape: that of its model.
        rates: those of this machine.
        num_warm_up: steps before the first that counts.
    """
    watch = _Stopwatch()
    assert isinstance(trainer.model, Dlrm)
    dtype = trainer.dense.dtype
    trainer.dense = _TimedStep(trainer.model, trainer.shards.batch_size, dtype, watch)
    num_samples = 0
    with closing(trainer.embeddings), closing(trainer.steps()) as steps:
        for number, step in enumerate(steps):
            # What the first steps compile and allocate is no part of a step.
            if number == num_warm_up:
                watch.seconds.clear()
                num_samples = 0
            _run_step(trainer, step.step, watch)
            num_samples += step.step.batch.num_samples
        trainer.meter.enter(None)
    # What each part must cost at least, from its products and its bytes.
    floors = lower_bounds(shape, trainer.shards.batch_size, rates, dtype)
    return [
        StepPart(name, watch.seconds[name] / num_samples * 1e6, floor * 1e6, bound)
        for name, (floor, bound) in floors.items()
    ]


def _run_step(trainer: Trainer, step: PlannedStep, watch: _Stopwatch) -> None:
    batch = step.batch
    with watch("look up rows"):
        embeddings = trainer.embeddings.look_up(step)
    # Parts inside of the dense step are measured there; the rest of it is what they leave.
    before = sum(watch.seconds[part] for part in _INNER_PARTS)
    with watch("dense"):
        trainer.dense.train(batch, embeddings)
    watch.seconds[_REST] += watch.seconds.pop("dense") - sum(watch.seconds[p] for p in _INNER_PARTS) + before
    with watch("dense optimizer"):
        for optimizer in trainer.dense_optimizers:
            optimizer.step()
    with watch("update rows"):
        trainer.embeddings.update(step, embeddings)


def lower_bounds(
    shape: DlrmShape, batch_size: int, rates: MachineRates, dtype: DenseDtype = "fp32"
) -> dict[str, tuple[float, str]]:
    """Return the lower bound of each part in seconds per sample, and the rate behind it.

    Args:
        shape: of the model.
        batch_size: samples.
        rates: of the machine.
        dtype: of the products of hidden layers; the interaction and the last layer are float32.
    """
    weights = sum(a * b for layers in (shape.bottom, shape.top) for a, b in pairwise(layers))
    bottom = sum(a * b for a, b in pairwise(shape.bottom))
    first = shape.bottom[0] * shape.bottom[1] if shape.bottom else 0
    # The last layer, to one number, is counted with the rest.
    top = sum(a * b for a, b in pairwise(shape.top[:-1]))
    pairs = shape.num_vectors * (shape.num_vectors - 1) // 2 * shape.embedding_dim
    vectors = shape.num_tables * shape.embedding_dim * _FLOAT_BYTES
    num_tiles = len(tile_bounds(batch_size))
    # A product and a sum for each weight, backward twice; the gradient of the dense features is not needed.
    flops = {
        "bottom MLP, forward": 2 * bottom,
        "top MLP, forward": 2 * top,
        _REST: 6 * (pairs + shape.top[-2]),
        "top MLP, backward": 4 * top,
        "bottom MLP, backward": 4 * bottom - 2 * first,
    }
    moved = {
        # Rows are read, vectors written.
        "look up rows": 2 * vectors,
        # The gradients of all tiles are read, their sum is written.
        "add gradients of tiles": (num_tiles + 1) * weights * _FLOAT_BYTES / batch_size
        if num_tiles > 1
        else 0,
        # Weights and gradients are read, weights written.
        "dense optimizer": 3 * weights * _FLOAT_BYTES / batch_size,
        # Gradients are read, rows read and written.
        "update rows": 3 * vectors,
    }
    of_hidden = rates.fp32_flops if dtype == "fp32" else rates.bf16_flops
    by_flops = {
        name: (count / (rates.fp32_flops if name == _REST else of_hidden), "flops")
        for name, count in flops.items()
    }
    by_bytes = {name: (count / rates.memory_bytes, "bytes") for name, count in moved.items()}
    found = by_flops | by_bytes
    return {name: found[name] for name in _PARTS}
