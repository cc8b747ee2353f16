"""The origin of a folder's figures: logs, schema, settings and fingerprints, from its manifests alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ... import __version__
from ..folders.manifest import Manifest, is_sealed
from ..folders.stage_totals import ColumnsTotals, VocabularyTotals
from ..formats.stage_settings import ColumnsSettings
from ..stages.stage_order import FOLDERS


class RawLogRow(TypedDict):
    """A raw file of the log."""

    name: str
    bytes: int
    samples: int
    train_samples: int


class Provenance(TypedDict):
    """The logs, settings and fingerprints that make the same folder again, see `provenance`."""

    hotset: str
    schema: str
    logs: list[RawLogRow]
    bad_lines: dict[str, int]
    is_adopted: bool
    settings: dict[str, dict[str, Any]]
    """By stage its settings, whose values are of any type that a manifest can hold."""
    fingerprints: dict[str, str]
    command: NotRequired[str]
    """The command that makes the folder, where a command line was there to word it."""


def provenance(folder: Path) -> Provenance:
    """Return what a reader needs to make the same folder again, and to tell two reports apart.

    Args:
        folder: preprocessed as far as its plan.

    Returns:
        ``hotset``, the version that computed the statistics; ``schema``, its built-in name, or ``toml:`` and
        a fingerprint; ``logs``: name, bytes, samples and train_samples of each raw file; ``bad_lines`` that
        were skipped, by reason; ``is_adopted``: ids are those of another folder (``--like``);
        ``settings`` and ``fingerprints`` of each stage that is finished.
    """
    columns = Manifest.read(folder / "columns")
    vocabulary = Manifest.read(folder / "vocabulary")
    log = ColumnsTotals.of(columns)
    num_train = VocabularyTotals.of(vocabulary).num_train_samples
    trained = [found.num_train_samples for found in log.training_logs(num_train)]
    # Stages that are not finished have nothing to tell.
    stages = {
        stage: Manifest.read(folder / name) for stage, name in FOLDERS.items() if is_sealed(folder / name)
    }
    return {
        "hotset": __version__,
        "schema": ColumnsSettings.of(columns).schema,
        "logs": [
            {
                "name": raw.name,
                "bytes": raw.num_bytes,
                "samples": raw.num_samples,
                "train_samples": trained[number] if number < len(trained) else 0,
            }
            for number, raw in enumerate(log.raw)
        ],
        "bad_lines": dict(log.bad_lines),
        "is_adopted": vocabulary.stage == "adopt",
        "settings": {stage: dict(manifest.config) for stage, manifest in stages.items()},
        "fingerprints": {FOLDERS[stage]: manifest.fingerprint for stage, manifest in stages.items()},
    }
