"""``hotset completion``: a script that completes commands and options in a shell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from ..completion.kept_options import read_commands
from ..completion.shell_scripts import SHELLS
from ..options import parse_options


@dataclass(frozen=True, kw_only=True)
class CompletionCommand:
    """Options of ``hotset completion``."""

    shell: Annotated[tyro.conf.Positional[Literal["bash", "zsh", "fish"]], tyro.conf.arg(metavar="SHELL")]
    """Shell that the script is for: bash, zsh or fish."""


def run(command: str, arguments: Sequence[str]) -> int:
    """Run ``hotset completion``."""
    options = parse_options(
        CompletionCommand,
        arguments,
        command=command,
        description="Print a completion script that says how to install it.",
    )
    print(SHELLS[options.shell](read_commands()), end="")
    return 0
