"""Options of earlier versions, with values that unfinished runs may have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...pipeline.errors import HotsetError

RENAMED = {"shares": "micro_batches"}
"""Settings of a run by their earlier names."""
REMOVED: dict[str, object] = {
    "plan": "auto",
    "window": 64,
    "history_length": None,
    "attention_mlp": None,
    "last_mlp": None,
    "cross_structure": None,
    "decay_power": 2.0,
    "plateau_factor": 0.1,
    "plateau_patience": 1,
    "evaluate_time": None,
}
"""Settings that `TrainConfig` and its recipe no longer have, with the values that a run may have had."""
REMOVED_OF_EXCHANGE: dict[str, tuple[object, ...]] = {
    "decay": ("none", "linear"),
    "sync_rows": (0,),
    "sync_every": (None,),
    "homes": ("by-use",),
}
"""The same of the codecs between ranks, each with the values that are continued."""


def without_removed(path: Path, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a run by the options of this version.

    Args:
        path: folder of the run, for errors.
        description: contents of its ``config.json``, of this version or an earlier one.

    Raises:
        HotsetError: the run was begun with an option that is no more.
    """
    found = dict(description)
    if isinstance(found.get("config"), dict):
        config = found["config"] = _kept(path, found["config"])
        if isinstance(config.get("recipe"), dict):
            config["recipe"] = _kept(path, config["recipe"])
    if isinstance(found.get("exchange"), dict):
        exchange = found["exchange"] = dict(found["exchange"])
        for name, values in REMOVED_OF_EXCHANGE.items():
            if (value := exchange.pop(name, values[0])) not in values:
                option = name if name in ("homes", "sync_every", "sync_rows") else f"exchange_{name}"
                raise _refusal(path, option, value)
    return found


def _kept(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    kept = {RENAMED.get(name, name): value for name, value in settings.items()}
    for name, default in REMOVED.items():
        if (value := kept.pop(name, default)) != default:
            raise _refusal(path, name, value)
    return kept


def _refusal(path: Path, name: str, value: object) -> HotsetError:
    option = f"--{name.replace('_', '-')} {value}"
    return HotsetError(
        f"{path} was begun with {option}, an option that this version does not have",
        hint="give another --out, or remove the folder",
    )
