"""Orders compared on a small log: shares add up, and peeling is never worse than frequency."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.workflows.bench.bench_orders import (
    BUDGETS,
    ORDERS,
    PUBLISHED,
    BenchOrdersConfig,
    bench_orders,
    show_orders,
)


def test_every_order_is_measured_under_every_budget(tmp_path: Path) -> None:
    generate(GenerateConfig(samples=6_000, scale=10), tmp_path / "log.tsv", workers=1)
    result = bench_orders(BenchOrdersConfig(data=tmp_path / "log.tsv", embedding_dim=64, workers=1))
    assert [budget["bytes"] for budget in result["budgets"]] == sorted({*BUDGETS, *PUBLISHED})
    for budget in result["budgets"]:
        by_frequency, peeled = budget["frequency"], budget["peel"]
        assert peeled["hot_sample_share"] >= by_frequency["hot_sample_share"]
        assert peeled["hot_lookup_share"] <= by_frequency["hot_lookup_share"]
        assert by_frequency["hot_bytes"] <= budget["bytes"]
        code = budget["fae-code"]
        assert code["hot_bytes"] == by_frequency["hot_bytes"]
        assert code["hot_sample_share"] <= by_frequency["hot_sample_share"]
        assert budget["fae-paper"] is None or len(budget["fae-paper"]["estimated_bytes"]) == 3
    assert set(result["rank"]) == set(ORDERS)
    console = Console(record=True, width=140)
    show_orders(result, console)
    assert "51%" in console.export_text()


def test_a_log_too_small_is_refused() -> None:
    with pytest.raises(ConfigError, match="samples must be 2 or more, got 1"):
        BenchOrdersConfig(samples=1)
