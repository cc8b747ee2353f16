"""``hotset bench links``: a training step of two ranks behind slow links, in several codecs.

Two processes train on a generated log over gloo, each behind a link that carries so many bytes a second each
way (`ThrottledRanks`), and change the codec and the link every few steps, in turns. So what else a machine
does meets all of them alike, and the figures to read are ratios.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ....pipeline.errors import ConfigError, HotsetError, require_at_least
from ....pipeline.generate.generate_log import GenerateConfig, generate
from ....pipeline.runtime.resources import ProgressCallback, silent
from ....pipeline.stages.preprocess import preprocess
from ...machine_facts import commit, describe_machine
from ...recipes import recipe_for

LINKS = {"200mbit": 200e6 / 8, "1gbit": 1e9 / 8, "10gbit": 10e9 / 8}
"""Bytes a second, each way."""
EXCHANGES = {
    "none": ("none", "none"),
    "fp16": ("fp16", "none"),
    "int8": ("int8", "none"),
    "int8, bf16 dense": ("int8", "bf16"),
    "int4, bf16 dense": ("int4", "bf16"),
}
"""Codecs of rows both ways, and of the dense layers' gradients."""
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
    """Links: 200mbit, 1gbit or 10gbit."""

    rounds: int = 5
    """Number of times that each codec gets a turn at each link."""

    steps: int = 3
    """Number of steps of a turn."""

    def __post_init__(self) -> None:
        for name in ("samples", "embedding_dim", "rank_batch_size", "rounds", "steps"):
            require_at_least(name, getattr(self, name), 1)
        for link in self.links:
            if link not in LINKS:
                raise ConfigError(f"links must be of {', '.join(LINKS)}, got {link!r}")


def bench_links(config: BenchLinksConfig, progress: ProgressCallback = silent) -> dict[str, Any]:
    """Train behind each link; return plain data, ready for JSON.

    Returns:
        By link and codec the median seconds of a step, how many times quicker it is than without a codec and
        than fp16, and the bytes that a rank sends in it.
    """
    with tempfile.TemporaryDirectory(prefix="hotset-links-") as name:
        folder = Path(name)
        generate(GenerateConfig(samples=config.samples, seed=config.seed), folder / "log.tsv")
        recipe = recipe_for("criteo-kaggle")
        split = replace(recipe.split, embedding_dim=config.embedding_dim)
        pack = replace(recipe.pack, batch_size=2 * config.rank_batch_size)
        preprocess([folder / "log.tsv"], replace(recipe, split=split, pack=pack), folder / "data")
        progress("bench", 0, 1)
        turns = _turns_of_ranks(config, folder / "data")
        progress("bench", 1, 1)
    return {
        "benchmark": "links",
        "settings": asdict(config),
        "links": [{"link": link, "codecs": _summaries(turns, link)} for link in config.links],
        "machine": describe_machine(),
        "commit": commit(),
    }


def _turns_of_ranks(config: BenchLinksConfig, data: Path) -> list[dict[str, Any]]:
    """Start both ranks, and return what rank 0 has measured."""
    # A port that is free now, where both ranks will meet.
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = str(opened.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", f"{__package__}.link_rank", str(data), json.dumps(asdict(config))]
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | shared | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
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


def _summaries(turns: list[dict[str, Any]], link: str) -> list[dict[str, Any]]:
    """Put the turns of each codec at a link together."""
    seconds = {
        name: statistics.median(
            turn["step_seconds"] for turn in turns if (turn["link"], turn["codec"]) == (link, name)
        )
        for name in EXCHANGES
    }
    sent = {
        name: statistics.mean(
            turn["step_bytes"] for turn in turns if (turn["link"], turn["codec"]) == (link, name)
        )
        for name in EXCHANGES
    }
    return [
        {
            "codec": name,
            "step_seconds": seconds[name],
            "step_bytes": sent[name],
            "over_none": seconds["none"] / seconds[name],
            "over_fp16": seconds["fp16"] / seconds[name],
        }
        for name in EXCHANGES
    ]


def show_links(result: dict[str, Any], console: Console) -> None:
    """Print a table for each link."""
    for each in result["links"]:
        title = f"{each['link']}: a step of two ranks"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for name in ("rows, dense layers", "seconds", "bytes a rank sends", "times none", "times fp16"):
            table.add_column(name, justify="left" if name.startswith("rows") else "right")
        for codec in each["codecs"]:
            table.add_row(
                codec["codec"],
                f"{codec['step_seconds']:.3f}",
                f"{codec['step_bytes']:,.0f}",
                f"{codec['over_none']:.2f}x",
                f"{codec['over_fp16']:.2f}x",
            )
        console.print(table)


CONFIG = BenchLinksConfig
measure = bench_links
show = show_links
