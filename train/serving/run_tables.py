"""The tables of a run by category, row types, and export options.

Categories are 64-bit numbers, compared as signed ones: integers as they are (unsigned ones above 2**63 as
negative), 8 hex digits by their value, texts by xxh3-64. Exported rows are as trained, half as wide, or 8
bits with a scale of each row: a row of 16 floats takes 64 bytes in fp32, 32 in fp16 and bf16, and 24 in int8.
The description of the model in an exported folder is enough to build it again from the tensors. Imports
little: the command line builds its options from this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError, HotsetError, ManifestError, first_line
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.totals import ColumnsTotals, VocabularyTotals
from ...pipeline.formats.arrow_files import read_batch, values_of
from ...pipeline.runtime.tasks import ProgressCallback, silent
from ...pipeline.schema.schema import Schema
from ...pipeline.schema.schema_file import schema_of
from ..config import ROW_TYPES, RowType
from ..data.batch import EmbeddingTable
from ..data.shards import CRITEO
from ..run_config import CONFIG, RunConfig, read_config, read_object
from ..run_folder.files import VOCABULARY, WEIGHTS
from ..run_folder.reader import read_manifest, read_weights
from ..run_folder.weights import Weights

# ruff: noqa: N815  (tensors carry shape suffixes)

_STAGES = ("rank", "adopt")
_OTHER_HINT = "name the folder whose shards the run was trained on"


@dataclass(frozen=True, slots=True)
class TableCategories:
    """The categories of one table that have a row."""

    table: EmbeddingTable
    oov_id: int
    """Row of all other categories."""
    missing_id: int
    """Row of a missing one."""
    categories_N: NDArray[np.int64]
    """Ascending, distinct."""
    ids_N: NDArray[np.int32]
    """The row of each."""


@dataclass(frozen=True, slots=True)
class RunTables:
    """The parts of a run that an export reads."""

    run: Path
    config: RunConfig
    weights: Weights
    schema: Schema
    vocabulary: Manifest
    """The sealed vocabulary by which the lines of a log become samples."""
    tables: tuple[EmbeddingTable, ...]
    """Tables of the run; none of their rows counts as hot."""
    fingerprint: str
    """That of the run."""
    schema_text: str
    """The schema as a setting."""

    @classmethod
    def open(cls, run: Path, vocabulary: Path | None = None) -> RunTables:
        """Open a finished run, its files hashed.

        Args:
            vocabulary: folder that `preprocess` wrote, for a run that keeps no vocabulary.

        Raises:
            HotsetError: the run is unfinished or damaged, or has no vocabulary.
        """
        # Cheap checks before anything is hashed.
        config = read_config(run)
        weights = read_weights(run)
        folder, text = open_vocabulary(run, config, vocabulary)
        schema = schema_of(text)
        tables = _tables(run, config, folder, schema)
        fingerprint = read_manifest(run, (CONFIG, WEIGHTS)).fingerprint
        return cls(run, config, weights, schema, folder, tables, fingerprint, text)

    def categories(self, progress: ProgressCallback = silent) -> Iterator[TableCategories]:
        """Yield the categories of each table, in their order.

        Args:
            progress: called with how far the caller is with them, in rows.
        """
        infos = VocabularyTotals.of(self.vocabulary).tables
        done = 0
        total = sum(table.num_rows for table in self.tables)
        progress("rows", done, total)
        for table, info in zip(self.tables, infos, strict=True):
            batch = read_batch(self.vocabulary, self.vocabulary.entry(f"{table.name}.arrow"))
            array = batch.column("category")
            found = values_of(array).astype(np.uint64).view(np.int64)
            if found.size != table.num_rows:
                folder = self.vocabulary.folder
                raise HotsetError(f"{folder} has {found.size} rows of {table.name}, want {table.num_rows}")
            # The rows of oov and of missing values are among the others, without a category.
            ids = np.arange(table.num_rows, dtype=np.int32)
            own = (ids != info.oov_id) & (ids != info.missing_id)
            order = np.argsort(found[own], kind="stable")
            yield TableCategories(table, info.oov_id, info.missing_id, found[own][order], ids[own][order])
            done += table.num_rows
            progress("rows", done, total)


def open_vocabulary(run: Path, config: RunConfig, given: Path | None = None) -> tuple[Manifest, str]:
    """Return the vocabulary that a run or a preprocessed folder keeps, and its schema as a setting.

    Args:
        given: folder that `preprocess` wrote; it comes before what the run keeps.

    Raises:
        ConfigError: the run keeps none, and none is given.
        ManifestError: it is damaged, or not the one whose ids the rows of the run have.
    """
    if given is not None:
        folder = Manifest.read(given / VOCABULARY)
        schema = ColumnsTotals.of(Manifest.read(given / "columns")).schema or CRITEO
    elif config.schema is not None and (run / VOCABULARY).is_dir():
        folder = Manifest.read(run / VOCABULARY)
        schema = config.schema
    else:
        raise ConfigError(
            f"{run} keeps no vocabulary: there was none next to the shards it was trained on",
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
    return folder, schema


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
        # The first table that differs, in words.
        described = f"{len(found) - 1} tables, the run {len(wanted) - 1}"
        for (name, size), (other, other_size) in zip(found, wanted, strict=False):
            if (name, size) != (other, other_size):
                described = f"{size} rows of {name}, the run {other_size} of {other}"
                break
        raise ManifestError(
            f"{folder.folder} is not the vocabulary of {run}: it has {described}", hint=_OTHER_HINT
        )
    return tuple(
        EmbeddingTable(
            table.name, table.num_rows, 0, width.embedding_dim, table.is_multi_hot, features=table.features
        )
        for table, width in zip(own, config.tables, strict=True)
    )


_TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_MOST_CODE = 255
_MOST = {"fp16": 65504.0, "int8": 1.7e38}
"""Largest values of a type: a code of int8 times its step is to stay within float32."""


def pack_rows(rows_ND: torch.Tensor, row_type: RowType) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return rows in another type.

    Args:
        rows_ND: (N, D) float32, finite.
        row_type: the type to store.

    Returns:
        (N, D) of that type, uint8 for int8; and for int8 (N, 2) float32, the least value of each row and the
        step between two codes, else None.

    Error:
        fp16 and bf16 round to the nearest; int8 is off by at most half a step, a 510th of the range of the
        row. Values beyond 65504 in fp16, and 1.7e38 in int8, are cut to these.
    """
    if row_type in _MOST:
        rows_ND = rows_ND.clamp(-_MOST[row_type], _MOST[row_type])
    if row_type != "int8":
        return rows_ND.to(_TORCH[row_type]), None
    low_N1 = rows_ND.amin(1, keepdim=True)
    step_N1 = (rows_ND.amax(1, keepdim=True) - low_N1) / _MOST_CODE
    # Rows of one value have a step of 0, and all their codes are 0.
    divisor_N1 = torch.where(step_N1 > 0, step_N1, torch.ones_like(step_N1))
    codes_ND = ((rows_ND - low_N1) / divisor_N1).round().clamp(0, _MOST_CODE).to(torch.uint8)
    return codes_ND, torch.cat([low_N1, step_N1], dim=1)


def unpack_rows(packed_ND: torch.Tensor, scale_N2: torch.Tensor | None) -> torch.Tensor:
    """Return rows that `pack_rows` packed as float32; exact but for what packing lost."""
    rows_ND = packed_ND.to(torch.float32)
    return rows_ND if scale_N2 is None else scale_N2[:, :1] + rows_ND * scale_N2[:, 1:]


MODEL = "model.json"


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """The model of an exported folder."""

    config: RunConfig
    """That of the run; its tables say which of them are multi-hot."""
    schema_text: str
    """Schema of the log, as a setting."""
    row_type: RowType

    @classmethod
    def of(cls, found: RunTables, row_type: RowType) -> Self:
        """Describe the model of a run."""
        pairs = zip(found.config.tables, found.tables, strict=True)
        tables = tuple(
            replace(own, is_multi_hot=table.is_multi_hot, features=table.features) for own, table in pairs
        )
        return cls(replace(found.config, tables=tables), found.schema_text, row_type)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file of an exported folder.

        Raises:
            HotsetError: it is missing or damaged.
        """
        path = folder / MODEL
        found = read_object(path, None)
        try:
            row_type = found["row_type"]
            text = found["schema"]
            if row_type not in ROW_TYPES or not isinstance(text, str):
                raise ValueError(f"row_type is {row_type!r}")
            config = found["config"]
        except (ValueError, KeyError, TypeError) as error:
            raise HotsetError(f"{path} cannot be read: {first_line(error)}") from error
        return cls(RunConfig.read(config, str(path)), text, row_type)

    @property
    def schema(self) -> Schema:
        """The schema of the log."""
        return schema_of(self.schema_text)

    def to_json(self) -> dict[str, Any]:
        """Return the contents of the file."""
        return {"row_type": self.row_type, "schema": self.schema_text, "config": self.config.to_json()}
