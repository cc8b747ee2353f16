"""Vectors that rows of a new run start with (``--init-table``), from files by category.

A file is read twice: once before the run begins, when its categories are looked up and everything that is
wrong with it is refused, and once while its vectors are copied to the tiers. Memory holds a block of it, and
4 bytes for each of its rows. Rows without a vector have their usual initial values, or those of the run that
the new one starts from; the optimizer state of the others is zero. A run is known by the bytes of its files.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError, InputError
from ...pipeline.folders.manifest import hash_file
from ...pipeline.formats.user_data import CATEGORY, CategoryIds, VectorFile
from ...pipeline.schema.schema import nearest, shown
from ...pipeline.schema.schema_file import schema_of
from ..config import Optimizers
from ..data.shards import ShardOrigin, Shards
from ..rows.embeddings import RowsPart
from ..rows.optimizers import RowOptimizer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GivenTable:
    """A file whose vectors are those of rows of one table."""

    name: str
    number: int
    """Of the table in the shards."""
    file: VectorFile
    ids_N: NDArray[np.int32]
    """(rows of the file,); the row that each vector is for, -1 where its category has none."""
    state_width: int
    checksum: str
    """That of the file."""

    @property
    def num_given(self) -> int:
        """Rows that get a vector."""
        return int(np.count_nonzero(self.ids_N >= 0))

    def rows(self) -> Iterator[RowsPart]:
        """Yield the rows that get a vector, block by block.

        Raises:
            InputError: the file has changed since it was opened.
        """
        first = 0
        for _, vectors_ND in self.file.blocks():
            ids_N = self.ids_N[first : first + vectors_ND.shape[0]]
            first += vectors_ND.shape[0]
            if ids_N.size == vectors_ND.shape[0]:
                is_given_N = ids_N >= 0
                tables_N = np.full(ids_N.size, self.number, np.int32)
                state_NW = np.zeros((ids_N.size, self.state_width), np.float32)
                yield RowsPart(tables_N, ids_N, vectors_ND, state_NW).chosen(is_given_N)
        if first != self.ids_N.size:
            raise InputError(f"{self.file.path} was changed while it was read")


def open_given_tables(files: Mapping[str, Path], shards: Shards, chosen: Optimizers) -> list[GivenTable]:
    """Open the files of some tables, by name, and look up their categories.

    Raises:
        ConfigError: there is no such table, or the shards' folder has no vocabulary.
        InputError: a file is no such file, or two of its rows are for one row of the table.
    """
    origin = ShardOrigin.of(shards)
    if origin is None:
        raise ConfigError(
            f"--init-table needs the vocabulary, and there is none next to {shards.manifest.folder}",
            hint="give the folder that preprocess wrote (its --out)",
        )
    schema = schema_of(origin.schema)
    optimizer = RowOptimizer(chosen.embedding_optimizer, 1.0)
    numbers = {table.name: number for number, table in enumerate(shards.tables)}
    found = []
    for name, path in files.items():
        if name not in numbers:
            names = shown(", ".join(numbers))
            raise ConfigError(
                f"--init-table: {shards.manifest.folder} has no table {name!r}",
                hint=nearest(name, numbers) or f"its tables are {names}",
            )
        table = shards.tables[numbers[name]]
        file = VectorFile(path, table.embedding_dim, (CATEGORY, name))
        ids_N = _look_up(file, CategoryIds(origin.vocabulary, schema, name))
        width = optimizer.state_width(table.embedding_dim)
        given = GivenTable(name, numbers[name], file, ids_N, width, hash_file(path)[1])
        _report(given, table.num_rows)
        found.append(given)
    return found


def _look_up(file: VectorFile, categories: CategoryIds) -> NDArray[np.int32]:
    """Return the id of each row of a file, -1 where it has none."""
    is_seen = np.zeros(categories.table.num_rows, np.bool_)
    blocks = [np.empty(0, np.int32)]
    first = 0
    for values, _ in file.blocks():
        ids_N = categories.find(values, source=str(file.path), column=file.column, first_row=first)
        # Rows of the file that are for one row of the table, in this block or with one before.
        order = np.argsort(ids_N, kind="stable")
        is_twice_N = np.zeros(ids_N.size, np.bool_)
        is_twice_N[order[1:]] = ids_N[order[1:]] == ids_N[order[:-1]]
        is_twice_N |= is_seen[ids_N]
        is_twice_N &= ids_N >= 0
        if is_twice_N.any():
            row = first + int(np.argmax(is_twice_N)) + 1
            raise InputError(
                f"{file.path}, row {row}: an earlier row has its category",
                hint=f"keep one vector for each category of {categories.table.name}",
            )
        is_seen[ids_N[ids_N >= 0]] = True
        blocks.append(ids_N)
        first += ids_N.size
    return np.concatenate(blocks)


def _report(given: GivenTable, num_rows: int) -> None:
    """Log how many rows get a vector, and how many vectors are for none."""
    num_unknown = given.ids_N.size - given.num_given
    _log.log(
        logging.WARNING if num_unknown or not given.num_given else logging.INFO,
        "%s of %s rows of %s start with a given vector; %s given categories have no row",
        f"{given.num_given:,}",
        f"{num_rows:,}",
        given.name,
        f"{num_unknown:,}",
    )
