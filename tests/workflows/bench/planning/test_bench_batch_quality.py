"""Batch sizes are trained by every rule, and the fastest one has a price."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.train.run import train
from hotset.workflows.bench.planning import bench_batch_quality as module
from hotset.workflows.bench.planning.bench_batch_quality import (
    RULES,
    BenchBatchQualityConfig,
    bench_batch_quality,
    mean_auc,
    price_of,
    show_batch_quality,
    steps_at_equal_time,
)


def test_every_size_is_trained_by_every_rule_and_larger_rates_follow_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []
    own = train

    def watched(data: Path, config: Any, out: Path) -> Any:
        batch = int(data.name.removeprefix("data-"))
        rates.append((batch, config.seed, config.embedding_lr, config.dense_lr, config.recipe.max_steps))
        return own(data, config, out)

    monkeypatch.setattr(module, "train", watched)
    config = BenchBatchQualityConfig(
        samples=900,
        batch_sizes=(64, 256),
        base=64,
        seeds=(3,),
        threads=1,
    )
    result = bench_batch_quality(config)
    assert [(one["batch_size"], one["rule"]) for one in result["batches"]] == [
        (size, rule) for size in (64, 256) for rule in RULES
    ]
    whole = [each for each in rates if each[4] is None]
    base = whole[0]
    assert [each[2] / base[2] for each in whole] == pytest.approx([1, 1, 1, 1, 2, 4])
    assert [each[3] / base[3] for each in whole] == pytest.approx([1, 1, 1, 1, 2, 4])
    for one in result["batches"]:
        assert 1 <= one["steps_at_equal_time"] <= one["steps"]
        # One that is through its epoch in time has the AUC that it has at equal samples.
        if one["steps_at_equal_time"] == one["steps"]:
            assert one["auc_at_equal_time"] == one["auc_at_equal_samples"]
    assert any(one["steps_at_equal_time"] == one["steps"] for one in result["batches"])
    assert json.loads(json.dumps(result, default=str))["fastest"] == result["fastest"]
    console = Console(record=True, width=140)
    show_batch_quality(result, console)
    assert "The fastest batch is" in console.export_text()


def test_every_size_has_the_time_in_which_the_first_one_is_through_its_epoch() -> None:
    # 10, 8 and 12 seconds for an epoch: 8 seconds are four fifths and two thirds of the others.
    num_steps = {10: 100, 40: 25, 160: 7}
    speeds = {10: 100.0, 40: 125.0, 160: 160 * 7 / 12}
    assert steps_at_equal_time(num_steps, speeds) == {10: 80, 40: 25, 160: 4}
    assert steps_at_equal_time({10: 1, 1000: 1}, {10: 100.0, 1000: 10.0}) == {10: 1, 1000: 1}
    # Whatever rounding does, the size that sets the time takes all of its steps.
    for speed in (0.1, 0.3, 7.0, 1e5 / 3):
        assert steps_at_equal_time({49: 49}, {49: speed}) == {49: 49}


def batch(size: int, rule: str, samples: list[float | None], time: list[float | None]) -> dict[str, Any]:
    return {"batch_size": size, "rule": rule, "auc_at_equal_samples": samples, "auc_at_equal_time": time}


def test_the_price_is_what_the_fastest_size_lacks_to_the_best() -> None:
    batches = [
        batch(512, "kept", [0.80, 0.78], [0.70, 0.70]),
        batch(8192, "kept", [0.70, 0.72], [0.71, 0.73]),
        batch(8192, "linear", [0.77, 0.77], [None, 0.9]),
    ]
    found = price_of(batches, {512: 1.0, 8192: 2.0})
    assert found["batch_size"] == 8192
    assert found["price_at_equal_samples"] == pytest.approx({"kept": 0.08, "linear": 0.02})
    assert found["rule_at_equal_samples"] == "linear"
    # A seed that diverged leaves its rule without a mean.
    assert found["price_at_equal_time"] == {"kept": pytest.approx(0.0)}
    assert price_of(batches, {512: 2.0, 8192: 1.0})["price_at_equal_samples"]["kept"] == pytest.approx(0.0)
    none = price_of([batch(512, "kept", [None], [None])], {512: 1.0})
    assert none["price_at_equal_samples"] == {} and none["rule_at_equal_time"] is None
    assert mean_auc([]) is None and mean_auc([None]) is None


@pytest.mark.parametrize("change", [{"seeds": ()}, {"batch_sizes": ()}, {"batch_sizes": (0,)}, {"base": 0}])
def test_nonsense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        BenchBatchQualityConfig(**change)
