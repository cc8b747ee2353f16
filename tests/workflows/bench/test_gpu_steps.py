"""Lower bounds of a GPU's step: the parts of the reference."""

from __future__ import annotations

import pytest

from hotset.workflows.bench.gpu_steps import GpuRates, part_floors

H200 = GpuRates(memory_bytes=4.3e12, flops=790e12, link_bytes=55e9)


def test_parts_are_bytes_over_bandwidth() -> None:
    parts = part_floors(16, 65_536, H200, distinct_rows=2.89)
    # 26 rows of 64 bytes with their slots, and 367 + 16 numbers of 2 bytes.
    assert parts["rows and dots"] == pytest.approx((26 * 68 + 2 * 383) / 4.3e12)
    twice = part_floors(16, 65_536, GpuRates(8.6e12, 1580e12, 55e9), distinct_rows=2.89)
    assert sum(twice.values()) == pytest.approx(sum(parts.values()) / 2)


def test_large_layers_are_bound_by_their_products() -> None:
    # 14.5 million operations of a sample, forward and backward.
    found = part_floors(128, 65_536, H200, distinct_rows=2.89)
    assert found["products"] == pytest.approx(14.2e6 / 790e12, rel=0.1)
