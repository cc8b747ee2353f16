"""Compare rows moved by a kernel and by threads.

Checks equal bits, and measures the rows per second of each and the link they share.
"""

from __future__ import annotations

import gc
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any, get_args

from ....pipeline.errors import ByteSize
from ....stats.ranking.row_bytes import row_bytes
from ....train.config import MoverName, TrainConfig
from ....train.data.shards import Shards
from .checks import STAGING_BYTES, small_shards, weights_of
from .link_rates import measure_link
from .part_settings import PartSettings
from .records import Records
from .speed import HOT_SHARE, drawn_samples, packed_shards
from .turns import REFERENCE, Contestant, Turns, measure_in_turns

_BATCH_SIZE, _SMALL_BATCH_SIZE = 16_384, 256
_DIM = 16
_LINK = "rates of the link"
_SPEEDS = "speeds with each mover"
_MOVERS = tuple(name for name in get_args(MoverName) if name != "auto")


def compare_movers(settings: PartSettings, records: Records) -> None:
    """Write the rates of the link, check the bits of both movers, and train with each."""
    bits = {f"lookahead has the bits of all-fast where {name} moves rows": name for name in _MOVERS}
    inputs = _Inputs(settings)
    for piece in records.pieces([_LINK, *bits, _SPEEDS]):
        with records.catching(piece):
            if piece in bits:
                records.check(piece, inputs.has_wanted_bits(bits[piece]))
            elif piece == _SPEEDS:
                contestants = inputs.contestants()
                turns = Turns.of(contestants[0].shards.batch_size, is_small=settings.is_small)
                measure_in_turns(piece, contestants, turns, records)
            elif link := measure_link(settings.device):
                records.row(what="link, by the verbs of training", **asdict(link))
        gc.collect()


class _Inputs:
    """The inputs of the pieces of the part, made for the first that needs them."""

    def __init__(self, settings: PartSettings) -> None:
        self._settings = settings

    def has_wanted_bits(self, mover: MoverName) -> bool:
        """Return whether `lookahead` with a mover ends with the bits of all-fast."""
        shards, base, wanted = self._wanted
        config = replace(base, placement="lookahead", mover=mover)
        return weights_of(shards, config, self._settings.scratch / f"movers-{mover}") == wanted

    def contestants(self) -> list[Contestant]:
        """Return all-fast and `lookahead` with each mover, on tables of full size."""
        shards, config, facts = self._of_full_size()
        found = [
            Contestant(
                name=REFERENCE,
                check=f"speed of {REFERENCE} beside the movers",
                shards=shards,
                config=replace(config, placement="all-fast"),
                facts={"placement": REFERENCE, **facts},
            )
        ]
        # The last one has the rates at which both were timed.
        for mover in get_args(MoverName)[::-1]:
            found.append(
                Contestant(
                    name=mover,
                    check=f"speed with the mover {mover}",
                    shards=shards,
                    config=replace(config, mover=mover),
                    facts={"placement": "lookahead", "wanted_mover": mover, **facts},
                )
            )
        return found

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

    def _of_full_size(self) -> tuple[Shards, TrainConfig, dict[str, Any]]:
        """Shards, settings, and what describes them in a row."""
        settings = self._settings
        samples = drawn_samples(settings)
        num_rows = sum(samples.num_rows)
        batch_size = _SMALL_BATCH_SIZE if settings.is_small else _BATCH_SIZE
        # A separate folder: the parts that measure speeds pack the same samples.
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
        facts = {"embedding_dim": _DIM, "batch_size": batch_size, "num_rows": num_rows}
        return shards, config, facts
