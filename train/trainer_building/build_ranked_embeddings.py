"""Builds the tiers of the rows that live at one of several ranks, and what crosses between the ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError
from ...stats.exchange.homes_name import HomesName
from ..config import TrainConfig
from ..data.batch import IdReader
from ..data.shards import Shards
from ..exchange.choose_synced import choose_synced
from ..exchange.chosen_exchange import ChosenExchange, refuse_unknown_tables
from ..exchange.coded_exchange import CodedExchange
from ..exchange.exchange_file import ExchangeSchedule
from ..exchange.width_exchange import ExchangeReader
from ..execution.build_widths import build_widths
from ..execution.row_width import RowWidth
from ..model.dlrm_shape import tables_by_width
from ..placements.choose_placement import build_placements
from ..ranked.ranked_embeddings import RankedEmbeddings
from ..ranked.ranked_width import RankedWidth
from ..ranked.synced_copies import SyncedCopies, WidthCopies
from ..ranks.ranks import FINGERPRINT_BYTES, Ranks, agree, refuse_other_plans
from ..rows.initial_values import InitialValues
from ..rows.row_optimizers import RowOptimizer
from .build_embeddings import RowTools, optimizer_of
from .build_homes import WidthHomes, plan_width_homes

_ADDED_OPTIMIZERS = ("sgd", "adagrad", "rowwise-adagrad")
"""Optimizers whose steps, and the changes of whose states, of several ranks can be added."""


def build_coded_exchange(
    shards: Shards, seed: int, rank: int, chosen: ChosenExchange, num_done: int
) -> CodedExchange:
    """Build the codecs of what crosses between ranks.

    Args:
        chosen: their names.
        num_done: steps of the run that are done.

    Raises:
        ConfigError: a bound of a table that is not there.
    """
    refuse_unknown_tables(chosen, shards.tables)
    widths = tables_by_width([table.embedding_dim for table in shards.tables]).values()
    coded = CodedExchange(rank, seed, [[shards.tables[n] for n in of_width] for of_width in widths], num_done)
    coded.use(chosen)
    return coded


def build_ranked_embeddings(
    shards: Shards,
    config: TrainConfig,
    tools: RowTools,
    ranks: Ranks,
    homes: HomesName,
    coded: CodedExchange,
    schedule: ExchangeSchedule | None = None,
) -> RankedEmbeddings:
    """Build the tiers of the rows that live at this rank, with their initial values.

    Args:
        schedule: what crosses, as it is on disk; None: it is planned here.

    Raises:
        ConfigError: copies of rows are asked for, and do not go with this optimizer or these homes.
    """
    optimizer = optimizer_of(shards, config)
    sync_every = coded.chosen.sync_every
    if sync_every is not None:
        _refuse_what_copies_cannot(optimizer, homes)
    planned = _plan_homes(shards, config, tools, ranks, homes, optimizer, schedule)
    synced = _choose_copies(shards, tools, coded.chosen)
    # Ranks that planned otherwise would wait for messages that nobody sends.
    plan = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    plan.update(b"".join(of_width.fingerprint for of_width in planned.values()))
    plan.update(b"".join(keys_K.tobytes() for keys_K in synced.values()))
    refuse_other_plans(ranks, plan.digest())

    own = _lay_out_own_rows(shards, config, tools, optimizer, planned)
    sends_early = coded.chosen.codes_vectors_alone and config.placement != "fae"
    ranked = []
    for width in own:
        dim = width.embedding_dim
        # Each width reads the ids of all ranks, and has the rows of its own.
        reader = IdReader(shards.tables, width.tables)
        exchange = ExchangeReader(
            reader,
            planned[dim].held,
            planned[dim].homes,
            ranks.num_ranks,
            synced[dim],
            sends_early=sends_early,
        )
        kept = {field.name: getattr(width, field.name) for field in fields(RowWidth)} | {"reader": reader}
        initial = _initial_values(shards, config.seed, width.tables)
        ranked.append(RankedWidth(**kept, shares=tools.shares, exchange=exchange, initial=initial))
    held_copies = [WidthCopies(width, width.exchange, ranks, optimizer) for width in ranked]
    copies = SyncedCopies([] if sync_every is None else held_copies, coded, sync_every)
    embeddings = RankedEmbeddings(
        shards.tables, ranked, ranks, tools.shares, optimizer, tools.threads, coded, copies
    )
    embeddings.initialize()
    return embeddings


def _plan_homes(
    shards: Shards,
    config: TrainConfig,
    tools: RowTools,
    ranks: Ranks,
    homes: HomesName,
    optimizer: RowOptimizer,
    schedule: ExchangeSchedule | None,
) -> dict[int, WidthHomes]:
    """Plan the homes of the rows of each width, on all ranks or on none."""
    planned = {}
    for dim, chosen in tables_by_width([table.embedding_dim for table in shards.tables]).items():
        # Homes are a function of the shards and the options, so every rank finds the same ones.
        plan_homes = partial(
            plan_width_homes,
            homes,
            shards,
            chosen,
            tools.shares,
            config.seed,
            optimizer,
            tools.folder,
            schedule,
        )
        # A plan that is refused at one rank is refused at all, before any waits for it.
        planned[dim] = agree(ranks, plan_homes)
    return planned


def _choose_copies(shards: Shards, tools: RowTools, chosen: ChosenExchange) -> dict[int, NDArray[np.int32]]:
    """Choose the rows that all ranks hold copies of, by width; none where copies are not asked for."""
    widths = tables_by_width([table.embedding_dim for table in shards.tables])
    if chosen.sync_every is None:
        return dict.fromkeys(widths, np.empty(0, np.int32))
    shares = tools.shares
    keys = choose_synced(shards, list(widths.values()), shares.num_ranks, shares.num_shares, chosen.sync_rows)
    return dict(zip(widths, keys, strict=True))


def _lay_out_own_rows(
    shards: Shards,
    config: TrainConfig,
    tools: RowTools,
    optimizer: RowOptimizer,
    planned: Mapping[int, WidthHomes],
) -> list[RowWidth]:
    """Lay out the tiers of the rows that live here: of each table they become a table of their own."""
    tables = list(shards.tables)
    initial = {}
    for dim, chosen in tables_by_width([table.embedding_dim for table in tables]).items():
        held = planned[dim].held
        for table, cut in zip(chosen, held.cut([tables[table] for table in chosen]), strict=True):
            tables[table] = cut
        initial[dim] = replace(_initial_values(shards, config.seed, chosen), held=held.ids)
    placements = build_placements(config, shards, {dim: homes.held for dim, homes in planned.items()})
    return build_widths(tables, placements, optimizer, config.seed, tools, initial_values=initial)


def _initial_values(shards: Shards, seed: int, chosen: Sequence[int]) -> InitialValues:
    """The initial values of all rows of some tables, whatever rank they live at."""
    return InitialValues.of(seed, chosen, [shards.tables[table].num_rows for table in chosen])


def _refuse_what_copies_cannot(optimizer: RowOptimizer, homes: HomesName) -> None:
    if optimizer.name not in _ADDED_OPTIMIZERS:
        raise ConfigError(
            f"--sync-rows adds the steps of all ranks, and the averages of {optimizer.name} cannot be added",
            hint=f"use --embedding-optimizer {', '.join(_ADDED_OPTIMIZERS[:-1])} or {_ADDED_OPTIMIZERS[-1]}",
        )
    # Each rank would let a row decay by its own steps, and their sum would decay it W times.
    if optimizer.decay:
        raise ConfigError(
            "--sync-rows adds the steps of all ranks, each of which would decay the rows",
            hint="leave --embedding-decay out",
        )
    if homes == "moving":
        raise ConfigError(
            "--sync-rows adds the steps of all ranks at a home that stays", hint="use --homes by-use"
        )
