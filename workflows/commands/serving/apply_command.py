"""``hotset apply``: an exported folder of an earlier run, led to a later one by what changed since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ...console import print_json, progress_bars, say
from ...options import parse_options
from .changed_rows import counts_of, show_changes


@dataclass(frozen=True, kw_only=True)
class ApplyCommand:
    """Options of ``hotset apply``."""

    changes: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="CHANGES")]
    """Folder that `export --since` created."""

    to: Path
    """Folder that `export` created of the run that the changes begin with."""

    out: Path
    """New folder, with the files of a whole export of the later run."""

    json: bool = False
    """Print one JSON object on stdout."""


def run(command: str, arguments: Sequence[str]) -> int:
    """Run ``hotset apply``."""
    options = parse_options(
        ApplyCommand,
        arguments,
        command=command,
        description="Lead an exported folder to a later run.",
    )
    # torch takes a second and more to import: not before the options are known to be right.
    from ....pipeline.formats.whole_file import refuse_target
    from ....train.exporting.apply_changes import apply_changes

    # A folder that exists is refused before any other is hashed.
    refuse_target(options.out, overwrite=False)
    with progress_bars() as progress:
        changes = apply_changes(options.to, options.changes, options.out, progress=progress)
    if options.json:
        print_json({"out": str(options.out), "changes": counts_of(changes)})
    else:
        show_changes(counts_of(changes))
        say(f"wrote {options.out}")
    return 0
