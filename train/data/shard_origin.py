"""The log behind shards: its schema and the vocabulary of its ids, where their folders are still beside them.

Shards have all that training needs. Whoever predicts the lines of a log needs these two as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...pipeline.folders.manifest import MANIFEST, Manifest
from ...pipeline.folders.totals import ColumnsTotals
from .shards import Shards

CRITEO = "criteo-kaggle"
"""The built-in schema of all logs in Criteo's format."""


@dataclass(frozen=True, slots=True)
class ShardOrigin:
    """The schema and vocabulary by which the lines of a log become samples."""

    schema: str
    """The schema as a setting: the name of a built-in one, or TOML."""
    vocabulary: Manifest

    @classmethod
    def of(cls, shards: Shards) -> ShardOrigin | None:
        """Find the origin of shards; None where a folder is missing, or of another log by now."""
        wanted = vocabulary_of(shards)
        vocabulary = _sibling(shards, "vocabulary")
        columns = _sibling(shards, "columns")
        if vocabulary is None or columns is None or vocabulary.fingerprint != wanted:
            return None
        if columns.fingerprint != _inputs_of(shards.manifest).get("columns"):
            return None
        return cls(ColumnsTotals.of(columns).schema or CRITEO, vocabulary)


def vocabulary_of(shards: Shards) -> str | None:
    """The fingerprint of the vocabulary that the ids of shards are of; None where its folder is gone."""
    plan = _sibling(shards, "plan")
    # A plan that was written since has perhaps other ids.
    if plan is None or plan.fingerprint != _inputs_of(shards.manifest).get("plan"):
        return None
    return _inputs_of(plan).get("vocabulary")


def _sibling(shards: Shards, name: str) -> Manifest | None:
    folder = shards.manifest.folder.parent / name
    return Manifest.read(folder) if (folder / MANIFEST).exists() else None


def _inputs_of(manifest: Manifest) -> dict[str, str]:
    return {source["name"]: str(source.get("fingerprint")) for source in manifest.inputs}
