"""Plans where the rows of a width live, among several ranks, and which of them have a place at this one."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...pipeline.errors import ConfigError
from ...stats.exchange.home_moves import move_costs
from ...stats.exchange.home_plan import first_homes
from ...stats.exchange.homes_name import HomesName
from ..data.batch_shares import BatchShares
from ..data.shards import Shards
from ..exchange.choose_homes import choose_homes
from ..exchange.exchange_file import ExchangeSchedule, PlannedSteps
from ..exchange.held_rows import HeldRows
from ..exchange.rank_reader import RankReader
from ..exchange.step_homes import FixedHomes, StepHomes
from ..placements.moving_homes import MovingHomes, read_uses
from ..rows.row_optimizers import RowOptimizer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WidthHomes:
    """The homes of the rows of one width, seen from one rank."""

    held: HeldRows
    homes: StepHomes | PlannedSteps
    fingerprint: bytes
    """Fingerprint of all that the plans of ranks must have in common."""


def plan_width_homes(
    name: HomesName,
    shards: Shards,
    chosen: Sequence[int],
    shares: BatchShares,
    seed: int,
    optimizer: RowOptimizer,
    folder: Path,
    schedule: ExchangeSchedule | None = None,
) -> WidthHomes:
    """Plan the homes of the rows of some tables.

    Args:
        name: the scheme.
        shards: whose training batches are read for it.
        chosen: positions of the tables, of one width, ascending.
        shares: of a batch, and this rank.
        seed: of the order of batches.
        optimizer: whose state moves along with a row.
        folder: of plans that are too large for memory.
        schedule: the plan on disk; None: it is made here.

    Raises:
        ConfigError: rows are too wide for plans of moving homes.
        HotsetError: the disk has no room for such plans.
    """
    num_rows = [shards.tables[table].num_rows for table in chosen]
    if schedule is not None:
        planned = schedule.width(shards.tables[chosen[0]].embedding_dim, sum(num_rows))
        held = HeldRows(num_rows, planned.homes_K.copy(), shares.rank, planned.is_held_K)
        return WidthHomes(held, planned, schedule.fingerprint)
    if name != "moving":
        homes_K = choose_homes(name, shards, chosen, shares.num_ranks, shares.num_shares)
        held = HeldRows(num_rows, homes_K, shares.rank)
        return WidthHomes(held, FixedHomes(homes_K), homes_K.tobytes())
    reader = RankReader(shards, chosen, shares.num_ranks, shares.num_shares)
    uses = read_uses(reader, shards.num_training_batches, folder)
    homes_K, is_held_K = first_homes(uses, shares.rank)
    dim = shards.tables[chosen[0]].embedding_dim
    try:
        costs = move_costs(dim, optimizer.state_width(dim))
    except ValueError as error:
        raise ConfigError(f"homes cannot move: {error}") from None
    # Scheduled by the run itself, batches of hot rows come after mixed ones more often than before.
    is_hot = shards.is_hot_only[: shards.num_training_batches]
    guess = np.concatenate([np.flatnonzero(~is_hot), np.flatnonzero(is_hot)])
    # Plans follow from the uses of rows, the order of batches and the costs.
    plan = hashlib.blake2b(f"{seed} {costs}".encode(), digest_size=16)
    for array in (uses.offsets, uses.keys, uses.masks, homes_K):
        plan.update(array.data)
    held = HeldRows(num_rows, homes_K.copy(), shares.rank, is_held_K)
    _log.info(
        "rank %d has places for %s of %s rows of %d numbers, which move",
        shares.rank,
        f"{held.keys_R.size:,}",
        f"{homes_K.size:,}",
        dim,
    )
    homes = MovingHomes(uses, homes_K, costs, guess, folder)
    return WidthHomes(held, homes, plan.digest())
