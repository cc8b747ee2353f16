"""``hotset verify``: is everything in a folder as its manifests say?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ...pipeline.folders.discard import is_discarded
from ...pipeline.verify.verify import STAGE_FOLDERS, verify
from ..console import print_json, progress_bars, say
from ..options import parse_options


@dataclass(frozen=True, kw_only=True)
class VerifyCommand:
    """What to check."""

    dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """Folder that `preprocess --out` made."""

    inputs: tuple[Path, ...] = ()
    """The raw logs it was made from, in order: hash them again too."""

    workers: int = 0
    """Threads; 0 takes every core."""

    json: bool = False
    """Print one JSON object on stdout."""


def run(command: str, words: list[str]) -> int:
    """Run ``hotset verify``; exit status 1 where a fault was found."""
    options = parse_options(
        VerifyCommand, words, command=command, description="Check every manifest, checksum and invariant."
    )
    with progress_bars() as progress:
        faults = verify(options.dir, raw=options.inputs, workers=options.workers, progress=progress)
    discarded = [name for name in STAGE_FOLDERS if is_discarded(options.dir / name)]
    for name in discarded:
        say(f"{options.dir / name} was discarded: only its manifest could be checked")
    if options.json:
        print_json({"dir": str(options.dir), "faults": faults, "discarded": discarded})
    else:
        print("\n".join(faults) if faults else f"{options.dir}: everything is as its manifests say")
    return 1 if faults else 0
