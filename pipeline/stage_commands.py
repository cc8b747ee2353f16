"""The commands that write a stage folder, as hints print them: with the folder's own path, to be copied."""

from __future__ import annotations

import shlex
from pathlib import Path

STAGE_OF = {
    "columns": "ingest",
    "counts": "count",
    "vocabulary": "rank",
    "samples": "encode",
    "plan": "split",
    "shards": "pack",
}
"""The stage that writes each folder inside DIR."""


def hint_to_write(folder: Path, *, is_alone: bool) -> str:
    """Return what to do about a stage folder that is missing or unfinished.

    Args:
        is_alone: no folder of another stage is beside it.
    """
    stage = STAGE_OF.get(folder.name)
    if stage is None:
        return "give the folder that preprocess wrote (its --out)"
    # Then the user has run no stage yet, or has given another folder.
    if is_alone:
        return f"`hotset preprocess RAW --out {_quoted(folder.parent)}` writes it from raw logs"
    return f"`{_command(stage, folder)}` writes it"


def hint_to_rewrite(folder: Path) -> str:
    """Return what to do about a stage folder that is damaged or was changed."""
    stage = STAGE_OF.get(folder.name)
    if stage is None:
        return "take the folder from a copy, or remove it and write it again"
    command = f"rm -r {_quoted(folder)} && {_command(stage, folder)}"
    return f"`{command}` writes it again; give it the options that it had"


def hint_to_verify(folder: Path) -> str:
    """Return what to do where stage folders of one DIR do not fit together; ``folder`` is any of them."""
    return f"`hotset verify {_quoted(folder.parent)}` reports which folder is at fault"


def _command(stage: str, folder: Path) -> str:
    directory = _quoted(folder.parent)
    return f"hotset ingest RAW --out {directory}" if stage == "ingest" else f"hotset {stage} {directory}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
