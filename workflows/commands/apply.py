"""``hotset apply``: update an export by the changes of a later run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..command_list import Command
from ..console import print_json, progress_bars, say
from ..options import Arg
from .export import counts_of, show_changes


@dataclass(frozen=True, kw_only=True)
class ApplyCommand(Command):
    """Lead an exported folder to a later run."""

    needs_torch = True

    changes: Annotated[Path, Arg("CHANGES", is_positional=True)]
    """Folder that `export --since` created."""

    to: Path
    """Folder that `export` created of the run that the changes begin with."""

    out: Path
    """New folder, with the files of a whole export of the later run."""

    json: bool = False
    """Print one JSON object on stdout."""

    def execute(self) -> int:
        """Run ``hotset apply``."""
        # torch takes a second and more to import: not before the options are known to be right.
        from ...pipeline.folders.whole_file import refuse_target
        from ...train.serving.changes import apply_changes

        # A folder that exists is refused before any other is hashed.
        refuse_target(self.out, overwrite=False)
        with progress_bars() as progress:
            changes = apply_changes(self.to, self.changes, self.out, progress=progress)
        if self.json:
            print_json({"out": str(self.out), "changes": counts_of(changes)})
        else:
            show_changes(counts_of(changes))
            say(f"wrote {self.out}")
        return 0


COMMANDS: dict[str, type[Command]] = {"apply": ApplyCommand}
