"""``hotset map-ids``: the row of a new vocabulary that each row of an old one has become."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ...pipeline.folders.disk import remove_folders
from ...pipeline.folders.manifest import MANIFEST, Manifest
from ...pipeline.runtime.resources import Resources
from ...pipeline.sizes import ByteSize
from ...pipeline.stages.map_ids import ID_MAP, map_ids
from ..command_list import STAGE_INTERRUPTED, Command
from ..console import print_json, print_line, progress_bars, say, stdout_console
from ..options import Arg
from ..printing.describe_stages import describe_id_map


@dataclass(frozen=True, kw_only=True)
class MapIdsCommand(Command):
    """Map the ids of an old vocabulary to those of a new one."""

    on_interrupt = STAGE_INTERRUPTED

    old: Annotated[Path, Arg("OLD", is_positional=True)]
    """DIR that the model was trained on, or a copy of its vocabulary folder."""

    new: Annotated[Path, Arg("NEW", is_positional=True)]
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

    def execute(self) -> int:
        """Run ``hotset map-ids``."""
        out = self.out or self.new / ID_MAP
        # Removed as stage folders are, so that a kill leaves nothing half removed.
        if self.redo and out.exists():
            remove_folders([out])
            say(f"removed {out}")
        # Maps are bound to two sealed vocabularies, whatever else the folders hold.
        with progress_bars() as progress:
            id_map = map_ids(
                _vocabulary(self.old),
                _vocabulary(self.new),
                out,
                Resources(workers=self.workers, memory_bytes=self.memory, progress=progress),
            )
        if self.json:
            print_json({"dir": str(out)} | id_map.totals)
            return 0
        print_line(stdout_console(), describe_id_map(id_map))
        return 0


def _vocabulary(folder: Path) -> Manifest:
    """Return the vocabulary inside ``folder``, such as that of a run, or ``folder`` itself."""
    inner = folder / "vocabulary"
    return Manifest.read(folder if (folder / MANIFEST).exists() and not inner.is_dir() else inner)


COMMANDS: dict[str, type[Command]] = {"map-ids": MapIdsCommand}
