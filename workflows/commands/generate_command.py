"""``hotset generate``: a synthetic click log of any length."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...pipeline.generate.generate_log import GenerateConfig, generate
from ...pipeline.sizes import format_byte_size
from ..console import describe_rate, print_json, progress_bars
from ..options import config_of, parse_options


@dataclass(frozen=True, kw_only=True)
class GenerateCommand(GenerateConfig):
    """Options of ``hotset generate``."""

    out: Path
    """File to write. A file whose name ends in .gz is compressed."""

    workers: int = 0
    """Number of threads; 0 takes every core. Changes no byte of the output."""

    overwrite: bool = False
    """Replace an existing file."""

    json: bool = False
    """Print one JSON object on stdout."""


def run(command: str, arguments: Sequence[str]) -> int:
    """Run ``hotset generate``."""
    options = parse_options(
        GenerateCommand,
        arguments,
        command=command,
        description="Write a log with the access frequencies of a real one.",
    )
    config = config_of(GenerateConfig, options)
    # The rate is that of the whole command, the writing of the file included.
    started = time.perf_counter()
    with progress_bars() as progress:
        generate(
            config,
            options.out,
            workers=options.workers,
            progress=lambda done: progress("generate", done, config.samples),
            overwrite=options.overwrite,
        )
    seconds = time.perf_counter() - started
    # After the file is closed: compressed bytes are known only then.
    num_bytes = options.out.stat().st_size
    if options.json:
        print_json(
            {"out": str(options.out), "samples": config.samples, "bytes": num_bytes, "seconds": seconds}
        )
    else:
        print(
            f"{options.out}: {config.samples:,} samples, {format_byte_size(num_bytes)} "
            f"in {seconds:.1f} s, {describe_rate(config.samples / seconds)}"
        )
    return 0
