"""Rows moved by a kernel and by threads: equal bits, the rows per second of each, and the link they share."""

from __future__ import annotations

import gc
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any, get_args

from ...pipeline.sizes import ByteSize
from ...stats.ranking.row_bytes import row_bytes
from ...train.config import MoverName, TrainConfig
from ...train.data.shards import Shards
from ..bench.measuring.link_rates import measure_link
from .checks import STAGING_BYTES, small_shards, weights_of
from .part_settings import PartSettings
from .records import Records
from .speed import HOT_SHARE, drawn_samples, measure, packed_shards

_BATCH_SIZE, _SMALL_BATCH_SIZE = 16_384, 256
_DIM = 16
_LINK = "rates of the link"
_MOVERS = tuple(name for name in get_args(MoverName) if name != "auto")


def compare_movers(settings: PartSettings, records: Records) -> None:
    """Write the rates of the link, check the bits of both movers, and train with each."""
    bits = {f"lookahead has the bits of all-fast where {name} moves rows": name for name in _MOVERS}
    # The last one has the rates at which both were timed.
    speeds = {f"speed with the mover {name}": name for name in get_args(MoverName)[::-1]}
    inputs = _Inputs(settings)
    for piece in records.pieces([_LINK, *bits, *speeds]):
        with records.catching(piece):
            if piece in bits:
                records.check(piece, inputs.has_wanted_bits(bits[piece]))
            elif piece in speeds:
                records.row(**inputs.speed_with(speeds[piece]))
            elif link := measure_link(settings.device):
                records.row(what="link, by the verbs of training", **asdict(link))
        gc.collect()


class _Inputs:
    """The inputs of the pieces of the part, made for the first that needs them."""

    def __init__(self, settings: PartSettings) -> None:
        self._settings = settings

    def has_wanted_bits(self, mover: MoverName) -> bool:
        """Whether `lookahead` with a mover ends with the bits of all-fast."""
        shards, base, wanted = self._wanted
        config = replace(base, placement="lookahead", mover=mover)
        return weights_of(shards, config, self._settings.scratch / f"movers-{mover}") == wanted

    def speed_with(self, mover: MoverName) -> dict[str, Any]:
        """Return the speed of `lookahead` with a mover, on tables of full size."""
        shards, config, facts = self._of_full_size
        measured = measure(shards, replace(config, mover=mover), is_hot_only=False)
        return facts | {"wanted_mover": mover} | measured

    @cached_property
    def _wanted(self) -> tuple[Shards, TrainConfig, str]:
        """Shards, settings, and the weights that all-fast ends with."""
        settings = self._settings
        shards = small_shards(settings, "movers", "adagrad")
        base = TrainConfig(
            device=settings.device,
            kernels=settings.step_kernels,
            staging_bytes=STAGING_BYTES,
            placement="all-fast",
        )
        return shards, base, weights_of(shards, base, settings.scratch / "movers-all-fast")

    @cached_property
    def _of_full_size(self) -> tuple[Shards, TrainConfig, dict[str, Any]]:
        """Shards, settings, and what describes them in a row."""
        settings = self._settings
        samples = drawn_samples(settings)
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
        return shards, config, facts
