"""``hotset characterise``: measure how speed depends on the model."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console

from ...pipeline.errors import ConfigError, require_at_least
from ...pipeline.folders.whole_file import refuse_target, whole_file
from ..command_list import Command
from ..console import print_json, say, stdout_console

_PAGE_COLUMNS = 140


@dataclass(frozen=True, kw_only=True)
class CharacteriseCommand(Command):
    """Measure training speed by model on this machine."""

    on_interrupt = "finished cells are kept; run the same command to resume"
    needs_torch = True

    out: Path
    """File for the speeds, such as machine.json. Its cells go next to it, to machine.cells.jsonl."""

    minutes: float = 8.0
    """Minutes that measuring may take."""

    threads: int | None = None
    """Number of threads of a step. Default: the cores this process may use."""

    html: Path | None = None
    """File for a page with the findings: verdicts on published observations, elasticities, speeds."""

    json: bool = False
    """Print one JSON object on stdout."""

    def __post_init__(self) -> None:
        if not 0 < self.minutes < float("inf"):
            raise ConfigError(f"minutes must be above 0, got {self.minutes:g}")
        require_at_least("threads", self.threads, 1)

    def execute(self) -> int:
        """Run ``hotset characterise``."""
        # torch takes a second and more to import: not before the options are known to be right.
        from ..characterise import characterise, findings_record, show_findings

        # A path that cannot be written is refused before minutes of work.
        if self.html is not None:
            refuse_target(self.html, overwrite=False, option="--html")
        result = characterise(self.out, self.minutes, self.threads, say)
        say(f"wrote {self.out}")
        if self.html is not None:
            page = Console(file=StringIO(), record=True, width=_PAGE_COLUMNS)
            show_findings(result, page)
            with whole_file(self.html, option="--html") as file:
                file.write(page.export_html().encode())
            say(f"wrote {self.html}")
        if self.json:
            print_json(findings_record(result))
        else:
            show_findings(result, stdout_console())
        return 0


COMMANDS: dict[str, type[Command]] = {"characterise": CharacteriseCommand}
