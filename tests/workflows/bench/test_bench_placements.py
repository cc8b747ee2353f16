"""The benchmark of placements, very small."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.workflows.bench.bench_placements import BenchPlacementsConfig, bench_placements, show_placements


def test_every_placement_is_planned_and_trained() -> None:
    config = BenchPlacementsConfig(
        samples=1500, batch_size=128, train_batches=2, rounds=1, hot_shares=(0.05,)
    )
    result = bench_placements(config)
    (found,) = result["shares"]
    assert found["bytes"]["all-fast"]["to_fast"] == 0
    assert found["bytes"]["hybrid"]["to_fast"] == 26 * 16 * 4
    assert found["ratios"]["lookahead / belady"] >= 1
    aucs = {rounds[0]["auc"] for name, rounds in found["rounds"].items()}
    assert len(aucs) == 1, "the first batches are trained with equal bits"
    console = Console(file=StringIO(), width=140)
    show_placements(result, console)
    assert "hybrid-dedup / lookahead" in console.file.getvalue()  # type: ignore[attr-defined]


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="hot_shares"):
        BenchPlacementsConfig(hot_shares=(0.0,))
