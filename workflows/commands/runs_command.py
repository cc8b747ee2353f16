"""``hotset runs``: compare the runs of a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ...pipeline.formats.whole_file import whole_file
from ..command_list import Command
from ..console import print_json, say, stdout_console
from ..options import Arg
from ..printing.read_runs import differing_settings, read_runs
from ..printing.show_run_list import best_first, page_of_runs, show_run_list


@dataclass(frozen=True, kw_only=True)
class RunsCommand(Command):
    """List runs, best AUC first, and what differs."""

    folder: Annotated[Path, Arg("FOLDER", is_positional=True)]
    """Folder with runs that `train --out` created, in folders of their own."""

    html: Path | None = None
    """File for a page with the table and the curves of the runs."""

    json: bool = False
    """Print one JSON object on stdout."""

    def execute(self) -> int:
        """Run ``hotset runs``."""
        # The page is written whatever else is printed.
        runs = best_first(read_runs(self.folder))
        if self.html is not None:
            with whole_file(self.html, overwrite=True, option="--html") as file:
                file.write(page_of_runs(runs).encode())
            say(f"wrote {self.html}")
        if self.json:
            # Only settings that differ between runs are told: all others are the same in each.
            names = differing_settings(runs)
            found = [
                {
                    "run": each.name,
                    "differs": {name: each.settings.get(name) for name in names},
                    "summary": each.summary,
                    "fault": each.fault,
                }
                for each in runs
            ]
            print_json({"runs": found})
        else:
            show_run_list(runs, stdout_console())
        return 0


COMMANDS: dict[str, type[Command]] = {"runs": RunsCommand}
