"""Plans of whole epochs: their numbering, their files, and sums over them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.scheduling import epoch_plans as module
from hotset.pipeline.scheduling.cold_batches import ColdBatches
from hotset.pipeline.scheduling.epoch_plans import EpochSums, num_hot_only_batches
from hotset.pipeline.scheduling.step_plan_files import read_plans, read_residents
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.stages.schedule import ScheduleConfig, schedule
from hotset.stats.staging.next_uses import next_uses
from hotset.stats.staging.staging_planner import lookahead_planner
from hotset.stats.staging.step_plans import Residents, RowStream, StepPlans
from hotset.tests.support.shard_factory import ShardSpec, write_shards

NUM_ROWS = 60


def drawn_stream(num_batches: int, rng: np.random.Generator) -> RowStream:
    batches = [np.unique(rng.zipf(1.3, 20) % NUM_ROWS).astype(np.int64) for _ in range(num_batches)]
    stream = RowStream.of(batches)
    return replace(stream, next_uses=next_uses(stream.offsets, stream.rows, NUM_ROWS))


def planned(num_batches: int, rng: np.random.Generator) -> tuple[StepPlans, Residents]:
    """Plans of a small epoch, and what is left in slots at its end."""
    planner = lookahead_planner(NUM_ROWS, 24, prefetch=1)
    plans = planner.plan(drawn_stream(num_batches, rng))
    _, residents = planner.finish()
    return plans, residents


def test_sums_are_those_of_a_walk_over_the_steps(rng: np.random.Generator) -> None:
    plans, residents = planned(30, rng)
    sums = EpochSums()
    assert sums.add(plans) is plans
    sums.residents = residents
    found = sums.totals(row_bytes=32)
    made = int(plans.fetch_is_first.sum())
    assert (found.steps, found.split) == (30, 0)
    assert found.rows_made == made > 0
    assert found.rows_to_fast == plans.fetch_rows.size - made > 0
    assert found.rows_to_slow == plans.write_back_rows.size + residents.rows.size
    assert (found.bytes_to_fast, found.bytes_to_slow) == (32 * found.rows_to_fast, 32 * found.rows_to_slow)
    assert found.hits + found.misses == plans.slots.size
    assert sums.totals(row_bytes=32) == found, "asking changes nothing"


def test_sums_of_chunks_are_the_sum_of_all(rng: np.random.Generator) -> None:
    plans, residents = planned(20, rng)
    twice = EpochSums()
    twice.add(plans)
    twice.add(plans)
    twice.residents = residents
    once = EpochSums()
    once.add(plans)
    once.residents = residents
    assert twice.totals(8).rows_to_fast == 2 * once.totals(8).rows_to_fast
    # Rows left in slots at the end are written back once, however many chunks there were.
    left = residents.rows.size
    assert twice.totals(8).rows_to_slow - left == 2 * (once.totals(8).rows_to_slow - left)


@pytest.mark.parametrize("file_bytes", [1, 700, 10**9])
def test_files_hold_all_plans_in_order_and_are_closed_when_full(
    monkeypatch: pytest.MonkeyPatch, file_bytes: int, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", file_bytes)
    nothing, _ = planned(0, rng)
    plans = [planned(3, rng)[0] for _ in range(5)]
    files = list(module._files_of(iter([nothing, *plans, nothing])))
    assert [plan for group in files for plan in group] == plans
    assert len(files) == {1: 5, 10**9: 1}.get(file_bytes, len(files)) and all(files)

    def num_bytes(plan: StepPlans) -> int:
        return 4 * plan.slots.size + 13 * plan.fetch_rows.size + 12 * plan.write_back_rows.size

    for group in files[:-1]:
        assert sum(map(num_bytes, group)) >= file_bytes > sum(map(num_bytes, group[:-1]))


@pytest.mark.parametrize("knows_uses", [True, False])
def test_a_stream_is_the_batches_in_the_order_asked_for(knows_uses: bool, rng: np.random.Generator) -> None:
    rows = [rng.permutation(NUM_ROWS)[:length].astype(np.int32) for length in (3, 0, 5, 1)]
    offsets = np.cumsum([0, *map(len, rows)])
    flat = np.concatenate(rows)
    lookups = rng.integers(1, 9, flat.size).astype(np.int32)
    uses = rng.integers(0, 9, flat.size).astype(np.int32) if knows_uses else None
    stream = module._stream(ColdBatches(offsets, flat, lookups), uses, np.array([2, 1, 0]))
    assert stream.offsets.tolist() == [0, 5, 5, 8]
    assert stream.rows.tolist() == [*rows[2].tolist(), *rows[0].tolist()]
    assert stream.lookups is not None
    assert stream.lookups.tolist() == [*lookups[3:8].tolist(), *lookups[:3].tolist()]
    if uses is None:
        assert stream.next_uses is None
    else:
        assert stream.next_uses is not None
        assert stream.next_uses.tolist() == [*uses[3:8].tolist(), *uses[:3].tolist()]


@pytest.mark.parametrize("order", ["grouped", "original"])
def test_mixed_batches_have_the_numbers_of_the_trainer(tmp_path: Path, order: str) -> None:
    spec = ShardSpec(order=order, batch_size=8)
    shards = Manifest.read(write_shards(tmp_path / "shards", spec))
    numbers, samples = module._mixed_batches(shards)
    num_hot_only = sum(e.facts["batches"] for e in shards.files if e.facts["kind"] == "hot_only")
    assert num_hot_only_batches(shards) == num_hot_only
    mixed = next(entry for entry in shards.files if entry.facts["kind"] == "mixed")
    hot = set(mixed.facts.get("hot_only_batches", []))
    assert numbers.tolist() == [num_hot_only + n for n in range(mixed.facts["batches"]) if n not in hot]
    assert bool(hot) == (order == "original")
    # Every batch is whole but the last of a file.
    assert (samples[:-1] == 8).all() and 0 < samples[-1] <= 8
    assert samples.sum() == mixed.num_samples - 8 * len(hot)


def test_every_epoch_plans_each_mixed_batch_once_whatever_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec(batch_size=8)))
    config = ScheduleConfig(staging_bytes=ByteSize(3000), epochs=2, seed=5, split_batches=True)
    monkeypatch.setattr(module, "CHUNK_ENTRIES", 40)
    made = schedule(config, shards, tmp_path / "schedule")
    wanted, _ = module._mixed_batches(shards)
    for epoch in (0, 1):
        files = [entry for entry in made.files if entry.facts["epoch"] == epoch]
        steps = 0
        batches: list[int] = []
        for entry in files:
            if entry.facts["kind"] == "residents":
                assert (np.diff(read_residents(made, entry).slots) > 0).all()
                continue
            assert entry.facts["first_step"] == steps
            for plans, numbers in read_plans(made, entry):
                assert plans.first_step == steps
                steps += plans.num_steps
                batches += numbers.tolist()
        assert sorted(batches) == wanted.tolist()
        assert made.totals["widths"][0]["epochs"][epoch]["steps"] == steps == wanted.size
