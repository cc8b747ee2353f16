"""The options of a command as its parser knows them, without running it."""

from __future__ import annotations

import importlib
import warnings
from typing import Any, NoReturn

import pytest
import tyro

from hotset.workflows.command_list import COMMANDS

EVERYWHERE = frozenset({"--help", "--quiet", "--verbose"})
"""Options of every command, which no list repeats."""


class _ParserFound(BaseException):
    def __init__(self, options: list[str]) -> None:
        super().__init__()
        self.options = options


def options_of_parser(command: str) -> list[str]:
    """Return the long options of a command, in the order of its help."""
    module = importlib.import_module(f"hotset.workflows.commands.{COMMANDS[command][0]}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tyro, "cli", _stop_at_parser)
        try:
            module.run(command, [])
        except _ParserFound as found:
            return [option for option in found.options if option not in EVERYWHERE]
    raise AssertionError(f"{command} builds no parser")


def _stop_at_parser(kind: Any, **settings: Any) -> NoReturn:
    kept = {name: settings[name] for name in ("default", "config") if name in settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tyro calls its own function deprecated
        parser = tyro.extras.get_parser(kind, **kept)
    flags = (flag for action in parser._actions for flag in action.option_strings)
    raise _ParserFound([flag for flag in flags if flag.startswith("--")])
