"""Optimizers of embedding rows, and their bits in the Numba and the torch back end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.row_bytes import OPTIMIZERS
from hotset.tests.support.drawn_tiers import draw_lookups, make_tier, step
from hotset.train.data.batch import MicroBatches
from hotset.train.rows.backends import NumbaRows, RowBackend, TorchRows
from hotset.train.rows.optimizers import RowOptimizer
from hotset.train.threads import WorkThreads


def test_the_learning_rate_is_a_float32() -> None:
    optimizer = RowOptimizer("sgd", 0.1)
    assert optimizer.lr == float(np.float32(0.1)) != 0.1


@pytest.mark.parametrize(
    ("name", "width"), [("sgd", 0), ("momentum", 16), ("adagrad", 16), ("rowwise-adagrad", 1), ("adam", 33)]
)
def test_state_counts_in_the_bytes_of_a_row(name: str, width: int) -> None:
    optimizer = RowOptimizer(name, 0.1)
    assert optimizer.state_width(16) == width
    assert optimizer.row_bytes(16) == 4 * (16 + width)


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(ValueError, match="'adamax'"):
        RowOptimizer("adamax", 0.1)


@given(
    name=st.sampled_from(OPTIMIZERS),
    num_samples=st.sampled_from([0, 1, 5, 127, 128, 300]),
    num_tables=st.integers(1, 3),
    dim=st.sampled_from([1, 3, 4, 16, 37]),
    decay=st.sampled_from([0.0, 1e-5, 0.1]),
    num_shares=st.sampled_from([1, 2, 3, 8]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_both_back_ends_give_the_same_bits(
    name: str, num_samples: int, num_tables: int, dim: int, decay: float, num_shares: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    optimizer = RowOptimizer(name, 0.03, decay)
    tiers = [make_tier(optimizer, num_tables, 40, dim) for _ in range(2)]
    shares = MicroBatches(300, num_shares)
    backends: list[RowBackend] = [
        NumbaRows(optimizer, WorkThreads(1), shares),
        TorchRows(optimizer, micro_batches=shares),
    ]
    for rate in (None, float(np.float32(0.3)), float(np.float32(0.001))):
        lookups = draw_lookups(tiers[0], num_samples, rng)
        grad_PD = torch.from_numpy(rng.normal(size=(num_samples * num_tables, dim)).astype(np.float32))
        first, second = (
            step(b, tier, lookups, grad_PD, rate) for b, tier in zip(backends, tiers, strict=True)
        )
        assert torch.equal(first, second)
    assert torch.equal(tiers[0].weights_SD, tiers[1].weights_SD)
    assert torch.equal(tiers[0].state_SW, tiers[1].state_SW)
