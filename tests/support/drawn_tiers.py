"""Small tiers of rows, lookups drawn for them, and one step of training."""

from __future__ import annotations

import numpy as np
import torch

from hotset.train.data.batch import BatchIds
from hotset.train.rows.initial_values import InitialValues
from hotset.train.rows.row_backends import RowBackend, SlotLookups
from hotset.train.rows.row_optimizers import RowOptimizer
from hotset.train.rows.tiers import Layout, Tier


def make_tier(optimizer: RowOptimizer, num_tables: int, num_rows: int, dim: int, device: str = "cpu") -> Tier:
    layout = Layout.of([0] * num_tables, [num_rows] * num_tables)
    tier = Tier(layout, dim, optimizer.state_width(dim), device=device)
    tier.initialize(InitialValues.of(3, range(num_tables), [num_rows] * num_tables))
    return tier


def draw_lookups(tier: Tier, num_samples: int, rng: np.random.Generator) -> SlotLookups:
    num_rows = int(tier.layout.last_F[0])
    ids = np.minimum(rng.zipf(1.3, (num_samples, tier.layout.num_tables)) - 1, num_rows - 1).astype(np.int32)
    slots_N, _ = tier.layout.locate(BatchIds.of_matrix(ids))
    return SlotLookups(np.arange(ids.size), slots_N)


def step(backend: RowBackend, tier: Tier, lookups: SlotLookups, grad_PD: torch.Tensor) -> torch.Tensor:
    vectors_PD = torch.zeros_like(grad_PD)
    backend.look_up(tier.weights_SD, lookups, vectors_PD)
    backend.update(tier, lookups, grad_PD.clone(), tier.layout.num_tables)
    return vectors_PD
