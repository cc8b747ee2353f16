"""The Numba and the torch back end hold each other to the same bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats import batch_work
from hotset.stats.ranking.row_bytes import OPTIMIZERS
from hotset.tests.support.drawn_tiers import draw_lookups, make_tier, step
from hotset.train.data.batch_shares import BatchShares
from hotset.train.rows import row_backends
from hotset.train.rows.row_backends import NumbaRows, RowBackend, TorchRows, backend_of
from hotset.train.rows.row_optimizers import RowOptimizer
from hotset.train.work_threads import WorkThreads

NAMES = OPTIMIZERS
ONE = WorkThreads(1)


@given(
    name=st.sampled_from(NAMES),
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
    shares = BatchShares(300, num_shares)
    backends: list[RowBackend] = [NumbaRows(optimizer, ONE, shares), TorchRows(optimizer, shares=shares)]
    for rate in (None, float(np.float32(0.3)), float(np.float32(0.001))):
        lookups = draw_lookups(tiers[0], num_samples, rng)
        grad_PD = torch.from_numpy(rng.normal(size=(num_samples * num_tables, dim)).astype(np.float32))
        first, second = (
            step(b, tier, lookups, grad_PD, rate) for b, tier in zip(backends, tiers, strict=True)
        )
        assert torch.equal(first, second)
    assert torch.equal(tiers[0].weights_SD, tiers[1].weights_SD)
    assert torch.equal(tiers[0].state_SW, tiers[1].state_SW)


@pytest.mark.parametrize("make_backend", [lambda optimizer: NumbaRows(optimizer, ONE), TorchRows])
@pytest.mark.parametrize("name", NAMES)
def test_summing_first_and_applying_then_is_the_update(
    make_backend: Callable[[RowOptimizer], RowBackend], name: str, rng: np.random.Generator
) -> None:
    optimizer = RowOptimizer(name, 0.03)
    backend = make_backend(optimizer)
    at_once, in_two = (make_tier(optimizer, 2, 30, 4) for _ in range(2))
    lookups = draw_lookups(at_once, 300, rng)
    grad_PD = torch.from_numpy(rng.normal(size=(600, 4)).astype(np.float32))
    backend.update(at_once, lookups.by_row, lookups.slots_U, grad_PD, 2)
    sums_UD = backend.sums(lookups.by_row, grad_PD, 2)
    is_here = lookups.slots_U >= 0
    backend.apply(in_two, lookups.slots_U[is_here], sums_UD[torch.from_numpy(is_here)])
    assert torch.equal(at_once.weights_SD, in_two.weights_SD)
    assert torch.equal(at_once.state_SW, in_two.state_SW)


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("num_threads", [2, 3, 7])
def test_threads_and_chunks_change_no_bit(
    name: str, num_threads: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = RowOptimizer(name, 0.03)
    alone, together = (make_tier(optimizer, 3, 200, 4) for _ in range(2))
    monkeypatch.setattr(batch_work, "LEAST_RANGE_LOOKUPS", 100)
    for _ in range(2):
        lookups = draw_lookups(alone, 900, rng)
        grad_PD = torch.from_numpy(rng.normal(size=(2700, 4)).astype(np.float32))
        monkeypatch.setattr(row_backends, "_CHUNK_FLOATS", 1 << 16)
        vectors = step(NumbaRows(optimizer, ONE), alone, lookups, grad_PD)
        monkeypatch.setattr(row_backends, "_CHUNK_FLOATS", 12)
        threads = WorkThreads(num_threads)
        assert torch.equal(step(NumbaRows(optimizer, threads), together, lookups, grad_PD), vectors)
    assert torch.equal(alone.weights_SD, together.weights_SD)
    assert torch.equal(alone.state_SW, together.state_SW)


def test_no_kernel_sums_a_batch_without_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("launched for nothing")

    monkeypatch.setattr(torch, "segment_reduce", refuse)
    nothing = torch.zeros(0, dtype=torch.int64)
    sums_ND = row_backends.segment_sums(nothing, nothing, [nothing], torch.zeros(0, 4))
    assert sums_ND.shape == (0, 4) and sums_ND.dtype == torch.float32


def test_the_host_uses_numba() -> None:
    assert isinstance(backend_of(torch.device("cpu"), RowOptimizer("sgd", 0.1), ONE), NumbaRows)
