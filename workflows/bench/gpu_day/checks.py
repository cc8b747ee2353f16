"""Check on the device that steps run, and placements agree bitwise."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import get_args

from ....pipeline.errors import ByteSize
from ....stats.ranking.row_bytes import OPTIMIZERS
from ....train.build import build_trainer
from ....train.config import EmbeddingOptimizer, PlacementName, TrainConfig
from ....train.data.shards import Shards
from ....train.dense.gradients import DenseDtype
from ....train.gpu.queued_steps import QueuedSteps
from ....train.loop import run_steps
from ..kaggle_shards import draw_kaggle, write_kaggle_shards
from .part_settings import PartSettings
from .records import Records

_EXACT: tuple[PlacementName, ...] = ("lookahead", "cache", "hybrid", "hybrid-dedup", "hybrid-uva")
"""Placements that train in the batch order of all-fast, and promise its bits."""
STAGING_BYTES = ByteSize(1 << 20)
_SCALE = 1000.0


def take_first_steps(settings: PartSettings, records: Records) -> None:
    """Train a few batches under every placement; an error is written down, and the next one begins."""
    shards = small_shards(settings, "first-steps", "adagrad")
    names: dict[str, PlacementName] = {f"first steps of {name}": name for name in get_args(PlacementName)}
    for piece in records.pieces(list(names)):
        name = names[piece]
        config = TrainConfig(
            placement=name, device=settings.device, kernels=settings.step_kernels, evaluate_every=None
        )
        with records.catching(piece):
            trainer = build_trainer(shards, config)
            runner = trainer.runner
            assert isinstance(runner, QueuedSteps), "a part for devices that are not the host"
            # With twins among the kernels nothing is recorded to begin with.
            was_recorded = runner.is_recorded
            run_steps(trainer, lambda *_: None)
            records.check(piece, True, f"{trainer.step} steps")
            if was_recorded:
                records.check(f"steps of {name} are recorded", runner.is_recorded)


def compare_bits(settings: PartSettings, records: Records) -> None:
    """Compare the weights of exact placements with all-fast, for every optimizer, and again
    with the dense layers in bfloat16, in which speeds are measured."""
    optimizers = get_args(EmbeddingOptimizer)
    assert set(optimizers) <= set(OPTIMIZERS)
    kinds: list[tuple[EmbeddingOptimizer, DenseDtype]] = [("sgd", "bf16")]
    kinds += [(optimizer, "fp32") for optimizer in optimizers]
    pairs = {
        f"{name} has the bits of all-fast with {optimizer}, {dtype}": (name, optimizer, dtype)
        for optimizer, dtype in kinds
        for name in _EXACT
    }

    @cache
    def wanted(optimizer: EmbeddingOptimizer, dtype: DenseDtype) -> tuple[Shards, TrainConfig, str]:
        # A staging area that is too small for comfort: rows move at every batch.
        shards = small_shards(settings, f"bits-{optimizer}-{dtype}", optimizer)
        base = TrainConfig(
            device=settings.device,
            kernels=settings.step_kernels,
            staging_bytes=STAGING_BYTES,
            placement="all-fast",
            dense_dtype=dtype,
        )
        out = settings.scratch / f"bits-{optimizer}-{dtype}-all-fast"
        return shards, base, weights_of(shards, base, out)

    for check in records.pieces(list(pairs)):
        name, optimizer, dtype = pairs[check]
        with records.catching(check):
            shards, base, weights = wanted(optimizer, dtype)
            out = settings.scratch / f"bits-{optimizer}-{dtype}-{name}"
            records.check(check, weights_of(shards, replace(base, placement=name), out) == weights)


def small_shards(settings: PartSettings, name: str, optimizer: str, embedding_dim: int = 16) -> Shards:
    """Shards with some forty thousand rows, more than the staging slots hold."""
    folder = settings.scratch / name / "shards"
    samples = draw_kaggle(3_000 if settings.is_small else 40_000, _SCALE)
    write_kaggle_shards(
        samples,
        folder,
        batch_size=512,
        embedding_dim=embedding_dim,
        hot_share=0.05,
        optimizer=optimizer,
        num_evaluation=512,
    )
    return Shards.open(folder)


def weights_of(shards: Shards, config: TrainConfig, out: Path) -> str:
    """Train, and return a checksum of the weights."""
    # Without safetensors no run is written, and all else of a GPU day is done.
    from ....train.run import train

    train(shards.manifest.folder, config, out)
    return checksum_of_weights(out)


def checksum_of_weights(run: Path) -> str:
    """Return a checksum of the weights of a finished run, which are not read into memory."""
    with (run / "weights.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
