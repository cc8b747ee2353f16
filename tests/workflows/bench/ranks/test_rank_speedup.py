"""Two ranks take turns with one process, and end with its bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.errors import HotsetError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.exchange.chosen_exchange import ChosenExchange
from hotset.train.ranks.thread_ranks import run_thread_ranks
from hotset.train.trainer_building.build_trainer import build_trainer
from hotset.workflows.bench.ranks import bench_links
from hotset.workflows.bench.ranks import rank_speedup as module
from hotset.workflows.bench.ranks.bench_links import BenchLinksConfig, show_links
from hotset.workflows.bench.ranks.rank_speedup import CHOSEN, ONE, TWO, compare_ranks, take_turns

CODECS = ChosenExchange("int8", "none", "bf16")


class _ThreadGroup:
    """Stands in for processes."""

    def __init__(self, num_ranks: int, _: float) -> None:
        self.num_ranks = num_ranks

    def __enter__(self) -> _ThreadGroup:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, function: Any, **arguments: Any) -> list[Any]:
        return run_thread_ranks(self.num_ranks, lambda ranks: function(ranks, **arguments))


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "RankGroup", _ThreadGroup)
    monkeypatch.setattr(module, "choose_exchange", lambda *_: CODECS)
    return write_shards(tmp_path / "shards", ShardSpec(num_mixed=100, batch_size=20))


def test_two_ranks_have_the_bits_of_one_process_and_codecs_have_others(shards: Path) -> None:
    settings: dict[str, Any] = {"data": str(shards), "seed": 3, "rounds": 2, "steps": 3}
    first, second = run_thread_ranks(2, lambda ranks: take_turns(ranks, **settings))
    weights = first["weights"]
    assert weights[ONE] == weights[TWO]
    assert weights[CHOSEN] != weights[TWO]
    # The one process is that of rank 0 alone, and its turns are on the clock of both.
    assert ONE not in second["weights"]
    assert [len(each["seconds"]) for each in second["turns"].values()] == [2, 2, 2]
    assert min(first["turns"][ONE]["seconds"]) > 0 and set(first["turns"][ONE]["waits"]) == {0.0}


def test_a_comparison_has_ratios_waits_and_the_choice_of_auto(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = compare_ranks(shards, seed=0, rounds=1, steps=2)
    assert result["has_equal_bits"] and result["batch_size"] == 20
    assert result["auto"]["codecs"] == ["int8", "none", "bf16"]
    by_name = {each["name"]: each for each in result["contestants"]}
    assert list(by_name) == [ONE, TWO, CHOSEN] and by_name[ONE]["over_one"] == 1
    assert by_name[TWO]["over_one"] == by_name[ONE]["step_seconds"] / by_name[TWO]["step_seconds"]
    assert by_name[TWO]["wait_seconds"] > 0 == by_name[ONE]["wait_seconds"]
    assert all(each["cpu_seconds"] > 0 for each in by_name.values())
    # As part of the benchmark of links, where it may stand alone.
    monkeypatch.setattr(bench_links, "generate", lambda *_: None)
    monkeypatch.setattr(bench_links, "preprocess", lambda *_: None)
    monkeypatch.setattr(bench_links, "compare_ranks", lambda *_: result)
    found = bench_links.bench_links(BenchLinksConfig(links=("loopback",)))
    assert found["loopback"] == result and found["links"] == [] and found["network"] is None
    console = Console(record=True, width=100)
    show_links(found, console)
    shown = console.export_text()
    assert "times one process" in shown and "the same bits as one process" in shown
    show_links(found | {"loopback": result | {"has_equal_bits": False}}, console)
    assert "OTHER BITS" in console.export_text()


def test_weights_that_differ_are_told(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build_wrong(shards: Any, config: Any, ranks: Any) -> Any:
        changed = {"seed": config.seed + 1} if ranks.num_ranks == 1 else {}
        return build_trainer(shards, replace(config, **changed), ranks=ranks)

    monkeypatch.setattr(module, "build_trainer", build_wrong)
    assert not compare_ranks(shards, seed=0, rounds=1, steps=1)["has_equal_bits"]


@pytest.mark.slow
def test_two_processes_are_measured(tmp_path: Path) -> None:
    config = BenchLinksConfig(samples=6_000, rank_batch_size=128, rounds=1, steps=2, links=("loopback",))
    try:
        result = bench_links.bench_links(config)
    except HotsetError as error:
        pytest.skip(str(error))
    assert result["loopback"]["has_equal_bits"] and result["loopback"]["batch_size"] == 256
