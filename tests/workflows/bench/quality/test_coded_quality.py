"""Codecs between two ranks, and copies of rows, are compared with an exact exchange by the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.tests.support.logs.one_label import write_one_label
from hotset.tests.support.processes.thread_processes import ThreadGroup
from hotset.workflows.bench.quality import coded_quality
from hotset.workflows.bench.quality.bench_quality import BenchQualityConfig, bench_quality, show_quality


def test_each_codec_is_compared_with_none_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coded_quality, "RankGroup", lambda num_ranks, _: ThreadGroup(num_ranks))
    generate(GenerateConfig(samples=600, scale=100), tmp_path / "log.tsv", workers=1)
    config = BenchQualityConfig(data=tmp_path / "log.tsv", seeds=(3, 4), exchange=("int8", "bounded:0.03"))
    result = bench_quality(config)
    assert list(result["auc"]) == ["none", "int8", "bounded:0.03"]
    assert all(len(set(each)) == 2 for each in result["auc"].values())
    assert result["mean_difference"]["none"] == result["largest_difference"]["none"] == 0
    first, second = (
        own - none for own, none in zip(result["auc"]["int8"], result["auc"]["none"], strict=True)
    )
    assert result["mean_difference"]["int8"] == pytest.approx((first + second) / 2)
    assert result["largest_difference"]["int8"] == max(abs(first), abs(second)) > 0
    sent = result["bytes_per_sample"]
    assert sent["none"] > 3 * sent["int8"] > 0 and sent["bounded:0.03"] > 0
    console = Console(record=True, width=90)
    show_quality(result, console)
    shown = console.export_text()
    assert "AUC of two ranks, seed" in shown and "row bytes sent per sample" in shown


def test_a_log_of_one_label_is_refused_before_ranks_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coded_quality, "RankGroup", lambda *_: pytest.fail("ranks were started"))
    generate(GenerateConfig(samples=600, scale=100), tmp_path / "log.tsv", workers=1)
    write_one_label(tmp_path / "log.tsv", "0")
    with pytest.raises(ConfigError, match="the 120 samples of the test part have the label 0"):
        bench_quality(BenchQualityConfig(data=tmp_path / "log.tsv", exchange=("int8",)))


def test_copies_of_rows_are_compared_with_rows_that_live_at_one_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coded_quality, "RankGroup", lambda num_ranks, _: ThreadGroup(num_ranks))
    generate(GenerateConfig(samples=6_000, scale=100), tmp_path / "log.tsv", workers=1)
    config = BenchQualityConfig(data=tmp_path / "log.tsv", seeds=(3,), sync_rows=(20, 500), sync_every=(2, 8))
    result = bench_quality(config)
    names = [f"{rows} rows every {every} steps" for rows in (20, 500) for every in (2, 8)]
    assert list(result["auc"]) == ["none", *names]
    assert all(result["largest_difference"][name] > 0 for name in names)
    # Copies are counted where they are synchronised: the more seldom, the fewer bytes.
    sent = result["bytes_per_sample"]
    assert sent[names[0]] > sent[names[1]] > 0 and sent[names[2]] > sent[names[3]] > 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sync_rows": (5,)}, "sync_rows and sync_every belong together"),
        ({"sync_rows": (5,), "sync_every": (1,)}, "sync_every must be 2 or more"),
        ({"sync_rows": (5,), "sync_every": (2,), "placements": ("fae",)}, "sync_rows is measured with one"),
        ({"exchange": ("int9",)}, "exchange must be none, fp16, .*, got 'int9'"),
        ({"exchange": ("auto",)}, "exchange auto depends on the link: name the codecs"),
        ({"exchange": ("int8",), "placements": ("fae",)}, "exchange is measured with one model"),
        ({"exchange": ("int8",), "models": ("dlrm", "dcnv2")}, "exchange is measured with one model"),
        ({"exchange": ("int8",), "protocol": "criteo-x1"}, "exchange is measured with one model"),
    ],
)
def test_what_is_not_compared_is_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchQualityConfig(data=tmp_path, **fields)
