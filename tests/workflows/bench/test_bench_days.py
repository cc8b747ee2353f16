"""The benchmark of days, on days of a few hundred samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.workflows.bench.bench_days import WAYS, BenchDaysConfig, bench_days, show_days, write_day


@pytest.mark.slow
def test_each_way_has_a_score_of_each_day(tmp_path: Path) -> None:
    config = BenchDaysConfig(days=2, samples=300, batch_size=64, scratch=tmp_path)
    result = bench_days(config)
    assert all(len(result["auc"][way]) == 2 for way in WAYS)
    # On the first day all three are one model.
    assert len({result["auc"][way][0] for way in WAYS}) == 1
    assert [sum(result["trained_samples"][way]) for way in WAYS] == [600, 900, 600]
    console = Console(record=True, width=200)
    show_days(result, console)
    assert "trained on 1.5 times the samples" in console.export_text()


def test_a_share_of_categories_is_renewed_every_day(tmp_path: Path) -> None:
    config = BenchDaysConfig(samples=2_000, renewed=0.25)
    still = BenchDaysConfig(samples=2_000, renewed=0.0)

    def values(config: BenchDaysConfig, day: int) -> list[str]:
        text = write_day(config, day, tmp_path / "day").read_text()
        return [line.split("\t")[15] for line in text.splitlines()]

    pairs = list(zip(values(still, 2), values(config, 2), strict=True))
    assert all(len(new) == len(old) for old, new in pairs)
    kept = {old for old, new in pairs if old == new}
    renewed = {old for old, new in pairs if old != new}
    # Every lookup of a category has its new value, and one in four is renewed each day.
    assert not kept & renewed
    assert 0.35 < len(renewed) / len(kept | renewed) < 0.55
    assert values(config, 0) == values(still, 0)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="renewed must be"):
        BenchDaysConfig(renewed=2)
