"""``hotset bench links``: a training step of two ranks behind slow links, in several codecs.

Two processes train on a generated log over gloo, each behind a link that carries so many bytes per second
each way: a cable between two network namespaces (`link_namespaces`), or one that is slow by waiting
(`ThrottledRanks`). They change the codec and the link every few steps, in turns. So what else a machine does
meets all of them alike, and the figures to read are ratios.

Beside hotset's codecs there are two ways in which others send rows (`lookup_messages`), with homes striped by
id: one fp32 vector a lookup, and distinct rows in fp16.
"""

from __future__ import annotations

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from ....pipeline.errors import ConfigError, HotsetError, require_at_least, require_choices
from ....pipeline.generate.generate_log import GenerateConfig, generate
from ....pipeline.runtime.resources import ProgressCallback, silent
from ....pipeline.stages.preprocess import preprocess
from ....stats.exchange.homes_name import HomesName
from ...machine_facts import commit, describe_machine
from ...recipes import recipe_for
from ..measuring.recorded_settings import recorded_settings
from .link_namespaces import ADDRESSES, INTERFACE, NamespacesError, linked_namespaces
from .rank_speedup import LOOPBACK, compare_ranks, show_speedup

LINKS = {"200mbit": 200e6 / 8, "1gbit": 1e9 / 8, "10gbit": 10e9 / 8}
"""Bytes per second, each way."""
_SHARE = re.compile(r"([1-9][0-9]?)%")
AUTO = "auto"
EVERY_LOOKUP = "fp32, every lookup"
DISTINCT_FP16 = "fp16, distinct rows"
NOT_EARLY = {name: f"{name}, nothing early" for name in ("none", "int8, bf16 dense")}
"""Ways in which all vectors cross in their step, by the same way as it is."""


class Way(NamedTuple):
    """A way to send what crosses in a step."""

    rows: str
    """Codec of vectors and gradients."""
    dense: str
    """Codec of the dense layers' gradients."""
    homes: HomesName = "by-use"
    sends: Literal["hotset", "distinct", "lookups"] = "hotset"
    """Distinct rows but for first uses; each distinct row; or one for each lookup."""
    sends_early: bool = True
    """Whether vectors of rows that the step before leaves alone cross while it is computed."""


WAYS = {
    EVERY_LOOKUP: Way("none", "none", "striped", "lookups"),
    DISTINCT_FP16: Way("fp16", "none", "striped", "distinct"),
    "none": Way("none", "none"),
    "fp16": Way("fp16", "none"),
    "int8": Way("int8", "none"),
    "bf16, bf16 dense": Way("bf16", "bf16"),
    "int8, bf16 dense": Way("int8", "bf16"),
    "int4, bf16 dense": Way("int4", "bf16"),
    NOT_EARLY["none"]: Way("none", "none", sends_early=False),
    NOT_EARLY["int8, bf16 dense"]: Way("int8", "bf16", sends_early=False),
    # What it takes is chosen at each link by a measurement.
    AUTO: Way("none", "none"),
}
"""Others' ways first, then hotset's codecs of rows and of the dense layers' gradients."""
_BEYOND_AUTO = ("int4, bf16 dense", *NOT_EARLY.values(), AUTO)
"""Those of hotset's ways that --exchange auto may not take, and itself."""
Network = Literal["auto", "namespaces", "throttle"]
_SECONDS = 1800


@dataclass(frozen=True, kw_only=True)
class BenchLinksConfig:
    """Settings of the benchmark of links: the log, the links, the turns."""

    samples: int = 200_000
    """Samples of the generated log."""

    seed: int = 0
    """Seed of the log and of the training."""

    embedding_dim: int = 64
    """Floats per row."""

    rank_batch_size: int = 2048
    """Samples of a batch that each rank computes."""

    links: tuple[str, ...] = ("200mbit", "1gbit")
    """Links: 200mbit, 1gbit or 10gbit; 60% or another share: the speed at which rows take that share of a
    step, one fp32 vector for each lookup; loopback: two ranks of this machine beside one process, a thread
    each."""

    rounds: int = 5
    """Number of times that each codec gets a turn at each link."""

    steps: int = 3
    """Number of steps of a turn."""

    network: Network = "auto"
    """Link between the ranks: a cable between network namespaces, which needs root and iproute2 (namespaces),
    a wait as long as the bytes would take (throttle), or the first that works (auto)."""

    def __post_init__(self) -> None:
        require_choices(self)
        for name in ("samples", "embedding_dim", "rank_batch_size", "rounds", "steps"):
            require_at_least(name, getattr(self, name), 1)
        refuse_unknown_links("links", self.links)


def share_of(link: str) -> float | None:
    """Return the share of a step that a link is chosen by, None where it is named by its speed."""
    found = _SHARE.fullmatch(link)
    return int(found[1]) / 100 if found else None


def refuse_unknown_links(option: str, links: Sequence[str]) -> None:
    """Raise ConfigError where a link has no known speed, no share and is not that of this machine."""
    for link in links:
        if link not in (*LINKS, LOOPBACK) and share_of(link) is None:
            known = ", ".join((*LINKS, LOOPBACK))
            raise ConfigError(f"{option} must be of {known}, or a share of a step such as 60%, got {link!r}")


def bench_links(config: BenchLinksConfig, progress: ProgressCallback = silent) -> dict[str, Any]:
    """Train behind each link; return plain data, ready for JSON.

    Returns:
        By link its bytes per second, and by way the median seconds of a step, the share of it that rank 0
        codes rows and waits for them, how many times quicker it is than the ways of others and than hotset
        without a codec, and the bytes that a rank sends in it and a step early; what ``auto`` chose; and what
        vectors that cross early save. With loopback what `compare_ranks` returns.

    Raises:
        HotsetError: namespaces are asked for, and this machine or user may not make them.
    """
    with tempfile.TemporaryDirectory(prefix="hotset-links-") as name:
        folder = Path(name)
        generate(GenerateConfig(samples=config.samples, seed=config.seed), folder / "log.tsv")
        recipe = recipe_for("criteo-kaggle")
        split = replace(recipe.split, embedding_dim=config.embedding_dim)
        pack = replace(recipe.pack, batch_size=2 * config.rank_batch_size)
        preprocess([folder / "log.tsv"], replace(recipe, split=split, pack=pack), folder / "data")
        progress("bench", 0, 1)
        slow = tuple(link for link in config.links if link != LOOPBACK)
        network, turns = _turns_of_ranks(replace(config, links=slow), folder / "data") if slow else (None, [])
        loopback = None
        if LOOPBACK in config.links:
            loopback = compare_ranks(folder / "data", config.seed, config.rounds, config.steps)
        progress("bench", 1, 1)
    return {
        "benchmark": "links",
        "settings": recorded_settings(config),
        "network": network,
        "links": [_summary(turns, link) for link in slow],
        "loopback": loopback,
        "machine": describe_machine(),
        "commit": commit(),
    }


def _turns_of_ranks(config: BenchLinksConfig, data: Path) -> tuple[str, list[dict[str, Any]]]:
    """Start both ranks; return the network between them, and what rank 0 has measured."""
    if config.network != "throttle":
        try:
            with linked_namespaces() as names:
                place = {"MASTER_ADDR": ADDRESSES[0], "GLOO_SOCKET_IFNAME": INTERFACE}
                prefixes = [["ip", "netns", "exec", name] for name in names]
                return "namespaces", _run_ranks(replace(config, network="namespaces"), data, place, prefixes)
        except NamespacesError:
            if config.network == "namespaces":
                raise
    place = {"MASTER_ADDR": "127.0.0.1"}
    return "throttle", _run_ranks(replace(config, network="throttle"), data, place, [[], []])


def _run_ranks(
    config: BenchLinksConfig, data: Path, place: Mapping[str, str], prefixes: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    # A port that is free now, where both ranks will meet.
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = str(opened.getsockname()[1])
    shared = {"MASTER_PORT": port, "WORLD_SIZE": "2"} | dict(place)
    command = [sys.executable, "-m", f"{__package__}.link_rank", str(data), json.dumps(asdict(config))]
    ranks = [
        subprocess.Popen(
            [*prefix, *command],
            env=os.environ | shared | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank, prefix in enumerate(prefixes)
    ]
    # Where one rank fails, the other would wait for it, so none outlives the benchmark.
    try:
        ends = [process.communicate(timeout=_SECONDS) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, (_, stderr) in zip(ranks, ends, strict=True):
        if process.returncode:
            raise HotsetError(f"a rank ended with {process.returncode}: {stderr.decode()[-400:]}")
    found: list[dict[str, Any]] = json.loads(ends[0][0])
    return found


def _summary(turns: list[dict[str, Any]], link: str) -> dict[str, Any]:
    """Put the turns of each way at a link together."""
    of_way = {
        name: [turn for turn in turns if (turn["link"], turn["codec"]) == (link, name)] for name in WAYS
    }
    seconds = {name: statistics.median(turn["step_seconds"] for turn in of_way[name]) for name in WAYS}
    shares = {
        name: statistics.median(turn["row_seconds"] / turn["step_seconds"] for turn in of_way[name])
        for name in WAYS
    }
    sent, early = (
        {name: statistics.mean(turn[kind] for turn in of_way[name]) for name in WAYS}
        for kind in ("step_bytes", "early_bytes")
    )
    best = min(
        (name for name, way in WAYS.items() if way.sends == "hotset" and name not in _BEYOND_AUTO),
        key=lambda name: seconds[name],
    )
    return {
        "link": link,
        "bytes_per_second": of_way[EVERY_LOOKUP][0]["bytes_per_second"],
        "codecs": [
            {
                "codec": name,
                "step_seconds": seconds[name],
                "row_share": shares[name],
                "step_bytes": sent[name],
                "early_bytes": early[name],
                "over_lookups": seconds[EVERY_LOOKUP] / seconds[name],
                "over_distinct_fp16": seconds[DISTINCT_FP16] / seconds[name],
                "over_none": seconds["none"] / seconds[name],
            }
            for name in WAYS
        ],
        "auto": {
            "codecs": of_way[AUTO][0]["codecs"],
            "best": best,
            "seconds_over_best": seconds[AUTO] / seconds[best],
        },
        "seconds_over_nothing_early": {
            name: seconds[name] / seconds[without] for name, without in NOT_EARLY.items()
        },
    }


def show_links(result: dict[str, Any], console: Console) -> None:
    """Print a table for each link, and what auto chose."""
    for each in result["links"]:
        title = f"{each['link']} ({result['network']}): a step of two ranks"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        columns = (
            "rows, dense layers",
            "seconds",
            "bytes a rank sends",
            "early",
            "times lookups",
            "fp16",
            "none",
        )
        for name in columns:
            table.add_column(name, justify="left" if name.startswith("rows") else "right")
        for codec in each["codecs"]:
            table.add_row(
                codec["codec"],
                f"{codec['step_seconds']:.3f}",
                f"{codec['step_bytes']:,.0f}",
                f"{codec['early_bytes']:,.0f}",
                *(f"{codec[name]:.2f}x" for name in ("over_lookups", "over_distinct_fp16", "over_none")),
            )
        console.print(table)
        (lookups,) = (codec for codec in each["codecs"] if codec["codec"] == EVERY_LOOKUP)
        console.print(
            f"{8 * each['bytes_per_second'] / 1e6:,.0f} Mbit per second: rows take "
            f"{lookups['row_share']:.0%} of a step with {EVERY_LOOKUP}"
        )
        auto = each["auto"]
        vectors, gradients, dense = auto["codecs"]
        console.print(
            f"auto took {vectors} for vectors, {gradients} for gradients and {dense} for dense layers: "
            f"{auto['seconds_over_best']:.2f} of the seconds of {auto['best']}"
        )
        for name, ratio in each["seconds_over_nothing_early"].items():
            console.print(f"{name}: {ratio:.3f} of the seconds where no vector crosses a step early")
    if result.get("loopback") is not None:
        show_speedup(result["loopback"], console)


CONFIG = BenchLinksConfig
measure = bench_links
show = show_links
