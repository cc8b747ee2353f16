"""``hotset bench NAME``: interleaved ratios against named baselines, and other measurements."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..console import print_json, say, stdout_console
from ..options import parse_options

BENCHES = {
    "preprocess": ("bench_preprocess", "raw TSV to shards, and parsing alone, against Polars and pyarrow"),
    "dlrm": ("bench_dlrm", "raw TSV to training data against facebookresearch/dlrm's own preprocessing"),
    "growth": ("bench_growth", "raw TSV to shards at growing sizes: speed, memory and disk by stage"),
    "stats": ("bench_stats", "cache policies, LRU curve and counting against plain Python and NumPy"),
    "placements": ("bench_placements", "bytes, speed and AUC of every placement from equal seeds"),
    "quality": ("bench_quality", "AUC over seeds and placements on a small real sample"),
    "orders": (
        "bench_orders",
        "fully hot samples under each budget, by the order of rows and by FAE's sampling",
    ),
    "kills": ("bench_kills", "SIGKILL preprocessing at random moments, resume it, compare every byte"),
}
"""Each benchmark: the module of `bench` that has its ``CONFIG``, ``measure`` and ``show``."""


def run(command: str, words: list[str]) -> int:
    """Run one benchmark; without a name, say which there are."""
    if not words or words[0] not in BENCHES:
        print("usage: hotset bench NAME [OPTIONS]\n")
        print("\n".join(f"  {name:<12}{description}" for name, (_, description) in BENCHES.items()))
        return 0 if words and words[0] in ("-h", "--help") else 2
    name, (module_name, description) = words[0], BENCHES[words[0]]
    module = importlib.import_module(f"..bench.{module_name}", __package__)
    options = parse_options(
        _command(module.CONFIG),
        words[1:],
        command=f"bench {name}",
        description=description[0].upper() + description[1:] + ".",
    )
    config = module.CONFIG(**{field.name: getattr(options, field.name) for field in fields(module.CONFIG)})
    result = module.measure(config)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1, default=str) + "\n")
        say(f"wrote {options.out}")
    if options.json:
        print_json(result)
    else:
        show: Callable[[dict[str, Any], Any], None] = module.show
        show(result, stdout_console())
    return 0


def _command(config: type) -> type[Any]:
    """The benchmark's config with what every benchmark has."""

    @dataclass(frozen=True, kw_only=True)
    class BenchCommand(config):  # type: ignore[misc]
        """What to measure, and where to write it."""

        out: Path | None = None
        """File for the result as JSON."""

        json: bool = False
        """Print one JSON object on stdout."""

    return BenchCommand
