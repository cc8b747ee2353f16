"""Optimizers of embedding rows have equal bits in both back ends, in any shares and threads.

Rows move with their state, between tiers of any device.

Ranges of rows: all rows once, with about as many lookups each; errors of any thread arrive.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from hotset.stats.batch_rows import LookupsByRow, group_lookups, of_matrix
from hotset.stats.row_bytes import OPTIMIZERS
from hotset.tests.support.drawn_tiers import draw_lookups, make_tier, step
from hotset.train.data.batch import MicroBatches
from hotset.train.rows import backends as row_backends
from hotset.train.rows.backends import (
    NumbaRows,
    RowBackend,
    RowOptimizer,
    TorchRows,
    fetch,
    initialize_rows,
    row_ranges,
    write_back,
)
from hotset.train.rows.tiers import InitialValues, Layout, Moves, Tier
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


# Drawn by hand, as a GPU's image, which runs other tests of this file, lacks what draws elsewhere.
@pytest.mark.parametrize("seed", range(40))
def test_both_back_ends_give_the_same_bits(seed: int) -> None:
    draw = random.Random(seed)
    rng = np.random.default_rng(seed)
    num_samples, num_tables = draw.choice([0, 1, 5, 127, 128, 300]), draw.randint(1, 3)
    dim, num_shares = draw.choice([1, 3, 4, 16, 37]), draw.choice([1, 2, 3, 8])
    optimizer = RowOptimizer(OPTIMIZERS[seed % len(OPTIMIZERS)], 0.03, draw.choice([0.0, 1e-5, 0.1]))
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


NAMES = OPTIMIZERS
ONE = WorkThreads(1)


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
    here_UD = sums_UD[torch.from_numpy(is_here)]
    backend.apply(in_two, lookups.slots_U[is_here], here_UD.clone())
    assert torch.equal(at_once.weights_SD, in_two.weights_SD)
    assert torch.equal(at_once.state_SW, in_two.state_SW)
    # A tier may have room for a larger state than this optimizer's, and leaves the rest of it alone.
    wide = make_tier(RowOptimizer("adam", 0.03), 2, 30, 4)
    width = in_two.state_SW.shape[1]
    rest = wide.state_SW[:, width:].clone()
    wide.weights_SD.copy_(make_tier(optimizer, 2, 30, 4).weights_SD)
    wide.state_SW[:, :width] = make_tier(optimizer, 2, 30, 4).state_SW
    backend.apply(wide, lookups.slots_U[is_here], here_UD)
    assert torch.equal(wide.weights_SD, in_two.weights_SD)
    assert torch.equal(wide.state_SW[:, :width], in_two.state_SW)
    assert torch.equal(wide.state_SW[:, width:], rest)


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("num_threads", [2, 3, 7])
def test_threads_and_chunks_change_no_bit(
    name: str, num_threads: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = RowOptimizer(name, 0.03)
    alone, together = (make_tier(optimizer, 3, 200, 4) for _ in range(2))
    monkeypatch.setattr(row_backends, "LEAST_RANGE_LOOKUPS", 100)
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


NUM_ROWS = [5, 9]


def tiers(device: str = "cpu") -> tuple[Tier, Tier, InitialValues]:
    fast = Tier(Layout.of([0, 0], [2, 3]), 4, 1, num_staging=3, device=device)
    slow = Tier(Layout.of([2, 3], NUM_ROWS), 4, 1)
    initial = InitialValues.of(0, [0, 1], NUM_ROWS)
    for tier in (fast, slow):
        tier.initialize(initial)
        tier.state_SW.copy_(torch.arange(tier.num_slots, dtype=torch.float32).unsqueeze(1))
    return fast, slow, initial


def moves(rows: list[int], slots: list[int]) -> Moves:
    return Moves(np.array(rows, np.int64), np.array(slots, np.int64))


@pytest.mark.parametrize("max_rows", [1, 50_000])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_row_is_loaded_and_written_back_with_its_state(
    device: str, max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.train.rows.backends.MAX_ROWS", max_rows)
    fast, slow, _ = tiers(device)
    assert fast.is_host == (device == "cpu")
    before = slow.weights_SD.clone()
    for _ in range(3):
        fetch(fast, slow, moves([8, 0], [5, 7]))
    assert torch.equal(fast.weights_SD[[5, 7]].cpu(), before[[8, 0]])
    assert fast.state_SW[[5, 7], 0].tolist() == [8, 0]
    fast.weights_SD[5], fast.state_SW[5] = 3.0, 9.0
    write_back(fast, slow, moves([8], [5]))
    assert slow.weights_SD[8].eq(3.0).all() and slow.state_SW[8] == 9.0
    assert torch.equal(slow.weights_SD[:8], before[:8])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_row_is_initialized_as_on_the_slow_tier(device: str) -> None:
    fast, slow, initial = tiers(device)
    initialize_rows(fast, slow, initial, moves([3, 1, 8], [6, 5, 7]))
    assert torch.equal(fast.weights_SD[[6, 5, 7]].cpu(), slow.weights_SD[[3, 1, 8]])
    assert not fast.state_SW[5:].any()


@pytest.mark.parametrize("max_rows", [1, 50_000])
def test_rows_of_a_gpu_move_as_those_of_the_host(max_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.train.rows.backends.MAX_ROWS", max_rows)
    both = [tiers()[:2], tiers()[:2]]
    for fast, _ in both:
        fast.weights_SD[5:] = 0
    for is_host, (fast, slow) in zip((True, False), both, strict=True):
        fast.is_host = is_host
        fetch(fast, slow, moves([8, 0], [5, 7]))
        fast.weights_SD[5], fast.state_SW[5] = 3.0, 9.0
        write_back(fast, slow, moves([8, 2], [5, 7]))
    for host, device in zip(*both, strict=True):
        assert torch.equal(host.weights_SD, device.weights_SD)
        assert torch.equal(host.state_SW, device.state_SW)


def drawn(num_samples: int, num_rows: int, rng: np.random.Generator) -> LookupsByRow:
    ids = rng.integers(0, num_rows, num_samples).astype(np.int32)
    return group_lookups(of_matrix(ids, np.array([num_rows], np.int64)))


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_backends, "LEAST_RANGE_LOOKUPS", 10)


@pytest.mark.parametrize(("num_samples", "num_rows"), [(0, 5), (1, 1), (9, 3), (1000, 400), (1000, 1)])
@pytest.mark.parametrize(("num_threads", "most"), [(1, 1), (2, 4), (3, 6)])
def test_each_row_is_in_one_range(
    num_samples: int, num_rows: int, num_threads: int, most: int, rng: np.random.Generator
) -> None:
    lookups = drawn(num_samples, num_rows, rng)
    ranges = row_ranges(lookups, num_threads)
    assert [row for first, last in ranges for row in range(first, last)] == list(range(lookups.num_rows))
    assert len(ranges) <= most
    if num_samples == 1000 and num_rows == 400:
        sizes = [int(lookups.counts_U[first:last].sum()) for first, last in ranges]
        assert len(sizes) == most and max(sizes) - min(sizes) < 20


def test_rows_are_worked_on_inside_a_piece_of_the_same_threads(rng: np.random.Generator) -> None:
    """As in a step, while the only other thread is busy with the dense layers to the end."""
    lookups = drawn(1000, 400, rng)
    threads = WorkThreads(2)
    done: list[int] = []
    finished = threading.Event()
    waited: list[bool] = []

    def update() -> None:
        ranges = row_ranges(lookups, 2)
        threads.run(lambda piece, _: done.extend(range(*ranges[piece])), len(ranges))
        finished.set()

    threads.run_all(update, lambda: waited.append(finished.wait(10)))
    assert sorted(done) == list(range(lookups.num_rows))
    assert waited == [True]


def test_few_lookups_are_one_range_and_many_are_two_for_each_thread(rng: np.random.Generator) -> None:
    lookups = [10 * times - 1 for times in (1, 2, 3, 4, 5, 100)]
    found = [len(row_ranges(drawn(count, 10_000, rng), 2)) for count in lookups]
    assert found == [1, 1, 2, 3, 4, 4]
    assert len(row_ranges(drawn(1000, 10_000, rng), 1)) == 1
