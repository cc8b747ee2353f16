"""Lower bounds of a GPU's step: the parts of the reference, and the tables of the docs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotset.stats.ranking.row_bytes import row_bytes
from hotset.train.model.shapes import dlrm_shape
from hotset.workflows.bench.gpu_steps import (
    MOVED_ROWS,
    GpuRates,
    expected_parts,
    expected_seconds,
    hybrid_floor,
    moves_floor,
    part_floors,
    part_kernels,
    sent_bytes,
    summary,
)

ROOT = Path(__file__).resolve().parents[3]


def test_the_table_of_the_docs_is_the_one_that_is_computed() -> None:
    assert "\n".join(summary()) in (ROOT / "docs" / "gpu.md").read_text()


def test_parts_are_bytes_over_bandwidth() -> None:
    parts = part_floors(16, 65_536)
    # 26 rows of 64 bytes with their slots, and 367 + 16 numbers of 2 bytes.
    assert parts["rows and dots"] == pytest.approx((26 * 68 + 2 * 383) / 4.3e12)
    twice = part_floors(16, 65_536, GpuRates(memory_bytes=8.6e12, flops=1580e12))
    assert sum(twice.values()) == pytest.approx(sum(parts.values()) / 2)


def test_large_layers_are_bound_by_their_products() -> None:
    # 14.5 million operations of a sample, forward and backward.
    assert part_floors(128, 65_536)["products"] == pytest.approx(14.2e6 / 790e12, rel=0.1)


def test_a_batch_sends_less_than_200_bytes_a_sample() -> None:
    assert all(sent_bytes(batch_size) < 200 for batch_size in (2_048, 16_384, 65_536))


def test_every_part_is_expected_to_take_its_kernels_and_more_than_its_bound() -> None:
    floors, expected = part_floors(16, 2_048), expected_parts(16, 2_048)
    kernels = part_kernels(dlrm_shape("auto", 13, 26, 16))
    assert floors.keys() == expected.keys() == kernels.keys()
    for name, floor in floors.items():
        assert expected[name] == pytest.approx(floor / 0.45 + kernels[name] * 2e-6 / 2_048)
    assert sum(expected.values()) == expected_seconds(16, 2_048)


def test_moved_rows_are_those_of_the_recorded_plan() -> None:
    plan = json.loads((ROOT / "workflows/results/placements-plan-2m.json").read_text())
    (bytes_of,) = (share["bytes"]["lookahead"] for share in plan["shares"] if share["share"] == 0.015)
    moved = [bytes_of[way] / row_bytes(16, "sgd") for way in ("to_fast", "to_slow")]
    assert moved == pytest.approx(MOVED_ROWS, abs=0.005)
    assert moves_floor(128) == pytest.approx(1.97 * 512 / 55e9)


def test_small_batches_wait_for_kernels() -> None:
    assert expected_seconds(16, 2_048) > 2 * expected_seconds(16, 65_536)
    assert hybrid_floor(128) == pytest.approx(2 * 26 * 512 / 55e9)
