"""Every kernel of a step by itself: one that is broken is named, and replaced by its twin from there on.

Each is tried in a process of its own, since a fault on a GPU ends what a process can do there. It trains a
few batches with this kernel alone, the others being twins, and compares the rows with those of twins alone.

Kernels around the dense layers add in another order than their twins, and training makes much of a last bit:
with Adagrad, whose first step has the sign of a gradient however small that is, a fifth of the numbers of an
epoch of 78 steps differ by more than 0.001 for that reason alone. So the steps are few, and those of SGD.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ...pipeline.sizes import ByteSize
from ...stats.batches.epoch_order import epoch_order
from ...train.config import TrainConfig
from ...train.data.batch_order import RecordedOrder
from ...train.data.shards import Shards
from ...train.gpu_kernels.kernel_table import ENGINES, TWINS
from ...train.options.recipe_options import RecipeOptions
from ...train.trainer import Trainer, run_steps
from ...train.trainer_building.build_trainer import build_trainer
from .checks import small_shards
from .part_process import end_of_part, start_part
from .part_settings import PartSettings
from .records import Records

_SECONDS = 60.0
"""Time of one kernel, its compilation included."""
_SPARE_SECONDS = 3.0
"""Left of the part's time when the last kernel is given up, to write down what was found."""
_PROCESSES = 12
"""Each compiles most of what the others do, so all begin at once where there are cores for them."""
_OWN_SECONDS = 20.0
"""A kernel that is not done is at fault after so much time of its own, its compilation included."""
_STEPS = 16
_STAGING_BYTES = ByteSize(160_000)
"""So few slots that rows are written back and fetched again in these steps."""
_TOLERANCE = 1e-3
"""Norm of the difference that a kernel makes, as a share of that of all that the steps have changed."""
_OTHER_RUNS: dict[str, dict[str, Any]] = {
    "gather_rows": {"recipe": RecipeOptions(clip_gradient=1e6)},
    "sum_gradients": {"placement": "hybrid-dedup"},
}
"""Settings of the runs that launch a kernel which look-ahead with dense layers in kernels does without: where
gradients are clipped the layers are torch's, and a hybrid sends the sums of gradients to the host."""
_FEW = ("decode_batch", "sum_and_step")
"""Kernels that are tried where the day is only tried."""


def try_kernels(settings: PartSettings, records: Records) -> None:
    """Try each kernel in a process of its own; note those that are replaced."""
    small_shards(settings, "kernels", "adagrad")
    # They are tried side by side, each with a limit of its own, so one that hangs does not end the others.
    names = _FEW if settings.is_small else tuple(TWINS)

    def try_in_time(name: str) -> Trial:
        # With few cores some begin late, and get what is left.
        return _try_apart(name, settings, min(_SECONDS, records.seconds_left - _SPARE_SECONDS))

    with ThreadPoolExecutor(min(_PROCESSES, os.cpu_count() or 1)) as pool:
        found = list(pool.map(try_in_time, names))
    for name, trial in zip(names, found, strict=True):
        records.check(f"kernel {name}", not trial.fault, trial.fault)
    # Written where none is, too: it counts instead of what an earlier call has found.
    broken = [name for name, trial in zip(names, found, strict=True) if trial.is_broken]
    records.fact(replaced_kernels=",".join(f"torch:{name}" for name in broken))


def compile_host_kernels(settings: PartSettings, records: Records) -> None:
    """Train a few batches without a GPU, as the host does beside one: whoever is next finds its kernels."""
    late = replace(settings, device="late")
    shards = small_shards(late, "host-kernels", "adagrad")
    _trained_rows(shards, late, "torch", {})


def try_kernel(settings: PartSettings, records: Records) -> None:
    """Train with one kernel and with its twin; raises where they disagree."""
    assert settings.kernels is not None
    shards = Shards.open(settings.scratch / "kernels" / "shards")
    engine = ENGINES[0] if settings.torch_device.type == "cuda" else ENGINES[1]
    other = _OTHER_RUNS.get(settings.kernels, {})
    before, twins = _trained_rows(shards, settings, "torch", other)
    # What goes wrong from here on is the kernel's fault.
    records.fact(tried_kernel=settings.kernels)
    _, tried = _trained_rows(shards, settings, f"torch,{engine}:{settings.kernels}", other)
    difference = float((tried - twins).norm() / (twins - before).norm())
    # Not `difference > …`, which is false of values that are no numbers.
    if not difference <= _TOLERANCE:
        raise ValueError(
            f"weights of rows differ by {difference:.3g} of what was trained, want at most {_TOLERANCE}"
        )
    records.row(kernel=settings.kernels, difference=difference)


@dataclass(frozen=True, slots=True)
class Trial:
    """How it went with a kernel."""

    fault: str
    """Empty where all is well."""
    is_broken: bool
    """Whether the kernel is at fault; else the process did not come to it, or had no time for it."""


def _try_apart(name: str, settings: PartSettings, seconds: float) -> Trial:
    """Try a kernel in a process of its own."""
    records = settings.scratch / f"kernel-{name}.jsonl"
    begin = time.monotonic()
    is_right, output = end_of_part(start_part("kernel", settings, records, name), seconds)
    if is_right:
        return Trial("", is_broken=False)
    fault = f"not done after {time.monotonic() - begin:.0f} s\n" if is_right is None else ""
    fault += output[-1500:]
    # A machine where the twins fail, or take too long, says nothing about the kernel: none would be left. Nor
    # does one where the kernel had only begun.
    if not records.exists():
        return Trial(fault, is_broken=False)
    own_seconds = time.time() - records.stat().st_mtime
    return Trial(fault, is_broken=is_right is not None or own_seconds >= _OWN_SECONDS)


def _trained_rows(
    shards: Shards, settings: PartSettings, kernels: str, other: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Train a few batches, with some ``other`` settings; return the float64 numbers of all rows before and
    after, each as one vector."""
    config = TrainConfig(
        placement="lookahead",
        device=settings.device,
        kernels=kernels,
        mover="kernel",
        staging_bytes=_STAGING_BYTES,
        embedding_optimizer="sgd",
        dense_optimizer="sgd",
    )
    config = replace(config, **other)
    # Some of the first batches of an epoch, of either kind.
    order = epoch_order(shards.is_hot_only, config.seed, 0, spread=shards.is_grouped)
    trainer = build_trainer(shards, config, RecordedOrder(order[:_STEPS].astype(np.int32)))
    before = _rows_of(trainer)
    run_steps(trainer, lambda *_: None)
    return before, _rows_of(trainer)


def _rows_of(trainer: Trainer) -> torch.Tensor:
    tables = range(len(trainer.shards.tables))
    return torch.cat([trainer.embeddings.table(table).flatten().double() for table in tables])
