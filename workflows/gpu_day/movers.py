"""Rows moved by a kernel and by threads: equal bits, the rows per second of each, and the link they share."""

from __future__ import annotations

import gc
from dataclasses import asdict, replace
from typing import get_args

from ...pipeline.sizes import ByteSize
from ...stats.ranking.row_bytes import row_bytes
from ...train.config import MoverName, TrainConfig
from ..bench.measuring.kaggle_shards import draw_kaggle
from ..bench.measuring.link_rates import measure_link
from .checks import STAGING_BYTES, small_shards, weights_of
from .part_settings import PartSettings
from .records import Records
from .speed import HOT_SHARE, SAMPLES, SMALL_SAMPLES, SMALL_SCALE, measure, packed_shards

_BATCH_SIZE, _SMALL_BATCH_SIZE = 16_384, 256
_DIM = 16
_MOVERS = tuple(name for name in get_args(MoverName) if name != "auto")


def compare_movers(settings: PartSettings, records: Records) -> None:
    """Write the rates of the link, check the bits of both movers, and train with each."""
    if link := measure_link(settings.device):
        records.row(what="link, by the verbs of training", **asdict(link))
    shards = small_shards(settings, "movers", "adagrad")
    base = TrainConfig(
        device=settings.device,
        kernels=settings.step_kernels,
        staging_bytes=STAGING_BYTES,
        placement="all-fast",
    )
    wanted = weights_of(shards, base, settings.scratch / "movers-all-fast")
    for name in _MOVERS:
        out = settings.scratch / f"movers-{name}"
        check = f"lookahead has the bits of all-fast where {name} moves rows"
        with records.catching(check):
            config = replace(base, placement="lookahead", mover=name)
            records.check(check, weights_of(shards, config, out) == wanted)
    _train_with_each(settings, records)


def _train_with_each(settings: PartSettings, records: Records) -> None:
    """Write the speed of look-ahead with each mover, on tables of full size."""
    samples = draw_kaggle(
        SMALL_SAMPLES if settings.is_small else SAMPLES, SMALL_SCALE if settings.is_small else 1.0
    )
    num_rows = sum(samples.num_rows)
    batch_size = _SMALL_BATCH_SIZE if settings.is_small else _BATCH_SIZE
    # A folder of its own: the parts that measure speeds pack the same samples.
    own = replace(settings, scratch=settings.scratch / "movers" / "speed")
    shards = packed_shards(own, samples, batch_size, _DIM)
    config = TrainConfig(
        placement="lookahead",
        device=settings.device,
        kernels=settings.step_kernels,
        dense_dtype="auto",
        staging_bytes=ByteSize(int(HOT_SHARE * num_rows) * row_bytes(_DIM, "sgd")),
        embedding_optimizer="sgd",
        dense_optimizer="sgd",
    )
    facts = {
        "placement": "lookahead",
        "embedding_dim": _DIM,
        "batch_size": batch_size,
        "num_rows": num_rows,
    }
    # The last one has the rates at which both were timed.
    for name in get_args(MoverName)[::-1]:
        with records.catching(f"speed with the mover {name}"):
            measured = measure(shards, replace(config, mover=name), is_hot_only=False)
            records.row(**facts, wanted_mover=name, **measured)
        gc.collect()
