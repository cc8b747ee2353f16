"""Random runs over rows that spill: plans by lookahead, and a twin that keeps every row in a dict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.stats.lookahead.planner import lookahead_planner
from hotset.stats.lookahead.step_plans import RowStream, StepPlans, next_uses
from hotset.train.placements.spill_plan import (
    EpochPlans,
    RunFetches,
    SpillShape,
    SpillSizes,
    UsedRows,
    choose_all_sizes,
    find_fetches,
)
from hotset.train.placements.spilled_rows import RowStore


def choose_sizes(shape: SpillShape, limit_bytes: int) -> SpillSizes:
    """The sizes of one table group alone."""
    return choose_all_sizes([shape], limit_bytes)[0]


def all_used(num_rows: int) -> UsedRows:
    """Counts in which every row is used."""
    used = UsedRows(num_rows)
    firsts_C = np.arange(used._counts_C.size) * used.cell_rows
    used._counts_C[:] = np.minimum(num_rows - firsts_C, used.cell_rows)
    return used


def plan_epochs(
    rng: np.random.Generator, num_rows: int, num_slots: int, *, num_epochs: int = 2, num_steps: int = 30
) -> list[EpochPlans]:
    """Plans of epochs of random batches, some of more rows than slots."""
    planner = lookahead_planner(num_rows, num_slots, prefetch=1, splits=True)
    epochs = []
    for _ in range(num_epochs):
        sizes = rng.integers(0, min(num_slots * 5 // 4, num_rows), num_steps)
        stream = RowStream.of([rng.permutation(num_rows)[:size] for size in sizes])
        uses = next_uses(stream.offsets, stream.rows, num_rows)
        chunks: list[StepPlans] = []
        for first in range(0, num_steps, 7):
            stop = min(first + 7, num_steps)
            left, right = stream.offsets[first], stream.offsets[stop]
            offsets = stream.offsets[first : stop + 1] - left
            chunks += planner.plan(RowStream(offsets, stream.rows[left:right], None, uses[left:right]))
        epochs.append(EpochPlans(tuple(chunks), planner.end_epoch().rows.astype(np.int64)))
    return epochs


class Twin:
    """A row store and a dict that does the same."""

    def __init__(
        self,
        epochs: list[EpochPlans],
        tables: tuple[int, ...],
        dim: int,
        width: int,
        folder: Path,
        limit: int,
    ) -> None:
        self.epochs = epochs
        self.fetches: RunFetches = find_fetches(epochs, sum(tables), folder, 0)
        self.shape = SpillShape(dim, width, tables, self.fetches.fetches_of_items, self.fetches.used)
        self.sizes: SpillSizes = choose_sizes(self.shape, limit)
        self.store = RowStore(self.shape, self.sizes, self.fetches.rows, folder)
        self.values: dict[int, NDArray[np.float32]] = {}
        """The newest value of every row that was written back, weights and state together."""

    def run(self, rng: np.random.Generator, looks: int = 0) -> None:
        """Run all epochs; every row fetched must be what the dict has. ``looks`` times all rows are read."""
        number = 0
        steps = sum(chunk.num_steps for epoch in self.epochs for chunk in epoch.chunks)
        look_at = set(rng.integers(0, steps, looks).tolist())
        done = 0
        for epoch, fetches in zip(self.epochs, self.fetches.epochs, strict=True):
            slots: dict[int, NDArray[np.float32]] = {}
            for chunk, found in zip(epoch.chunks, fetches.chunks, strict=True):
                for step in range(chunk.num_steps):
                    backs = slice(*chunk.write_back_offsets[step : step + 2])
                    self._put(chunk.write_back_rows[backs], found.of_write_backs[backs], slots)
                    came = slice(*chunk.fetch_offsets[step : step + 2])
                    rows, is_first = chunk.fetch_rows[came], chunk.fetch_is_first[came]
                    count = int(np.count_nonzero(~is_first))
                    # A split step fetches twice.
                    for _ in range(1 + chunk.is_split[step]):
                        self._take(rows[~is_first], np.arange(number, number + count), slots)
                    number += count
                    for row in rows[is_first].tolist():
                        slots[row] = self._initial(row)
                    for row in slots:
                        slots[row] = rng.random(self.shape.record_bytes // 4 - 1, np.float32)
                    if chunk.is_split[step]:
                        self._put(rows, found.of_splits[came], slots)
                    if done in look_at:
                        self._look(slots)
                    done += 1
            self._put(epoch.residents, fetches.of_residents, slots)
            assert not slots
        self.store.finish()

    def merged(self) -> NDArray[np.float32]:
        """All rows as the ranges have them, (rows, dim + width)."""
        parts = []
        for number in range(self.sizes.num_ranges):
            for weights, state in self.store.parts_of_range(number, self._fill):
                parts.append(np.concatenate([weights, state], axis=1))
        return np.concatenate(parts)

    def _fill(self, rows: NDArray[np.int64], weights: NDArray[np.float32]) -> None:
        for row, target in zip(rows.tolist(), weights, strict=True):
            target[:] = self._initial(row)[: target.size]

    def wanted(self) -> NDArray[np.float32]:
        """The same by the dict."""
        return np.stack([self.values.get(row, self._initial(row)) for row in range(self.shape.num_rows)])

    def _initial(self, row: int) -> NDArray[np.float32]:
        state = np.zeros(self.shape.state_width, np.float32)
        return np.append(np.full(self.shape.embedding_dim, -row - 1, np.float32), state)

    def _put(
        self, rows: NDArray[Any], targets: NDArray[np.int64], slots: dict[int, NDArray[np.float32]]
    ) -> None:
        dim = self.shape.embedding_dim
        order = np.arange(rows.size)[::-1].copy()
        whole = np.zeros((rows.size, self.shape.record_bytes // 4 - 1), np.float32)
        for row, slot in zip(rows.tolist(), order.tolist(), strict=True):
            whole[slot] = self.values[row] = slots.pop(row)
        self.store.put(
            rows.astype(np.int64), np.array(targets), whole[:, :dim].copy(), whole[:, dim:].copy(), order
        )

    def _take(
        self, rows: NDArray[Any], numbers: NDArray[np.int64], slots: dict[int, NDArray[np.float32]]
    ) -> None:
        dim, width = self.shape.embedding_dim, self.shape.state_width
        weights = np.zeros((rows.size, dim), np.float32)
        state = np.zeros((rows.size, width), np.float32)
        self.store.take(numbers, weights, state, np.arange(rows.size))
        whole = np.concatenate([weights, state], axis=1)
        for row, value in zip(rows.tolist(), whole, strict=True):
            np.testing.assert_array_equal(value, self.values[row])
            slots[row] = value

    def _look(self, slots: dict[int, NDArray[np.float32]]) -> None:
        """Read the weights of every row that is in no slot."""
        rows = np.array([row for row in range(self.shape.num_rows) if row not in slots], np.int64)
        weights = np.stack([self._initial(row) for row in rows.tolist()])[
            :, : self.shape.embedding_dim
        ].copy()
        self.store.pick(rows, weights)
        for row, value in zip(rows.tolist(), weights, strict=True):
            wanted = self.values.get(row, self._initial(row))[: self.shape.embedding_dim]
            np.testing.assert_array_equal(value, wanted)
