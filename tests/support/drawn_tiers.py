"""Small tiers of rows, lookups drawn for them, and one step of training."""

# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hotset.stats.batch_rows import LookupsByRow, group_lookups, of_matrix
from hotset.train.data.batch import BatchIds
from hotset.train.rows.backends import RowBackend, RowOptimizer
from hotset.train.rows.tiers import InitialValues, Layout, Tier


def make_tier(optimizer: RowOptimizer, num_tables: int, num_rows: int, dim: int, device: str = "cpu") -> Tier:
    layout = Layout.of([0] * num_tables, [num_rows] * num_tables)
    tier = Tier(layout, dim, optimizer.state_width(dim), device=device)
    tier.initialize(InitialValues.of(3, range(num_tables), [num_rows] * num_tables))
    return tier


@dataclass(frozen=True, slots=True)
class DrawnLookups:
    """Lookups by row, one in each table and sample, and the slot of each distinct row."""

    by_row: LookupsByRow
    slots_U: NDArray[np.int64]


def draw_lookups(tier: Tier, num_samples: int, rng: np.random.Generator) -> DrawnLookups:
    num_rows = tier.layout.last_F
    ids = np.minimum(rng.zipf(1.3, (num_samples, num_rows.size)) - 1, num_rows - 1).astype(np.int32)
    by_row = group_lookups(of_matrix(ids.reshape(-1), num_rows))
    slots_U, _ = tier.layout.slots_of(by_row)
    # Some rows are left out, as those of other passes are.
    slots_U[rng.random(slots_U.size) < 0.1] = -1
    return DrawnLookups(by_row, slots_U)


def step(
    backend: RowBackend, tier: Tier, lookups: DrawnLookups, grad_PD: torch.Tensor, rate: float | None = None
) -> torch.Tensor:
    vectors_PD = torch.zeros_like(grad_PD)
    backend.look_up(tier.weights_SD, lookups.by_row, lookups.slots_U, vectors_PD)
    num_tables = tier.layout.num_tables
    backend.update(tier, lookups.by_row, lookups.slots_U, grad_PD.clone(), num_tables, rate)
    return vectors_PD


def one_hot_ids(ids_BF: NDArray[np.int32]) -> BatchIds:
    """Return one lookup per feature and sample."""
    return BatchIds(np.ascontiguousarray(ids_BF).reshape(-1), None, *ids_BF.shape)
