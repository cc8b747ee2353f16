"""Codecs take turns behind slow links; tests `link_rank` and `link_namespaces`, too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.ranks.thread_ranks import run_thread_ranks
from hotset.workflows.bench.ranks import bench_links as module
from hotset.workflows.bench.ranks.bench_exchange import BenchExchangeConfig
from hotset.workflows.bench.ranks.bench_links import BenchLinksConfig, bench_links, show_links
from hotset.workflows.bench.ranks.link_namespaces import NamespacesError
from hotset.workflows.bench.ranks.link_rank import measure_turns


def test_each_codec_gets_a_turn_at_each_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = write_shards(tmp_path / "shards", ShardSpec(num_mixed=100, batch_size=20))
    settings = {"rounds": 2, "steps": 1, "links": ("1gbit", "10gbit"), "seed": 0}
    turns, others = run_thread_ranks(2, lambda ranks: measure_turns(shards, settings, ranks))
    assert [(turn["link"], turn["codec"]) for turn in turns] == 2 * [
        (link, codec) for link in ("1gbit", "10gbit") for codec in module.WAYS
    ]
    assert len(others) == len(turns)
    # What a rank sends depends on the codec alone.
    monkeypatch.setattr(module, "_turns_of_ranks", lambda config, data: ("throttle", turns))
    monkeypatch.setattr(module, "generate", lambda *_: None)
    monkeypatch.setattr(module, "preprocess", lambda *_: None)
    result = bench_links(BenchLinksConfig(links=("1gbit", "10gbit")))
    for link in result["links"]:
        sent = {each["codec"]: each["step_bytes"] for each in link["codecs"]}
        assert (
            sent["none"] > sent["fp16"] > sent["int8"] > sent["int8, bf16 dense"] > sent["int4, bf16 dense"]
        )
        assert sent["fp32, every lookup"] > sent["fp16, distinct rows"] > sent["fp16"]
        over = {each["codec"]: each for each in link["codecs"]}
        assert over["fp32, every lookup"]["over_lookups"] == over["none"]["over_none"] == 1
        assert over["fp16, distinct rows"]["over_distinct_fp16"] == 1
        # Whatever it measured, auto takes codecs that it may take, and all turns take the same.
        assert link["auto"]["codecs"][0] in ("none", "bf16", "int8")
        assert link["auto"]["best"] not in ("auto", "int4, bf16 dense")
    console = Console(record=True, width=90)
    show_links(result, console)
    shown = console.export_text()
    assert "10gbit (throttle): a step of two ranks" in shown and "auto took" in shown


def test_links_that_nobody_knows_are_refused() -> None:
    with pytest.raises(ConfigError, match="links must be of 200mbit, 1gbit, 10gbit, loopback, got '3gbit'"):
        BenchLinksConfig(links=("3gbit",))
    with pytest.raises(ConfigError, match="link must be of 200mbit, 1gbit, 10gbit, loopback, got '3gbit'"):
        BenchExchangeConfig(link=("3gbit",))
    with pytest.raises(ConfigError, match="network must be one of"):
        BenchLinksConfig(network="cable")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["throttle", "namespaces"])
def test_two_processes_measure(network: Any) -> None:
    config = BenchLinksConfig(
        samples=6_000, rank_batch_size=128, rounds=1, steps=1, links=("1gbit",), network=network
    )
    try:
        result = bench_links(config)
    except NamespacesError as error:
        pytest.skip(str(error))
    (link,) = result["links"]
    assert result["network"] == network
    assert [each["codec"] for each in link["codecs"]] == list(module.WAYS)


def test_a_machine_without_namespaces_throttles(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = []

    def run(config: BenchLinksConfig, *_: Any) -> list[Any]:
        networks.append(config.network)
        return []

    monkeypatch.setattr(module, "_run_ranks", run)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert module._turns_of_ranks(BenchLinksConfig(), Path()) == ("throttle", [])
    assert networks == ["throttle"]
    with pytest.raises(NamespacesError, match="network namespaces need `ip` and `tc`"):
        module._turns_of_ranks(BenchLinksConfig(network="namespaces"), Path())
