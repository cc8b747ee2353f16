"""Rows read from the weights of a run: only the parts of the file that hold wanted ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import MIB
from hotset.train.data.batch import EmbeddingTable
from hotset.train.rows.tiers import Layout, Tier
from hotset.train.run_folder import reader
from hotset.train.run_folder.reader import SavedTier
from hotset.train.run_folder.weights import Weights

TABLES = [EmbeddingTable("A", 50, 5, 2), EmbeddingTable("B", 70, 0, 2)]


@pytest.fixture
def weights() -> Weights:
    tensors = {name: torch.randn(count, 2) for name, count in (("A", 50), ("B", 70))}
    return Weights.of_run(tensors, {})


def read(tier: SavedTier, wanted: list[int]) -> torch.Tensor:
    fast = Tier(Layout.of([0, 0], [0, 0]), 2, 0)
    nothing = np.empty(0, np.int64)
    tier.read(np.array(wanted, np.int64), fast, nothing, nothing)
    return tier.weights_SD


@pytest.mark.parametrize("memory", [0, 200, 10 * MIB])
def test_wanted_rows_are_read(memory: int, weights: Weights) -> None:
    tier = SavedTier(TABLES, 2, weights, memory)
    whole = torch.cat([weights["A"], weights["B"]])
    for wanted in ([], [0], [119], [3, 49, 50, 90, 119], list(range(120))):
        assert torch.equal(read(tier, wanted), whole[wanted])
    read(tier, [3, 49, 50])
    assert tier.slots_of(np.array([50, 3])).tolist() == [2, 0]


def test_parts_without_a_wanted_row_are_left_out(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, int]] = []
    rows = weights.rows

    def recorded(name: str, first: int, stop: int) -> torch.Tensor:
        asked.append((name, first, stop))
        return rows(name, first, stop)

    monkeypatch.setattr(weights, "rows", recorded)
    monkeypatch.setattr(reader, "_PART_BYTES", 80)  # ten rows
    read(SavedTier(TABLES, 2, weights, MIB), [12, 51, 119])
    assert asked == [("A", 10, 20), ("B", 0, 10), ("B", 60, 70)]


def test_memory_bounds_the_rows_of_a_group(weights: Weights) -> None:
    tier = SavedTier(TABLES, 2, weights, MIB)
    assert 0 < tier.most_read * (8 + 40) <= MIB * 7 // 8
