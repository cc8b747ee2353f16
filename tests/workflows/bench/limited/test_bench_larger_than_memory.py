"""The benchmark of tables larger than memory on tables of a few kilobytes: structure, equal bits, limits.

Also the tests of `limited_training` and `drawn_shards`.
"""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.sizes import KIB, MIB, ByteSize
from hotset.train.data.shards import Shards
from hotset.workflows.bench.limited import bench_larger_than_memory as bench
from hotset.workflows.bench.limited.limited_training import (
    CONTESTANTS,
    IN_MEMORY,
    LOOKAHEAD,
    MAPPED,
    LimitedRun,
    touch_rows,
    train_limited,
)
from hotset.workflows.bench.measuring.fresh_process import Candidate, Measurement, measure_in_fresh_process
from hotset.workflows.drawn_shards import DrawnShards

DRAWN = DrawnShards(
    num_tables=3,
    rows_of_table=4000,
    hot_rows_of_table=50,
    cold_share=0.5,
    batch_size=64,
    num_batches=30,
    num_evaluation=70,
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn") / "shards"
    DRAWN.write(folder)
    return folder


def run_of(contestant: str, shards: Path) -> LimitedRun:
    return LimitedRun(
        contestant=contestant,
        shards=shards,
        slow_bytes=300 * KIB,
        staging_bytes=24 * KIB,
        epochs=2,
        seed=0,
        threads=1,
        limit=None,
    )


def test_drawn_shards_are_shards(shards: Path) -> None:
    opened = Shards.open(shards)
    opened.refuse_damage()
    assert (opened.num_training_batches, opened.num_evaluation_batches) == (30, 2)
    ids = np.concatenate([opened.training_batch(number).ids_BF for number in range(30)])
    assert 0.45 < (ids >= 50).mean() < 0.55 and ids.max() < 4000
    assert opened.evaluation_batch(1).num_samples == 6


@pytest.fixture(scope="module")
def facts(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("rows")
    return {name: train_limited(folder, run_of(name, shards)) for name in CONTESTANTS}


def test_all_contestants_end_with_the_same_weights(facts: dict[str, dict[str, Any]]) -> None:
    assert len({found["digest"] for found in facts.values()}) == 1
    assert all(found["num_samples"] == 2 * 30 * 64 for found in facts.values())
    # Rows went to files and came back.
    assert facts[LOOKAHEAD]["requests"] > 10


def test_a_result_says_what_each_cost(facts: dict[str, dict[str, Any]]) -> None:
    rounds = {name: [Measurement(1.0, 1.0, 10, 5, found)] * 2 for name, found in facts.items()}
    share = bench._share(rounds)
    assert share["equal_bits"] and [one["name"] for one in share["contestants"]] == list(CONTESTANTS)
    assert len(share["ratios"]) == 3 and all(ratio > 0 for ratio in share["ratios"].values())
    # What training in memory reaches is the most that lookahead can.
    bound = share["bounds"][f"{IN_MEMORY} / {MAPPED}"]
    ratio = share["ratios"][f"{LOOKAHEAD} / {MAPPED}"]
    assert ratio / bound == pytest.approx(1 / share["bounds"][f"{IN_MEMORY} / {LOOKAHEAD}"])
    for one in share["contestants"]:
        names = ("samples_per_second", "bytes_read", "bytes_written", "requests", "peak_anonymous_bytes")
        assert all(name in one for name in names)
    settings = asdict(bench.BenchLargerThanMemoryConfig())
    share |= {"cold_share": 0.02, "num_batches": 1234, "touched_bytes": 3 * MIB}
    result = {"shares": [share], "table_bytes": 10, "is_limited": True, "settings": settings}
    json.dumps(result, default=str)
    console = Console(width=200, record=True, file=io.StringIO())
    bench.show_larger_than_memory(result, console)
    printed = console.export_text()
    assert "equal bits" in printed and all(name in printed for name in CONTESTANTS)
    assert "2% cold lookups, 1,234 batches: an epoch touches 3 MiB of pages" in printed
    assert f"{IN_MEMORY} / {MAPPED}" in printed


def test_other_weights_are_said(facts: dict[str, dict[str, Any]]) -> None:
    changed = {name: dict(found) for name, found in facts.items()}
    changed[LOOKAHEAD]["digest"] = "other"
    share = bench._share({name: [Measurement(1.0, 1.0, 10, 5, one)] for name, one in changed.items()})
    assert not share["equal_bits"]


def test_the_tables_are_as_many_times_the_memory() -> None:
    config = bench.BenchLargerThanMemoryConfig(memory=ByteSize(100 * MIB), times=3, hot_bytes=ByteSize(MIB))
    drawn = config.shards(0.1)
    assert drawn.num_tables * drawn.rows_of_table * 64 == pytest.approx(300 * MIB, rel=1e-4)
    assert drawn.num_tables * drawn.hot_rows_of_table * 64 == pytest.approx(MIB, rel=1e-2)


@pytest.mark.parametrize(
    ("share", "num_batches"), [(0.1, 60), (0.02, 300), (0.03, 200), (0.5, 12), (1.0, 6), (0.0001, 60_000)]
)
def test_every_share_has_as_many_cold_lookups(share: float, num_batches: int) -> None:
    config = bench.BenchLargerThanMemoryConfig(batches=60)
    assert config.num_batches(share) == num_batches == config.shards(share).num_batches
    assert config.touched_bytes(share) == pytest.approx(config.touched_bytes(0.1), rel=1e-3)


def test_an_epoch_has_a_batch_at_least() -> None:
    assert bench.BenchLargerThanMemoryConfig(batches=1).num_batches(1.0) == 1


@pytest.mark.parametrize("batches", [1, 20, 200])
def test_touched_pages_are_those_of_drawn_rows(batches: int, rng: np.random.Generator) -> None:
    config = bench.BenchLargerThanMemoryConfig(
        memory=ByteSize(10 * MIB), hot_bytes=ByteSize(16 * KIB), batches=batches, batch_size=128
    )
    rows = 26 * config.rows_of_table
    num_lookups = round(0.1 * batches * 128 * 26)
    pages = np.unique(rng.integers(0, rows, num_lookups) * 64 // 4096)
    assert config.touched_bytes(0.02) == pytest.approx(4096 * pages.size, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "rounds must be 1 or more"),
        ({"cold_shares": (0.0,)}, "cold_shares must be above 0"),
        ({"hot_bytes": ByteSize(3 << 30)}, "3 GiB of hot rows in tables of 2.5 GiB"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bench.BenchLargerThanMemoryConfig(**changes)


@pytest.mark.slow
def test_rows_beyond_the_memory_take_none(tmp_path: Path) -> None:
    """80 MiB of rows, nearly all of them used, in 16 MiB of memory."""
    drawn = replace(
        DRAWN, rows_of_table=110_000, embedding_dim=64, batch_size=4096, num_batches=40, cold_share=1
    )
    drawn.write(tmp_path / "shards")
    # A small run first, so that the peak is not that of the compiler.
    DRAWN.write(tmp_path / "small")
    peaks = []
    for contestant in (IN_MEMORY, LOOKAHEAD):
        run = replace(
            run_of(contestant, tmp_path / "shards"), slow_bytes=16 * MIB, staging_bytes=8 * MIB, epochs=1
        )
        warm_up = run_of(contestant, tmp_path / "small")
        candidate = Candidate(contestant, "", train_limited, (warm_up,), (run,))
        peaks.append(measure_in_fresh_process(candidate, tmp_path).peak_anonymous_bytes)
    table_bytes = 3 * 110_000 * 64 * 4
    assert peaks[0] - peaks[1] > 0.7 * (table_bytes - 16 * MIB)


def test_touching_rows_reads_each() -> None:
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert touch_rows(weights, np.array([1, 3])) == 3 + 9
    assert touch_rows(weights, np.empty(0, np.int64)) == 0
