"""Try every kernel of a step alone; replace a broken one.

A broken kernel is named, and its twin runs from then on. Each is tried in a separate process, because a
process cannot continue after a fault on a GPU. It trains a few batches with this kernel and the twins of all
others, and compares the rows and the layers with those of twins alone.

Four kernels around the dense layers add in another order than their twins, and training amplifies a last bit:
an input of ReLU next to zero gets the other sign, and eight steps of SGD later the rows differ by a hundredth
of their change. Two of six orders of the sums of `gather_dots` did so within 16 steps. So these kernels are
compared after one step, which contains all that they compute: what they write changes rows and layers.

A kernel that agrees is also tried in other shapes while its process has time: at dim 128 with the layers in
bfloat16, and, if it takes optimizer steps, whose bits are those of its twin, with every optimizer. A kernel
that is wrong only there is replaced as well, and named with the shape.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from ....pipeline.errors import ByteSize
from ....stats.ranking.row_bytes import row_bytes
from ....stats.shuffle import epoch_order
from ....train.build import build_trainer
from ....train.config import DenseOptimizer, EmbeddingOptimizer, TrainConfig
from ....train.data.batch_order import RecordedOrder
from ....train.data.shards import Shards
from ....train.dense.gradients import DenseDtype
from ....train.gpu.twins import ENGINES, TWINS
from ....train.loop import Trainer, run_steps
from ....train.recipe_options import RecipeOptions
from .checks import small_shards
from .part_process import end_of_part, start_part
from .part_settings import PartSettings
from .records import Records

_SECONDS = 60.0
"""Time of one kernel, its compilation included."""
_SPARE_SECONDS = 3.0
"""Left of the part's time when the last kernel is given up, to write down what was found."""
_PROCESSES = 12
"""Each compiles most of what the others do, so all begin together where there are cores for them."""
_OWN_SECONDS = 20.0
"""Time after which an unfinished kernel is at fault, its compilation included."""
_STEPS = 16
_MORE_STEPS = 6
"""Steps in each other shape."""
_STAGING_SLOTS = 2500
"""Number of slots; so few that rows are written back and loaded again in these steps."""
_TOLERANCE = 1e-3
"""Norm of the difference that a kernel makes, as a share of that of all that the steps have changed."""
_ADDING_OTHERWISE = ("gather_dots", "gather_dots_backward", "last_layer", "relu_backward")
"""Kernels that add in another order than their twins."""
_TOLERANCE_OF_ORDER = 6e-3
"""The same of such kernels, after one step.

Measured with twins on the host, batches of 512: sums in float64, from the last number to the first, and in
three shuffled orders differed from the twin's by 3e-6 at most in float32, at dim 16. In bfloat16, at dim 128,
the sums are rounded to 8 bits, one of which another order may change: by 1.6e-3 at most. One sign of ReLU is
some 1e-3 in either type. A dot that is wrong in one of eight samples makes 1.5e-2, a wrong one 0.5.
"""
_OTHER_RUNS: dict[str, dict[str, Any]] = {
    "gather_rows": {"recipe": RecipeOptions(clip_gradient=1e6)},
    "sum_gradients": {"placement": "hybrid-dedup"},
}
"""Settings of the runs that launch a kernel which look-ahead with dense layers in kernels does without: where
gradients are clipped the layers are torch's, and a hybrid sends the sums of gradients to the host."""
_FEW = ("decode_batch", "sum_and_step")
"""Kernels that are tried where the day is only tried."""


Weights = tuple[torch.Tensor, torch.Tensor]
"""The float64 numbers of all rows, and of all layers, each as one vector."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The settings that a kernel is tried with."""

    embedding_dim: int = 16
    dense_dtype: DenseDtype = "fp32"
    embedding_optimizer: EmbeddingOptimizer = "sgd"
    dense_optimizer: DenseOptimizer = "sgd"
    num_steps: int = _MORE_STEPS

    def __str__(self) -> str:
        optimizers = f"rows by {self.embedding_optimizer}, layers by {self.dense_optimizer}"
        return f"dim {self.embedding_dim}, {self.dense_dtype}, {optimizers}"


_FIRST = Shape(num_steps=_STEPS)
_WIDE = Shape(embedding_dim=128, dense_dtype="bf16")
_DIMS = (_FIRST.embedding_dim, _WIDE.embedding_dim)


def shapes_of(kernel: str) -> list[Shape]:
    """Return the shapes that a kernel is tried in, one after the other."""
    if kernel in _ADDING_OTHERWISE:
        return [replace(shape, num_steps=1) for shape in (_FIRST, _WIDE)]
    shapes = [_FIRST, _WIDE]
    if kernel == "sum_and_step":
        shapes += [Shape(embedding_optimizer=name) for name in get_args(EmbeddingOptimizer) if name != "sgd"]
    if kernel == "step_dense":
        names: list[DenseOptimizer] = ["adagrad", "adam"]
        shapes += [Shape(dense_optimizer=name) for name in names]
    return shapes


def try_kernels(settings: PartSettings, records: Records) -> None:
    """Try each kernel in a separate process; note those that are replaced."""
    for dim in _DIMS:
        _shards(settings, dim)
    # They are tried in parallel, each with a separate limit, so one that hangs does not end the others.
    names = _FEW if settings.is_small else tuple(TWINS)

    def try_in_time(name: str) -> Trial:
        # With few cores some begin late, and get what is left.
        return _try_apart(name, settings, min(_SECONDS, records.seconds_left - _SPARE_SECONDS))

    with ThreadPoolExecutor(min(_PROCESSES, os.cpu_count() or 1)) as pool:
        found = list(pool.map(try_in_time, names))
    for name, trial in zip(names, found, strict=True):
        records.check(f"kernel {name}", not trial.fault, trial.fault)
        for row in trial.rows:
            records.row(**row)
    # Written where none is, too: it counts instead of what an earlier call has found.
    broken = [name for name, trial in zip(names, found, strict=True) if trial.is_broken]
    records.fact(replaced_kernels=",".join(f"torch:{name}" for name in broken))


def compile_host_kernels(settings: PartSettings, records: Records) -> None:
    """Train a few batches without a GPU, so that later processes find the host's kernels compiled."""
    late = replace(settings, device="late")
    shards = small_shards(late, "host-kernels", "adagrad")
    _trained(shards, late, "torch", _FIRST, {})


def try_kernel(settings: PartSettings, records: Records) -> None:
    """Train with one kernel and with its twin, in one shape after the other; raises where they disagree."""
    name = settings.kernels
    assert name is not None
    shapes = {str(shape): shape for shape in shapes_of(name)}
    tolerance = _TOLERANCE_OF_ORDER if name in _ADDING_OTHERWISE else _TOLERANCE
    # A shape for which there is no time is left out: the kernel may be right there.
    for piece in records.pieces(list(shapes)):
        difference = _difference(name, shapes[piece], settings, records)
        # Not `difference > …`, which is false of values that are no numbers.
        if not difference <= tolerance:
            raise ValueError(
                f"weights differ by {difference:.3g} of what was trained, want at most {tolerance}"
            )
        records.row(kernel=name, shape=piece, difference=difference)


def _difference(name: str, shape: Shape, settings: PartSettings, records: Records) -> float:
    """Return the difference that a kernel makes, the larger one of rows and of layers; see `_TOLERANCE`."""
    shards = Shards.open(_folder(settings, shape.embedding_dim) / "shards")
    engine = ENGINES[0] if settings.torch_device.type == "cuda" else ENGINES[1]
    # What goes wrong with twins alone says nothing of the kernel.
    records.fact(tried_kernel=None)
    before, twins = _trained(shards, settings, "torch", shape, _OTHER_RUNS.get(name, {}))
    # What goes wrong from here on is the kernel's fault.
    records.fact(tried_kernel=name, shape=str(shape))
    _, tried = _trained(shards, settings, f"torch,{engine}:{name}", shape, _OTHER_RUNS.get(name, {}))
    found = [
        float((tried_N - twins_N).norm() / (twins_N - before_N).norm())
        for tried_N, twins_N, before_N in zip(tried, twins, before, strict=True)
    ]
    # `max` would pass over what is no number.
    return math.nan if any(map(math.isnan, found)) else max(found)


def _shards(settings: PartSettings, embedding_dim: int) -> Shards:
    return small_shards(settings, _folder(settings, embedding_dim).name, "adagrad", embedding_dim)


def _folder(settings: PartSettings, embedding_dim: int) -> Path:
    return settings.scratch / f"kernels-{embedding_dim}"


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of trying a kernel."""

    fault: str
    """Empty where all is well."""
    is_broken: bool
    """Whether the kernel is at fault; otherwise the process did not reach it, or had no time for it."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Findings in each shape."""


def _try_apart(name: str, settings: PartSettings, seconds: float) -> Trial:
    """Try a kernel in a separate process."""
    path = settings.scratch / f"kernel-{name}.jsonl"
    begin = time.monotonic()
    process = start_part("kernel", settings, path, name, max(seconds - _SPARE_SECONDS, 0.0))
    is_right, output = end_of_part(process, seconds)
    records = _records_in(path)
    rows = [record["row"] for record in records if "row" in record]
    if is_right:
        return Trial("", is_broken=False, rows=rows)
    # What was tried last, if the kernel was and not its twin.
    facts = [record["fact"] for record in records if "fact" in record]
    was_begun = bool(facts) and facts[-1]["tried_kernel"] is not None
    fault = f"at {facts[-1]['shape']}: " if was_begun else ""
    fault += f"not done after {time.monotonic() - begin:.0f} s\n" if is_right is None else ""
    fault += output[-1500:]
    # A machine where the twins fail, or take too long, says nothing about the kernel: none would be left. Nor
    # does one where the kernel had only begun.
    if not was_begun:
        return Trial(fault, is_broken=False, rows=rows)
    own_seconds = time.time() - path.stat().st_mtime
    return Trial(fault, is_broken=is_right is not None or own_seconds >= _OWN_SECONDS, rows=rows)


def _records_in(path: Path) -> list[dict[str, Any]]:
    """Return the records of a process, except one that a kill truncated."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def _trained(
    shards: Shards, settings: PartSettings, kernels: str, shape: Shape, other: Mapping[str, Any]
) -> tuple[Weights, Weights]:
    """Train a few batches, with some ``other`` settings; return the weights before and after."""
    config = TrainConfig(
        placement="lookahead",
        device=settings.device,
        kernels=kernels,
        mover="kernel",
        dense_dtype=shape.dense_dtype,
        staging_bytes=ByteSize(_STAGING_SLOTS * row_bytes(shape.embedding_dim, shape.embedding_optimizer)),
        embedding_optimizer=shape.embedding_optimizer,
        dense_optimizer=shape.dense_optimizer,
    )
    config = replace(config, **other)
    # Some of the first batches of an epoch, of either kind.
    order = epoch_order(shards.is_hot_only, config.seed, 0, spread=shards.is_grouped)
    trainer = build_trainer(shards, config, RecordedOrder(order[: shape.num_steps].astype(np.int32)))
    before = _weights_of(trainer)
    run_steps(trainer, lambda *_: None)
    return before, _weights_of(trainer)


def _weights_of(trainer: Trainer) -> Weights:
    tables = [trainer.embeddings.table(table) for table in range(len(trainer.shards.tables))]
    layers = [parameter.detach().cpu() for parameter in trainer.model.parameters()]
    return _vector(tables), _vector(layers)


def _vector(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in tensors])
