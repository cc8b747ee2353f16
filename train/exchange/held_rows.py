"""The rows of one table group that this rank owns, as tables of their own.

The owner of a row holds its weights and optimizer state. The rows of a rank keep their order, so its part of
a table is a table of fewer rows whose hot rows are a prefix, and tiers, placements and planners work on it as
in one process. Keys number the rows of all tables of the group, table after table; such a map takes 5 bytes
per row on every rank.

Shapes: F tables of the group, K keys, R rows that this rank owns, S of these that a step serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...stats.batch_rows import LookupsByRow
from ..data.batch import EmbeddingTable
from ..rows.initial_values import HeldIds


class HeldRows:
    """The owner of each row of a table group, and the rows of this rank.

    Args:
        num_rows: of each table.
        owners_K: (num_keys,); the rank that owns each row.
        rank: this one.
    """

    def __init__(self, num_rows: Sequence[int], owners_K: NDArray[np.uint8], rank: int) -> None:
        self.first_key_F1 = np.cumsum([0, *num_rows])
        """Key of the first row of each table, and the end of the last."""
        self.owners_K = owners_K
        """The rank that owns each row."""
        self.rank = rank
        # The rows here are numbered by their keys; what other rows get is never read.
        is_held_K = owners_K == rank
        self._number_K = (np.cumsum(is_held_K) - 1).astype(np.int32)
        self.keys_R = np.flatnonzero(is_held_K)
        """Keys of the rows that this rank owns, ascending."""
        # A key less the first key of its table is an id.
        first_F1 = np.searchsorted(self.keys_R, self.first_key_F1)
        firsts_R = np.repeat(self.first_key_F1[:-1], np.diff(first_F1))
        self.ids = HeldIds((self.keys_R - firsts_R).astype(np.int32), first_F1.astype(np.int64))
        """Their ids."""

    def cut(self, tables: Sequence[EmbeddingTable]) -> list[EmbeddingTable]:
        """Return the tables of the width as they are here."""
        # Held ids ascend, so the hot ones are a prefix here too.
        return [
            replace(
                table,
                num_rows=int(self.ids.of_table(number).size),
                num_hot=int(np.searchsorted(self.ids.of_table(number), table.num_hot)),
            )
            for number, table in enumerate(tables)
        ]

    def keys(self, tables_N: NDArray[np.int64], ids_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the keys of rows by table and id."""
        return self.first_key_F1[tables_N] + ids_N

    def local_ids(self, tables_N: NDArray[np.int64], keys_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers that rows of this rank have in their tables here."""
        return self._number_K[keys_N] - self.ids.first_F1[tables_N]

    def served(self, keys_S: NDArray[np.int32]) -> LookupsByRow:
        """Return one lookup of each of some rows of this rank, in its tables.

        Args:
            keys_S: (num_served,), ascending.
        """
        # Keys ascend, so those of a table lie together, and its first local number is taken from each.
        first_F1 = np.searchsorted(keys_S, self.first_key_F1)
        firsts = np.repeat(self.ids.first_F1[:-1], np.diff(first_F1))
        # Lookup i is the only one of row i: the order and the starts are the same numbers.
        numbers = np.arange(keys_S.size + 1, dtype=np.int32)
        rows = (self._number_K[keys_S] - firsts).astype(np.int32)
        return LookupsByRow(numbers[:-1], rows, numbers, first_F1.astype(np.int64))

    def served_of(self, keys_U: NDArray[np.int32]) -> LookupsByRow:
        """Return the same of those among some rows, ascending, that this rank owns."""
        return self.served(keys_U[self.owners_K[keys_U] == self.rank])
