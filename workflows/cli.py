"""The ``hotset`` command: finds the command, runs it, turns errors a user can mend into one line.

Commands that train import torch; the others must not, so each is imported when it is called.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..pipeline.errors import HotsetError, MissingExtraError
from .console import say

COMMANDS = {
    "demo": ("demo", "generate a log, preprocess it, train on it two ways and compare"),
    "generate": ("generate_command", "write a synthetic click log with the statistics of a real one"),
    "schema": ("schema_command", "propose a schema for a log of your own"),
    "preprocess": ("preprocess_commands", "raw logs to shards: every stage, resuming where it stopped"),
    "ingest": ("preprocess_commands", "raw logs -> columns: parse and check"),
    "count": ("preprocess_commands", "columns -> counts: how often each category is looked up"),
    "rank": ("preprocess_commands", "counts -> vocabulary: ids in the order of importance"),
    "encode": ("preprocess_commands", "vocabulary -> samples: categories to ids"),
    "split": ("preprocess_commands", "samples -> plan: hot rows under a byte budget, hot and mixed samples"),
    "pack": ("preprocess_commands", "plan -> shards: shuffled batches of one kind each"),
    "schedule": ("preprocess_commands", "shards -> schedule: which cold rows come and go, batch by batch"),
    "map-ids": ("map_ids_command", "old vocabulary, new one -> id_map: each old row's new id"),
    "stats": ("stats_command", "inspect frequency statistics"),
    "advise": ("advise_command", "predict which placement and how much fast memory pay"),
    "verify": ("verify_command", "check every manifest, checksum and invariant of a folder"),
    "train": ("train_commands", "train a model on shards"),
    "evaluate": ("train_commands", "evaluate a trained run"),
    "bench": ("bench_command", "measure against named baselines, interleaved"),
}
"""Each command: the module of `commands` that runs it, and what it does."""

_STAGE_INTERRUPTED = "what is finished is kept, the same command goes on from there"
_AFTER_INTERRUPTION = {
    "train": "the run is unfinished and cannot go on: remove its folder and train again",
    "evaluate": "nothing was written",
    "stats": "nothing was written",
    "advise": "nothing was written",
    "verify": "nothing was written",
    "generate": "nothing was written",
    "bench": "nothing was written",
}
"""What a user does next; stages keep what is finished."""


def usage() -> str:
    """The text of ``hotset --help``."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {description}" for name, (_, description) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: hotset COMMAND [OPTIONS]",
            "",
            "Prepares click logs and trains recommendation models whose tables do not fit on the GPU.",
            "",
            *lines,
            "",
            "hotset COMMAND --help explains a command's options; hotset --version prints the version.",
        ]
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 1 for what a user can mend, 2 for wrong usage."""
    words = list(sys.argv[1:] if words is None else words)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"hotset {__version__}")
        return 0
    if words[0] not in COMMANDS:
        say(f"error: no command {words[0]!r}\nhint: one of {', '.join(COMMANDS)}")
        return 2
    try:
        return _run(words[0], words[1:])
    except HotsetError as error:
        say(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""))
        return 1
    except KeyboardInterrupt:
        say(f"interrupted: {_AFTER_INTERRUPTION.get(words[0], _STAGE_INTERRUPTED)}")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(command: str, words: list[str]) -> int:
    try:
        module = importlib.import_module(f".commands.{COMMANDS[command][0]}", __package__)
        status: int = module.run(command, words)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise MissingExtraError(
            f"hotset {command} needs {error.name}", hint="pip install 'hotset[train]'"
        ) from error
    return status


if __name__ == "__main__":
    raise SystemExit(main())
