"""The sizes of a log that a dense model is built for. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self


class _Table(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def embedding_dim(self) -> int: ...
    @property
    def is_multi_hot(self) -> bool: ...


class _Sizes(Protocol):
    @property
    def num_dense(self) -> int: ...
    @property
    def tables(self) -> Sequence[_Table]: ...
    @property
    def embedding_dim(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TableInput:
    """An embedding table, as the constructor of a model sees it."""

    name: str
    """Name of its feature."""
    num_embeddings: int
    """Rows of the table."""
    embedding_dim: int
    """Width of its embeddings."""
    is_multi_hot: bool = False
    """Whether its feature is list-valued."""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The sizes that the constructor of a user's module gets as its first argument."""

    num_dense: int
    """Number of dense features, which may be 0."""
    tables: tuple[TableInput, ...]
    """The embedding tables in the order of the features."""
    embedding_dim: int
    """Width of the embeddings that the log was preprocessed for; single tables may have others."""

    @classmethod
    def of(cls, sizes: _Sizes) -> Self:
        """Describe the features and tables of shards, or of the config of a run."""
        tables = (
            TableInput(table.name, table.num_rows, table.embedding_dim, table.is_multi_hot)
            for table in sizes.tables
        )
        return cls(sizes.num_dense, tuple(tables), sizes.embedding_dim)

    @property
    def table_dims(self) -> tuple[int, ...]:
        """Width of the embeddings of each table."""
        return tuple(table.embedding_dim for table in self.tables)

    @property
    def total_dim(self) -> int:
        """Width of all embeddings of a sample side by side."""
        return sum(self.table_dims)
