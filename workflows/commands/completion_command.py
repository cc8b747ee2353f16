"""``hotset completion``: a script that completes commands and options in a shell."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import tyro

from ..command_list import COMMANDS
from ..completion import SHELLS
from ..option_list import Option
from ..options import options_of, parse_options
from .bench_command import BENCHES


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
    print(SHELLS[options.shell](describe_commands()), end="")
    return 0


def describe_commands() -> dict[str, tuple[str, list[Option]]]:
    """Return a line of help and the options of every command, each benchmark being a command of its own."""
    found: dict[str, tuple[str, list[Option]]] = {}
    for name, (_, description) in COMMANDS.items():
        if name == "bench":
            for bench, (_, measured) in BENCHES.items():
                found[f"bench {bench}"] = (measured, _options_of("bench", bench))
        else:
            found[name] = (description, _options_of(name))
    return found


def _options_of(command: str, *arguments: str) -> list[Option]:
    """Return the options of a command; none where a package that it needs is missing."""
    try:
        module = importlib.import_module(f".{COMMANDS[command][0]}", __package__)
        return options_of(partial(module.run, command, arguments))
    except ModuleNotFoundError:
        return []
