"""The benchmark of placements, very small. Tests `link_rates`, too."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.workflows.bench.bench_placements import BenchPlacementsConfig, bench_placements, show_placements
from hotset.workflows.bench.measuring.link_rates import LinkRates, measure_link


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


def test_speeds_on_a_device_stand_beside_what_its_link_allows() -> None:
    config = BenchPlacementsConfig(
        samples=1200, batch_size=128, train_batches=2, rounds=1, hot_shares=(0.05,), device="late"
    )
    result = bench_placements(config)
    (found,) = result["shares"]
    assert result["link"]["up"] > 0 and result["link"]["down"] > 0
    # One vector per lookup up, and then its gradient down.
    wanted = 26 * 16 * 4 * (1 / result["link"]["up"] + 1 / result["link"]["down"])
    assert found["link"]["hybrid"] == pytest.approx(1 / wanted)
    rounds = found["rounds"]["all-fast"][0]
    assert found["link"]["all-fast"] == pytest.approx(result["link"]["up"] / rounds["sent_bytes_per_sample"])
    console = Console(file=StringIO(), width=160)
    show_placements(result, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "link allows" in shown and "GB/s up" in shown and "hybrid-uva" in shown
    assert {found["rounds"][name][0]["mover"] for name in ("all-fast", "lookahead")} == {None, "kernel"}


@pytest.mark.parametrize(("placement", "seconds"), [("hybrid", 4.0), ("fae", 4.0), ("lookahead", 3.0)])
def test_what_moves_in_turns_takes_the_sum_and_what_runs_ahead_the_longer(
    placement: str, seconds: float
) -> None:
    assert LinkRates(up=10.0, down=5.0).seconds(placement, 10.0, 15.0) == seconds


def test_the_host_has_no_link() -> None:
    assert measure_link("cpu") is None


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="hot_shares"):
        BenchPlacementsConfig(hot_shares=(0.0,))
