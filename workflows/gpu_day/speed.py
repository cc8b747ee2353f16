"""Samples per second of every placement on the device, by batch size, at one embedding dimension."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ...pipeline.sizes import ByteSize
from ...pipeline.stages.transpose import TransposeConfig, transpose
from ...stats.batches.epoch_order import epoch_order
from ...stats.ranking.row_bytes import row_bytes
from ...train.config import TrainConfig
from ...train.data.batch_order import RecordedOrder
from ...train.data.shards import Shards
from ...train.run_results.run_summary import summarize_transfers
from ...train.steps.queued_steps import QueuedSteps
from ...train.trainer import run_steps
from ...train.trainer_building.build_trainer import build_trainer
from ..bench.measuring.kaggle_shards import KaggleSamples, draw_kaggle, write_kaggle_shards
from ..bench.measuring.link_rates import measure_link
from .part_settings import PartSettings
from .records import Records

BATCH_SIZES = (65_536, 16_384, 2_048)
"""The largest first: its figures are asked for first."""
_ASKED_FIRST = ("all-fast", "lookahead")
"""Placements that are measured at all batch sizes before others are at the smaller ones."""
_NUM_AT_FIRST_SIZE = 5
"""Placements that are measured at the largest batch size before any is at another."""
_SMALL_BATCH_SIZES = (64,)
SAMPLES = 2_500_000
SMALL_SAMPLES = 6_000
SMALL_SCALE = 1000.0
HOT_SHARE = 0.0075
"""Share of all rows that is hot; as many slots stage the others: 1.5 % of the rows are on the device."""
_WARM_UP_STEPS = 5
_MOST_SAMPLES = 16_000_000
"""Samples of the measured steps of one placement, at most."""
_MOST_STEPS = 1500
_SMALL_STEPS = 10
_FEWEST_STEPS = 10
_STEP_SECONDS = 3.0
"""Measured time of one placement, at most about."""


def measure_speed(settings: PartSettings, records: Records, embedding_dim: int) -> None:
    """Train under every placement in turn; a row is written as soon as one is measured."""
    samples = drawn_samples(settings)
    num_rows = sum(samples.num_rows)
    # Staging gets as many slots as there are hot rows.
    half = ByteSize(int(HOT_SHARE * num_rows) * row_bytes(embedding_dim, "sgd"))
    contestants = {name: (config, is_hot_only) for name, config, is_hot_only in _contestants(settings, half)}
    pairs = _in_order(list(contestants), _SMALL_BATCH_SIZES if settings.is_small else BATCH_SIZES)
    pieces = {f"speed of {name} at {batch_size}": (name, batch_size) for name, batch_size in pairs}

    @cache
    def shards_of(batch_size: int) -> Shards:
        return packed_shards(settings, samples, batch_size, embedding_dim)

    for piece in records.pieces(list(pieces)):
        name, batch_size = pieces[piece]
        config, is_hot_only = contestants[name]
        facts = {
            "placement": name,
            "embedding_dim": embedding_dim,
            "batch_size": batch_size,
            "num_rows": num_rows,
        }
        with records.catching(piece):
            measured = measure(shards_of(batch_size), config, is_hot_only=is_hot_only)
            records.row(**facts, **measured)
        # The rows of a trainer, 17 GB at dim 128, go only now: its parts refer to each other.
        gc.collect()


def _in_order(names: Sequence[str], batch_sizes: Sequence[int]) -> list[tuple[str, int]]:
    """Return what is measured, in the order of what is asked first."""
    first, *others = batch_sizes
    last = [name for name in names if name not in _ASKED_FIRST]
    pairs = [(name, first) for name in names[:_NUM_AT_FIRST_SIZE]]
    pairs += [(name, batch_size) for batch_size in others for name in _ASKED_FIRST]
    pairs += [(name, batch_size) for batch_size in batch_sizes for name in last]
    return list(dict.fromkeys(pairs))


def drawn_samples(settings: PartSettings) -> KaggleSamples:
    """The samples that speeds are measured with."""
    if settings.is_small:
        return draw_kaggle(SMALL_SAMPLES, SMALL_SCALE)
    return draw_kaggle(SAMPLES)


def _contestants(settings: PartSettings, half: ByteSize) -> Iterable[tuple[str, TrainConfig, bool]]:
    """Name, settings, and whether only hot-only batches are trained on."""
    base = TrainConfig(
        placement="all-fast",
        device=settings.device,
        kernels=settings.step_kernels,
        dense_dtype="auto",
        staging_bytes=half,
        embedding_optimizer="sgd",
        dense_optimizer="sgd",
    )
    yield "all-fast", base, False
    yield "lookahead", replace(base, placement="lookahead"), False
    yield "hybrid", replace(base, placement="hybrid"), False
    yield "fae", replace(base, placement="fae", fae_variant="code"), False
    # Hot-only batches move no rows, so this is the speed of look-ahead without its transfers.
    yield "hot-only", replace(base, placement="lookahead"), True
    yield "hybrid-uva", replace(base, placement="hybrid-uva"), False
    yield "cache", replace(base, placement="cache"), False
    yield "hybrid-dedup", replace(base, placement="hybrid-dedup"), False


def packed_shards(
    settings: PartSettings, samples: KaggleSamples, batch_size: int, embedding_dim: int
) -> Shards:
    folder = settings.scratch / f"speed-{embedding_dim}-{batch_size}" / "shards"
    write_kaggle_shards(
        samples, folder, batch_size=batch_size, embedding_dim=embedding_dim, hot_share=HOT_SHARE
    )
    shards = Shards.open(folder)
    # Grouped by row beforehand, as for any run of several epochs.
    transpose(TransposeConfig(), shards.manifest, folder.parent / "lookups")
    return shards


def measure(shards: Shards, config: TrainConfig, *, is_hot_only: bool) -> dict[str, Any]:
    """Train on the first batches of an epoch, and return the speed; the first few only warm the device up.

    The batches are repeated where an epoch has too few of them.
    """
    order = epoch_order(shards.is_hot_only, config.seed, 0, spread=shards.is_grouped)
    if is_hot_only:
        order = order[shards.is_hot_only[order]]
    if order.size == 0:
        raise ValueError("no batch looks up hot rows alone")
    most_steps = min(_MOST_STEPS, _MOST_SAMPLES // shards.batch_size)
    if shards.num_training_samples < SMALL_SAMPLES:
        most_steps = _SMALL_STEPS
    order = np.resize(order, _WARM_UP_STEPS + most_steps).astype(np.int32)
    # fae orders its batches by itself, and needs as many epochs.
    if config.placement == "fae":
        epochs = -(-order.size // shards.num_training_batches)
        trainer = build_trainer(shards, replace(config, epochs=epochs))
    else:
        trainer = build_trainer(shards, config, RecordedOrder(order))
    begin = 0.0
    first_samples = 0
    measured: dict[str, Any] = {}

    def after_step(trainer: Any, *_: object) -> None:
        nonlocal begin, first_samples
        # The clock starts once the device has done the first steps, not when they are queued.
        if trainer.step == _WARM_UP_STEPS:
            trainer.runner.synchronize()
            begin = time.perf_counter()
            first_samples = trainer.num_samples
        steps = trainer.step - _WARM_UP_STEPS
        if steps < _FEWEST_STEPS:
            return
        # It stops after some seconds or steps, with the device at rest again.
        if steps == most_steps or time.perf_counter() - begin > _STEP_SECONDS:
            trainer.runner.synchronize()
            seconds = time.perf_counter() - begin
            measured.update(
                samples_per_second=(trainer.num_samples - first_samples) / seconds,
                steps=steps,
                seconds=seconds,
            )
            raise _MeasuredError

    try:
        run_steps(trainer, after_step)
    except _MeasuredError:
        pass
    if not measured:
        raise ValueError(f"the run ended after {trainer.step} steps, want {_WARM_UP_STEPS + _FEWEST_STEPS}")
    traffic = trainer.meter.training_bytes()
    transfers = summarize_transfers(trainer)
    runner = trainer.runner
    if isinstance(runner, QueuedSteps) and runner.sent_samples:
        measured["bytes_sent_per_sample"] = runner.sent_bytes / runner.sent_samples
        measured["is_recorded"] = runner.is_recorded
    # Where the link is what a placement waits for, this tells how well it is used.
    link = measure_link(config.device)
    seconds = link.seconds(config.placement, *traffic) if link else 0.0
    bound = trainer.num_samples / seconds if seconds else None
    return measured | {
        "bytes_to_device": traffic[0],
        "bytes_to_host": traffic[1],
        "mover": transfers.mover,
        "mover_rows_per_second": transfers.mover_rows_per_second,
        "all_steps": trainer.step,
        "most_samples_per_second_of_link": bound,
    }


class _MeasuredError(Exception):
    """Ends a run whose speed is known."""
