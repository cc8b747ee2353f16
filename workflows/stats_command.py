"""``hotset stats``: the frequency statistics of a preprocessed folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..pipeline.inspect import frequency_statistics
from .console import print_json, progress_bars, stdout_console
from .options import parse_options
from .show_stats import show_statistics


@dataclass(frozen=True, kw_only=True, slots=True)
class StatsCommand:
    """What to look at."""

    dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """Folder that `preprocess --out` made."""

    workers: int = 0
    """Threads; 0 takes every core."""

    json: bool = False
    """Print one JSON object on stdout."""


def run(command: str, words: list[str]) -> int:
    """Run ``hotset stats``."""
    options = parse_options(
        StatsCommand,
        words,
        command=command,
        description="How look-ups fall on rows, and what each budget of hot bytes buys.",
    )
    with progress_bars() as progress:
        statistics = frequency_statistics(options.dir, workers=options.workers, progress=progress)
    if options.json:
        print_json(statistics)
    else:
        show_statistics(statistics, stdout_console())
    return 0
