"""Measure the parts of a step, each with its lower bound.

Bounds use the ceilings measured on the same device.
"""

from __future__ import annotations

import gc
from dataclasses import asdict, replace

import numpy as np

from ....train.config import TrainConfig
from .device_parts import measure_device_rates, measure_device_step
from .part_settings import PartSettings
from .records import Records
from .speed import drawn_samples, packed_shards

_SHAPES = ((16, 65_536), (128, 65_536), (16, 16_384))
_SMALL_SHAPES = ((16, 256),)
"""Embedding dimension and batch size."""
_WARM_UP_STEPS, _STEPS, _SMALL_STEPS = 5, 30, 3


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
    config = TrainConfig(
        placement="all-fast",
        device=settings.device,
        kernels=settings.step_kernels,
        dense_dtype="auto",
        embedding_optimizer="sgd",
        dense_optimizer="sgd",
    )
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
                whole=1000 * step.us,
                parts={part.part: 1000 * part.us for part in step.parts},
                lower_bounds={part.part: 1000 * part.floor_us for part in step.parts},
            )
        gc.collect()
