"""The tables of a log as the manifests of its folders describe them, one class for each kind of folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .json_record import JsonRecord, require_range

MOST_ROWS = 2**31 - 1
"""Rows of a table: ids are int32."""
MOST_FLOATS = 2**20
"""Floats of a row: far more than any model has."""


class NamedTable(Protocol):
    """The fields that the tables of all folders have."""

    @property
    def name(self) -> str:
        """Name of the feature that looks up in the table."""

    @property
    def is_multi_hot(self) -> bool:
        """Whether samples have any number of lookups in the table instead of one each."""


class TableInfo(NamedTable, Protocol):
    """The fields that tables have in every folder with ids."""

    @property
    def num_rows(self) -> int:
        """Rows, those of missing and out-of-vocabulary values included."""

    @property
    def oov_id(self) -> int:
        """Id of the row that categories without a row of their own share."""

    @property
    def missing_id(self) -> int:
        """Id of the row of missing values; that of oov where they are too few for a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedTable(JsonRecord):
    """A table in counts/."""

    name: str
    """Name of the feature."""
    num_categories: int
    """Distinct categories, missing values not included."""
    num_missing: int
    """Lookups without a value."""
    num_lookups: int | None = None
    """Lookups of the samples that were counted; None where every sample has one."""
    is_multi_hot: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyTable(JsonRecord):
    """A table in vocabulary/."""

    name: str
    """Name of the feature."""
    num_rows: int
    oov_id: int
    missing_id: int
    oov_count: int
    """Lookups of the out-of-vocabulary row."""
    num_lookups: int | None = None
    """Lookups of the samples that were counted; None where every sample has one."""
    is_multi_hot: bool = False

    def refuse_nonsense(self, where: str) -> None:
        require_range(f"{where}num_rows", self.num_rows, 1, MOST_ROWS)
        require_range(f"{where}oov_id", self.oov_id, 0, self.num_rows - 1)
        require_range(f"{where}missing_id", self.missing_id, 0, self.num_rows - 1)
        require_range(f"{where}oov_count", self.oov_count, 0)
        require_range(f"{where}num_lookups", self.num_lookups, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleTable(VocabularyTable):
    """A table in samples/: that of the vocabulary, and how the log looks it up."""

    oov_train: int
    """Lookups of the out-of-vocabulary row in the training part."""
    oov_evaluation: int
    """Lookups of that row in the evaluation part."""
    lookups_train: int | None = None
    """Lookups in the training part; None where every sample has one."""
    lookups_evaluation: int | None = None
    """Lookups in the evaluation part; None where every sample has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTable(JsonRecord):
    """A table in plan/ and shards/."""

    name: str
    """Name of the feature."""
    num_rows: int
    oov_id: int
    missing_id: int
    is_multi_hot: bool = False
    num_hot: int
    """Rows kept in fast memory: those with a lower id."""
    embedding_dim: int | None = None
    """Floats of a row; None where it is the one of the config."""
    row_bytes: int | None = None
    """Bytes of a row with its optimizer state; None where they are those of all tables together."""

    def refuse_nonsense(self, where: str) -> None:
        require_range(f"{where}num_rows", self.num_rows, 1, MOST_ROWS)
        require_range(f"{where}oov_id", self.oov_id, 0, self.num_rows - 1)
        require_range(f"{where}missing_id", self.missing_id, 0, self.num_rows - 1)
        require_range(f"{where}num_hot", self.num_hot, 0, self.num_rows)
        require_range(f"{where}embedding_dim", self.embedding_dim, 1, MOST_FLOATS)
        require_range(f"{where}row_bytes", self.row_bytes, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedTable(JsonRecord):
    """A table of a map from old ids to new ones."""

    name: str
    """Name of the feature."""
    num_old_rows: int
    num_new_rows: int
    num_kept: int
    """Old rows that have a new id."""
    kept_lookups: int
    """Lookups of the new log in rows that are kept."""
    new_lookups: int
    """Lookups of the new log in all rows."""
