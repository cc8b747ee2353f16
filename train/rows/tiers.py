"""The fast and the slow tier of embedding rows, and initial values.

A tier is one tensor of weights and one of optimizer state. It holds a range of ids of every table, table
after table, so the slot of a row it holds is a base plus the id; the slots after them stage rows of the other
tier. Weights and state of a slot always move together. Each table group has separate tiers.

A slow tier larger than memory maps a nameless file, which is gone with the process: only checkpoints and the
weights of the run outlive a kill. Its disk space is reserved at the start, since a mapped file that meets a
full disk later kills the process without a message.

Initial values of rows are a function of (seed, table, id) and of the number of rows of the table alone:
uniform in (-b, b) with b = sqrt(1 / num_rows), as DLRM draws them, from a hash of the three. Numba computes
them on the host and torch the same bits on any device, so that a row can be initialized where it is first
needed.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import MIB, HotsetError, format_byte_size
from ...pipeline.runtime.limits import available_bytes
from ...stats.batch_rows import LookupsByRow, locate_distinct_rows, locate_lookups
from ...stats.id_tables import mix64_pair
from ..data.batch import BatchIds
from ..metrics import Kind, Meter
from ..threads import WorkThreads
from .kernels import copy_rows, fill_initial_rows


@dataclass(slots=True)
class HostMemory:
    """The memory for slow tiers, and the folder for other rows."""

    left_bytes: int | None
    """Memory not yet used; None: no limit."""
    folder: Path
    may_spill: bool = True
    """Whether the command has an option for rows in a file."""
    is_planned: bool = False
    """Whether rows that do not fit are in files ordered by next use (see `spill`), not in mapped ones."""
    is_pinned: bool = False
    """Whether a device reads and writes the rows, for which their memory is pinned page by page."""

    def rows(self, num_rows: int, width: int) -> torch.Tensor:
        """(num_rows, width) float32 zeros; raises HotsetError where the disk is too small."""
        num_bytes = 4 * num_rows * width
        if self.left_bytes is not None and num_bytes > self.left_bytes:
            return mapped_rows(num_rows, width, self.folder)
        if self.left_bytes is not None:
            self.left_bytes -= num_bytes
        if self.is_pinned and num_bytes:
            return _pages_of_rows(num_rows, width)
        return torch.zeros(num_rows, width, dtype=torch.float32, device="cpu")


def check_memory_for_rows(num_rows: int, fast_bytes: int, slow_bytes: int, host: HostMemory) -> None:
    """Raise HotsetError if host memory cannot hold the rows, before they are allocated.

    Args:
        num_rows: for the message.
        fast_bytes: rows of the fast tier with their state, 0 where that is on a GPU.
        slow_bytes: those of the slow tier, which may be in a file.
        host: the memory that the slow tier may take.
    """
    # Where the machine does not say what is free, nothing is refused.
    available = available_bytes()
    in_memory = slow_bytes if host.left_bytes is None else min(slow_bytes, host.left_bytes)
    if available is None or fast_bytes + in_memory <= available:
        return
    # A quarter is left for the dense layers, batches and the page cache.
    enough = (3 * available // 4 - fast_bytes) // MIB * MIB
    hint = f"--slow-bytes {enough // MIB}MiB keeps the other rows in a file in --out"
    # Two settings that would do, and the last resort where neither helps.
    if not slow_bytes:
        enough = 3 * available // 4 // MIB * MIB
        hint = f"--placement lookahead --slow-bytes {enough // MIB}MiB keeps most rows in a file in --out"
    if enough <= 0 or not host.may_spill:
        hint = "use a machine with more memory, or fewer or narrower rows: --min-count, --embedding-dim"
    needed = format_byte_size(fast_bytes + in_memory)
    raise HotsetError(
        f"{num_rows:,} embedding rows take {needed} of memory with their optimizer state, "
        f"and {format_byte_size(available)} is available",
        hint=hint,
    )


def _pages_of_rows(num_rows: int, width: int) -> torch.Tensor:
    """Return (num_rows, width) float32 zeros in separate pages, none pinned twice."""
    pages = mmap.mmap(-1, 4 * num_rows * width, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Large pages are pinned, and found by the device, several times as fast.
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system may have none
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(pages, np.float32).reshape(num_rows, width))


def mapped_rows(num_rows: int, width: int, folder: Path) -> torch.Tensor:
    """(num_rows, width) float32 zeros in a nameless file of ``folder``; see `disk_space`."""
    num_bytes = 4 * num_rows * width
    if num_bytes == 0:
        return torch.zeros(num_rows, width, dtype=torch.float32, device="cpu")
    with disk_space(folder, num_bytes, "rows", "write --out to a larger disk, or raise --slow-bytes"):
        mapped = mapped_file(folder, num_bytes)
    # Rows are used in no order: reading ahead of a page would read 32 for one (70 times slower on tables
    # four times the memory).
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)
    return torch.from_numpy(np.frombuffer(mapped, np.float32).reshape(num_rows, width))


def mapped_file(folder: Path, num_bytes: int) -> mmap.mmap:
    """Map a nameless file of ``folder``, whose disk space is reserved; raises OSError without it."""
    with tempfile.TemporaryFile(dir=folder) as file:
        # Reserved now: writing to a mapped page that finds no block kills the process.
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        return mmap.mmap(file.fileno(), num_bytes)


@contextlib.contextmanager
def disk_space(folder: Path, num_bytes: int, content: str, hint: str) -> Iterator[None]:
    """Raise HotsetError where the block finds no room on the disk."""
    try:
        yield
    except OSError as error:
        raise HotsetError(
            f"{folder} has no room for {format_byte_size(num_bytes)} of {content}: {error.strerror}",
            hint=hint,
        ) from error


# The constants of `stats.id_tables.mix64`, as int64.
_MIX_ADD = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_SECOND = 0x94D049BB133111EB - (1 << 64)


@dataclass(frozen=True, slots=True)
class HeldIds:
    """The ids of some rows of each table, numbered from 0 in each."""

    ids_R: NDArray[np.int32]
    """(num_rows,), ascending in a table, table after table."""
    first_F1: NDArray[np.int64]
    """(num_tables + 1,); where those of each table begin."""

    def of(self, tables_N: NDArray[np.int64], numbers_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of rows by their numbers."""
        ids_N: NDArray[np.int64] = self.ids_R[self.first_F1[tables_N] + numbers_N].astype(np.int64)
        return ids_N

    def of_table(self, table: int) -> NDArray[np.int32]:
        """Return the ids of a table's rows, ascending."""
        return self.ids_R[self.first_F1[table] : self.first_F1[table + 1]]


@dataclass(frozen=True, slots=True)
class InitialValues:
    """The inputs of the initial values of the tables of one table group."""

    streams_F: NDArray[np.uint64]
    """Hash of (seed, table) of each table."""
    bounds_F: NDArray[np.float32]
    """Values of the table are in (-bound, bound)."""
    held: HeldIds | None = None
    """The ids of rows, where tiers number some rows of each table; None: their numbers are their ids."""

    @classmethod
    def of(cls, seed: int, tables: Sequence[int], num_rows: Sequence[int]) -> InitialValues:
        """Return the inputs of tables by number, with these numbers of rows."""
        streams = [mix64_pair(np.uint64(seed), np.uint64(table)) for table in tables]
        bounds = [math.sqrt(1 / max(count, 1)) for count in num_rows]
        return cls(np.array(streams, np.uint64), np.array(bounds, np.float32))

    def write(
        self,
        tables_N: NDArray[np.int64],
        ids_N: NDArray[np.int64],
        weights_SD: torch.Tensor,
        slots_N: NDArray[np.int64],
    ) -> None:
        """Write the values of single rows to ``slots_N`` of ``weights_SD``, wherever that is."""
        if self.held is not None:
            ids_N = self.held.of(tables_N, ids_N)
        streams_N = self.streams_F[tables_N]
        bounds_N = self.bounds_F[tables_N]
        if weights_SD.device.type == "cpu":
            fill_initial_rows(streams_N, ids_N, bounds_N, weights_SD.numpy(), slots_N)
            return
        # On another device the same function runs in torch: values are computed where they will lie.
        device = weights_SD.device
        values_ND = initial_values_with_torch(
            torch.from_numpy(streams_N.view(np.int64)).to(device),
            torch.from_numpy(ids_N).to(device),
            torch.from_numpy(bounds_N).to(device),
            weights_SD.shape[1],
        )
        weights_SD.index_copy_(0, torch.from_numpy(slots_N).to(device), values_ND)


def initial_values_with_torch(
    streams_N: torch.Tensor, ids_N: torch.Tensor, bounds_N: torch.Tensor, dim: int
) -> torch.Tensor:
    """(N, dim) initial values; ``streams_N`` are 64-bit hashes as int64, ``ids_N`` int64."""
    row_streams_N = _mix(_mix(streams_N) ^ ids_N)
    columns_D = torch.arange(dim, device=ids_N.device, dtype=torch.int64)
    # The highest 24 bits of the hash, as an odd number in (-2**24, 2**24): see `kernels.fill_initial_rows`.
    bits_ND = _shift(_mix(_mix(row_streams_N).unsqueeze(1) ^ columns_D), 40)
    odd_ND = (2 * bits_ND + 1 - (1 << 24)).float()
    return (odd_ND * 2.0**-24) * bounds_N.unsqueeze(1)


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """``stats.id_tables.mix64`` on int64, whose sums and products wrap as those of uint64 do."""
    bits = bits + _MIX_ADD
    bits = (bits ^ _shift(bits, 30)) * _MIX_FIRST
    bits = (bits ^ _shift(bits, 27)) * _MIX_SECOND
    return bits ^ _shift(bits, 31)


def _shift(bits: torch.Tensor, count: int) -> torch.Tensor:
    """A logical shift to the right; torch's own on int64 copies the sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


_NO_BAGS = np.empty(0, np.int64)
_ROWS_AT_ONCE = 1 << 16
"""Rows that are initialized in one piece of work."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows that a tier holds permanently, and their slots."""

    first_F: NDArray[np.int64]
    """First id of each table held."""
    last_F: NDArray[np.int64]
    """One past the last id held; equal to ``first_F`` where a table has no row here."""
    base_F: NDArray[np.int64]
    """Slot of the row ``first_F``."""
    num_own_slots: int
    """Slots of all these rows together; staging slots follow them."""

    @classmethod
    def of(cls, first: Sequence[int], last: Sequence[int]) -> Layout:
        """Lay out ids ``first[f]`` to ``last[f]`` of tables f in order."""
        first_F = np.array(first, np.int64)
        last_F = np.array(last, np.int64)
        counts = last_F - first_F
        if counts.size and counts.min() < 0:
            raise ValueError("a table's range of ids ends before it begins")
        base_F = np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int64)
        return cls(first_F, last_F, base_F, int(counts.sum()))

    @property
    def num_tables(self) -> int:
        return int(self.first_F.size)

    def slots_of_table(self, table: int) -> slice:
        """The slots of a table's rows, in id order."""
        base = int(self.base_F[table])
        return slice(base, base + int(self.last_F[table] - self.first_F[table]))

    def locate(self, ids: BatchIds) -> tuple[NDArray[np.int64], int]:
        """Return lookups' slots in sample order, and how many have none (-1)."""
        slots_N = np.empty(ids.ids_N.size, np.int64)
        bags_N = _NO_BAGS if ids.bags_of_tables is None else ids.bags_of_tables
        return slots_N, locate_lookups(ids.ids_N, bags_N, self.first_F, self.last_F, self.base_F, slots_N)

    def slots_of(self, lookups: LookupsByRow) -> tuple[NDArray[np.int64], int]:
        """Return distinct rows' slots, and how many have none here (-1)."""
        slots_U = np.empty(lookups.num_rows, np.int64)
        ranges = (self.first_F, self.last_F, self.base_F)
        num_absent = locate_distinct_rows(lookups.rows_U, lookups.first_F1, *ranges, slots_U)
        return slots_U, num_absent

    def slots_of_rows(self, tables_N: NDArray[np.int64], ids_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slot of each row by table and id, else -1."""
        first_N = self.first_F[tables_N]
        is_here_N = (first_N <= ids_N) & (ids_N < self.last_F[tables_N])
        return np.where(is_here_N, self.base_F[tables_N] + ids_N - first_N, -1)

    def rows_at(self, slots_N: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Table and id of the rows that live in ``slots_N``."""
        # Of several tables with one base all but the last are empty.
        tables_N = np.searchsorted(self.base_F, slots_N, side="right") - 1
        return tables_N, slots_N - self.base_F[tables_N] + self.first_F[tables_N]


@dataclass(frozen=True, slots=True)
class Moves:
    """Rows that change tiers, weights and state together."""

    rows_N: NDArray[np.int64]
    """Slots on the slow tier, none twice."""
    slots_N: NDArray[np.int64]
    """Slots on the fast tier, none twice."""
    fetches_N: NDArray[np.int64] | None = None
    """Where the slow tier is a file: numbers of the fetches that read these rows, counted over the run; of
    rows written back those of their next fetches, -1 where there is none. None for other slow tiers."""

    @property
    def num_rows(self) -> int:
        return int(self.rows_N.size)

    def part(self, chosen: slice | NDArray[np.bool_]) -> Moves:
        """Return some of the moves."""
        fetches_N = None if self.fetches_N is None else self.fetches_N[chosen]
        return Moves(self.rows_N[chosen], self.slots_N[chosen], fetches_N)


class Tier:
    """Rows in slots on one device."""

    def __init__(
        self,
        layout: Layout,
        embedding_dim: int,
        state_width: int,
        *,
        num_staging: int = 0,
        device: str = "cpu",
        host: HostMemory | None = None,
    ) -> None:
        self.layout = layout
        self.is_stale = False
        """Whether rows that both tiers hold are newer on the other one (fae)."""
        self.num_slots = layout.num_own_slots + num_staging
        self.device = torch.device(device)
        self.is_host = self.device.type == "cpu"
        """Whether the rows are in memory of the host."""
        # With limited host memory the rows may go to a mapped file.
        if host is None:
            self.weights_SD = torch.empty(
                self.num_slots, embedding_dim, dtype=torch.float32, device=self.device
            )
            self.state_SW = torch.zeros(self.num_slots, state_width, dtype=torch.float32, device=self.device)
        else:
            self.weights_SD = host.rows(self.num_slots, embedding_dim)
            self.state_SW = host.rows(self.num_slots, state_width)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with its state."""
        return 4 * (self.weights_SD.shape[1] + self.state_SW.shape[1])

    def slots_of(self, rows_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions in ``weights_SD`` of rows that live here, which are named by their slots."""
        return rows_N

    def parts_of_table(self, table: int, *, state: bool = False) -> Iterator[torch.Tensor]:
        """Yield the weights or states of a table's rows here, in id order, on the host.

        Weights are (num_rows, D), states (num_rows, W); those of a file come in parts of bounded size.
        """
        rows = self.state_SW if state else self.weights_SD
        yield rows[self.layout.slots_of_table(table)].cpu()

    def copy_out(
        self, slots_N: NDArray[np.int64], weights_ND: NDArray[np.float32], state_NW: NDArray[np.float32]
    ) -> None:
        """Copy the rows in slots to the host; those with -1 are left out."""
        for rows, target in ((self.weights_SD, weights_ND), (self.state_SW, state_NW)):
            # An optimizer without state has no columns to copy.
            if rows.shape[1] == 0:
                continue
            if self.is_host:
                copy_rows(rows.numpy(), slots_N, target, np.arange(slots_N.size))
                continue
            # On a device its rows are gathered first, so that one copy takes them all.
            is_here_N = slots_N >= 0
            here = torch.from_numpy(slots_N[is_here_N]).to(self.device)
            target[is_here_N] = rows.index_select(0, here).cpu().numpy()

    def put(self, moves: Moves, weights_SD: NDArray[np.float32], state_SW: NDArray[np.float32]) -> None:
        """Take rows out of slots in memory of the host."""
        copy_rows(weights_SD, moves.slots_N, self.weights_SD.numpy(), moves.rows_N)
        copy_rows(state_SW, moves.slots_N, self.state_SW.numpy(), moves.rows_N)

    def take(self, moves: Moves, weights_SD: NDArray[np.float32], state_SW: NDArray[np.float32]) -> None:
        """Copy rows to slots in memory of the host."""
        copy_rows(self.weights_SD.numpy(), moves.rows_N, weights_SD, moves.slots_N)
        copy_rows(self.state_SW.numpy(), moves.rows_N, state_SW, moves.slots_N)

    @property
    def file_bytes(self) -> tuple[int, int]:
        """Bytes read from the files of this tier, and written to them."""
        return 0, 0

    def finish(self) -> None:
        """Give memory back after the last step, where the tier is in a file."""

    def initialize(self, initial: InitialValues, threads: WorkThreads | None = None) -> None:
        """Initialize every row of this tier, in parallel on the host."""
        num_slots = self.layout.num_own_slots

        def fill(part: int, _worker: int) -> None:
            slots_N = np.arange(part * _ROWS_AT_ONCE, min((part + 1) * _ROWS_AT_ONCE, num_slots))
            initial.write(*self.layout.rows_at(slots_N), self.weights_SD, slots_N)

        # A GPU computes its own values, and is given the work by one thread.
        if threads is None or not self.is_host:
            threads = WorkThreads(1)
        threads.run(fill, -(-num_slots // _ROWS_AT_ONCE))


class FileTier(Tier, ABC):
    """A slow tier in a file, where only rows being evaluated have slots."""

    def __init__(self, layout: Layout, embedding_dim: int, state_width: int) -> None:
        nothing = Layout(layout.first_F, layout.first_F, layout.base_F, 0)
        super().__init__(nothing, embedding_dim, state_width)
        self.layout = layout
        self._read_U = np.empty(0, np.int64)

    @property
    @abstractmethod
    def most_read(self) -> int:
        """Distinct rows that evaluation may read at a time."""

    def stored_rows(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]]:
        """Yield every row that training has stored once, with weights and state, in any order."""
        return iter(())

    def refill(
        self, rows_N: NDArray[np.int64], weights_ND: NDArray[np.float32], state_NW: NDArray[np.float32]
    ) -> None:
        """Put restored rows where their next fetches will find them."""

    @abstractmethod
    def fill(self, wanted_U: NDArray[np.int64], weights_UD: NDArray[np.float32]) -> None:
        """Write the newest weights of rows, ascending, that no other slot holds."""

    def read(
        self,
        wanted_U: NDArray[np.int64],
        fast: Tier,
        resident_N: NDArray[np.int64],
        slots_N: NDArray[np.int64],
    ) -> None:
        """Read the newest weights of some rows; nothing moves.

        Args:
            wanted_U: the rows, ascending; none: give the memory back.
            fast: the tier where some of them may be.
            resident_N: rows that are there.
            slots_N: slot of each.
        """
        self._read_U = wanted_U
        self.weights_SD = torch.empty(
            wanted_U.size, self.weights_SD.shape[1], dtype=torch.float32, device="cpu"
        )
        if wanted_U.size == 0:
            return
        self.fill(wanted_U, self.weights_SD.numpy())
        # Rows in slots are newer there.
        positions_N = np.minimum(np.searchsorted(wanted_U, resident_N), wanted_U.size - 1)
        is_wanted_N = wanted_U[positions_N] == resident_N
        held = torch.from_numpy(slots_N[is_wanted_N]).to(fast.device)
        self.weights_SD[torch.from_numpy(positions_N[is_wanted_N])] = fast.weights_SD[held].to("cpu")

    def slots_of(self, rows_N: NDArray[np.int64]) -> NDArray[np.int64]:
        slots_N = np.searchsorted(self._read_U, rows_N)
        assert slots_N.max(initial=-1) < self._read_U.size and np.array_equal(self._read_U[slots_N], rows_N)
        return slots_N.astype(np.int64)


Way = Literal["to_fast", "to_slow", "made"]
"""How a row came where it is needed; "made" rows got their initial values in place of a fetch. These are keys
of the run's summary."""
WAYS: tuple[Way, ...] = ("to_fast", "to_slow", "made")


class TrafficCounter:
    """The counts of one table group, for one thread at a time."""

    def __init__(self, meter: Meter, slow: Layout) -> None:
        self.meter = meter
        self._slow = slow
        self.rows_F: dict[Way, NDArray[np.int64]] = {way: np.zeros(slow.num_tables, np.int64) for way in WAYS}
        """(num_tables,) rows and vectors moved each way, and rows initialized on the fast tier."""

    def rows(self, way: Way, rows_N: NDArray[np.int64], bytes_each: int, kind: Kind | None = None) -> None:
        """Count slow-tier rows, or their vectors, that moved one way."""
        if rows_N.size == 0:
            return
        tables_N, _ = self._slow.rows_at(rows_N)
        self.by_table(way, np.bincount(tables_N, minlength=self._slow.num_tables), bytes_each, kind)

    def by_table(
        self, way: Way, counts_F: NDArray[np.int64], bytes_each: int, kind: Kind | None = None
    ) -> None:
        """Count so many of each table that moved this way."""
        kind = kind or self.meter.kind
        # Rows initialized on the fast tier move no byte between the tiers.
        if way != "made":
            num_bytes = int(counts_F.sum()) * bytes_each
            self.meter.moved(**{way: num_bytes}, kind=kind)
        if kind != "evaluation":
            self.rows_F[way] += counts_F
