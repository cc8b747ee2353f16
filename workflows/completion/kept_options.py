"""The options of all commands, kept in a file: completion needs them all, and importing a command takes time.

``python -m hotset.workflows.make_completion`` writes the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..option_list import Option

KEPT_OPTIONS = Path(__file__).with_name("kept_options.json")
Commands = Mapping[str, tuple[str, Sequence[Option]]]
"""For each command (``bench kills`` is one) a line of help and its options."""


def read_commands() -> Commands:
    """Return a line of help and the options of every command, importing none of them."""
    found: dict[str, tuple[str, list[Option]]] = {}
    for name, command in json.loads(KEPT_OPTIONS.read_text()).items():
        options = [
            Option(option, summary, takes_value, is_required, is_path, tuple(choices))
            for option, summary, takes_value, is_required, is_path, choices in command["options"]
        ]
        found[name] = (command["help"], options)
    return found
