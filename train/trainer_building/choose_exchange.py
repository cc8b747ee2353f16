"""``--exchange auto``: measures the link and the codecs before the first step, and takes what pays.

Only mild codecs are tried, since nobody looks at the scores here: bfloat16 and int8 for rows and their
gradients, bfloat16 for the dense layers. All ranks measure, and the slowest counts, so all choose alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ...stats.codecs import codec_of
from ...stats.plain_codecs import RowMessage, shape_of
from ...stats.step_times import CodecCost, worthwhile_codec
from ..exchange.chosen_exchange import ChosenExchange
from ..exchange.coded_exchange import ExchangePrediction, Kind
from ..options.exchange_options import AUTO, ExchangeOptions
from ..ranked.ranked_width import RankedWidth
from ..ranks.link_speed import measure_link, slowest
from ..trainer import Trainer

_ROW_CODECS = ("none", "bf16", "int8")
_DENSE_CODECS = ("none", "bf16")
_DENSE_DIM = 128
_MOST_ROWS = 20_000
"""Rows that a codec is tried on."""
_NUM_BATCHES = 3
_TRIALS = 3


class _Volume(NamedTuple):
    """Rows that this rank sends and receives in a step."""

    embedding_dim: int
    num_sent: float
    num_received: float


def choose_exchange(trainer: Trainer, options: ExchangeOptions) -> ChosenExchange:
    """Measure for about two seconds, and return the codecs to use; every rank calls this and gets the same.

    Args:
        trainer: of the run, before its first step; what it sends from then on is not changed here.
        options: of the exchange, which leave the codecs open.
    """
    assert options.exchange == AUTO, "nothing is left open"
    link = measure_link(trainer.ranks)
    volumes = _volumes(trainer)
    open_kinds: dict[Kind, tuple[str, ...]] = {
        "vectors": _ROW_CODECS,
        "gradients": _ROW_CODECS,
        "dense": _DENSE_CODECS,
    }
    names: dict[Kind, str] = {}
    seconds: dict[str, dict[str, float]] = {}
    for kind, tried in open_kinds.items():
        costs = {name: _cost(trainer, volumes[kind], name, is_back=kind != "vectors") for name in tried}
        names[kind] = worthwhile_codec(costs, link.bytes_per_second)
        seconds[kind] = {name: cost.seconds_at(link.bytes_per_second) for name, cost in costs.items()}
    # Four messages a step: vectors, gradients, and both halves of the dense sum.
    step_seconds = 4 * link.delay_seconds + sum(seconds[kind][name] for kind, name in names.items())
    trainer.coded.prediction = ExchangePrediction(
        link.delay_seconds, link.bytes_per_second, step_seconds, seconds
    )
    return replace(
        trainer.coded.chosen,
        vectors=names["vectors"],
        gradients=names["gradients"],
        dense=names["dense"],
    )


def _volumes(trainer: Trainer) -> dict[Kind, list[_Volume]]:
    """Return the rows that cross in a step, as the mean of a few batches has them."""
    num_batches = trainer.shards.num_training_batches
    # A few batches, evenly spread over those of the training part.
    numbers = np.unique(np.linspace(0, num_batches - 1, _NUM_BATCHES).astype(int)).tolist()
    vectors = []
    gradients = []
    for width in trainer.embeddings.widths:
        assert isinstance(width, RankedWidth)
        found = [width.look_at(trainer.shards.training_batch(number)) for number in numbers]
        counts_N4 = [
            (
                each.vectors.send.places.size,
                each.vectors.receive.places.size,
                each.gradients.send.places.size,
                each.gradients.receive.places.size,
            )
            for each in found
        ]
        means = np.mean(counts_N4, axis=0).tolist()
        vectors.append(_Volume(width.embedding_dim, *means[:2]))
        gradients.append(_Volume(width.embedding_dim, *means[2:]))
    num_ranks = trainer.ranks.num_ranks
    num_numbers = sum(parameter.numel() for parameter in trainer.model.parameters())
    # Both halves of the sum send a slice to each other rank.
    num_blocks = 2 * num_numbers * (num_ranks - 1) / num_ranks / _DENSE_DIM
    return {
        "vectors": vectors,
        "gradients": gradients,
        "dense": [_Volume(_DENSE_DIM, num_blocks, num_blocks)],
    }


def _cost(trainer: Trainer, volumes: list[_Volume], name: str, *, is_back: bool) -> CodecCost:
    """Return the bytes and the seconds of a step's rows in a codec, at the slowest rank."""
    codec = codec_of(name)
    num_bytes = 0.0
    seconds = 0.0
    rng = np.random.default_rng(trainer.config.seed)
    for volume in volumes:
        # Random rows are coded, and their bytes and seconds a row count for those of a step.
        num_rows = int(min(max(volume.num_sent, volume.num_received, 1), _MOST_ROWS))
        rows = rng.normal(size=(num_rows, volume.embedding_dim)).astype(np.float32)
        message = RowMessage.of(rows, stream=1 if is_back else None)
        shape = shape_of(message)
        data = np.empty(codec.num_bytes(shape), np.uint8)
        # A link carries both ways at once, so the larger one takes the time.
        num_bytes += data.size / num_rows * max(volume.num_sent, volume.num_received)
        # Rows that are sent as they are need no work.
        if codec.is_exact:
            continue
        encoding = _least_seconds(partial(codec.encode, message, data)) / num_rows
        decoding = _least_seconds(partial(codec.decode, data, shape, rows)) / num_rows
        seconds += encoding * volume.num_sent + decoding * volume.num_received
    ranks = trainer.ranks
    return CodecCost(slowest(ranks, num_bytes), slowest(ranks, seconds))


def _least_seconds(work: Callable[[], object]) -> float:
    """Return the seconds of the quickest of a few trials, after one that compiles."""
    work()
    found = []
    for _ in range(_TRIALS):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return min(found)
