"""Builds the tiers of a run that has all rows in one process, with their initial values."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from ...pipeline.errors import format_byte_size
from ...stats.ranking.row_bytes import row_bytes
from ..config import TrainConfig
from ..data.batch_shares import BatchShares
from ..data.shards import Shards
from ..device.verbs import Device
from ..execution.build_widths import TierTools, build_widths
from ..execution.embeddings import Embeddings
from ..placements.choose_placement import build_placements
from ..rows.row_optimizers import RowOptimizer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTools(TierTools):
    """The parts that the rows of a run are built with, beside its shards and settings."""

    shares: BatchShares
    verbs: Device | None
    """Verbs of the device that transfers are queued on; None: a thread of the host runs them."""
    folder: Path
    """Folder of plans that are too large for memory."""


def build_embeddings(shards: Shards, config: TrainConfig, tools: RowTools) -> Embeddings:
    """Build the tiers of the placement, with the initial value of every row."""
    widths = build_widths(
        shards.tables,
        build_placements(config, shards),
        optimizer_of(shards, config),
        config.seed,
        tools,
        shares=tools.shares,
    )
    embeddings = Embeddings(len(shards.tables), widths, tools.verbs)
    embeddings.initialize()
    return embeddings


def optimizer_of(shards: Shards, config: TrainConfig) -> RowOptimizer:
    """Return the optimizer of the rows; warn where it takes more bytes than the hot rows were chosen by."""
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
