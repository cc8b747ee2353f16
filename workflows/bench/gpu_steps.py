"""The parts of a training step on a GPU: their lower bounds, and what they take.

Lower bounds are arithmetic. A part is bound by the bytes it moves in the GPU's memory or by its products,
whichever takes longer; nothing is assumed to be found in a cache. For measurements a trainer queues its steps
on a device that records the last one; then the kernels of each part run again and again, by themselves. On a
GPU a part is recorded as one graph, so the host's calls do not count. It finds in the caches what its last
run left there.

`TorchRecRun` runs such steps by TorchRec. It was never run on a GPU.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from ...stats.row_bytes import row_bytes
from ...train.build import build_trainer
from ...train.build_embeddings import open_device, open_device_api
from ...train.build_model import build_model
from ...train.config import TrainConfig
from ...train.data.batch import RecordedOrder
from ...train.data.shards import ShardSet
from ...train.device import Device, Graph, StreamName
from ...train.gpu.twins import is_twin
from ...train.loop import read_ahead
from ...train.model.dlrm import DenseModel
from ...train.model.shapes import ModelInputs, choose_model, dlrm_shape
from ...train.threads import BackgroundIterator
from .gpu_checks import base_config, drawn_samples, packed_shards
from .gpu_day import PartSettings, Records
from .training import samples_of, train_timed

NUM_TABLES, NUM_DENSE = 26, 13
"""Numbers of tables and of dense features of the Criteo logs."""
_PADDED_DENSE = 16
"""Dense values as the first product reads them."""
_HALF, _FLOAT, _INT = 2, 4, 4
"""Bytes of a bfloat16, a float32 and an int32 number."""
LAST = "last layer, loss, dense values"
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
_CALLS, _TRIALS, _REPETITIONS, _FEW_REPETITIONS = 7, 5, 20, 1
"""Calls that measure a ceiling; trials of a part, and its repetitions in each, on a GPU and without one."""
_NANOSECONDS = 1e9
_SHAPES = ((16, 65_536), (128, 65_536), (16, 16_384), (16, 2_048))
_SMALL_SHAPES = ((16, 256),)
"""Embedding dimension and batch size."""
_WARM_UP_STEPS, _STEPS, _SMALL_STEPS = 5, 30, 3
_BATCHES_AHEAD, IN_PIPELINE = 8, 3
"""Batches that are read ahead for TorchRec, besides the three in its pipeline."""

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
    """Return the seconds per sample that each part of a step takes at least; so are distinct rows counted."""
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


def _is_gpu(device: Device) -> bool:
    """Return whether figures of a device mean something."""
    return device.torch_device.type == "cuda"


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


def measure_ceilings(device: torch.device, *, is_small: bool) -> dict[str, float]:
    """Return bytes per second of copies, and operations per second of products, by name."""
    is_gpu = device.type == "cuda"
    # Within the device a copy reads each byte and writes it, so it moves twice as many.
    num_bytes = 2**20 if is_small else 2**30
    source = torch.full((num_bytes,), 7, dtype=torch.uint8)
    near = source.to(device)
    work: dict[str, tuple[float, Callable[[], object]]] = {
        "device copy": (2 * num_bytes, partial(torch.empty_like(near).copy_, near))
    }
    # Over the link, the pageable copies show what is lost where buffers are not pinned.
    for name, host in (("pinned", source.pin_memory()), ("pageable", source)) if is_gpu else ():
        work[f"{name} host to device"] = num_bytes, partial(near.copy_, host, non_blocking=True)
        work[f"device to {name} host"] = num_bytes, partial(host.copy_, near, non_blocking=True)
    # A product of square matrices has a multiplication and an addition for each triple of indices.
    size = 256 if is_small else 8192
    for dtype in (torch.float32, torch.bfloat16):
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        work[f"products, {dtype}"] = 2.0 * size**3, partial(torch.matmul, left, right)
    synchronize = torch.cuda.synchronize if is_gpu else lambda: None
    # The first two calls load code and take memory.
    return {
        name: amount / statistics.median(seconds_of_calls(call, synchronize, 2 + _CALLS)[2:])
        for name, (amount, call) in work.items()
    }


class WritingDevice:
    """A device that records what is launched, and runs recorded work again each time."""

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


def measure_device_step(
    shards: ShardSet, config: TrainConfig, order: list[int], num_warm_up: int, rates: GpuRates
) -> dict[str, Any]:
    """Train on batches of a device, measure the last step part by part, and return nanoseconds per sample.

    Shards have the features of Criteo, with one row width. The last batch looks up rows of the fast tier
    alone, as with all-fast. The first ``num_warm_up`` steps, which compile and record, are not timed.
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


def measure_step_parts(settings: PartSettings, records: Records) -> None:
    """Write a row for each shape: nanoseconds per sample of a step, of its parts, and their lower bounds."""
    shapes = {
        f"parts of a step at dim {dim} and {batch_size}": (dim, batch_size)
        for dim, batch_size in (_SMALL_SHAPES if settings.is_small else _SHAPES)
    }
    found = measure_ceilings(settings.torch_device, is_small=settings.is_small)
    # Without a GPU there is no link, and the figures mean nothing.
    link = found.get("pinned host to device", found["device copy"])
    rates = GpuRates(found["device copy"], found["products, torch.bfloat16"], link)
    records.row(what="ceilings", **asdict(rates))
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


class TorchRecRun:
    """Training steps by TorchRec, one process, on the batches of shards in a given order.

    Its tables are in host memory behind FBGEMM's cache, which has a share of all rows and which the pipeline
    fills one batch ahead. The dense layers are those of hotset as a graph of torch, in bf16 on a GPU; SGD
    steps everything. Shards are without lists, and with one embedding dimension.

    Source:
        TorchRec 1.9, `PrefetchTrainPipelineSparseDist`, kernel ``fused_uvm_caching``.
    """

    def __init__(
        self, shards: ShardSet, config: TrainConfig, numbers: Iterable[int], cached_share: float
    ) -> None:
        self._device = open_device(config.device)
        self._group = TemporaryDirectory()
        self.num_samples = 0
        self.step = 0
        store = f"file://{self._group.name}/store"
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        torch.distributed.init_process_group(backend, store, rank=0, world_size=1)
        self._pipeline = _pipeline_of(shards, config, self._device, cached_share)
        self._batches = BackgroundIterator(map(self._read_from(shards), numbers), _BATCHES_AHEAD, "keyed")
        self._taken = map(self._count, self._batches)

    def take(self) -> None:
        """Run a step; raises StopIteration after the last one."""
        self._pipeline.progress(self._taken)
        self.step += 1

    def synchronize(self) -> None:
        """Return once all steps are done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def counted(self) -> dict[str, Any]:
        """Return the steps of the run: nothing else is counted."""
        return {"all_steps": self.step}

    def close(self) -> None:
        """End the thread and the process group."""
        self._batches.close()
        if torch.distributed.is_initialized():  # closed before
            torch.distributed.destroy_process_group()
        self._group.cleanup()

    def _count(self, batch: Any) -> Any:
        # Three batches are in the pipeline, in each turn alike.
        self.num_samples += len(batch.labels)
        return batch

    def _read_from(self, shards: ShardSet) -> Callable[[int], Any]:
        from torchrec import KeyedJaggedTensor
        from torchrec.datasets.utils import Batch

        names = [table.name for table in shards.tables]

        def read(number: int) -> Any:
            batch = shards.training_batch(number)
            ids = torch.from_numpy(np.ascontiguousarray(batch.ids_BF.T)).view(-1).long()
            sparse = KeyedJaggedTensor(names, ids, lengths=torch.ones(ids.numel(), dtype=torch.int32))
            keyed = Batch(batch.dense_BK, sparse, batch.label_B)
            return keyed.pin_memory() if self._device.type == "cuda" else keyed

        return read


class _Head(torch.nn.Module):
    """Dense layers and loss, which TorchRec's tracer leaves alone."""

    def __init__(self, dense: DenseModel, num_tables: int, batch_size: int) -> None:
        super().__init__()
        self.dense, self._num_tables, self._batch_size = dense, num_tables, batch_size

    def forward(self, batch: Any, pooled_BN: torch.Tensor) -> torch.Tensor:
        emb_BFD = pooled_BN.view(len(pooled_BN), self._num_tables, -1)
        with torch.autocast(pooled_BN.device.type, torch.bfloat16, enabled=pooled_BN.is_cuda):
            logit_B = self.dense.logits(batch.dense_features, [emb_BFD])
        loss = binary_cross_entropy_with_logits(logit_B.float(), batch.labels, reduction="sum")
        return loss / self._batch_size


class _KeyedModel(torch.nn.Module):
    """The tables, whose inputs the pipeline exchanges ahead, and the rest."""

    def __init__(self, tables: Any, head: _Head) -> None:
        super().__init__()
        self.tables, self.head = tables, head

    def forward(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        loss = self.head(batch, self.tables(batch.sparse_features).values())
        return loss, loss.detach()


def _pipeline_of(shards: ShardSet, config: TrainConfig, device: torch.device, cached_share: float) -> Any:
    """Build TorchRec's pipeline; without a GPU its tables are plain ones, and nothing is prefetched."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    from torchrec.distributed import planner as planners
    from torchrec.distributed import train_pipeline as pipelines
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.types import CacheParams

    is_gpu = device.type == "cuda"
    configs = [
        EmbeddingBagConfig(table.num_rows, table.embedding_dim, name=table.name, feature_names=[table.name])
        for table in shards.tables
    ]
    tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    chosen = config.optimizers(shards.embedding_optimizer)
    dense = build_model(choose_model(config, shards.embedding_dim), ModelInputs.of(shards), config.seed)
    model = _KeyedModel(tables, _Head(dense.to(device), len(configs), shards.batch_size))

    rate = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": chosen.embedding_lr}
    sharders: Any = [EmbeddingBagCollectionSharder(fused_params=rate)]
    cached = planners.ParameterConstraints(
        sharding_types=["table_wise"],
        compute_kernels=["fused_uvm_caching" if is_gpu else "fused"],
        cache_params=CacheParams(load_factor=cached_share, prefetch_pipeline=True) if is_gpu else None,
    )
    memory = torch.cuda.get_device_properties(device).total_memory if is_gpu else None
    topology = planners.Topology(world_size=1, compute_device=device.type, hbm_cap=memory)
    constraints = {each.name: cached for each in configs}
    planner = planners.EmbeddingShardingPlanner(
        topology=topology, batch_size=shards.batch_size, constraints=constraints
    )
    sharded = DistributedModelParallel(
        model, device=device, plan=planner.plan(model, sharders), sharders=sharders
    )
    optimizer = torch.optim.SGD(model.head.parameters(), lr=chosen.dense_lr)
    kind = pipelines.PrefetchTrainPipelineSparseDist if is_gpu else pipelines.TrainPipelineSparseDist
    return kind(sharded, optimizer, device)
