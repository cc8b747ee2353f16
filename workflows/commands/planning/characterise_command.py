"""``hotset characterise``: measure how the speed of training follows a model on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console

from ....pipeline.errors import ConfigError, require_at_least
from ....pipeline.formats.whole_file import refuse_target, whole_file
from ...console import print_json, say, stdout_console
from ...options import parse_options

_PAGE_COLUMNS = 140


@dataclass(frozen=True, kw_only=True)
class CharacteriseCommand:
    """Options of ``hotset characterise``."""

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


def run(command: str, arguments: Sequence[str]) -> int:
    """Run ``hotset characterise``."""
    options = parse_options(
        CharacteriseCommand,
        arguments,
        command=command,
        description="Measure training speed by model on this machine.",
    )
    # torch takes a second and more to import: not before the options are known to be right.
    from ...characterise import characterise, findings_record, show_findings

    # A path that cannot be written is refused before minutes of work.
    if options.html is not None:
        refuse_target(options.html, overwrite=False, option="--html")
    result = characterise(options.out, options.minutes, options.threads, say)
    say(f"wrote {options.out}")
    if options.html is not None:
        page = Console(file=StringIO(), record=True, width=_PAGE_COLUMNS)
        show_findings(result, page)
        with whole_file(options.html, option="--html") as file:
            file.write(page.export_html().encode())
        say(f"wrote {options.html}")
    if options.json:
        print_json(findings_record(result))
    else:
        show_findings(result, stdout_console())
    return 0
