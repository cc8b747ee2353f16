"""``hotset bench NAME``: interleaved ratios against named baselines."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

from .bench_preprocess import BenchPreprocessConfig, bench_preprocess, print_bench_preprocess
from .console import print_json, say, stdout_console
from .options import parse_options

_BENCHES = ("preprocess",)


@dataclass(frozen=True, kw_only=True)
class BenchPreprocessCommand(BenchPreprocessConfig):
    """What to measure, and where to write it."""

    out: Path | None = None
    """File for the result as JSON."""

    json: bool = False
    """Print one JSON object on stdout."""


def run(command: str, words: list[str]) -> int:
    """Run one benchmark; without a name, say which there are."""
    if not words or words[0] not in _BENCHES:
        print("usage: hotset bench NAME [OPTIONS]\n\n  preprocess  raw TSV to shards, against Polars")
        return 0 if words and words[0] in ("-h", "--help") else 2
    options = parse_options(
        BenchPreprocessCommand,
        words[1:],
        command="bench preprocess",
        description="Raw TSV to shards, and parsing alone, against Polars and pyarrow, interleaved.",
    )
    names = [field.name for field in fields(BenchPreprocessConfig)]
    result = bench_preprocess(BenchPreprocessConfig(**{name: getattr(options, name) for name in names}))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        say(f"wrote {options.out}")
    if options.json:
        print_json(result)
    else:
        print_bench_preprocess(result, stdout_console())
    return 0
