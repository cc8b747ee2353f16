"""Lays out the tiers of all rows of a model, by the placement of each row width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..data.batch import EmbeddingTable, IdReader
from ..data.batch_shares import BatchShares
from ..meter import Meter
from ..model.dlrm_shape import tables_by_width
from ..placements.placements import Placement
from ..rows.changed_rows import ChangedRows
from ..rows.initial_values import InitialValues
from ..rows.mapped_rows import HostMemory, refuse_more_rows_than_memory
from ..rows.row_optimizers import RowOptimizer
from ..rows.tiers import FileTier, Tier
from ..spill.mapped_arrays import mapped_zeros
from ..spill.spilled_tier import SpilledTier
from ..work_threads import WorkThreads
from .executor import Executor
from .row_width import RowWidth


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTools:
    """The parts of a run that tiers are laid out and moved with."""

    device: torch.device
    meter: Meter
    threads: WorkThreads
    host: HostMemory | None = None
    marks_rows: bool = False
    """Whether rows that steps change are marked, for checkpoints."""


def build_widths(
    tables: Sequence[EmbeddingTable],
    placements: Mapping[int, Placement],
    optimizer: RowOptimizer,
    seed: int,
    tools: TierTools,
    *,
    shares: BatchShares | None = None,
    slow_tiers: Mapping[int, FileTier] | None = None,
    initial_values: Mapping[int, InitialValues] | None = None,
) -> list[RowWidth]:
    """Lay out the tiers of each width, by the placement of that width; their rows are not yet set.

    Args:
        placements: by width.
        shares: parts of a batch whose gradients are summed by themselves; None: a batch is one.
        slow_tiers: slow tiers in a file, by width, which take no memory for their rows.
        initial_values: by width, where the rows of a table are some of a larger one.

    Raises:
        HotsetError: the rows do not fit in host memory.
    """
    if slow_tiers is None:
        _refuse_more_rows_than_memory(placements, optimizer, tools.device, tools.host)
    widths = []
    # Rows of one width share two tiers and a plan; a row of another width would not fit in their slots.
    for dim, chosen in tables_by_width([table.embedding_dim for table in tables]).items():
        placement = placements[dim]
        fast, slow = _build_tiers(placement, dim, optimizer, tools, (slow_tiers or {}).get(dim))
        initial = (initial_values or {}).get(dim) or InitialValues.of(seed, chosen, placement.num_rows)
        executor = Executor(fast, slow, optimizer, initial, tools.meter, tools.threads, shares)
        changed = _changed_rows(placement, tools.host) if tools.marks_rows else None
        widths.append(RowWidth(dim, chosen, IdReader(tables, chosen), placement, executor, changed))
    return widths


def _build_tiers(
    placement: Placement,
    embedding_dim: int,
    optimizer: RowOptimizer,
    tools: TierTools,
    slow: Tier | None,
) -> tuple[Tier, Tier]:
    """The fast and the slow tier of a placement, rows not yet set; the slow one may be given."""
    state_width = optimizer.state_width(embedding_dim)
    num_staging = placement.num_staging_slots
    device = str(tools.device)
    fast = Tier(placement.fast, embedding_dim, state_width, num_staging=num_staging, device=device)
    if slow is not None:
        return fast, slow
    if tools.host is not None and tools.host.is_planned:
        return fast, SpilledTier(placement.slow, embedding_dim, state_width)
    return fast, Tier(placement.slow, embedding_dim, state_width, host=tools.host)


def _changed_rows(placement: Placement, host: HostMemory | None) -> ChangedRows:
    """The marks of all rows of a width; in a mapped file where rows are to keep to a limit of memory."""
    is_limited = host is not None and host.left_bytes is not None
    num_rows = sum(placement.num_rows)
    marks_R = mapped_zeros(host.folder, num_rows, np.uint8) if host is not None and is_limited else None
    return ChangedRows(placement.num_rows, marks_R)


def _refuse_more_rows_than_memory(
    placements: Mapping[int, Placement],
    optimizer: RowOptimizer,
    device: torch.device,
    host: HostMemory | None,
) -> None:
    """Raise HotsetError where the tiers of all widths together do not fit in host memory."""
    num_rows = 0
    fast_bytes = 0
    slow_bytes = 0
    # All tiers that lie in host memory; on a GPU the fast one does not.
    for dim, placement in placements.items():
        fast = placement.fast.num_own_slots + placement.num_staging_slots
        num_rows += sum(placement.num_rows)
        fast_bytes += fast * optimizer.row_bytes(dim) if device.type == "cpu" else 0
        slow_bytes += placement.slow.num_own_slots * optimizer.row_bytes(dim)
    memory = host or HostMemory(None, Path(), may_spill=False)
    refuse_more_rows_than_memory(num_rows, fast_bytes, slow_bytes, memory)
