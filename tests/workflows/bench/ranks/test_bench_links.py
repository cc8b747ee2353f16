"""Codecs take turns behind slow links; tests `link_rank`, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.ranks.thread_ranks import run_thread_ranks
from hotset.workflows.bench.ranks import bench_links as module
from hotset.workflows.bench.ranks.bench_links import BenchLinksConfig, bench_links, show_links
from hotset.workflows.bench.ranks.link_rank import measure_turns


def test_each_codec_gets_a_turn_at_each_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = write_shards(tmp_path / "shards", ShardSpec(num_mixed=100, batch_size=20))
    settings = {"rounds": 2, "steps": 1, "links": ("1gbit", "10gbit"), "seed": 0}
    turns, others = run_thread_ranks(2, lambda ranks: measure_turns(shards, settings, ranks))
    assert [(turn["link"], turn["codec"]) for turn in turns] == 2 * [
        (link, codec) for link in ("1gbit", "10gbit") for codec in module.EXCHANGES
    ]
    assert len(others) == len(turns)
    # What a rank sends depends on the codec alone.
    monkeypatch.setattr(module, "_turns_of_ranks", lambda config, data: turns)
    monkeypatch.setattr(module, "generate", lambda *_: None)
    monkeypatch.setattr(module, "preprocess", lambda *_: None)
    result = bench_links(BenchLinksConfig(links=("1gbit", "10gbit")))
    for link in result["links"]:
        sent = {each["codec"]: each["step_bytes"] for each in link["codecs"]}
        assert (
            sent["none"] > sent["fp16"] > sent["int8"] > sent["int8, bf16 dense"] > sent["int4, bf16 dense"]
        )
        assert link["codecs"][0]["over_none"] == link["codecs"][1]["over_fp16"] == 1
    console = Console(record=True, width=90)
    show_links(result, console)
    assert "10gbit: a step of two ranks" in console.export_text()


def test_links_that_nobody_knows_are_refused() -> None:
    with pytest.raises(ConfigError, match="links must be of 200mbit, 1gbit, 10gbit, got '3gbit'"):
        BenchLinksConfig(links=("3gbit",))


@pytest.mark.slow
def test_two_processes_measure() -> None:
    config = BenchLinksConfig(samples=6_000, rank_batch_size=128, rounds=1, steps=1, links=("1gbit",))
    (link,) = bench_links(config)["links"]
    assert [each["codec"] for each in link["codecs"]] == list(module.EXCHANGES)
