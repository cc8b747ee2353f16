"""The file of options that completion reads is what the commands have (`make_completion`, `kept_options`)."""

from __future__ import annotations

from hotset.workflows.completion.kept_options import KEPT_OPTIONS, read_commands
from hotset.workflows.make_completion import commands_text, describe_commands


def test_the_options_kept_are_those_of_the_commands() -> None:
    commands = describe_commands()
    rewrite = "run python -m hotset.workflows.make_completion"
    assert KEPT_OPTIONS.read_text() == commands_text(commands), rewrite
    assert read_commands() == commands
