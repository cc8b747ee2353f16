"""Codecs take turns behind slow links; tests `link_rank` and `link_namespaces`, too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.exchange.chosen_exchange import ChosenExchange
from hotset.train.ranks.ranks import OneRank
from hotset.train.ranks.thread_ranks import run_thread_ranks
from hotset.train.ranks.throttled_ranks import ThrottledRanks
from hotset.workflows.bench.ranks import bench_links as module
from hotset.workflows.bench.ranks.bench_exchange import BenchExchangeConfig
from hotset.workflows.bench.ranks.bench_links import BenchLinksConfig, bench_links, show_links
from hotset.workflows.bench.ranks.link_namespaces import NamespacesError
from hotset.workflows.bench.ranks.link_rank import measure_turns, speed_of_link


def test_each_codec_gets_a_turn_at_each_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = write_shards(tmp_path / "shards", ShardSpec(num_mixed=100, batch_size=20))
    settings = {"rounds": 2, "steps": 1, "links": ("60%", "10gbit"), "seed": 0}
    turns, others = run_thread_ranks(2, lambda ranks: measure_turns(shards, settings, ranks))
    assert [(turn["link"], turn["codec"]) for turn in turns] == 2 * [
        (link, codec) for link in ("60%", "10gbit") for codec in module.WAYS
    ]
    assert len(others) == len(turns)
    # What a rank sends depends on the codec alone.
    monkeypatch.setattr(module, "_turns_of_ranks", lambda config, data: ("throttle", turns))
    monkeypatch.setattr(module, "generate", lambda *_: None)
    monkeypatch.setattr(module, "preprocess", lambda *_: None)
    result = bench_links(BenchLinksConfig(links=("60%", "10gbit")))
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
        assert all(0 < each["row_share"] < 1 for each in link["codecs"])
    # Both ranks found the same speed where a share names the link.
    assert len({turn["bytes_per_second"] for turn in turns + others if turn["link"] == "60%"}) == 1
    assert result["links"][1]["bytes_per_second"] == 1.25e9
    console = Console(record=True, width=90)
    show_links(result, console)
    shown = console.export_text()
    assert "10gbit (throttle): a step of two ranks" in shown and "auto took" in shown
    assert "10,000 Mbit per second: rows take" in shown


@pytest.mark.parametrize("share", [1, 35, 60, 99])
def test_a_share_names_the_speed_at_which_rows_take_it(share: int) -> None:
    link = ThrottledRanks(OneRank(), 1.0)

    class Run:
        """A step whose rows are 12 MB, and whose rest takes an eighth of a second."""

        def turn(self, way: module.Way, chosen: ChosenExchange) -> dict[str, float]:
            assert way == module.WAYS[module.EVERY_LOOKUP] and chosen == ChosenExchange()
            row_seconds = 12e6 / link._bytes_per_second
            return {"row_seconds": row_seconds, "step_seconds": row_seconds + 0.125}

    speed = speed_of_link(Run(), link, f"{share}%")  # type: ignore[arg-type]
    assert 12e6 / speed / (12e6 / speed + 0.125) == pytest.approx(share / 100)
    assert speed_of_link(Run(), link, "200mbit") == 25e6  # type: ignore[arg-type]


def test_links_that_nobody_knows_are_refused() -> None:
    known = "must be of 200mbit, 1gbit, 10gbit, loopback, or a share of a step such as 60%, got"
    for name in ("3gbit", "0%", "100%", "60 %"):
        with pytest.raises(ConfigError, match=f"links {known} '{name}'"):
            BenchLinksConfig(links=(name,))
        with pytest.raises(ConfigError, match=f"link {known} '{name}'"):
            BenchExchangeConfig(link=(name,))
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
