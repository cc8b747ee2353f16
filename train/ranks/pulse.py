"""The store of a launch, and the signs of life that its ranks leave there."""

from __future__ import annotations

import datetime
import itertools
import os
import threading
import time

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

_BEAT_SECONDS = 0.5
"""Between two signs of a rank that it is running."""
_joins = itertools.count()
"""Groups that this process has joined; all ranks join equally many."""


class Pulse:
    """Signs of life of all ranks in the store of a launch.

    A thread counts one key up for each rank. A process that was killed or stopped counts no more, one that
    waits for others does.

    Args:
        store: of all ranks; each has a client of its own.
    """

    def __init__(self, store: Store, rank: int, num_ranks: int) -> None:
        self._store = store
        self._rank = rank
        self._num_ranks = num_ranks
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stopped.wait(_BEAT_SECONDS):
            try:
                self._store.add(_beats_of(self._rank), 1)
            except RuntimeError:  # torchrun is gone, and its ranks end as well
                return

    def lost(self) -> list[int]:
        """Return the ranks that give no sign any more; takes a second and a half."""
        others = [rank for rank in range(self._num_ranks) if rank != self._rank]
        try:
            before = [self._store.add(_beats_of(rank), 0) for rank in others]
            time.sleep(3 * _BEAT_SECONDS)
            after = [self._store.add(_beats_of(rank), 0) for rank in others]
        except RuntimeError:
            return []
        return [rank for rank, was, now in zip(others, before, after, strict=True) if was == now]

    def stop(self) -> None:
        """Give no sign any more."""
        self._stopped.set()
        self._thread.join()


def _beats_of(rank: int) -> str:
    return f"beats/{rank}"


def has_agent() -> bool:
    """Return whether torchrun hosts the store of its ranks, which then outlives each of them."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def open_store(rank: int, num_ranks: int, timeout: datetime.timedelta) -> Store:
    """Open the store of the launch, under a name of this attempt.

    Torchrun keeps its store when it starts lost ranks again. By torch's own names they would find the
    addresses of the processes before them.
    """
    store = dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        num_ranks,
        is_master=rank == 0 and not has_agent(),
        timeout=timeout,
        multi_tenant=True,
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"hotset/{attempt}/{next(_joins)}", store)
