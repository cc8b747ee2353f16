"""Parts of all rows by table and id, restored from checkpoints.

A part does not say where its rows lived, so that it can be restored under another placement, budget or number
of processes. `checkpoints.writer` takes rows out of the tiers. Shapes: N rows of one table group in a part, D
floats of a row, W floats of its state.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..rows.changed_rows import ChangedRows
from ..rows.tiers import FileTier
from .embeddings import Embeddings
from .table_group import TableGroup


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Some rows of one group with their state."""

    tables_N: NDArray[np.int32]
    """(N,); table of each row, as numbered in the shards."""
    ids_N: NDArray[np.int32]
    weights_ND: NDArray[np.float32]
    state_NW: NDArray[np.float32]

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in (self.tables_N, self.ids_N, self.weights_ND, self.state_NW))

    def chosen(self, is_chosen_N: NDArray[np.bool_]) -> RowsPart:
        """Return some of the rows."""
        return RowsPart(
            self.tables_N[is_chosen_N],
            self.ids_N[is_chosen_N],
            self.weights_ND[is_chosen_N],
            self.state_NW[is_chosen_N],
        )


RowsSource = Callable[[], Iterable[RowsPart]]
"""Yields parts each time it is called; of a row that is in several, the first has its value."""


def settle(embeddings: Embeddings, *, is_lost: bool) -> None:
    """End the saving of rows: they are saved, or changed as before."""
    for group in embeddings.groups:
        changed_of(group).settle(is_lost=is_lost)


def restore_rows(embeddings: Embeddings, source: RowsSource, *, are_saved: bool) -> None:
    """Set rows in memory before the first step, and mark them used.

    Those of a slow tier in a file are only marked: `refill_stores` puts them there, once there is a plan.

    Args:
        are_saved: whether the rows are in a checkpoint of this run already.
    """
    for group, part in _newest(embeddings, source):
        changed = changed_of(group)
        tables_N = _positions_in(group, part)
        ids_N = part.ids_N.astype(np.int64)
        group.restore(tables_N, ids_N, part.weights_ND, part.state_NW)
        changed.mark_rows(changed.layout.slots_of_rows(tables_N, ids_N), is_saved=are_saved)


def refill_stores(embeddings: Embeddings, source: RowsSource) -> None:
    """Put restored rows of spill files where their next fetch is."""
    # Only rows in files must be where their next fetch expects them.
    if not any(isinstance(group.slow, FileTier) for group in embeddings.groups):
        return
    for group, part in _newest(embeddings, source):
        slow = group.slow
        if not isinstance(slow, FileTier):
            continue
        slots_N = slow.layout.slots_of_rows(_positions_in(group, part), part.ids_N.astype(np.int64))
        is_cold_N = slots_N >= 0
        slow.refill(slots_N[is_cold_N], part.weights_ND[is_cold_N], part.state_NW[is_cold_N])


def used_slow_rows(group: TableGroup) -> Iterator[NDArray[np.int64]]:
    """Yield the changed rows of a table group's slow tier, ascending, in parts."""
    changed = changed_of(group)
    for rows_N in changed.used():
        slots_N = group.slow.layout.slots_of_rows(*changed.layout.rows_at(rows_N))
        yield slots_N[slots_N >= 0]


def _newest(embeddings: Embeddings, source: RowsSource) -> Iterator[tuple[TableGroup, RowsPart]]:
    """Yield each row once, with its newest value, and its group."""
    # A bitmap a group: the first part that holds a row has its newest value.
    group_of = {table: group for group in embeddings.groups for table in group.tables}
    seen = {
        group.embedding_dim: np.zeros(sum(group.placement.num_rows), np.bool_) for group in embeddings.groups
    }
    for whole in source():
        is_held_N, ids_N = embeddings.local_ids(whole.tables_N, whole.ids_N)
        part = replace(whole.chosen(is_held_N), ids_N=ids_N)
        if part.ids_N.size == 0:
            continue
        group = group_of[int(part.tables_N[0])]
        layout = changed_of(group).layout
        rows_N = layout.slots_of_rows(_positions_in(group, part), part.ids_N.astype(np.int64))
        is_new_N = ~seen[group.embedding_dim][rows_N]
        seen[group.embedding_dim][rows_N] = True
        yield group, part if is_new_N.all() else part.chosen(is_new_N)


def _positions_in(group: TableGroup, part: RowsPart) -> NDArray[np.int64]:
    """(N,): the table of each row among those of the group, which are ascending."""
    return np.searchsorted(np.array(group.tables), part.tables_N).astype(np.int64)


def changed_of(group: TableGroup) -> ChangedRows:
    """The marks of the rows of a group."""
    assert group.changed is not None, "rows are tracked where there are checkpoints"
    return group.changed
