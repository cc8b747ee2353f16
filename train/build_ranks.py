"""Builds the tiers of a rank's rows, and the exchange between ranks.

``--exchange auto`` measures the link and the codecs before the first step, and uses a codec if it saves time.
It tries only mild ones, since nobody looks at the scores here: bfloat16 and int8 for rows and their
gradients, bfloat16 for the dense layers. All ranks measure, and the slowest counts, so all choose the same.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..stats.codecs import RowMessage, codec_of, shape_of
from ..stats.step_times import CodecCost, worthwhile_codec
from .build_embeddings import RowTools, attach_movers, build_groups, optimizer_of
from .config import AUTO, ChosenExchange, ExchangeOptions, ExchangePrediction, TrainConfig
from .data.batch import IdReader, MicroBatches
from .data.shards import Shards
from .model.shapes import tables_by_dim
from .placements.placements import build_placements
from .ranks.embeddings import RankedEmbeddings, RankedGroup
from .ranks.exchange import HeldRows, choose_owners
from .ranks.messages import CodedExchange, Kind
from .ranks.node import Node
from .ranks.ranks import (
    Ranks,
    check_equal_settings,
    measure_link,
    raise_on_any_rank,
    slowest,
)
from .rows.optimizers import RowOptimizer
from .rows.table_group import TableGroup
from .rows.tiers import InitialValues
from .trainer import Trainer


def build_ranked_embeddings(
    shards: Shards,
    config: TrainConfig,
    tools: RowTools,
    ranks: Ranks,
    coded: CodedExchange,
    node: Node,
) -> RankedEmbeddings:
    """Build the tiers of the rows of this rank, with initial values.

    Raises:
        ConfigError: a batch cannot be cut so, or the tables have too many rows.
    """
    optimizer = optimizer_of(shards, config)
    # Owners are a function of the shards and the options, so every rank finds the same ones. What one rank
    # refuses all refuse, before any waits for it.
    with raise_on_any_rank(ranks):
        held = _hold_rows(shards, tools.micro_batches, node)
    # Ranks that read other batches would wait for messages that nobody sends.
    owners = [hashlib.blake2b(rows.owners_K.tobytes()).hexdigest() for rows in held.values()]
    check_equal_settings(ranks, {"the plan of the exchange": owners})

    groups = []
    for group in _lay_out_own_rows(shards, config, tools, optimizer, held):
        # Each table group reads the ids of all ranks and holds the rows of this one.
        kept = {each.name: getattr(group, each.name) for each in fields(TableGroup) if each.init}
        kept["reader"] = IdReader(shards.tables, group.tables)
        groups.append(RankedGroup(**kept, held=held[group.embedding_dim]))
    embeddings = RankedEmbeddings(
        shards.tables, groups, ranks, tools.micro_batches, optimizer, tools.threads, coded
    )
    attach_movers(embeddings, config, tools)
    embeddings.initialize()
    return embeddings


def _hold_rows(shards: Shards, micro_batches: MicroBatches, node: Node) -> dict[int, HeldRows]:
    """Return the owner of each row, by embedding dimension."""
    held = {}
    for dim, chosen in tables_by_dim([table.embedding_dim for table in shards.tables]).items():
        num_ranks, num_shares = micro_batches.num_ranks, micro_batches.num_micro_batches
        owners_K = choose_owners(shards, chosen, num_ranks, num_shares, node)
        held[dim] = HeldRows(
            [shards.tables[table].num_rows for table in chosen], owners_K, micro_batches.rank
        )
    return held


def _lay_out_own_rows(
    shards: Shards,
    config: TrainConfig,
    tools: RowTools,
    optimizer: RowOptimizer,
    held: Mapping[int, HeldRows],
) -> list[TableGroup]:
    """Lay out the tiers of the rows that this rank owns, table by table."""
    tables = list(shards.tables)
    initial = {}
    for dim, chosen in tables_by_dim([table.embedding_dim for table in tables]).items():
        for table, cut in zip(chosen, held[dim].cut([tables[table] for table in chosen]), strict=True):
            tables[table] = cut
        initial[dim] = replace(_initial_values(shards, config.seed, chosen), held=held[dim].ids)
    placements = build_placements(config, shards, held)
    return build_groups(tables, placements, optimizer, config.seed, tools, initial_values=initial)


def _initial_values(shards: Shards, seed: int, chosen: Sequence[int]) -> InitialValues:
    """The initial values of all rows of some tables, whatever rank they live at."""
    return InitialValues.of(seed, chosen, [shards.tables[table].num_rows for table in chosen])


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
    """Measure for about two seconds; return the codecs that save time.

    Every rank calls this, and all get the same.

    Args:
        trainer: of the run, before its first step; what it sends from then on is not changed here.
    """
    assert options.exchange == AUTO and trainer.rank_codecs is not None, "nothing is left open"
    link = measure_link(trainer.ranks)
    volumes = _volumes(trainer)
    open_kinds: dict[Kind, tuple[str, ...]] = {
        "vectors": _ROW_CODECS,
        "gradients": _ROW_CODECS,
        "dense": _DENSE_CODECS,
    }
    names: dict[str, Any] = {}
    seconds: dict[str, dict[str, float]] = {}
    for kind, tried in open_kinds.items():
        costs = {name: _cost(trainer, volumes[kind], name, is_back=kind != "vectors") for name in tried}
        names[kind] = worthwhile_codec(costs, link.bytes_per_second)
        seconds[kind] = {name: cost.seconds_at(link.bytes_per_second) for name, cost in costs.items()}
    # Four messages a step: vectors, gradients, and both halves of the dense sum.
    step_seconds = 4 * link.delay_seconds + sum(seconds[kind][name] for kind, name in names.items())
    trainer.rank_codecs.prediction = ExchangePrediction(
        link.delay_seconds, link.bytes_per_second, step_seconds, seconds
    )
    return replace(trainer.rank_codecs.chosen, **names)


def _volumes(trainer: Trainer) -> dict[Kind, list[_Volume]]:
    """Return the rows that cross in a step, averaged over some batches."""
    num_batches = trainer.shards.num_training_batches
    # A few batches, evenly spread over those of the training part.
    numbers = np.unique(np.linspace(0, num_batches - 1, _NUM_BATCHES).astype(int)).tolist()
    volumes: dict[Kind, list[_Volume]] = {"vectors": [], "gradients": []}
    for group in trainer.embeddings.groups:
        assert isinstance(group, RankedGroup)
        found = [group.look_at(trainer.shards.training_lookups(number)) for number in numbers]
        crossing = {
            "vectors": [each.vectors for each in found],
            "gradients": [each.gradients for each in found],
        }
        for kind, own in volumes.items():
            counts_N2 = [(each.send.places_N.size, each.receive.places_N.size) for each in crossing[kind]]
            own.append(_Volume(group.embedding_dim, *np.mean(counts_N2, axis=0).tolist()))
    num_ranks = trainer.ranks.num_ranks
    num_numbers = sum(parameter.numel() for parameter in trainer.model.parameters())
    # Both halves of the sum send a slice to each other rank.
    num_blocks = 2 * num_numbers * (num_ranks - 1) / num_ranks / _DENSE_DIM
    return volumes | {"dense": [_Volume(_DENSE_DIM, num_blocks, num_blocks)]}


def _cost(trainer: Trainer, volumes: list[_Volume], name: str, *, is_back: bool) -> CodecCost:
    """Return bytes and seconds of a step's coded rows at the slowest rank."""
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
        # A link carries both directions at the same time, so the larger one decides.
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
    """Return the seconds of the fastest of a few trials, after one that compiles."""
    work()
    found = []
    for _ in range(_TRIALS):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return min(found)
