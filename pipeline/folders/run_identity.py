"""The identity of a run: stage, version, config and inputs; equal identities write equal bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ..errors import ManifestError, first_line
from ..sizes import exact_byte_size
from ..stage_commands import hint_to_rewrite
from .manifest import Manifest
from .removed_options import refuse_removed, without_removed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_UNLESS_NONE = "left_out_where_none"
_KINDS = {"stage": str, "version": int, "config": dict, "inputs": list}
Inputs = list[dict[str, Any]]
"""``{"name", "fingerprint"}`` of each input folder, or name and bytes of a raw file; in order."""


class RunIdentity(TypedDict):
    """The identity of a run, as plain JSON data; equal identities write equal bytes."""

    stage: str
    version: int
    config: dict[str, Any]
    inputs: Inputs


def unless_none() -> Any:
    """A setting that is None by default and left out of the identity then: one that older folders lack."""
    return field(default=None, metadata={_UNLESS_NONE: True})


def settings_of(config: DataclassInstance) -> dict[str, Any]:
    """Return the settings of a config as they stand in a manifest."""
    values: dict[str, Any] = asdict(config)
    left_out = [own.name for own in fields(config) if own.metadata.get(_UNLESS_NONE)]
    return {name: value for name, value in values.items() if name not in left_out or value is not None}


def identity_of_run(
    stage: str, version: int, config: DataclassInstance, inputs: Sequence[dict[str, Any]]
) -> RunIdentity:
    """Return the identity as it is read back from JSON, so that the two can be compared."""
    identity = {"stage": stage, "version": version, "config": settings_of(config), "inputs": list(inputs)}
    parsed: RunIdentity = json.loads(json.dumps(identity))
    return parsed


def identity_of_manifest(manifest: Manifest) -> RunIdentity:
    """Return the identity of the run that sealed a folder."""
    return RunIdentity(
        stage=manifest.stage, version=manifest.version, config=manifest.config, inputs=manifest.inputs
    )


def read_begun(path: Path) -> RunIdentity:
    """Read the identity of the run that began a folder."""
    try:
        found: Any = json.loads(path.read_bytes())
        # Every key is checked here, so that no later comparison meets another type.
        for key, kind in _KINDS.items():
            if type(found[key]) is not kind:
                raise TypeError(f"{key} is not of type {kind.__name__}")
        if not all(isinstance(made_from, dict) for made_from in found["inputs"]):
            raise TypeError("an input is no object")
        found["config"] = without_removed(found["stage"], found["config"])
        identity: RunIdentity = found
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ManifestError(
            f"{path} is damaged: {first_line(error)}", hint=hint_to_rewrite(path.parent.parent)
        ) from error
    return identity


def starts_with(found: Inputs, wanted: Inputs) -> bool:
    """Return whether ``wanted`` is ``found`` with more inputs behind it."""
    return len(found) < len(wanted) and wanted[: len(found)] == found


def describe_difference(folder: Path, found: RunIdentity, wanted: RunIdentity) -> ManifestError | None:
    """Return the error that names the first difference between two runs; None if they are equal."""
    if found == wanted:
        return None
    # Settings first: they are what a user most often changed, and the easiest to undo.
    other_config = _describe_other_config(folder, found, wanted["stage"], wanted["config"])
    if other_config is not None:
        return other_config
    stage = wanted["stage"]
    hint = _hint(stage)
    # Equal settings and inputs leave the version of the stage.
    if found["inputs"] == wanted["inputs"]:
        return ManifestError(f"{folder} was written by another version of hotset", hint=hint)
    # Logs may grow at their end: that is no other input, but an extension.
    if stage == "ingest" and starts_with(found["inputs"], wanted["inputs"]):
        num_new = len(wanted["inputs"]) - len(found["inputs"])
        return ManifestError(
            f"{folder} was made from the first {len(found['inputs'])} of these {len(wanted['inputs'])} files",
            hint=f"give --extend, which adds the {num_new} behind them and rebuilds what follows; or {hint}",
        )
    difference = _describe_other_inputs(found["inputs"], wanted["inputs"])
    return ManifestError(f"{folder} was written from other inputs: {difference}", hint=hint)


def refuse_other_config(sealed: Manifest, stage: str, config: DataclassInstance) -> None:
    """Raise ManifestError if a folder was made by another stage or with other settings than ``config``."""
    wanted: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    error = _describe_other_config(sealed.folder, identity_of_manifest(sealed), stage, wanted)
    if error is not None:
        raise error


def _hint(stage: str) -> str:
    if stage == "map-ids":
        return "give another --out, or --redo to write it again"
    return f"use another folder, or give --redo {stage}, which deletes it and what follows first"


def _describe_other_config(
    folder: Path, found: RunIdentity, stage: str, config: dict[str, Any]
) -> ManifestError | None:
    hint = _hint(stage)
    # What a folder of an older version or of other tools holds need not be complete: hence `get`.
    if found.get("stage") != stage:
        return ManifestError(f"{folder} holds stage {found.get('stage')!r}, want {stage!r}", hint=hint)
    try:
        refuse_removed(folder, stage, found["config"], hint)
    except ManifestError as error:
        return error
    # A setting that one of the two leaves out is None there.
    for name, setting in (dict.fromkeys(found["config"]) | config).items():
        before = found["config"].get(name)
        if before != setting:
            was = _spelled(name, before)
            now = _spelled(name, setting)
            return ManifestError(f"{folder} was written with {name} = {was}, now {now}", hint=hint)
    return None


def _spelled(name: str, setting: object) -> str:
    """Return a setting as the command line takes it: bytes as 1MiB."""
    is_bytes = name.endswith("_bytes") and type(setting) is int
    if setting is None:
        return "none"
    return exact_byte_size(setting) if is_bytes and isinstance(setting, int) else str(setting)


def _describe_other_inputs(found: Inputs, wanted: Inputs) -> str:
    """Name the first input that differs."""
    if len(found) != len(wanted):
        return f"{len(found)} of them, now {len(wanted)}"
    before, now = next((a, b) for a, b in zip(found, wanted, strict=True) if a != b)
    if before.get("name") != now.get("name"):
        return f"{before.get('name')}, now {now.get('name')}"
    if "bytes" in now:
        return f"{now['name']} had {before.get('bytes')} bytes, now {now['bytes']}"
    return f"another {now.get('name')} than the present one"
