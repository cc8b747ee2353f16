"""Commands to paste: the one that a folder was written with, and those that write it with other settings."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...pipeline.errors import GIB, KIB, MIB, ByteSize, exact_byte_size
from ...pipeline.schema.schema import FeatureSettings, format_feature_settings
from ...pipeline.schema.schema_file import is_fingerprint
from ...pipeline.statistics.folder import Provenance
from ..options import NO_OPTION
from ..recipes import DEFAULT_SCHEMA, recipe_for

_SCHEMA_FILE = "SCHEMA.toml"
_AFTER_INGEST = ("count", "rank", "encode", "split", "pack")


def size_option(num_bytes: int) -> str:
    """Return a size as options take it, rounded up to three digits or so: 2965821 as ``"2.83MiB"``."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if num_bytes >= unit:
            hundredths = -(-num_bytes * 100 // unit)
            # 100 and more need no decimals.
            rounded = -(-hundredths // 100) * 100 if hundredths >= 10_000 else hundredths
            return f"{rounded / 100:g}{name}"
    return f"{num_bytes}"


def preprocess_command(provenance: Provenance, folder: Path) -> str:
    """Return the command that writes ``folder`` again, run where its logs are.

    Args:
        provenance: see `pipeline.inspect.provenance`.
        folder: the folder, as ``--out`` names it.
    """
    schema = provenance["schema"]
    options = (
        [] if schema == DEFAULT_SCHEMA else ["--schema", _SCHEMA_FILE if is_fingerprint(schema) else schema]
    )
    # The settings of ids that were adopted are those of a folder that is not known here.
    stages = ("ingest", *_AFTER_INGEST) if not provenance["is_adopted"] else ("ingest",)
    for stage in stages:
        options += stage_options(provenance, stage)
    if provenance["is_adopted"]:
        options += ["--like", "MODEL_DIR"]
    logs = [log["name"] for log in provenance["logs"]]
    return _line("preprocess", *logs, *options, "--out", str(folder))


def stage_options(provenance: Provenance, stage: str, **other: str | None) -> list[str]:
    """Return the options by which a stage's settings differ from the defaults of its schema.

    Args:
        provenance: see `pipeline.inspect.provenance`.
        stage: finished or not.
        other: settings to give instead, as the command line takes them; None leaves an option out.
    """
    default = getattr(recipe_for(provenance["schema"]), stage)
    found = provenance["settings"].get(stage, {})
    # Settings that equal the defaults of the schema are left out, so that the command stays readable.
    options: dict[str, list[str]] = {}
    for field in fields(default):
        name = field.name
        # Where FAE's released code draws with replacement, --mode sets the order of rows, too.
        is_set_by_mode = name == "rank_by" and found.get("with_replacement")
        if NO_OPTION in field.metadata or is_set_by_mode:
            continue
        usual = getattr(default, name)
        if name == "schema" or name not in found or _plain(usual) == found[name]:
            continue
        options[name] = _option(name, found[name], usual)
    # What the caller asks for replaces a setting, or removes it.
    for name, text in other.items():
        options[name] = [] if text is None else [f"--{name.replace('_', '-')}", text]
    return [word for option in options.values() for word in option]


def rebuild_commands(
    provenance: Provenance, folder: Path, *, first: str = "split", **other: str | None
) -> list[str]:
    """Return the commands that run the stages from ``first`` on with other settings of that stage."""
    lines = []
    for stage in _AFTER_INGEST[_AFTER_INGEST.index(first) :]:
        options = stage_options(provenance, stage, **(other if stage == first else {}))
        redo = ["--redo"] if stage == first else []
        lines.append(_line(stage, str(folder), *options, *redo))
    return lines


def _line(command: str, *words: str) -> str:
    return shlex.join(["hotset", command, *words])


def _plain(value: Any) -> Any:
    """Return a setting as manifests hold it."""
    return [list(pair) for pair in value] if isinstance(value, FeatureSettings) else value


def _option(name: str, value: Any, usual: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if isinstance(usual, bool):
        return [option] if value else [f"--no-{name.replace('_', '-')}"]
    if isinstance(usual, FeatureSettings):
        return [option, format_feature_settings(FeatureSettings(value))]
    return [option, exact_byte_size(value) if isinstance(usual, ByteSize) else str(value)]
