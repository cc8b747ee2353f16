"""The step plans of all epochs of a run, and with them the next fetch of every row that is written back.

Lists of rows are read where they lie, usually in mapped files; what is found is written to such files too.
In memory are the next fetches of a range of rows, 8 bytes each; where the rows are many the pass over the
plans is made for one range after another, so that it keeps to any limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...stats.lookahead.step_plans import (
    NO_FETCH,
    RowMoves,
    StepPlans,
    find_next_fetches,
    find_next_of_residents,
)
from .mapped_arrays import mapped_zeros
from .used_rows import UsedRows

_LEAST_ROWS = 1 << 16
"""Rows of a pass at least: 512 KiB."""


@dataclass(frozen=True, slots=True)
class EpochPlans:
    """The step plans of one epoch and width."""

    chunks: tuple[StepPlans, ...]
    residents: NDArray[np.int64]
    """(num_residents,); rows written back after the last step."""


@dataclass(frozen=True, slots=True)
class ChunkFetches:
    """Where the rows that a chunk of steps moves come from and go to."""

    of_write_backs: NDArray[np.int64]
    """(num_write_backs,); next fetch of each row, -1: none."""
    of_splits: NDArray[np.int64]
    """(num_fetches,) where a step of the chunk is split; next fetch of the rows of such steps."""


@dataclass(frozen=True, slots=True)
class EpochFetches:
    """The same for an epoch."""

    first_fetch: int
    """Number of its first fetch."""
    chunks: tuple[ChunkFetches, ...]
    of_residents: NDArray[np.int64]
    """(num_residents,)."""


@dataclass(frozen=True, slots=True)
class RunFetches:
    """All fetches of a run in one width."""

    epochs: tuple[EpochFetches, ...]
    fetches_of_items: NDArray[np.int64]
    """(num_items,); rows that each transfer item fetches."""
    rows: NDArray[np.int64]
    """(num_fetches,); the row of each, mapped."""
    used: UsedRows
    """Counts of the rows that are written back at least once."""


def find_fetches(
    epochs: Sequence[EpochPlans],
    num_rows: int,
    folder: Path,
    memory_bytes: int,
    restored_U: NDArray[np.int64] | None = None,
) -> RunFetches:
    """Find all fetches of a run, and what is fetched next of the rows it writes back.

    Args:
        epochs: the plans, of all epochs in order.
        num_rows: rows are below it.
        folder: where files without a name may lie.
        memory_bytes: memory that next fetches may take while they are found.
        restored_U: (num_restored,); rows that were used before the first of the plans; None: none was.

    Raises:
        HotsetError: the disk is too small.
    """
    chunks = [chunk for epoch in epochs for chunk in epoch.chunks]
    # A row that is initialized on the fast tier is not fetched, so only the others count.
    counts = [_fetches_of_steps(chunk) for chunk in chunks]
    fetches_of_items = np.concatenate([np.empty(0, np.int64), *counts])
    used = UsedRows(num_rows)
    if restored_U is not None:
        used.add(restored_U)

    # The row of each fetch, in order; a mapped file, since a long run has billions.
    rows = mapped_zeros(folder, int(fetches_of_items.sum()), np.int64)
    end = 0
    for chunk in chunks:
        used.add(chunk.fetch_rows[chunk.fetch_is_first])
        fetched = chunk.fetch_rows[~chunk.fetch_is_first]
        rows[end : end + fetched.size] = fetched
        end += fetched.size

    # What is fetched next is known from the end backwards, for as many rows at a time as memory holds.
    found = _empty_fetches(epochs, folder)
    rows_of_pass = max(memory_bytes // 8, _LEAST_ROWS)
    for first_row in range(0, num_rows, rows_of_pass):
        next_of_row = np.full(min(rows_of_pass, num_rows - first_row), NO_FETCH, np.int64)
        _find_in_range(epochs, found, first_row, next_of_row, rows.size)
    firsts = _firsts_of_epochs(epochs)
    return RunFetches(
        tuple(
            EpochFetches(first, of_chunks, of_residents)
            for first, (of_chunks, of_residents) in zip(firsts, found, strict=True)
        ),
        fetches_of_items,
        rows,
        used,
    )


_Found = list[tuple[tuple[ChunkFetches, ...], NDArray[np.int64]]]
"""Results of the chunks of each epoch, and of its residents."""


def _find_in_range(
    epochs: Sequence[EpochPlans], found: _Found, first_row: int, next_of_row: NDArray[np.int64], end: int
) -> None:
    """Walk all plans backward, for the rows of one range."""
    for epoch, (of_chunks, of_residents) in zip(reversed(epochs), reversed(found), strict=True):
        find_next_of_residents(epoch.residents, first_row, next_of_row, of_residents)
        for chunk, fetches in zip(reversed(epoch.chunks), reversed(of_chunks), strict=True):
            moves = _moves_of(chunk)
            end = find_next_fetches(
                moves, end, first_row, next_of_row, fetches.of_write_backs, fetches.of_splits
            )
    assert end == 0, "fetches are numbered from 0"


def _empty_fetches(epochs: Sequence[EpochPlans], folder: Path) -> _Found:
    """Arrays for the results, all in one mapped file."""

    def sizes_of(chunk: StepPlans) -> tuple[int, int]:
        return chunk.write_back_rows.size, chunk.fetch_rows.size if chunk.is_split.any() else 0

    # One mapped file for all arrays, instead of one for each.
    total = sum(sum(sizes_of(chunk)) for epoch in epochs for chunk in epoch.chunks)
    whole = mapped_zeros(folder, total + sum(epoch.residents.size for epoch in epochs), np.int64)
    end = 0

    def cut(count: int) -> NDArray[np.int64]:
        nonlocal end
        end += count
        part: NDArray[np.int64] = whole[end - count : end]
        return part

    # Each chunk's parts lie one after another, those that live to the end of the epoch behind them.
    return [
        (
            tuple(ChunkFetches(*(cut(count) for count in sizes_of(chunk))) for chunk in epoch.chunks),
            cut(epoch.residents.size),
        )
        for epoch in epochs
    ]


def _fetches_of_steps(chunk: StepPlans) -> NDArray[np.int64]:
    running = np.concatenate([[0], np.cumsum(~chunk.fetch_is_first, dtype=np.int64)])
    fetches: NDArray[np.int64] = np.diff(running[chunk.fetch_offsets])
    return fetches


def _firsts_of_epochs(epochs: Sequence[EpochPlans]) -> list[int]:
    counts = [sum(int(_fetches_of_steps(chunk).sum()) for chunk in epoch.chunks) for epoch in epochs]
    return [sum(counts[:number]) for number in range(len(counts))]


def _moves_of(chunk: StepPlans) -> RowMoves:
    # Copies of one chunk: mapped arrays are read-only, for which Numba would compile the kernel once more.
    return RowMoves(
        np.array(chunk.fetch_offsets),
        np.array(chunk.fetch_rows),
        np.array(chunk.fetch_is_first),
        np.array(chunk.write_back_offsets),
        np.array(chunk.write_back_rows),
        np.array(chunk.is_split),
    )
