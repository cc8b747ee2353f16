"""The rows that cross between ranks on a small log: schemes in their order, and the theory beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.workflows.bench.ranks.bench_exchange import BenchExchangeConfig, bench_exchange, show_exchange


def test_each_scheme_moves_no_more_than_the_one_before(tmp_path: Path) -> None:
    generate(GenerateConfig(samples=20_000, scale=10), tmp_path / "log.tsv", workers=1)
    config = BenchExchangeConfig(data=tmp_path / "log.tsv", ranks=(2, 4), rank_batch_size=256)
    result = bench_exchange(config)
    assert [found["ranks"] for found in result["ranks"]] == [2, 4]
    for found in result["ranks"]:
        rows = list(found["rows_per_sample"].values())
        assert rows == sorted(rows, reverse=True) and rows[-1] > 0
        # Without optimizer state to move along, no scheme is better.
        assert found["rows_per_sample"]["homes move"] == found["rows_per_sample"]["least possible"]
        assert found["expected_deduplicated"] == pytest.approx(
            found["rows_per_sample"]["deduplicated"], rel=0.03
        )
        moved = [
            found["moving"][name]["bytes_per_sample"]
            for name in ("sgd", "rowwise-adagrad", "adagrad", "adam")
        ]
        assert moved == sorted(moved) and moved[0] == pytest.approx(64 * rows[-1])
        assert found["moving"]["adagrad"]["most_rows_over_mean"] < 1.05
        for moving in found["moving"].values():
            assert moving["expected"]["rows_per_sample"] == pytest.approx(moving["rows_per_sample"], rel=0.03)
        # By bytes moving is never worse than staying.
        assert moved[-1] <= found["by_use_bytes_per_sample"]
        assert found["by_use_bytes_per_sample"] == pytest.approx(
            64 * found["rows_per_sample"]["homes by use"]
        )
        assert 1 < found["places_over_rows"] < found["ranks"]
    # One lookup in 26 features: all but the share of a rank itself are remote, both ways.
    assert result["ranks"][1]["rows_per_sample"]["every lookup"] == pytest.approx(2 * 26 * 3 / 4, rel=0.02)
    console = Console(record=True, width=80)
    show_exchange(result, console)
    shown = console.export_text()
    assert "4 ranks" in shown and "rowwise-adagrad" in shown and "places of all ranks" in shown


@pytest.mark.parametrize("ranks", [(), (1,), (2, 65)])
def test_numbers_of_ranks_that_exchange_nothing_are_refused(ranks: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="ranks must be from 2 to 64"):
        BenchExchangeConfig(ranks=ranks)
