"""Every kernel of a step by itself: one that is broken is named, and replaced by its twin from there on.

Each is tried in a process of its own, since a fault on a GPU ends what a process can do there. It trains a
few batches with this kernel alone, the others being twins, and compares the rows with those of twins alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

from ...train.config import TrainConfig
from ...train.data.shards import Shards
from ...train.gpu_kernels.kernel_table import ENGINES, TWINS
from ...train.trainer import Trainer, run_steps
from ...train.trainer_building.build_trainer import build_trainer
from .checks import small_shards
from .part_settings import PartSettings
from .records import Records

_SECONDS = 60.0
"""Time of one kernel, its compilation included."""
_PROCESSES = 12
"""Each compiles most of what the others do, so all begin at once where there are cores for them."""
_TOLERANCE = 1e-3
"""Largest difference of a weight, where kernels add in another order than their twins."""
_FEW = ("decode_batch", "sum_and_step")
"""Kernels that are tried where the day is only tried."""


def try_kernels(settings: PartSettings, records: Records) -> None:
    """Try each kernel in a process of its own; note those that are replaced."""
    small_shards(settings, "kernels", "adagrad")
    # They are tried side by side, each with a limit of its own, so one that hangs does not end the others.
    names = _FEW if settings.is_small else tuple(TWINS)
    limit = min(_SECONDS, records.seconds_left)
    with ThreadPoolExecutor(min(_PROCESSES, os.cpu_count() or 1)) as pool:
        found = list(pool.map(lambda name: _try_apart(name, settings, limit), names))
    for name, detail in zip(names, found, strict=True):
        records.check(f"kernel {name}", not detail, detail)
    broken = [name for name, detail in zip(names, found, strict=True) if detail]
    if broken:
        records.fact(replaced_kernels=",".join(f"torch:{name}" for name in broken))


def try_kernel(settings: PartSettings, records: Records) -> None:
    """Train with one kernel and with its twin; raises where they disagree."""
    assert settings.kernels is not None
    shards = Shards.open(settings.scratch / "kernels" / "shards")
    engine = ENGINES[0] if settings.torch_device.type == "cuda" else ENGINES[1]
    twins, tried = (
        _train(shards, settings, words) for words in ("torch", f"torch,{engine}:{settings.kernels}")
    )
    differences = [
        (tried.embeddings.table(table) - twins.embeddings.table(table)).abs().max()
        for table in range(len(shards.tables))
    ]
    worst = float(torch.stack(differences).max())
    # Not `worst > …`, which is false of values that are no numbers.
    if not worst <= _TOLERANCE:
        raise ValueError(f"weights of rows differ by {worst:.3g}, want at most {_TOLERANCE}")
    records.row(kernel=settings.kernels, largest_difference=worst)


def _try_apart(name: str, settings: PartSettings, seconds: float) -> str:
    """Return what went wrong, nothing where all is well."""
    records = settings.scratch / f"kernel-{name}.jsonl"
    command = [sys.executable, "-m", "hotset.workflows.gpu_day.part", "kernel", "--device", settings.device]
    command += ["--records", str(records), "--scratch", str(settings.scratch), "--kernels", name]
    try:
        found = subprocess.run(
            command + ["--small"] * settings.is_small,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {seconds:.0f} s"
    return "" if found.returncode == 0 else found.stdout[-1500:]


def _train(shards: Shards, settings: PartSettings, kernels: str) -> Trainer:
    torch.manual_seed(0)
    config = TrainConfig(placement="lookahead", device=settings.device, kernels=kernels)
    trainer = build_trainer(shards, config)
    run_steps(trainer, lambda *_: None)
    return trainer
