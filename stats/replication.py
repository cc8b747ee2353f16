"""How many rows of each table to replicate on all ranks, where the others are divided among them.

A step of W ranks gives each a part of the batch. The rows of a table below ``h`` are on every rank, and their
gradients are all-reduced whole in every step. The others have one owner. A rank sends the distinct ids of
these that its samples look up, gets a vector for each and sends a gradient back; if no rank has any, the step
has no all-to-all. So a rank hands over, on average over the ranks, with d distinct ids of T tables:

    all-reduce     4 D h                                      every step
    all-to-all     d (8 + 4 D + 4 D) + 4 T + 24 W              mixed steps alone: ids, vectors, gradients,
                                                              lengths; sizes of three messages to each rank
    pooled tables  b (8 l + 4 F + 4 D F + 4 D F)               b samples with l lookups of F features

Of what is handed over, a part stays where it is: ``1 / W`` of an all-to-all on average over owners. An
all-reduce by a ring sends ``2 (W - 1) / W`` of its bytes. These crossing bytes are compared with the speed
of the links.

The time of a step is a sum over tables, of a function of each table's own ``h``, and of a fixed time for each
mixed step (`Network.exchange_seconds`), which couples the tables: a step is hot-only if the largest id of
every table is replicated. `choose_prefixes` minimises it. For a given set of steps that are to be hot-only
the tables are independent, and the best ``h`` of each is found exactly, or by a Lagrangian multiplier where
memory is short. Sets grow by the step that adds least, and the best one is improved table by table. A bound
of the optimum says how near the choice is (`Choice.bound_seconds`). Of 3,000 small logs, 17 had a better
choice, all of them under a limit of memory.

In bytes alone few rows are worth it: a row pays if nearly every rank uses it in nearly every step, as its
gradient crosses twice in an all-reduce. Hot-only steps pay if messages take time besides their bytes.

Counting takes one pass over the lookups, some 5 ns each, and 8 bytes for each row; choosing takes 32 bytes
for each row of the largest table.

Source:
    Erdogan et al., SCARS, arXiv 2411.01611, for the expected rows of a regime; messages as TorchRec 1.9
    sends them, see docs/devices.md.

Shapes: S steps, T tables, W ranks, N lookups, K rows of a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .batch_rows import part_of_rank
from .kernel import kernel

# ruff: noqa: N815  (arrays carry shape suffixes)

_ID_BYTES = 8
_LENGTH_BYTES = 4
_FLOAT_BYTES = 4
_SIZES_BYTES = 24
"""Bytes to each rank that say how many samples, lengths and ids follow."""


@kernel
def _add_uses(
    ids_N: NDArray[np.int32],
    ends_W: NDArray[np.int64],
    first_mark: int,
    marks_K: NDArray[np.int32],
    uses_K: NDArray[np.int32],
) -> int:
    """Count the ranks that use each row of a table in a step, and return the largest id, or -1. Exact.

    Args:
        ids_N: lookups, those of one rank after another.
        ends_W: end of each rank's lookups.
        first_mark: the number of the first rank of this step; larger than all marks so far.
        marks_K: number of the last rank and step that used a row.
        uses_K: added to.
    """
    largest = -1
    start = 0
    for rank in range(ends_W.shape[0]):
        mark = np.int32(first_mark + rank)
        for i in range(start, ends_W[rank]):
            row = ids_N[i]
            if marks_K[row] != mark:
                marks_K[row] = mark
                uses_K[row] += np.int32(1)
                largest = max(largest, int(row))
        start = ends_W[rank]
    return largest


@dataclass(frozen=True, slots=True)
class RowUses:
    """The uses of rows by ranks in some steps."""

    num_ranks: int
    samples_S: NDArray[np.int64]
    """Samples of each step, of all ranks."""
    uses: tuple[NDArray[np.int32], ...]
    """(num_rows,) by table; pairs of a rank and a step in which the rank looks up the row."""
    largest_ST: NDArray[np.int64]
    """Largest id that any rank looks up; -1 without lookups."""
    lookups_T: NDArray[np.int64]
    """Lookups of all ranks and steps."""

    @property
    def num_steps(self) -> int:
        return int(self.samples_S.size)


class UseCounter:
    """Counts the uses of rows, step after step.

    Args:
        num_rows: of each table.
        num_ranks: that divide each batch.
    """

    def __init__(self, num_rows: Sequence[int], num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._uses = tuple(np.zeros(rows, np.int32) for rows in num_rows)
        self._marks = tuple(np.zeros(rows, np.int32) for rows in num_rows)
        self._samples: list[int] = []
        self._largest: list[list[int]] = []
        self._lookups = np.zeros(len(self._uses), np.int64)

    def add(
        self, num_samples: int, tables: Sequence[tuple[NDArray[np.int32], NDArray[np.int32] | None]]
    ) -> None:
        """Add a step.

        Args:
            num_samples: of the batch.
            tables: ids of each table, sample after sample, each below the rows of its table, and where those
                of each sample begin, (num_samples + 1,); None where each sample has one.
        """
        stops = [part_of_rank(num_samples, rank, self._num_ranks)[1] for rank in range(self._num_ranks)]
        stops_W = np.array(stops, np.int64)
        first_mark = 1 + len(self._samples) * self._num_ranks
        largest = []
        for number, (ids, offsets) in enumerate(tables):
            ends_W = stops_W if offsets is None else offsets[stops_W].astype(np.int64)
            arrays = (self._marks[number], self._uses[number])
            largest.append(_add_uses(np.ascontiguousarray(ids), ends_W, first_mark, *arrays))
            self._lookups[number] += ids.size
        self._samples.append(num_samples)
        self._largest.append(largest)

    def found(self) -> RowUses:
        """Return what was counted so far."""
        shape = (len(self._samples), len(self._uses))
        return RowUses(
            num_ranks=self._num_ranks,
            samples_S=np.array(self._samples, np.int64),
            uses=self._uses,
            largest_ST=np.array(self._largest, np.int64).reshape(shape),
            lookups_T=self._lookups,
        )


class TableSize(NamedTuple):
    """The sizes of a table."""

    num_rows: int
    embedding_dim: int
    row_bytes: int
    """Bytes of a row with its optimizer state."""
    num_features: int = 1
    """Features that look up in it."""


@dataclass(frozen=True, slots=True)
class Network:
    """Speeds between the devices."""

    all_to_all_bytes_per_second: float = 1e11
    """Bytes that leave a device in an all-to-all."""
    all_reduce_bytes_per_second: float = 1e11
    """Bytes that leave a device in an all-reduce."""
    exchange_seconds: float = 0.0
    """Time of the messages of a mixed step apart from their bytes; 0 compares bytes alone."""

    def __post_init__(self) -> None:
        speeds = (self.all_to_all_bytes_per_second, self.all_reduce_bytes_per_second)
        # Rows that cost nothing would be added without end.
        if not all(0 < each < math.inf for each in speeds) or not 0 <= self.exchange_seconds < math.inf:
            raise ValueError(f"want finite speeds above 0 and seconds of 0 or more, got {self}")


@dataclass(frozen=True, slots=True)
class StepBytes:
    """The bytes that a rank hands over in a step, its own part included, on average over the ranks."""

    all_to_all: float
    all_reduce: float

    @property
    def handed(self) -> float:
        return self.all_to_all + self.all_reduce

    def crossing(self, num_ranks: int) -> StepBytes:
        """Return the bytes that leave a rank."""
        remote = (num_ranks - 1) / num_ranks
        return StepBytes(remote * self.all_to_all, 2 * remote * self.all_reduce)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes of steps with a number of replicated rows."""

    hot_only_share: float
    """Share of the steps without an all-to-all, in [0, 1]."""
    distinct_cold: float
    """Distinct rows that a rank looks up and not every rank has, in a mixed step."""
    hot_only: StepBytes
    mixed: StepBytes
    mean: StepBytes
    memory_bytes: int
    """Rows and their optimizer states on each device, the sharded ones divided equally."""
    step_seconds: float
    """Predicted time of the exchange, on average over all steps."""


def traffic_of(
    uses: RowUses, tables: Sequence[TableSize], num_replicated: Sequence[int], network: Network
) -> Traffic:
    """Return the traffic where each table has so many replicated rows. Exact for the counted steps.

    Tables of one embedding_dim exchange together.
    """
    pairs = list(zip(tables, num_replicated, strict=True))
    is_mixed_S = (uses.largest_ST >= np.array(num_replicated, np.int64)).any(axis=1)
    num_mixed = int(np.count_nonzero(is_mixed_S))
    distinct_T = [
        int(own[first:].sum(dtype=np.int64)) for own, first in zip(uses.uses, num_replicated, strict=True)
    ]
    # What depends on the ids, then what each mixed step has besides.
    vectors = sum(
        _use_bytes(table.embedding_dim) * own for table, own in zip(tables, distinct_T, strict=True)
    )
    fixed = _fixed_bytes(tables, num_replicated, uses.num_ranks)
    in_mixed = max(num_mixed, 1) * uses.num_ranks
    all_reduce = float(sum(_FLOAT_BYTES * table.embedding_dim * first for table, first in pairs))
    # A single rank calls no all-to-all.
    has_exchange = num_mixed > 0 and uses.num_ranks > 1
    mixed = StepBytes(vectors / in_mixed + fixed if has_exchange else 0.0, all_reduce)
    share = num_mixed / max(uses.num_steps, 1)
    mean = StepBytes(share * mixed.all_to_all, all_reduce)
    return Traffic(
        hot_only_share=1 - share,
        distinct_cold=sum(distinct_T) / in_mixed,
        hot_only=StepBytes(0.0, all_reduce),
        mixed=mixed,
        mean=mean,
        memory_bytes=memory_of(tables, num_replicated, uses.num_ranks),
        step_seconds=_seconds(mean, share, uses.num_ranks, network),
    )


def pooled_traffic(uses: RowUses, tables: Sequence[TableSize], network: Network) -> Traffic:
    """Return the traffic of pooled tables that are all divided: a vector per sample and feature."""
    rank_steps = max(uses.num_steps, 1) * uses.num_ranks
    samples = float(uses.samples_S.sum()) / rank_steps
    of_sample = sum(
        table.num_features * (_LENGTH_BYTES + 2 * _FLOAT_BYTES * table.embedding_dim) for table in tables
    )
    sent = _ID_BYTES * float(uses.lookups_T.sum()) / rank_steps + samples * of_sample
    step = StepBytes(sent + _SIZES_BYTES * uses.num_ranks if uses.num_ranks > 1 else 0.0, 0.0)
    nothing = [0] * len(tables)
    return Traffic(
        hot_only_share=0.0,
        distinct_cold=sum(int(own.sum(dtype=np.int64)) for own in uses.uses) / rank_steps,
        hot_only=step,
        mixed=step,
        mean=step,
        memory_bytes=memory_of(tables, nothing, uses.num_ranks),
        step_seconds=_seconds(step, 1.0, uses.num_ranks, network),
    )


def memory_of(tables: Sequence[TableSize], num_replicated: Sequence[int], num_ranks: int) -> int:
    """Return the bytes of rows with their state on each device, divided ones equally."""
    replicated = sum(table.row_bytes * first for table, first in zip(tables, num_replicated, strict=True))
    every = sum(table.row_bytes * table.num_rows for table in tables)
    return replicated + -(-(every - replicated) // num_ranks)


def _use_bytes(embedding_dim: int) -> int:
    """Bytes of an id, its vector and its gradient."""
    return _ID_BYTES + 2 * _FLOAT_BYTES * embedding_dim


def _fixed_bytes(tables: Sequence[TableSize], num_replicated: Sequence[int], num_ranks: int) -> int:
    """Bytes of a mixed step that do not depend on its ids: lengths of each table, sizes of messages."""
    pairs = zip(tables, num_replicated, strict=True)
    dims = [table.embedding_dim for table, first in pairs if first < table.num_rows]
    return _LENGTH_BYTES * len(dims) + _SIZES_BYTES * num_ranks * len({*dims})


def _seconds(mean: StepBytes, mixed_share: float, num_ranks: int, network: Network) -> float:
    # A single rank has nobody to send to.
    if num_ranks == 1:
        return 0.0
    crossing = mean.crossing(num_ranks)
    seconds = crossing.all_to_all / network.all_to_all_bytes_per_second
    seconds += crossing.all_reduce / network.all_reduce_bytes_per_second
    return seconds + mixed_share * network.exchange_seconds


@dataclass(frozen=True, slots=True)
class Choice:
    """Rows to replicate of each table, and how near to the optimum they are."""

    num_replicated: tuple[int, ...]
    step_seconds: float
    """Predicted time of the exchange per step."""
    bound_seconds: float
    """Time that no choice is below."""


MOST_PRICED = 8
"""Sets of hot-only steps that are tried at most where memory is short."""
_HALVINGS = 40


def choose_prefixes(
    uses: RowUses, tables: Sequence[TableSize], network: Network, replicated_bytes: int | None = None
) -> Choice:
    """Return how many rows of each table to replicate, so that a step exchanges in the least time.

    Args:
        uses: of rows in the counted steps.
        tables: sizes, in the order of ``uses``.
        network: speeds between the devices.
        replicated_bytes: most bytes of replicated rows with their state on each device; None: no limit.

    Returns:
        The best of the sets of hot-only steps that are tried; of equal ones the smallest.
    """
    if uses.num_ranks == 1 or not uses.num_steps:
        return Choice((0,) * len(tables), 0.0, 0.0)
    problem = _Problem(uses, tables, network, replicated_bytes)
    bound, best_T = problem.best_above(np.zeros(len(tables), np.int64))
    found = problem.step_seconds(best_T)
    num_priced = 0
    for floor_T in problem.floors():
        least_T = problem.unlimited(floor_T)
        if problem.bytes_of(least_T) > problem.limit:
            # Only where it may be better than what was found, since this takes 40 passes over all rows.
            if num_priced == MOST_PRICED or problem.row_seconds(least_T) >= found:
                continue
            num_priced += 1
            _, least_T = problem.best_above(floor_T)
        seconds = problem.step_seconds(least_T)
        if seconds < found:
            found, best_T = seconds, least_T
    found, best_T = problem.polished(found, best_T)
    return Choice(tuple(best_T.tolist()), found, min(problem.bound(bound), found))


class _TableCosts:
    """Seconds per step of a table, by its replicated rows."""

    def __init__(self, uses: RowUses, number: int, table: TableSize, network: Network) -> None:
        remote = (uses.num_ranks - 1) / uses.num_ranks
        self.row_bytes = table.row_bytes
        of_row = 2 * remote * _FLOAT_BYTES * table.embedding_dim / network.all_reduce_bytes_per_second
        of_use = remote * _use_bytes(table.embedding_dim) / network.all_to_all_bytes_per_second
        of_use /= uses.num_ranks * uses.num_steps
        # Uses of the rows from h on, for every h up to that of all rows.
        own = uses.uses[number]
        self.seconds_K1 = np.zeros(own.size + 1)
        np.cumsum(own[::-1], out=self.seconds_K1[-2::-1])
        self.seconds_K1 *= of_use
        self.seconds_K1 += of_row * np.arange(own.size + 1)
        # The best from each floor on is the next of these, of equal ones the first.
        least = np.minimum.accumulate(self.seconds_K1[::-1])[::-1]
        self._best = np.flatnonzero(self.seconds_K1 == least)

    def best_from(self, floors: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the best number of rows from each floor on."""
        rows: NDArray[np.int64] = self._best[np.searchsorted(self._best, floors)]
        return rows

    def cost_from(self, floors: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the seconds of the best number of rows from each floor on."""
        seconds: NDArray[np.float64] = self.seconds_K1[self.best_from(floors)]
        return seconds

    def best_within(self, floor: int, most: int, per_byte: float) -> tuple[int, float]:
        """Return the best number of rows from ``floor`` to ``most`` at a price of memory, and its cost."""
        seconds = self.seconds_K1[floor : most + 1]
        if per_byte:
            seconds = seconds + per_byte * self.row_bytes * np.arange(floor, floor + seconds.size)
        place = int(np.argmin(seconds))
        return floor + place, float(seconds[place])


class _Problem:
    """The time of a step by the replicated rows of all tables."""

    def __init__(
        self, uses: RowUses, tables: Sequence[TableSize], network: Network, replicated_bytes: int | None
    ) -> None:
        self._uses = uses
        self._tables = tables
        self._network = network
        self._costs = [_TableCosts(uses, number, table, network) for number, table in enumerate(tables)]
        self._row_bytes_T = np.array([table.row_bytes for table in tables], np.int64)
        self.limit = float("inf") if replicated_bytes is None else float(replicated_bytes)

    def bytes_of(self, rows_T: NDArray[np.int64]) -> int:
        return int(rows_T @ self._row_bytes_T)

    def row_seconds(self, rows_T: NDArray[np.int64]) -> float:
        """Return the time of what depends on rows alone."""
        pairs = zip(self._costs, rows_T.tolist(), strict=True)
        return float(sum(own.seconds_K1[rows] for own, rows in pairs))

    def step_seconds(self, rows_T: NDArray[np.int64]) -> float:
        """Return the time that `traffic_of` predicts."""
        share = float((self._uses.largest_ST >= rows_T).any(axis=1).mean())
        fixed = StepBytes(_fixed_bytes(self._tables, rows_T.tolist(), self._uses.num_ranks), 0.0)
        crossing = fixed.crossing(self._uses.num_ranks).all_to_all
        of_mixed = crossing / self._network.all_to_all_bytes_per_second + self._network.exchange_seconds
        return self.row_seconds(rows_T) + share * of_mixed

    def unlimited(self, floor_T: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the best rows that are at least the floors, whatever memory they take."""
        pairs = zip(self._costs, floor_T.tolist(), strict=True)
        return np.array([int(own.best_from(floor)) for own, floor in pairs], np.int64)

    def best_above(self, floor_T: NDArray[np.int64]) -> tuple[float, NDArray[np.int64]]:
        """Return a bound for, and the best found of, rows within memory that are at least the floors.

        The floors themselves are within memory. The bound is of the time that depends on rows alone.
        """
        rows_T = self.unlimited(floor_T)
        bound = self.row_seconds(rows_T)
        if self.bytes_of(rows_T) <= self.limit:
            return bound, rows_T
        # A price of memory at which the rows fit: the dual function is a bound at each price.
        low, high = 0.0, bound / max(1.0, self.limit)
        value, rows_T = self._priced(floor_T, high)
        bound = max(bound, value)
        while self.bytes_of(rows_T) > self.limit:
            low, high = high, 2 * high
            value, rows_T = self._priced(floor_T, high)
            bound = max(bound, value)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            value, tried_T = self._priced(floor_T, middle)
            bound = max(bound, value)
            if self.bytes_of(tried_T) > self.limit:
                low = middle
            else:
                high, rows_T = middle, tried_T
        return bound, self._filled(rows_T)

    def _priced(self, floor_T: NDArray[np.int64], per_byte: float) -> tuple[float, NDArray[np.int64]]:
        """Return the dual function at a price of memory in seconds per byte, and its rows."""
        pairs = zip(self._costs, floor_T.tolist(), strict=True)
        found = [own.best_within(floor, own.seconds_K1.size - 1, per_byte) for own, floor in pairs]
        value = sum(cost for _, cost in found) - per_byte * self.limit
        return value, np.array([rows for rows, _ in found], np.int64)

    def _filled(self, rows_T: NDArray[np.int64]) -> NDArray[np.int64]:
        """Spend the memory that a price left, each time on the table that gains most."""
        rows_T = rows_T.copy()
        while True:
            left = int(self.limit) - self.bytes_of(rows_T)
            gains = []
            for own, rows in zip(self._costs, rows_T.tolist(), strict=True):
                most = min(own.seconds_K1.size - 1, rows + left // own.row_bytes)
                better, seconds = own.best_within(rows, most, 0.0)
                gains.append((float(own.seconds_K1[rows]) - seconds, better))
            table = max(range(len(gains)), key=lambda number: gains[number][0])
            if gains[table][0] <= 0:
                return rows_T
            rows_T[table] = gains[table][1]

    def bound(self, row_bound: float) -> float:
        """Return a time that no rows within memory are below, given a bound of what depends on rows alone.

        If k steps are hot-only, one of them costs at least as much as the k-th cheapest does by itself.
        """
        floors_ST = self._uses.largest_ST + 1
        fitting_ST = floors_ST[floors_ST @ self._row_bytes_T <= self.limit]
        seconds_S = sum(own.cost_from(fitting_ST[:, number]) for number, own in enumerate(self._costs))
        least_K1 = np.maximum(np.concatenate([[0.0], np.sort(seconds_S)]), row_bound)
        share_K1 = 1 - np.arange(least_K1.size) / self._uses.num_steps
        return float((least_K1 + share_K1 * self._network.exchange_seconds).min())

    def polished(self, found: float, rows_T: NDArray[np.int64]) -> tuple[float, NDArray[np.int64]]:
        """Return what changes of one table at a time improve, and its time."""
        floors_ST = self._uses.largest_ST + 1
        while True:
            before = found
            for number, own in enumerate(self._costs):
                floors = np.unique(np.append(floors_ST[:, number], [0, own.seconds_K1.size - 1]))
                for rows in np.unique(own.best_from(floors)).tolist():
                    tried_T = rows_T.copy()
                    tried_T[number] = rows
                    if (
                        self.bytes_of(tried_T) <= self.limit
                        and (seconds := self.step_seconds(tried_T)) < found
                    ):
                        found, rows_T = seconds, tried_T
            if found == before:
                return found, rows_T

    def floors(self) -> list[NDArray[np.int64]]:
        """Return the least rows of each table for growing sets of hot-only steps that fit in memory."""
        floors_ST = self._uses.largest_ST + 1
        # Each time the step that adds least to the time, of those that still fit.
        grown_T = np.zeros(floors_ST.shape[1], np.int64)
        found = []
        left_ST = floors_ST
        while left_ST.size:
            left_ST = np.maximum(left_ST, grown_T)
            left_ST = left_ST[left_ST @ self._row_bytes_T <= self.limit]
            seconds_S = sum(own.cost_from(left_ST[:, number]) for number, own in enumerate(self._costs))
            if left_ST.size:
                grown_T = left_ST[int(np.argmin(seconds_S))]
                found.append(grown_T)
                left_ST = left_ST[(left_ST > grown_T).any(axis=1)]
        return found
