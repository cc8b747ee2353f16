"""Builds the tiers of the rows that live at one of several ranks, and what crosses between the ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial

from ..config import TrainConfig
from ..data.batch import IdReader
from ..data.batch_shares import BatchShares
from ..data.shards import Shards
from ..exchange.coded_exchange import CodedExchange
from ..exchange.held_rows import HeldRows
from ..exchange.rank_reader import RankReader, choose_owners
from ..exchange.width_exchange import ExchangeReader
from ..execution.build_widths import build_widths
from ..execution.row_width import RowWidth
from ..model.dlrm_shape import tables_by_width
from ..placements.choose_placement import build_placements
from ..ranked.ranked_embeddings import RankedEmbeddings
from ..ranked.ranked_width import RankedWidth
from ..ranks.ranks import FINGERPRINT_BYTES, Ranks, agree, refuse_other_plans
from ..rows.initial_values import InitialValues
from ..rows.row_optimizers import RowOptimizer
from .build_embeddings import RowTools, optimizer_of


def build_ranked_embeddings(
    shards: Shards,
    config: TrainConfig,
    tools: RowTools,
    ranks: Ranks,
    coded: CodedExchange,
) -> RankedEmbeddings:
    """Build the tiers of the rows that live at this rank, with their initial values.

    Raises:
        ConfigError: a batch cannot be cut so, or the tables have too many rows.
    """
    optimizer = optimizer_of(shards, config)
    # Owners are a function of the shards and the options, so every rank finds the same ones. What one rank
    # refuses all refuse, before any waits for it.
    held = agree(ranks, partial(_hold_rows, shards, tools.shares))
    # Ranks that read other batches would wait for messages that nobody sends.
    owners = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    owners.update(b"".join(of_width.owners_K.tobytes() for of_width in held.values()))
    refuse_other_plans(ranks, owners.digest())

    ranked = []
    for width in _lay_out_own_rows(shards, config, tools, optimizer, held):
        # Each width reads the ids of all ranks, and has the rows of its own.
        reader = IdReader(shards.tables, width.tables)
        exchange = ExchangeReader(reader, held[width.embedding_dim], ranks.num_ranks)
        kept = {field.name: getattr(width, field.name) for field in fields(RowWidth)} | {"reader": reader}
        initial = _initial_values(shards, config.seed, width.tables)
        ranked.append(RankedWidth(**kept, shares=tools.shares, exchange=exchange, initial=initial))
    embeddings = RankedEmbeddings(shards.tables, ranked, ranks, tools.shares, optimizer, tools.threads, coded)
    embeddings.initialize()
    return embeddings


def _hold_rows(shards: Shards, shares: BatchShares) -> dict[int, HeldRows]:
    """Return the owner of each row, by embedding dimension."""
    held = {}
    for dim, chosen in tables_by_width([table.embedding_dim for table in shards.tables]).items():
        reader = RankReader(shards, chosen, shares.num_ranks, shares.num_shares)
        owners_K = choose_owners(reader, shards.num_training_batches)
        held[dim] = HeldRows([shards.tables[table].num_rows for table in chosen], owners_K, shares.rank)
    return held


def _lay_out_own_rows(
    shards: Shards,
    config: TrainConfig,
    tools: RowTools,
    optimizer: RowOptimizer,
    held: Mapping[int, HeldRows],
) -> list[RowWidth]:
    """Lay out the tiers of the rows that live here: of each table they become a table of their own."""
    tables = list(shards.tables)
    initial = {}
    for dim, chosen in tables_by_width([table.embedding_dim for table in tables]).items():
        for table, cut in zip(chosen, held[dim].cut([tables[table] for table in chosen]), strict=True):
            tables[table] = cut
        initial[dim] = replace(_initial_values(shards, config.seed, chosen), held=held[dim].ids)
    placements = build_placements(config, shards, held)
    return build_widths(tables, placements, optimizer, config.seed, tools, initial_values=initial)


def _initial_values(shards: Shards, seed: int, chosen: Sequence[int]) -> InitialValues:
    """The initial values of all rows of some tables, whatever rank they live at."""
    return InitialValues.of(seed, chosen, [shards.tables[table].num_rows for table in chosen])
