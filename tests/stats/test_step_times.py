"""A codec is used where it saves time, and refused where the link is quicker than the codec.

Predicted steps: what must hold whatever the log, the machine and the budget.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.curves import AccessRates, EpochUses
from hotset.stats.lookahead.planner import MOST_PREFETCH
from hotset.stats.step_times import (
    Budget,
    CodecCost,
    Machine,
    Prediction,
    Workload,
    compute_seconds,
    predict,
    where_more_stops_paying,
    worthwhile_codec,
)

HUFFMAN = (10.0, 60.0, 40.0)
VECTOR_LZ = (40.0, 45.0, 290.0)
"""Ratio, and GB/s to encode and to decode, as the authors of both give them."""


def costs(ratio: float, encoded: float, decoded: float) -> dict[str, CodecCost]:
    """Those of a gigabyte."""
    return {"none": CodecCost(1, 0), "coded": CodecCost(1 / ratio, 1 / encoded + 1 / decoded)}


@pytest.mark.parametrize("codec", [HUFFMAN, VECTOR_LZ])
def test_published_codecs_do_not_pay_on_a_fast_network(codec: tuple[float, float, float]) -> None:
    assert worthwhile_codec(costs(*codec), 4) == "coded"
    assert worthwhile_codec(costs(*codec), 50) == "none"


def test_a_codec_that_saves_little_is_left_out() -> None:
    almost = {"none": CodecCost(100, 0), "bf16": CodecCost(50, 46.0), "int8": CodecCost(25, 80.0)}
    assert worthwhile_codec(almost, 1) == "none"
    assert worthwhile_codec(almost | {"bf16": CodecCost(50, 45.0)}, 1) == "bf16"
    # What is taken is never slower than the quickest by more than a twentieth.
    assert worthwhile_codec(almost | {"bf16": CodecCost(50, 45.2)}, 1) == "bf16"
    assert worthwhile_codec(almost | {"bf16": CodecCost(50, 45.3)}, 1) == "none"
    # The slower the link, the more bytes count.
    assert worthwhile_codec(almost, 0.1) == "int8"


MACHINE = Machine()
NUM_ROWS = 2_000


def workload(exponent: float = 1.05, batch_size: int = 512, num_rows: int = NUM_ROWS) -> Workload:
    weights = np.arange(1, num_rows + 1, dtype=np.float64) ** -exponent
    rates = np.minimum(4 * weights / weights.sum(), 1.0)
    return Workload(
        rates=AccessRates(rates, np.ones(num_rows, np.int64)),
        num_rows=num_rows,
        num_train_samples=1_000_000,
        batch_size=batch_size,
        vector_bytes=64,
        row_bytes=128,
        flops_per_sample=1e6,
        dense_bytes=1_000_000,
        activation_bytes=2_000,
        input_bytes=160,
    )


def budget(num_hot_rows: int, hot_sample_share: float, staging_rows: int) -> Budget:
    return Budget(
        hot_bytes=128 * num_hot_rows,
        num_hot_rows=num_hot_rows,
        hot_sample_share=hot_sample_share,
        staging_bytes=128 * staging_rows,
    )


def by_name(predictions: list[Prediction]) -> dict[str, Prediction]:
    return {one.placement: one for one in predictions}


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([0.0, 0.8, 1.2]),
    st.integers(1, 4096),
    st.integers(0, NUM_ROWS),
    st.floats(0, 1),
    st.integers(1, NUM_ROWS),
    st.sampled_from([1e8, 1e10, 1e12]),
)
def test_no_placement_beats_every_row_at_hand(
    exponent: float, batch_size: int, hot: int, share: float, staging: int, bandwidth: float
) -> None:
    log = workload(exponent, batch_size)
    machine = replace(MACHINE, link_bytes_per_second=bandwidth)
    predictions = predict(log, machine, budget(hot, share, staging))
    named = by_name(predictions)
    compute = compute_seconds(log, machine)
    assert [one.step_seconds for one in predictions] == sorted(one.step_seconds for one in predictions)
    assert named["all-fast"].step_seconds == compute == min(one.step_seconds for one in predictions)
    assert named["hybrid-dedup"].step_seconds <= named["hybrid"].step_seconds * (1 + 1e-9)
    assert all(one.memory_bytes == sum(one.memory.values()) for one in predictions)
    prefetch = named["lookahead"].prefetch
    assert prefetch is not None and 0 <= prefetch <= MOST_PREFETCH


def test_a_staging_area_without_reuse_moves_each_batchs_cold_rows_once() -> None:
    log = workload()
    found = by_name(predict(log, MACHINE, budget(0, 0.0, 1)))["lookahead"]
    # One slot is too few for a batch, which then loads its rows twice; first uses are initialized each time.
    uses = EpochUses.of_rates(log.rates, log.num_train_samples, log.batch_size)
    assert found.to_fast_bytes + found.initialized_bytes == pytest.approx(2 * 128 * uses.rows_per_batch)
    assert found.initialized_bytes == pytest.approx(2 * 128 * NUM_ROWS / log.steps_per_epoch)
    assert found.to_slow_bytes == pytest.approx(128 * uses.rows_per_batch)
    assert found.prefetch == 0


def test_more_staging_moves_less_and_looks_further_ahead() -> None:
    log = workload()
    found = [
        by_name(predict(log, MACHINE, budget(200, 0.3, rows)))["lookahead"] for rows in (300, 1_000, 2_000)
    ]
    assert [one.to_fast_bytes for one in found] == sorted((one.to_fast_bytes for one in found), reverse=True)
    prefetches = [one.prefetch for one in found if one.prefetch is not None]
    assert prefetches == sorted(prefetches) and prefetches[-1] == MOST_PREFETCH


def test_no_step_is_shorter_than_its_batch_takes_to_read() -> None:
    log = workload()
    given = budget(200, 0.3, 1_000)
    quick, slow = (
        predict(log, replace(MACHINE, loader_samples_per_second=speed), given) for speed in (1e12, 1e5)
    )
    assert quick == predict(log, MACHINE, given)
    assert {one.step_seconds for one in slow} == {512 / 1e5}


def test_fae_pays_for_mixed_batches_and_for_switches() -> None:
    log = workload()
    none, half, every = (
        by_name(predict(log, MACHINE, budget(900, share, 1)))["fae"] for share in (0, 0.5, 1)
    )
    hybrid = by_name(predict(log, MACHINE, budget(900, 0, 1)))["hybrid"]
    copied = 2 * 900 * 128 / log.steps_per_epoch
    assert none.to_fast_bytes == pytest.approx(hybrid.to_fast_bytes + copied)
    assert half.to_fast_bytes == pytest.approx(hybrid.to_fast_bytes / 2 + copied)
    assert every.to_fast_bytes == pytest.approx(copied)


def test_each_step_time_is_what_its_bytes_and_operations_take() -> None:
    """Every placement's seconds and bytes, added up lookup by lookup on a machine of round numbers."""
    log = workload()
    machine = Machine(link_bytes_per_second=2e9, host_bytes_per_second=1e9, flops=4e12, step_seconds=1e-4)
    num_hot, share, staging = 900, 0.25, 700
    found = by_name(predict(log, machine, budget(num_hot, share, staging)))
    batch, steps = 512, 1_000_000 / 512
    compute = 1e-4 + batch * 1e6 / 4e12
    # A row with c lookups is missing from a batch with the chance that none of c samples is in it.
    counts = (log.rates.rates * 1_000_000).tolist()
    present = [1 - math.exp(log_choose(1e6 - count, 512) - log_choose(1e6, 512)) for count in counts]
    distinct, vectors = sum(present), batch * float(log.rates.rates.sum())
    # Vectors cross the link and gradients come back. The host reads a vector's bytes for the lookup, and
    # reads and writes each distinct row, 128 bytes with its state, for the update.
    for name, moved in (("hybrid", vectors * 64), ("hybrid-dedup", distinct * 64)):
        seconds = compute + 2 * moved / 2e9 + (moved + 2 * distinct * 128) / 1e9
        assert found[name].step_seconds == pytest.approx(seconds, rel=1e-6)
        assert found[name].to_fast_bytes == found[name].to_slow_bytes == pytest.approx(moved, rel=1e-6)
    # FAE: a quarter of the batches as all-fast, the others as hybrid; twice an epoch all hot rows cross the
    # link to the fast tier, and twice back.
    hybrid_seconds = found["hybrid"].step_seconds - compute
    switches = 4 * num_hot * 128 / 2e9 / steps
    assert found["fae"].step_seconds == pytest.approx(compute + 0.75 * hybrid_seconds + switches, rel=1e-6)
    # A cache waits for its misses: the link carries both ways at once, host memory reads and writes each.
    cache = found["cache"]
    both = cache.to_fast_bytes + cache.to_slow_bytes
    seconds = compute + cache.to_slow_bytes / 2e9 + both / 1e9
    assert cache.step_seconds == pytest.approx(seconds, rel=1e-6)
    assert cache.to_slow_bytes == pytest.approx(cache.to_fast_bytes + cache.initialized_bytes)
    assert found["all-fast"].step_seconds == found["all-fast"].compute_seconds == pytest.approx(compute)
    # Lookahead hides what fits behind the computation of a mixed batch.
    up, down = found["lookahead"].to_fast_bytes / 0.75, found["lookahead"].to_slow_bytes / 0.75
    transfer = max(down / 2e9, (up + down) / 1e9)
    hidden = max(compute, transfer) if found["lookahead"].prefetch else compute + transfer
    assert found["lookahead"].step_seconds == pytest.approx(0.25 * compute + 0.75 * hidden, rel=1e-6)


def log_choose(n: float, k: float) -> float:
    """Logarithm of the number of ways to choose k of n."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def test_the_memory_of_each_placement_is_its_parts() -> None:
    found = by_name(predict(workload(), MACHINE, budget(900, 0.25, 700)))
    for name, hot, staging in (
        ("all-fast", NUM_ROWS, 0), ("hybrid", 0, 0), ("hybrid-dedup", 0, 0),
        ("fae", 900, 0), ("cache", 900, 700), ("lookahead", 900, 700),
    ):  # fmt: skip
        memory = found[name].memory
        assert (memory["hot"], memory["staging"]) == (128 * hot, 128 * staging)
        assert (memory["dense"], memory["activations"]) == (1_000_000, 512 * 2_000)
        assert memory["inputs"] == (2 + (found[name].prefetch or 0)) * 512 * 160
    for name in ("hybrid", "hybrid-dedup"):
        assert found[name].memory["transfers"] == int(2 * found[name].to_fast_bytes)


def test_a_cache_of_every_row_misses_nothing() -> None:
    found = by_name(predict(workload(), MACHINE, budget(NUM_ROWS, 1.0, 1)))["cache"]
    assert found.to_fast_bytes == 0


@pytest.mark.parametrize(
    "seconds, position", [([3.0], 0), ([5.0, 3.0, 2.99], 1), ([5.0, 3.0, 2.9], 2), ([1.0, 1.0], 0)]
)
def test_more_memory_stops_paying_within_one_per_cent(seconds: list[float], position: int) -> None:
    assert where_more_stops_paying(seconds) == position
