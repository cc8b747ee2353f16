"""Plans are trained and compared; tests `planned_runs`, too. Ranks are threads here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.runtime.resources import silent
from hotset.pipeline.sizes import KIB, MIB, ByteSize
from hotset.tests.support.planning.made_up_machine import CONSTANTS, made_up_machine
from hotset.tests.support.processes.thread_processes import ThreadGroup
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.shards import Shards
from hotset.train.ranks.ranks import Ranks
from hotset.train.ranks.throttled_ranks import ThrottledRanks
from hotset.workflows.bench.planning import bench_advise as module
from hotset.workflows.bench.planning import planned_runs
from hotset.workflows.bench.planning.bench_advise import BenchAdviseConfig, bench_advise, choices, show_advise
from hotset.workflows.bench.planning.planned_runs import torchrec_seconds


def run(placement: str, measured: float, ranks: int = 1, **predicted: float | None) -> dict[str, Any]:
    return {
        "placement": placement,
        "ranks": ranks,
        "link": "none" if ranks == 1 else "loopback",
        "fast_bytes": 1,
        "measured_seconds": measured,
        "predicted": predicted,
    }


def test_a_choice_is_near_where_it_is_at_most_a_tenth_slower_than_the_best() -> None:
    runs = [
        run("cache", 1.0, ours=3.0, theirs=None),
        run("hybrid", 1.09, ours=2.0, theirs=5.0),
        run("lookahead", 1.2, ours=4.0, theirs=1.0),
        run("cache", 7.0, ranks=2, ours=1.0, theirs=None),
    ]
    one, two = choices(runs)
    assert (one["best"], one["plans"], one["ranks"]) == ("cache", 3, 1)
    assert one["chosen"]["ours"] == {
        "placement": "hybrid",
        "times_the_best": pytest.approx(1.09),
        "is_near": True,
    }
    # One that has no word for the best may still be judged by what it names.
    assert one["chosen"]["theirs"]["placement"] == "lookahead" and not one["chosen"]["theirs"]["is_near"]
    assert two["best"] == "cache" and two["chosen"].keys() == {"ours"}


def test_the_planners_choice_is_the_plan_that_it_takes_of_equal_times() -> None:
    runs = [run("cache", 1.2), run("all-fast", 1.0)]
    for one, typical, is_planned in zip(runs, (1.0, 3.0), (False, True), strict=True):
        one["predicted"] = {"hotset": 2.0, "typical speeds": typical}
        one["is_planned"] = is_planned
    (found,) = choices(runs)
    assert {name: one["placement"] for name, one in found["chosen"].items()} == {
        "hotset": "all-fast",
        "typical speeds": "cache",
    }


def test_what_is_planned_is_trained_on_one_rank_and_on_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[ThreadGroup] = []

    def group_of(num_ranks: int) -> ThreadGroup:
        groups.append(ThreadGroup(num_ranks))
        return groups[-1]

    monkeypatch.setattr(module, "RankGroup", group_of)
    speeds: list[float] = []

    class Throttled(ThrottledRanks):
        def __init__(self, ranks: Ranks, bytes_per_second: float) -> None:
            speeds.append(bytes_per_second)
            super().__init__(ranks, bytes_per_second)

    monkeypatch.setattr(planned_runs, "ThrottledRanks", Throttled)
    made_up_machine().write(tmp_path / "machine.json")
    sizes = (ByteSize(KIB), ByteSize(3 * MIB), ByteSize(12 * MIB))
    config = BenchAdviseConfig(
        machine=tmp_path / "machine.json",
        samples=1200,
        batch_size=128,
        fast_bytes=sizes,
        ranks=(1, 2),
        links=("loopback", "1gbit"),
        steps=1,
        rounds=1,
    )
    result = bench_advise(config)
    assert result["settings"]["machine"] == "machine.json"
    placements = {one["placement"] for one in result["runs"] if one["ranks"] == 1}
    assert placements == {"all-fast", "lookahead", "cache", "fae", "hybrid", "hybrid-dedup"}
    links = {(one["ranks"], one["link"]) for one in result["runs"]}
    assert links == {(1, "none"), (2, "loopback"), (2, "1gbit")}
    assert all(one["measured_seconds"] > 0 and len(one["turns"]) == 1 for one in result["runs"])
    # One plan of each choice is the planner's.
    assert sum(one["is_planned"] for one in result["runs"]) == len(result["groups"])
    (group,) = groups
    trained = sum(one["ranks"] == 2 for one in result["runs"])
    assert group.calls == ["time_training"] * trained + ["closed"]
    names = {"hotset", "typical speeds", "TorchRec, its constants", "TorchRec, measured constants"}
    assert all(one["predicted"].keys() == names for one in result["runs"])
    assert json.loads(json.dumps(result, default=str))["groups"] == result["groups"]
    console = Console(record=True, width=160)
    show_advise(result, console)
    text = console.export_text()
    assert KIB in result["too_small"] and "1 KiB: no plan fits." in text
    assert "hotset takes" in text and "12 MiB, 2 ranks over 1gbit: the fastest of" in text
    assert {(one["ranks"], one["link"]) for one in result["groups"]} == links
    # Both ranks of each run over the slow link, and no others, are kept slow.
    assert speeds == [1e9 / 8] * 2 * sum(one["link"] == "1gbit" for one in result["runs"])


def test_each_round_trains_all_plans_in_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []

    def train(_: Any, **arguments: Any) -> float:
        trained.append(arguments["staging_bytes"])
        return float(arguments["staging_bytes"])

    monkeypatch.setattr(module, "time_training", train)
    plans: list[Any] = [
        {"placement": "cache", "ranks": 1, "hot_bytes": 1, "staging_bytes": number, "prefetch": None}
        for number in range(12)
    ]
    config = BenchAdviseConfig(machine=Path("machine.json"), rounds=3)
    links = [module.NO_LINK] * 12
    seconds = module._take_turns(config, plans, links, {1: Path("shards")}, 2, {}, silent)
    assert seconds == [[float(number)] * 3 for number in range(12)]
    rounds = [trained[first : first + 12] for first in (0, 12, 24)]
    assert all(sorted(one) == list(range(12)) for one in rounds)
    assert list(range(12)) not in rounds and len({tuple(one) for one in rounds}) == 3


def test_the_formula_of_torchrec_has_a_word_for_the_kernels_that_it_knows(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec(num_mixed=100, batch_size=20)))
    found = {}
    for placement in ("all-fast", "hybrid", "cache", "lookahead", "fae"):
        one: Any = {"placement": placement, "ranks": 1}
        found[placement] = torchrec_seconds(one, shards, CONSTANTS)["TorchRec, its constants"]
    assert found["fae"] is None
    assert found["all-fast"] == found["lookahead"]
    known = [found[name] or 0.0 for name in ("all-fast", "cache", "hybrid")]
    assert known == sorted(known) and known[0] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": ()}, "ranks"),
        ({"ranks": (0,)}, "ranks"),
        ({"fast_bytes": ()}, "size"),
        ({"steps": 0}, "steps"),
        ({"links": ()}, "link"),
        ({"links": ("200mbit",)}, "a link is between ranks"),
        ({"links": ("fast",), "ranks": (2,)}, "no link 'fast'"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchAdviseConfig(machine=Path("machine.json"), **change)
