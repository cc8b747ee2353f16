"""Builds the tiers of a run with their initial rows: all of them, or those that live at one of the ranks."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ...pipeline.errors import ConfigError
from ...pipeline.sizes import format_byte_size
from ...stats.exchange.homes_name import HomesName
from ...stats.ranking.row_bytes import row_bytes
from ..config import TrainConfig
from ..data.batch import IdReader
from ..data.batch_shares import BatchShares
from ..data.shards import Shards
from ..device.verbs import Device
from ..exchange.choose_synced import choose_synced
from ..exchange.chosen_exchange import ChosenExchange, refuse_unknown_tables
from ..exchange.coded_exchange import CodedExchange
from ..exchange.exchange_file import ExchangeSchedule
from ..exchange.width_exchange import ExchangeReader
from ..execution.embeddings import Embeddings, RowWidth
from ..meter import Meter
from ..model.dlrm_shape import tables_by_width
from ..placements.choose_placement import build_placements
from ..ranked.ranked_embeddings import RankedEmbeddings
from ..ranked.ranked_width import RankedWidth
from ..ranked.synced_copies import SyncedCopies, WidthCopies
from ..ranks.ranks import FINGERPRINT_BYTES, Ranks, agree, refuse_other_plans
from ..rows.initial_values import InitialValues
from ..rows.mapped_rows import HostMemory
from ..rows.row_optimizers import RowOptimizer
from ..work_threads import WorkThreads
from .build_homes import plan_width_homes

_ADDED_OPTIMIZERS = ("sgd", "adagrad", "rowwise-adagrad")
"""Optimizers whose steps, and the changes of whose states, of several ranks can be added."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTools:
    """The parts that the rows of a run are built with, beside its shards and settings."""

    shares: BatchShares
    device: torch.device
    verbs: Device | None
    """Verbs of the device that transfers are queued on; None: a thread of the host runs them."""
    meter: Meter
    threads: WorkThreads
    host: HostMemory
    marks_rows: bool
    """Whether rows that steps change are marked, for checkpoints."""
    folder: Path
    """Folder of plans that are too large for memory."""


def build_embeddings(shards: Shards, config: TrainConfig, tools: RowTools) -> Embeddings:
    """Build the tiers of the placement, with the initial value of every row."""
    optimizer = _optimizer_of(shards, config)
    embeddings = Embeddings.build(
        shards.tables,
        build_placements(config, shards),
        optimizer,
        config.seed,
        tools.device,
        tools.meter,
        tools.threads,
        tools.host,
        shares=tools.shares,
        verbs=tools.verbs,
        tracks_changes=tools.marks_rows,
    )
    embeddings.initialize()
    return embeddings


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
    optimizer = _optimizer_of(shards, config)
    if coded.chosen.sync_every is not None:
        _refuse_what_copies_cannot(optimizer, homes)
    shares = tools.shares
    widths = tables_by_width([table.embedding_dim for table in shards.tables])
    planned = {}
    initial = {}
    tables = list(shards.tables)
    plan = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    # Of each table the rows of this rank become a table of their own.
    for dim, chosen in widths.items():
        # Homes are a function of the shards and the options, so every rank finds the same ones.
        plan_homes = partial(
            plan_width_homes,
            homes,
            shards,
            chosen,
            shares,
            config.seed,
            optimizer,
            tools.folder,
            schedule,
        )
        # A plan that is refused at one rank is refused at all, before any waits for it.
        found = agree(ranks, plan_homes)
        planned[dim] = found
        plan.update(found.fingerprint)
        initial[dim] = InitialValues.of(config.seed, chosen, [shards.tables[n].num_rows for n in chosen])
        for table, cut in zip(chosen, found.held.cut([tables[table] for table in chosen]), strict=True):
            tables[table] = cut
    held = {dim: found.held for dim, found in planned.items()}
    # The rows that all ranks hold copies of, by width.
    synced = dict.fromkeys(widths, np.empty(0, np.int32))
    if coded.chosen.sync_every is not None:
        most = coded.chosen.sync_rows
        keys = choose_synced(shards, list(widths.values()), ranks.num_ranks, shares.num_shares, most)
        synced = dict(zip(widths, keys, strict=True))
        plan.update(b"".join(each.tobytes() for each in keys))
    # Ranks that planned otherwise would wait for messages that nobody sends.
    refuse_other_plans(ranks, plan.digest())
    local = Embeddings.build(
        tables,
        build_placements(config, shards, held),
        optimizer,
        config.seed,
        tools.device,
        tools.meter,
        tools.threads,
        tools.host,
        initial_values={dim: replace(values, held=held[dim].ids) for dim, values in initial.items()},
        tracks_changes=tools.marks_rows,
    )
    # Each width reads the ids of all ranks, and has the rows of its own.
    ranked = []
    for width in local.widths:
        dim = width.embedding_dim
        reader = IdReader(shards.tables, width.tables)
        exchange = ExchangeReader(
            reader,
            held[dim],
            planned[dim].homes,
            ranks.num_ranks,
            synced[dim],
            sends_early=coded.chosen.codes_vectors_alone and config.placement != "fae",
        )
        own = {field.name: getattr(width, field.name) for field in fields(RowWidth)} | {"reader": reader}
        ranked.append(RankedWidth(**own, shares=shares, exchange=exchange, initial=initial[dim]))
    every = coded.chosen.sync_every
    held_copies = [WidthCopies(width, width.exchange, ranks, optimizer) for width in ranked]
    copies = SyncedCopies([] if every is None else held_copies, coded, every)
    embeddings = RankedEmbeddings(
        shards.tables, ranked, ranks, shares, optimizer, tools.threads, coded, copies
    )
    embeddings.initialize()
    return embeddings


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


def _optimizer_of(shards: Shards, config: TrainConfig) -> RowOptimizer:
    chosen = config.optimizers(shards.embedding_optimizer)
    optimizer = RowOptimizer(chosen.embedding_optimizer, chosen.embedding_lr, config.recipe.embedding_decay)
    # The two placements that keep hot rows on the fast tier permanently.
    if config.placement in ("fae", "lookahead"):
        _warn_of_row_bytes(shards, optimizer)
    return optimizer


def _warn_of_row_bytes(shards: Shards, optimizer: RowOptimizer) -> None:
    """Warn where the hot rows take more bytes with this optimizer than with the one they were chosen for."""

    def hot_bytes(name: str) -> int:
        return sum(table.num_hot * row_bytes(table.embedding_dim, name) for table in shards.tables)

    # The bytes that the hot rows take now, beside those that they were chosen by.
    needed = hot_bytes(optimizer.name)
    counted = hot_bytes(shards.embedding_optimizer)
    if needed > counted:
        _log.warning(
            "the hot rows take %s with %s; the shards were packed for %s with %s",
            format_byte_size(needed),
            optimizer.name,
            format_byte_size(counted),
            shards.embedding_optimizer,
        )
