"""The runs of a folder as plain records, to be compared. Nothing in a folder is trusted."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...pipeline.errors import HotsetError

_CONFIG, _SUMMARY, _METRICS = "config.json", "summary.json", "metrics.jsonl"
_MOST_BYTES = 64 * 2**20
_MOST_DEPTH = 4
"""Folders below the one that is named are searched so deep."""
_NOT_SETTINGS = frozenset({"tables", "threads", "dense_model", "embedding_dim", "num_dense"})
"""Keys of a config that say what the shards and the machine are like."""
_AS_OPTIONS = {
    "init_from": {"run": "init_from"},
    "exchange": {
        "vectors": "exchange",
        "gradients": "exchange_back",
        "dense": "exchange_dense",
        "decay": "exchange_decay",
        "early_steps": "exchange_early_steps",
        "feedback": "exchange_feedback",
    },
}
"""Nested records whose keys say nothing without the name of the record, and what their options are called."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    name: str
    """Its folder, from the one that was searched."""
    settings: dict[str, Any]
    """Settings by name, those of nested records too."""
    summary: dict[str, Any] | None
    """None while the run is unfinished."""
    curves: dict[str, list[tuple[int, float]]]
    """Points (step, value) of ``loss`` in nats per sample, and of the AUC of ``validation`` and
    ``evaluation``."""
    fault: str | None = None
    """Why it could not be read."""


def read_runs(folder: Path) -> list[Run]:
    """Read every run in a folder, in the order of their names.

    Raises:
        HotsetError: there is none.
    """
    paths = sorted(_run_folders(folder, _MOST_DEPTH))
    if not paths:
        raise HotsetError(f"{folder} holds no training run", hint="give the folder that runs were written to")
    return [_read_run(path, str(path.relative_to(folder)) if path != folder else path.name) for path in paths]


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings that not all runs that could be read have alike, in the order of their names."""
    found = [run.settings for run in runs if run.fault is None]
    names = sorted({name for settings in found for name in settings})
    return [name for name in names if len({_key(settings.get(name)) for settings in found}) > 1]


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    # A run holds no other runs, so the search ends at its config.
    if (folder / _CONFIG).is_file():
        yield folder
        return
    if depth == 0:
        return
    try:
        # Links are not followed: they could lead round in circles.
        children = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise HotsetError(f"{folder} cannot be read: {error.strerror}") from error
    for child in children:
        yield from _run_folders(Path(child), depth - 1)


def _read_run(path: Path, name: str) -> Run:
    # A damaged run is listed with its fault, beside those that can be read.
    try:
        config = _object_in(path / _CONFIG)
        summary = _object_in(path / _SUMMARY) if (path / _SUMMARY).is_file() else None
        curves = _curves_in(path / _METRICS) if (path / _METRICS).is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        return Run(name, {}, None, {}, fault=str(error))
    settings = {key: value for key, value in config.items() if key not in _NOT_SETTINGS}
    return Run(name, dict(_flat(settings)), summary, curves)


def _object_in(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes")
    found = json.loads(path.read_bytes())
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no object")
    return found


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings of nested records by their own names, as options are called."""
    for name, value in values.items():
        if isinstance(value, dict):
            called = _AS_OPTIONS.get(name, {})
            yield from ((called.get(key, key), one) for key, one in _flat(value))
        else:
            yield name, value


def _curves_in(path: Path) -> dict[str, list[tuple[int, float]]]:
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes")
    curves: dict[str, list[tuple[int, float]]] = {"loss": [], "validation": [], "evaluation": []}
    # A line has a loss, or scores of one part; whatever else it holds is left out.
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        for name, points in curves.items():
            found = entry.get(name) if isinstance(entry, dict) else None
            value = found.get("auc") if isinstance(found, dict) else found
            step = entry.get("step") if isinstance(entry, dict) else None
            if type(step) is int and type(value) is float and math.isfinite(value):
                points.append((step, value))
    return curves


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
