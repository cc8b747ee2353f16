"""Removed options of stages, which the configs of older folders still contain.

An option at its default is dropped when a config is read, so the folder can be continued. Any other value
stays in the config, and `refuse_removed` names it if the stage would run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ManifestError

REMOVED: dict[str, dict[str, Any]] = {
    "ingest": {"max_bad_fraction": 0.001},
    "rank": {"peel_floor": 4096},
    "pack": {"train_last": None},
}
"""The default of each removed option, by stage and field."""


def without_removed(stage: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the removed options that hold their defaults."""
    removed = REMOVED.get(stage, {})
    return {name: value for name, value in config.items() if name not in removed or value != removed[name]}


def refuse_removed(folder: Path, stage: str, config: Mapping[str, Any], hint: str) -> None:
    """Raise ManifestError if a folder was made with a removed option that does not hold its default."""
    for name in REMOVED.get(stage, {}):
        if name in config:
            option = f"--{name.replace('_', '-')}"
            raise ManifestError(
                f"{folder} was made with {option} {config[name]}, which no longer exists", hint=hint
            )
