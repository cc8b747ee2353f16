"""Finds the rows of a table group that a rank uses, sends and receives.

Every rank reads the lookups of the whole batch, so all ranks compute the same lists of rows
(`stats.exchange`), and none has to request any. Before the step the owner of a row sends its vector to each
rank that looks it up, once however often it is looked up there; at the first use of a row each of them
computes the initial value instead. After the step each sends one gradient to the owner, the sum over its
micro-batches.

The owner of a row holds its weights and optimizer state. The rows of a rank keep their order, so its part of
a table is a smaller table whose hot rows are a prefix, and tiers, placements and planners work on it as in
one process. Keys number the rows of all tables of the group, table after table; the map from keys takes 5
bytes per row on every rank.

Shapes: F tables of the group, K keys, N lookups of a batch, U distinct rows of the step, O of these that this
rank looks up, S that it owns and serves, R rows that it owns, W ranks.

The ranks of one machine read the lookups of a batch once for all of them. The first rank that asks for those
of a batch reads and verifies them, and leaves them where the others find them. The memory is a ring, so a
rank that is far behind the others reads again. It has no name, so nothing of it outlives the ranks, however
they end: the others open it through the process that made it. Where they cannot, each reads for itself.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import MIB, ConfigError, format_byte_size
from ...stats.batch_rows import LookupsByRow
from ...stats.exchange import (
    RowLists,
    StepRows,
    count_uses,
    list_messages,
    mask_type,
    owners_by_use,
    rank_masks,
    ranks_of_samples,
)
from ..data.batch import (
    Batch,
    BatchIds,
    EmbeddingTable,
    IdReader,
    LookupsOfBatch,
    MicroBatches,
    OwnBatch,
)
from ..data.shards import ShardSet
from ..rows.tiers import HeldIds
from .messages import Crossing
from .ranks import RankError, Ranks, gather_numbers, packed, raise_on_any_rank, unpacked, wait_for_all

_MOST_ROWS = 2**31 - 1
"""Keys are int32."""
_RANGE_BYTES = 256 << 20
"""Memory for the counts of the rows that are looked at together; each range reads all batches."""
_COUNT_BYTES = 4


def keys_of(lookups: LookupsByRow, first_key_F1: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the keys of the distinct rows of a batch, (num_rows,), ascending."""
    firsts = np.repeat(first_key_F1[:-1], np.diff(lookups.first_F1))
    keys_U: NDArray[np.int32] = (lookups.rows_U + firsts).astype(np.int32)
    return keys_U


def ranks_of_lookups(ranks_B: NDArray[np.uint8], ids: BatchIds) -> NDArray[np.uint8]:
    """Return the rank of each lookup's sample, (num_lookups,)."""
    # A sample has one lookup of each feature, or each lookup names its bag.
    if ids.bags_N is None:
        return np.repeat(ranks_B, ids.num_features)
    return ranks_B[ids.bags_N // max(ids.num_features, 1)]


def ranks_of_batch(num_samples: int, batch_size: int, num_shares: int, num_ranks: int) -> NDArray[np.uint8]:
    """Return the rank that computes each sample of a batch, which may have more than ``batch_size``."""
    ranks_B = ranks_of_samples(min(num_samples, batch_size), batch_size, num_shares, num_ranks)
    return np.pad(ranks_B, (0, num_samples - ranks_B.size), constant_values=num_ranks - 1)


def choose_owners(
    shards: ShardSet, chosen: Sequence[int], num_ranks: int, num_shares: int, node: Node | None = None
) -> NDArray[np.uint8]:
    """Return the rank that uses each row in most training steps, (num_keys,).

    Keys go table after table. Which rank uses a row in which steps follows from the batches alone, whatever
    their order.

    Args:
        shards: with the batches.
        chosen: positions of the tables of one group, ascending.
        num_ranks: ranks that compute a batch.
        num_shares: equal parts of a batch, a multiple of ``num_ranks``.
        node: ranks of this machine, which divide the batches; None: this one reads all of them.

    Raises:
        ConfigError: a batch cannot be cut so, or the tables have too many rows.
    """
    reader = IdReader(shards.tables, chosen)
    first_key_F1 = np.cumsum([0, *(shards.tables[table].num_rows for table in chosen)])
    num_rows = int(first_key_F1[-1])
    # The kernels trust these numbers, so they are tried here once.
    try:
        mask_type(num_ranks)
        ranks_of_samples(0, shards.batch_size, num_shares, num_ranks)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if num_rows > _MOST_ROWS:
        raise ConfigError(f"{num_rows:,} rows of one embedding_dim; at most {_MOST_ROWS:,} can be planned")

    # Rows are counted across ranges: of ranks that use a row equally often, the one with the fewest takes it.
    owners = [np.empty(0, np.uint8)]
    rows_of_ranks = np.zeros(num_ranks, np.int64)
    most = max(1, _RANGE_BYTES // (_COUNT_BYTES * num_ranks))
    own = (0, 1) if node is None else (node.rank, node.num_ranks)

    def count(first: int) -> NDArray[np.uint32]:
        uses_KW = np.zeros((min(most, num_rows - first), num_ranks), np.uint32)
        for number in range(own[0], shards.num_training_batches, own[1]):
            ids = reader.read(shards.training_lookups(number))
            lookups = reader.by_row(ids)
            ranks_B = ranks_of_batch(ids.num_samples, shards.batch_size, num_shares, num_ranks)
            masks_U = rank_masks(lookups, ranks_of_lookups(ranks_B, ids), num_ranks)
            count_uses(keys_of(lookups, first_key_F1), masks_U, first, uses_KW)
        return uses_KW

    for first in range(0, num_rows, most):
        uses_KW = count(first) if node is None else node.summed(partial(count, first))
        owners.append(owners_by_use(uses_KW, rows_of_ranks, first))
    return np.concatenate(owners)


class HeldRows:
    """The owners of a table group's rows, and the rows of this rank."""

    def __init__(self, num_rows: Sequence[int], owners_K: NDArray[np.uint8], rank: int) -> None:
        self.first_key_F1 = np.cumsum([0, *num_rows])
        """Key of the first row of each table, and the end of the last."""
        self.owners_K = owners_K
        """(num_keys,); the rank that owns each row."""
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
        """Return the tables of the group as they are here."""
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

    def served(self, keys_U: NDArray[np.int32]) -> LookupsByRow:
        """Return one lookup of each of those rows, ascending, that this rank owns; in its tables."""
        keys_S = keys_U[self.owners_K[keys_U] == self.rank]
        # Keys ascend, so those of a table are contiguous, and its first local number is subtracted from each.
        first_F1 = np.searchsorted(keys_S, self.first_key_F1)
        firsts = np.repeat(self.ids.first_F1[:-1], np.diff(first_F1))
        # Lookup i is the only one of row i: the order and the starts are the same numbers.
        numbers = np.arange(keys_S.size + 1, dtype=np.int32)
        rows = (self._number_K[keys_S] - firsts).astype(np.int32)
        return LookupsByRow(numbers[:-1], rows, numbers, first_F1.astype(np.int64))


class Exchange(NamedTuple):
    """Rows that cross both ways."""

    send: Crossing
    receive: Crossing


@dataclass(frozen=True, slots=True)
class GroupExchange:
    """The rows of a step that cross between this rank and the others."""

    own_ids: BatchIds
    """Lookups of this rank."""
    own_lookups: LookupsByRow
    """The same by row."""
    is_training: bool
    """Whether the rows are those of a training step: those of an evaluation cross as they are."""
    vectors: Exchange
    """Served rows that are sent, and own rows that are received."""
    gradients: Exchange
    """Own rows that are sent, and served rows that are received."""
    kept: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Own rows that this rank owns, as such and as served ones; neither vector nor gradient crosses."""
    made: NDArray[np.int64]
    """Own rows of another owner that are used for the first time."""
    made_rows: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Table and id of each."""
    partials_SW: NDArray[np.int32]
    """Where the gradient of each served row by each rank is among those received, then those kept; -1 where
    there is none."""


def plan_exchange(
    step: StepRows,
    held: HeldRows,
    num_ranks: int,
    own: BatchIds,
    own_lookups: LookupsByRow,
    *,
    is_training: bool,
) -> GroupExchange:
    """Return what crosses in a step, of whose lookups this rank has ``own``."""
    keys_U, masks_U = step.rows_U, step.masks_U
    messages = list_messages(step, held.rank, num_ranks)
    # Positions among the rows of the step become positions among own and served ones.
    is_served_U = step.owners_U == held.rank
    is_own_U = (masks_U >> masks_U.dtype.type(held.rank) & 1).astype(np.bool_)
    served_U = (np.cumsum(is_served_U) - 1).astype(np.int32)
    own_U = (np.cumsum(is_own_U) - 1).astype(np.int32)
    kept = np.flatnonzero(is_own_U & is_served_U)
    # An initial value follows from the row's table and id.
    made = np.flatnonzero(is_own_U & step.is_first_U & ~is_served_U)
    tables_M = np.searchsorted(held.first_key_F1, keys_U[made], side="right") - 1
    return GroupExchange(
        own_ids=own,
        own_lookups=own_lookups,
        is_training=is_training,
        vectors=Exchange(
            _crossing(messages.vectors_out, keys_U, served_U),
            _crossing(messages.vectors_in, keys_U, own_U),
        ),
        gradients=Exchange(
            _crossing(messages.gradients_out, keys_U, own_U),
            _crossing(messages.gradients_in, keys_U, served_U),
        ),
        kept=(own_U[kept].astype(np.int64), served_U[kept].astype(np.int64)),
        made=own_U[made].astype(np.int64),
        made_rows=(tables_M, keys_U[made] - held.first_key_F1[tables_M]),
        partials_SW=_partials(messages.gradients_in, is_served_U, kept, held.rank),
    )


def _partials(
    incoming: RowLists, is_served_U: NDArray[np.bool_], kept: NDArray[np.int64], rank: int
) -> NDArray[np.int32]:
    """Return where each rank's gradient of a row is, or -1.

    The array is (num_served, num_ranks); it counts gradients received, then those kept.
    """
    served_U = np.cumsum(is_served_U) - 1
    num_ranks = incoming.starts_W1.size - 1
    partials_SW = np.full((int(np.count_nonzero(is_served_U)), num_ranks), -1, np.int32)
    # A list of rows by source says which of them each rank has; the others have none.
    sources = np.repeat(np.arange(num_ranks), np.diff(incoming.starts_W1))
    partials_SW[served_U[incoming.positions], sources] = np.arange(incoming.positions.size)
    partials_SW[served_U[kept], rank] = incoming.positions.size + np.arange(kept.size)
    return partials_SW


def _crossing(lists: RowLists, keys_U: NDArray[np.int32], places_U: NDArray[np.int32]) -> Crossing:
    counts = tuple(np.diff(lists.starts_W1).tolist())
    return Crossing(counts, keys_U[lists.positions], places_U[lists.positions])


_RING_BYTES = 256 * MIB
"""Lookups of about 1,200 batches of 2,048 samples of the Kaggle log."""
_HEAD = 8
"""Bytes before the entries: how many were ever written to the ring."""
_ENTRY = np.dtype([("end", "<i8"), ("num_bytes", "<i8")])
"""Of each batch: where its lookups end, counted over all laps of the ring; 0 where they were never there."""
_LOCK_SECONDS = 10.0
"""How long a rank waits for one that reads a batch, before it reads by itself."""
_POLL_SECONDS = 0.0005


class Node:
    """The ranks of this machine, seen from one of them.

    Args:
        ranks: all ranks of the run, which make equal calls here.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        machine = int.from_bytes(_machine()[:7], "little")
        found = ranks.gather(torch.tensor([machine, os.getpid()], dtype=torch.int64, device="cpu"))
        self._members = [rank for rank, each in enumerate(found) if int(each[0]) == machine]
        self._pids = [int(each[1]) for each in found]
        self.rank = self._members.index(ranks.rank)
        """Number of this rank among those of the machine."""
        self.num_ranks = len(self._members)
        # A system that does not let them share memory is one of single ranks.
        if self.share(mmap.PAGESIZE) is None:
            self._members, self.rank, self.num_ranks = [ranks.rank], 0, 1

    def share(self, num_bytes: int) -> SharedMemory | None:
        """Return zeros that all ranks of this machine see; None where it has one rank, or they cannot."""
        # The first rank of each machine makes the memory; the others open it by its number there.
        descriptor = -1
        if self.rank == 0 and self.num_ranks > 1:
            with suppress(OSError):
                descriptor = os.memfd_create("hotset", os.MFD_CLOEXEC)
                os.ftruncate(descriptor, num_bytes)
        number = gather_numbers(self._ranks, descriptor)[self._members[0]]
        memory = None
        if number >= 0:
            with suppress(OSError, ValueError):
                memory = SharedMemory(Path(f"/proc/{self._pids[self._members[0]]}/fd/{number}"), num_bytes)
        # All of a machine use it, or none; the maker keeps it until everybody has it.
        has_it = gather_numbers(self._ranks, memory is not None)
        if descriptor >= 0:
            os.close(descriptor)
        return memory if all(has_it[rank] for rank in self._members) else None

    def summed(self, count: Callable[[], NDArray[np.uint32]]) -> NDArray[np.uint32]:
        """Return the sum of what this machine's ranks count; all ranks of the run call this.

        Raises:
            HotsetError: what a rank raises as it counts, or there is no memory; at every rank.
        """
        # Ranks count for as long as it takes, and one that fails leaves no other with a call of its own.
        own = wait_for_all(self._ranks, count)
        memory = self.share(own.nbytes)
        total = own
        # Everybody has added its part before anybody reads the sum.
        with raise_on_any_rank(self._ranks):
            if memory is not None:
                total = memory.view[: own.nbytes].view(np.uint32).reshape(own.shape)
                with memory.locked():
                    total += own
            elif self.num_ranks > 1:
                raise RankError(f"this machine has no {format_byte_size(own.nbytes)} of memory for its ranks")
        return total.copy()


def _machine() -> bytes:
    """Return what processes have in common that can open each other's files: boot, processes and user."""
    found = [str(os.getuid())]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):
            found.append(os.readlink(path) if "/ns/" in path else Path(path).read_text())
    return blake2b(" ".join(found).encode()).digest()


class SharedMemory:
    """Memory of one machine, and the lock that its writers hold.

    The lock of the file excludes other ranks, and a rank that ends gives it back; one that is stopped does
    not. The threads of a rank have the file open once, and so exclude each other by another lock.

    Raises:
        OSError: there is no such memory.
    """

    def __init__(self, path: Path, num_bytes: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        self._of_threads = threading.Lock()
        self.view = np.frombuffer(mmap.mmap(self._descriptor, num_bytes), np.uint8)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold both locks; raises RankError where another rank has had its own for long."""
        with self._of_threads:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not self._has_lock():
                if time.monotonic() > deadline:
                    raise RankError(f"a rank of this machine holds shared memory for {_LOCK_SECONDS:g} s")
                time.sleep(_POLL_SECONDS)
            try:
                yield
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _has_lock(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class NodeLookups:
    """Lookups of batches, each read by one rank of the machine while the ring holds them.

    Args:
        shards: with the batches.
        node: the ranks of this machine; all ranks of the run build this together.
        ring_bytes: memory for the lookups.
    """

    def __init__(self, shards: ShardSet, node: Node, ring_bytes: int = _RING_BYTES) -> None:
        self._shards = shards
        num_batches = shards.num_training_batches + shards.num_evaluation_batches
        table_bytes = _HEAD + _ENTRY.itemsize * num_batches
        self._memory = node.share(table_bytes + ring_bytes)
        if self._memory is None:
            return
        view = self._memory.view
        self._written = view[:_HEAD].view(np.int64)
        self._entries = view[_HEAD:table_bytes].view(_ENTRY)
        self._ring = view[table_bytes:]

    def read(self, number: int) -> LookupsOfBatch:
        """Return the lookups of a training batch.

        Raises:
            ShardError: they cannot be read, or are damaged.
        """
        return self._shared(number, partial(self._shards.training_lookups, number))

    def read_evaluation(self, number: int) -> LookupsOfBatch:
        """Return the lookups of a stored evaluation batch; raises as `read`."""
        # Their numbers in the ring follow those of the training batches.
        place = self._shards.num_training_batches + number
        return self._shared(place, partial(self._shards.evaluation_lookups, number))

    def _shared(self, number: int, read: Callable[[], LookupsOfBatch]) -> LookupsOfBatch:
        if self._memory is not None:
            # A rank that is stopped is named where the others wait for its messages, not here.
            with suppress(RankError), self._memory.locked():
                found = self._find(number)
                if found is None:
                    found = read()
                    self._keep(number, found)
                return found
        return read()

    def _find(self, number: int) -> LookupsOfBatch | None:
        """Copy the lookups of a batch out of the ring; None where they are not there any more."""
        end, num_bytes = self._entries[number].tolist()
        if not end or int(self._written[0]) - (end - num_bytes) > self._ring.size:
            return None
        stop = (end - 1) % self._ring.size + 1
        return LookupsOfBatch.of(unpacked(self._ring[stop - num_bytes : stop]))

    def _keep(self, number: int, lookups: LookupsOfBatch) -> None:
        """Write the lookups of a batch to the ring, over the oldest ones."""
        message = packed(lookups.arrays())
        size = self._ring.size
        if message.size > size:
            return
        start = int(self._written[0])
        # In one piece: what is left at the end of a lap stays unused.
        if start % size + message.size > size:
            start += size - start % size
        # What is overwritten counts as gone before it is: a rank may be killed at any of these lines.
        self._written[0] = start + message.size
        self._ring[start % size :][: message.size] = message
        self._entries[number] = (start + message.size, message.size)


class OwnBatches:
    """Training batches as one rank needs them: its samples, and the lookups of all.

    Args:
        shards: with the batches.
        micro_batches: which samples are those of the rank.
        lookups: returns the lookups of a batch.
    """

    def __init__(
        self, shards: ShardSet, micro_batches: MicroBatches, lookups: Callable[[int], LookupsOfBatch]
    ) -> None:
        self._shards = shards
        self._micro_batches = micro_batches
        self._lookups = lookups

    def read(self, number: int) -> Batch:
        """Read a training batch; raises ShardError where it cannot be read, or is damaged."""
        lookups = self._lookups(number)
        part = self._micro_batches.own_part(lookups.num_samples)
        own = self._shards.training_samples(number, lookups, part)
        return OwnBatch.of(own, lookups, part)
