"""The schema and the vocabulary that a run predicts raw lines with.

A run that was trained where its vocabulary lay beside the shards keeps it, as links where the disk allows it:
such a run predicts alone, wherever it is moved. One that was trained on shards alone needs the folder that
`preprocess` wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...pipeline.errors import ConfigError, ManifestError
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.totals import ColumnsTotals, VocabularyTotals
from ...pipeline.schema.schema import Schema
from ...pipeline.schema.schema_file import schema_of
from ..data.batch import EmbeddingTable
from ..data.shard_origin import CRITEO
from ..run_config import RunConfig
from ..run_folder.run_files import VOCABULARY

_STAGES = ("rank", "adopt")
_OTHER_HINT = "name the folder whose shards the run was trained on"


@dataclass(frozen=True, slots=True)
class RunVocabulary:
    """The schema and vocabulary by which the lines of a log become samples."""

    schema: Schema
    folder: Manifest
    """The sealed vocabulary."""
    tables: tuple[EmbeddingTable, ...]
    """Tables of the run; none of their rows counts as hot."""
    schema_text: str
    """The schema as a setting."""

    @classmethod
    def open(cls, run: Path, config: RunConfig, given: Path | None = None) -> RunVocabulary:
        """Open the vocabulary that a run keeps, or the one in a folder of `preprocess`.

        Raises:
            ConfigError: the run keeps none, and none is given.
            ManifestError: it is damaged, or not the one whose ids the rows of the run have.
        """
        # The folder that is named comes first, then what the run keeps; its schema comes from the same place.
        if given is not None:
            folder = Manifest.read(given / VOCABULARY)
            schema = ColumnsTotals.of(Manifest.read(given / "columns")).schema or CRITEO
        elif config.schema is not None and (run / VOCABULARY).is_dir():
            folder = Manifest.read(run / VOCABULARY)
            schema = config.schema
        else:
            raise ConfigError(
                f"{run} keeps no vocabulary: there was none beside the shards it was trained on",
                hint="name the folder that preprocess wrote: --vocabulary DIR",
            )
        if folder.stage not in _STAGES:
            raise ManifestError(f"{folder.folder} holds the stage {folder.stage!r}, want a vocabulary")
        # With the ids of another vocabulary each category would get the row of another one.
        if config.vocabulary is not None and folder.fingerprint != config.vocabulary:
            raise ManifestError(
                f"{folder.folder} is not the vocabulary of {run}: its fingerprint is "
                f"{folder.fingerprint[:8]}, want {config.vocabulary[:8]}",
                hint=_OTHER_HINT,
            )
        return cls(schema_of(schema), folder, _tables(run, config, folder, schema_of(schema)), schema)


def _tables(run: Path, config: RunConfig, folder: Manifest, schema: Schema) -> tuple[EmbeddingTable, ...]:
    """The tables of the run; raises ManifestError where the vocabulary has others."""
    own = VocabularyTotals.of(folder).tables
    # Ids index the rows of the run, so their numbers must be equal.
    found = [*((table.name, table.num_rows) for table in own), ("dense features", len(schema.dense))]
    wanted = [
        *((table.name, table.num_rows) for table in config.tables),
        ("dense features", config.num_dense),
    ]
    if found != wanted:
        raise ManifestError(
            f"{folder.folder} is not the vocabulary of {run}: it has {_described(found, wanted)}",
            hint=_OTHER_HINT,
        )
    return tuple(
        EmbeddingTable(table.name, table.num_rows, 0, width.embedding_dim, table.is_multi_hot)
        for table, width in zip(own, config.tables, strict=True)
    )


def _described(found: Sequence[tuple[str, int]], wanted: Sequence[tuple[str, int]]) -> str:
    """The first table that differs, in words."""
    for (name, size), (other, other_size) in zip(found, wanted, strict=False):
        if (name, size) != (other, other_size):
            return f"{size} rows of {name}, the run {other_size} of {other}"
    return f"{len(found) - 1} tables, the run {len(wanted) - 1}"
