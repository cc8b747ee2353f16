"""Series of a preprocessed folder, against walks over categories; tests `coverage` and `traffic`, too."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import ByteSize, ConfigError, ManifestError, SystemFaultError
from hotset.pipeline.preprocess import PreprocessConfig
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.statistics.frequencies import QUICK, SERIES, frequency_statistics
from hotset.tests.support.logs.criteo_text import Sample, draw_samples
from hotset.tests.support.naive.naive_stages import run_to

CONFIG = PreprocessConfig(
    count=CountConfig(eval_fraction=0.25),
    split=SplitConfig(embedding_optimizer="sgd", hot_bytes=ByteSize(64 * 60)),
)


@pytest.fixture(scope="module")
def log() -> list[Sample]:
    return draw_samples(200, np.random.default_rng(3))


@pytest.fixture(scope="module")
def folder(log: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    run_to("split", folder, log, CONFIG)
    return folder


def test_too_little_memory_is_refused_with_the_sum_before_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = frequency_statistics(folder, Resources(workers=1), series=QUICK)
    needed = 24 * found["num_rows"] + 16 * 150 * 26
    monkeypatch.setattr("hotset.pipeline.statistics.frequencies.available_bytes", lambda: needed - 1)
    with pytest.raises(SystemFaultError, match=r"3,900 lookups take at least 66\.2 KiB of") as caught:
        frequency_statistics(folder, Resources(workers=1))
    assert str(caught.value.hint).endswith("`--series features budgets`")
    # What the hint names takes less.
    assert frequency_statistics(folder, Resources(workers=1), series=QUICK) == found
    monkeypatch.setattr("hotset.pipeline.statistics.frequencies.available_bytes", lambda: needed)
    frequency_statistics(folder, Resources(workers=1), series=["features", "coverage"])


def of_order(found: Any, order: str) -> list[dict[str, Any]]:
    return [row for row in found["hot_samples"] if row["order"] == order]


def test_budgets_agree_with_counting_the_hot_rows_lookups(folder: Path, log: list[Sample]) -> None:
    found = frequency_statistics(folder, Resources(workers=1), series=["budgets", "hot_samples"])
    counts = Counter(row for sample in log[:150] for row in enumerate(sample.categories))
    (chosen,) = (budget for budget in found["budgets"] if budget["is_chosen"])
    assert chosen["num_hot_rows"] == 60
    served = sum(count for _, count in counts.most_common(60))
    assert chosen["hot_lookup_share"] == pytest.approx(served / (150 * 26))
    assert chosen["hot_sample_share"] == found["samples"]["hot"] / 150
    curve = of_order(found, "frequency")
    assert curve[-1]["hot_sample_share"] == curve[-1]["hot_lookup_share"] == 1
    assert curve[-1]["num_hot_rows"] == found["num_rows"]
    for row in curve:
        assert row["num_hot_rows"] == min(row["bytes"] // 64, found["num_rows"])


def test_faes_sample_never_covers_more_lookups_than_exact_counts(folder: Path) -> None:
    found = frequency_statistics(folder, Resources(workers=2), series=["hot_samples"])
    exact, sampled = of_order(found, "frequency"), of_order(found, "fae")
    assert [row["bytes"] for row in exact] == [row["bytes"] for row in sampled]
    for ours, theirs in zip(exact, sampled, strict=True):
        assert theirs["num_hot_rows"] <= ours["num_hot_rows"] + 30
        assert theirs["hot_lookup_share"] <= ours["hot_lookup_share"]
    assert sampled[-1]["hot_lookup_share"] == 1


def test_other_orders_are_those_of_folders_ranked_so(
    log: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("stages.rank", "statistics.coverage"):
        monkeypatch.setattr(f"hotset.pipeline.{module}.PEEL_FLOOR", 16)
    for name, config in (("peel", RankConfig(rank_by="peel")), ("count", RankConfig())):
        (tmp_path / name).mkdir()
        run_to("split", tmp_path / name, log, replace(CONFIG, rank=config))
    ranked, counted = (
        frequency_statistics(tmp_path / name, Resources(workers=1), series=["hot_samples"])
        for name in ("peel", "count")
    )
    assert ranked["hot_samples"][0]["order"] == "peel"
    assert of_order(ranked, "peel") == of_order(counted, "peel")
    for ours, theirs in zip(of_order(ranked, "frequency"), of_order(counted, "frequency"), strict=True):
        assert ours["num_hot_rows"] == theirs["num_hot_rows"]
        assert ours["hot_lookup_share"] == theirs["hot_lookup_share"]
    assert of_order(ranked, "fae") and ranked["left_out"] == counted["left_out"] == []


def test_what_is_left_out_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.pipeline.statistics.coverage.MAX_PEELED_SAMPLES", 100)
    found = frequency_statistics(folder, Resources(workers=1), series=["hot_samples"])
    assert found["left_out"] == [
        "the curve of peeled rows: the log has 150 training samples, peeling is shown up to 100"
    ]
    assert not of_order(found, "peel")


def test_every_series_is_there_and_plain(folder: Path) -> None:
    found = frequency_statistics(folder, Resources(workers=1))
    assert set(SERIES) <= set(found)
    assert found == frequency_statistics(folder, Resources(workers=2))
    with pytest.raises(ConfigError, match="no series 'x'") as caught:
        frequency_statistics(folder, series=["x"])
    assert "drift" in (caught.value.hint or "")
    with pytest.raises(ManifestError):
        frequency_statistics(folder / "nowhere")


def test_categories_without_a_lookup_are_not_listed(folder: Path) -> None:
    found = frequency_statistics(folder, Resources(workers=1), series=["categories", "features"])
    assert all(row["num_lookups"] > 0 for row in found["categories"])
    # A table of few rows lists all but that of categories without an id, which no training sample looks up.
    small = {row["name"]: row["num_rows"] for row in found["features"] if row["num_rows"] <= 8}
    listed = Counter(row["table"] for row in found["categories"])
    assert small and all(listed[table] == num_rows - 1 for table, num_rows in small.items())


def test_misses_shrink_with_slots(log: list[Sample], tmp_path: Path) -> None:
    run_to("pack", tmp_path, log * 4, PreprocessConfig(pack=CONFIG.pack.__class__(batch_size=16)))
    found = frequency_statistics(tmp_path, Resources(workers=1), series=["miss_ratios"])["miss_ratios"]
    assert found["batch_size"] == 16 and found["num_batches"] == 32
    for policy in ("lookahead", "lru"):
        again = [row["num_refetched"] for row in found["curve"] if row["policy"] == policy]
        assert again == sorted(again, reverse=True) and again[-1] == 0
        assert again[0] <= found["num_needed"] - found["num_first_uses"]
