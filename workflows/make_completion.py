"""Write the options of all commands into the file that completion reads.

    python -m hotset.workflows.make_completion

A test fails where the file is not what the commands have now.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import astuple
from functools import partial

from .command_list import COMMANDS
from .commands.bench_command import BENCHES
from .completion.kept_options import KEPT_OPTIONS, Commands
from .option_list import Option
from .options import options_of


def describe_commands() -> Commands:
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
    module = importlib.import_module(f".commands.{COMMANDS[command][0]}", __package__)
    return options_of(partial(module.run, command, arguments))


def commands_text(commands: Commands) -> str:
    """Return JSON with one line per option, so that a diff shows what changed."""
    blocks = []
    for name, (description, options) in commands.items():
        lines = ",\n".join(f"    {json.dumps(astuple(option))}" for option in options)
        head = f'{json.dumps(name)}: {{\n  "help": {json.dumps(description)},\n  "options": [\n'
        blocks.append(f"{head}{lines}\n  ]\n}}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


if __name__ == "__main__":
    KEPT_OPTIONS.write_text(commands_text(describe_commands()))
