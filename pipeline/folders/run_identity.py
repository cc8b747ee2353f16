"""What makes two runs of a stage the same run: stage, version, config and inputs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import ManifestError
from .manifest import Manifest


def identity_of(manifest: Manifest) -> dict[str, Any]:
    """What a run must share with the folder to be the same run."""
    return {key: getattr(manifest, key) for key in ("stage", "version", "config", "inputs")}


def starts_with(found: list[Any], wanted: list[Any]) -> bool:
    """Whether ``wanted`` is ``found`` with something behind it."""
    return len(found) < len(wanted) and wanted[: len(found)] == found


def refuse_difference(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise ManifestError where a folder's identity differs, naming the first setting that does."""
    if found == wanted:
        return
    _refuse_other_config(folder, found, wanted)
    stage, hint = wanted["stage"], _hint(wanted["stage"])
    if found["inputs"] == wanted["inputs"]:
        raise ManifestError(f"{folder} was made from another version of hotset", hint=hint)
    if stage == "ingest" and starts_with(found["inputs"], wanted["inputs"]):
        num_new = len(wanted["inputs"]) - len(found["inputs"])
        raise ManifestError(
            f"{folder} was made from the first {len(found['inputs'])} of these {len(wanted['inputs'])} files",
            hint=f"--extend adds the {num_new} behind them, and makes what follows again; or {hint}",
        )
    difference = _describe_other_inputs(found["inputs"], wanted["inputs"])
    raise ManifestError(f"{folder} was made from other inputs: {difference}", hint=hint)


def refuse_other_config(sealed: Manifest, stage: str, config: Any) -> None:
    """Raise ManifestError where a folder was made by another stage or with other settings than ``config``."""
    wanted = json.loads(json.dumps({"stage": stage, "config": asdict(config)}))
    _refuse_other_config(sealed.folder, identity_of(sealed), wanted)


def _hint(stage: str) -> str:
    if stage == "map-ids":
        return "give another --out, or --redo to make it again"
    return f"give another --out, or --redo {stage} to make it and what follows again"


def _refuse_other_config(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    hint = _hint(wanted["stage"])
    if found.get("stage") != wanted["stage"]:
        raise ManifestError(
            f"{folder} holds stage {found.get('stage')!r}, want {wanted['stage']!r}", hint=hint
        )
    for name, setting in wanted["config"].items():
        before = found["config"].get(name)
        if before != setting:
            raise ManifestError(f"{folder} was made with {name} = {before}, now {setting}", hint=hint)


def _describe_other_inputs(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> str:
    """The first input that is another, in words."""
    if len(found) != len(wanted):
        return f"{len(found)} of them, now {len(wanted)}"
    before, now = next((a, b) for a, b in zip(found, wanted, strict=True) if a != b)
    if before.get("name") != now.get("name"):
        return f"{before.get('name')}, now {now.get('name')}"
    if "bytes" in now:
        return f"{now['name']} had {before.get('bytes')} bytes, now {now['bytes']}"
    return f"another {now.get('name')} than the one that is there now"


def read_begun(path: Path) -> dict[str, Any]:
    """The identity of the run that began a folder."""
    try:
        identity: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise ManifestError(
            f"{path} is damaged: {error}", hint="remove the folder of this stage and run it again"
        ) from error
    return identity
