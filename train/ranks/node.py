"""The ranks of one machine: what they read once for all of them, in memory that they share.

Every rank needs the lookups of every batch, to plan what crosses in training and evaluation. The first rank
of a machine that asks for those of a batch reads and verifies them, and leaves them where the others find
them. The memory is a ring, so a rank that is far behind the others reads again. It has no name, so nothing of
it outlives the ranks, however they end: the others open it through the process that made it. Where they
cannot, each reads for itself.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import MIB, format_byte_size
from ..data.batch import Batch, FeatureBags, LookupsOfBatch, MicroBatches, OwnBatch
from ..data.shards import Shards
from .ranks import RankError, Ranks, gather_numbers, raise_on_any_rank, wait_for_all

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

    def __init__(self, shards: Shards, node: Node, ring_bytes: int = _RING_BYTES) -> None:
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
        return _unpacked(self._ring[stop - num_bytes : stop].copy())

    def _keep(self, number: int, lookups: LookupsOfBatch) -> None:
        """Write the lookups of a batch to the ring, over the oldest ones."""
        packed = _packed(lookups)
        size = self._ring.size
        if packed.size > size:
            return
        start = int(self._written[0])
        # In one piece: what is left at the end of a lap stays unused.
        if start % size + packed.size > size:
            start += size - start % size
        # What is overwritten counts as gone before it is: a rank may be killed at any of these lines.
        self._written[0] = start + packed.size
        self._ring[start % size :][: packed.size] = packed
        self._entries[number] = (start + packed.size, packed.size)


def _packed(lookups: LookupsOfBatch) -> NDArray[np.uint8]:
    """Return lookups as numbers of 32 bits: sizes of the parts first."""
    parts = [np.ascontiguousarray(lookups.ids_BF).reshape(-1)]
    parts += [part for bags in lookups.bags for part in (bags.offsets_B1, bags.ids_N)]
    shape = (*lookups.ids_BF.shape, int(lookups.is_hot_only), *(part.size for part in parts[1:]))
    head = np.array([len(shape), *shape], np.int32)
    packed: NDArray[np.uint8] = np.concatenate([head, *parts]).view(np.uint8)
    return packed


def _unpacked(packed: NDArray[np.uint8]) -> LookupsOfBatch:
    """Return lookups whose arrays are in ``packed``."""
    numbers = packed.view(np.int32)
    num_sizes = int(numbers[0])
    num_samples, num_ids, is_hot_only, *sizes = numbers[1 : 1 + num_sizes].tolist()
    bounds = np.cumsum([1 + num_sizes, num_samples * num_ids, *sizes]).tolist()
    ids, *parts = (numbers[start:stop] for start, stop in pairwise(bounds))
    bags = tuple(map(FeatureBags, parts[::2], parts[1::2]))
    return LookupsOfBatch(ids.reshape(num_samples, num_ids), bags, bool(is_hot_only))


class OwnBatches:
    """Training batches as one rank needs them: its samples, and the lookups of all.

    Args:
        shards: with the batches.
        micro_batches: which samples are those of the rank.
        lookups: returns the lookups of a batch.
    """

    def __init__(
        self, shards: Shards, micro_batches: MicroBatches, lookups: Callable[[int], LookupsOfBatch]
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
