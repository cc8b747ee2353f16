"""``hotset map-ids``: the row of a new vocabulary that each row of an old one has become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ...pipeline.folders.disk import remove_folders
from ...pipeline.folders.manifest import MANIFEST, Manifest
from ...pipeline.runtime.resources import Resources
from ...pipeline.sizes import ByteSize
from ...pipeline.stages.map_ids import ID_MAP, map_ids
from ..console import print_json, print_line, progress_bars, say, stdout_console
from ..options import parse_options
from ..printing.describe_stages import describe_id_map


@dataclass(frozen=True, kw_only=True)
class MapIdsCommand:
    """Options of ``hotset map-ids``."""

    old: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OLD")]
    """DIR that the model was trained on, or a copy of its vocabulary folder."""

    new: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="NEW")]
    """DIR that its training is to continue with, or a copy of its vocabulary folder."""

    out: Path | None = None
    """Folder for the map. Default: NEW/id_map."""

    redo: bool = False
    """Delete an existing map first."""

    workers: int = 0
    """Number of threads; 0 takes every core. Changes no byte of the output."""

    memory: ByteSize | None = None
    """Limit on anonymous resident memory. Default: a quarter of the machine's memory."""

    json: bool = False
    """Print one JSON object on stdout."""


def run(command: str, arguments: Sequence[str]) -> int:
    """Run ``hotset map-ids``."""
    options = parse_options(
        MapIdsCommand,
        arguments,
        command=command,
        description="Map the ids of an old vocabulary to those of a new one.",
    )
    out = options.out or options.new / ID_MAP
    # Removed as stage folders are, so that a kill leaves nothing half removed.
    if options.redo and out.exists():
        remove_folders([out])
        say(f"removed {out}")
    # Maps are bound to two sealed vocabularies, whatever else the folders hold.
    with progress_bars() as progress:
        id_map = map_ids(
            _vocabulary(options.old),
            _vocabulary(options.new),
            out,
            Resources(workers=options.workers, memory_bytes=options.memory, progress=progress),
        )
    if options.json:
        print_json({"dir": str(out)} | id_map.totals)
        return 0
    print_line(stdout_console(), describe_id_map(id_map))
    return 0


def _vocabulary(folder: Path) -> Manifest:
    """Return the vocabulary inside ``folder``, such as that of a run, or ``folder`` itself."""
    inner = folder / "vocabulary"
    return Manifest.read(folder if (folder / MANIFEST).exists() and not inner.is_dir() else inner)
