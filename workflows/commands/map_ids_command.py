"""``hotset map-ids``: which row of a new vocabulary each row of an old one has become."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ...pipeline.folders.manifest import MANIFEST, Manifest
from ...pipeline.folders.removal import remove_folders
from ...pipeline.stages.map_ids import ID_MAP, map_ids
from ..console import print_json, progress_bars, say
from ..options import Flag, OptionalPath, OptionalSize, parse_options


@dataclass(frozen=True, kw_only=True)
class MapIdsCommand:
    """Which two vocabularies, and where to."""

    old: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OLD")]
    """DIR the model was trained on, or a copy of its vocabulary folder."""

    new: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="NEW")]
    """DIR it is to go on with."""

    out: OptionalPath = None
    """Folder for the map; NEW/id_map by default."""

    redo: Flag = False
    """Remove the map that is there first."""

    workers: int = 0
    """Threads; 0 takes every core. Changes no byte of the output."""

    memory: OptionalSize = None
    """Cap on anonymous resident memory (bytes); a quarter of the machine's memory by default."""

    json: Flag = False
    """Print one JSON object on stdout."""


def run(command: str, words: list[str]) -> int:
    """Run ``hotset map-ids``."""
    options = parse_options(
        MapIdsCommand,
        words,
        command=command,
        description="Write, for each row of an old vocabulary, its id in a new one (-1 where it has none).",
    )
    out = options.out or options.new / ID_MAP
    if options.redo and out.exists():
        remove_folders([out])
        say(f"removed {out}")
    with progress_bars() as progress:
        made = map_ids(
            _vocabulary(options.old),
            _vocabulary(options.new),
            out,
            workers=options.workers,
            memory_bytes=options.memory,
            progress=progress,
        )
    if options.json:
        print_json({"dir": str(out)} | made.totals)
        return 0
    print(describe_id_map(made))
    return 0


def describe_id_map(made: Manifest) -> str:
    """One line: how many rows go on, and what they serve."""
    totals = made.totals
    share = totals["kept_lookups"] / max(1, totals["new_lookups"])
    num_anew = totals["num_new_rows"] - totals["num_kept"]
    rows = f"{totals['num_kept']:,} of {totals['num_old_rows']:,} rows go on"
    served = f"they serve {share:.1%} of the look-ups that the new vocabulary counted"
    return f"{made.folder}: {rows}; {served}. {num_anew:,} rows begin anew"


def _vocabulary(folder: Path) -> Manifest:
    """The vocabulary inside ``folder``, or ``folder`` itself where it is one."""
    return Manifest.read(folder if (folder / MANIFEST).exists() else folder / "vocabulary")
