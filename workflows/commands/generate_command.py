"""``hotset generate``: a synthetic click log of any length."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from pathlib import Path

from ...pipeline.generate.generate import GenerateConfig, generate
from ...pipeline.sizes import format_byte_size
from ..console import print_json, progress_bars
from ..options import parse_options


@dataclass(frozen=True, kw_only=True)
class GenerateCommand(GenerateConfig):
    """Which log, and where to."""

    out: Path
    """File to write; a name ending in .gz is compressed."""

    workers: int = 0
    """Threads; 0 takes every core. Changes no byte of the output."""

    overwrite: bool = False
    """Replace a file that exists."""

    json: bool = False
    """Print one JSON object on stdout."""


def run(command: str, words: list[str]) -> int:
    """Run ``hotset generate``."""
    options = parse_options(
        GenerateCommand,
        words,
        command=command,
        description="Write a click log in Criteo's format with the access frequencies of the real one.",
    )
    config = GenerateConfig(**{field.name: getattr(options, field.name) for field in fields(GenerateConfig)})
    started = time.perf_counter()
    with progress_bars() as progress:
        generate(
            config,
            options.out,
            workers=options.workers,
            progress=lambda done: progress("generate", done, config.samples),
            overwrite=options.overwrite,
        )
    seconds, num_bytes = time.perf_counter() - started, options.out.stat().st_size
    if options.json:
        print_json(
            {"out": str(options.out), "samples": config.samples, "bytes": num_bytes, "seconds": seconds}
        )
    else:
        rate = config.samples / seconds / 1e6
        print(
            f"{options.out}: {config.samples:,} samples, {format_byte_size(num_bytes)} "
            f"in {seconds:.1f} s ({rate:.2f} M samples/s)"
        )
    return 0
