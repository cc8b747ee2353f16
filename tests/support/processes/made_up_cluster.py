"""An engine that stands for a cluster: its tasks run here, packed as they are for other processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Lock
from typing import Any

from hotset.pipeline.runtime import tasks
from hotset.pipeline.runtime.limits import Node


class MadeUpCluster:
    """Machines of which only the sizes are real."""

    def __init__(self, machines: list[Node]) -> None:
        self._machines = machines
        self.cores: list[int] = []
        """Cores that each task took."""
        self.sent: list[tuple[str, int]] = []
        """Name of the function of each task, and the bytes of the task as it is sent to a worker."""
        self.most_at_work = 0
        self._at_work = 0
        self._lock = Lock()
        self._pools: dict[int, ThreadPoolExecutor] = {}
        """Workers by the cores that each takes."""

    def nodes(self) -> list[Node]:
        return self._machines

    def num_workers(self) -> int:
        return sum(node.cores for node in self._machines)

    def check_workers(self, count: int) -> None:
        assert count <= self.num_workers()

    def submit(self, cores: int, function: Callable[..., Any], packed: bytes, folder: str) -> Future[Any]:
        if cores not in self._pools:
            self._pools[cores] = ThreadPoolExecutor(sum(node.cores // cores for node in self._machines))
        self.cores.append(cores)
        tasks._packed.objects = []  # those that a worker would build, which nobody asks
        self.sent.append((pickle.loads(packed)[0].__name__, len(packed)))
        return self._pools[cores].submit(self._run, function, packed, folder)

    def _run(self, function: Callable[..., Any], packed: bytes, folder: str) -> Any:
        with self._lock:
            self._at_work += 1
            self.most_at_work = max(self.most_at_work, self._at_work)
        try:
            return function(packed, folder)
        finally:
            with self._lock:
                self._at_work -= 1

    def result(self, future: Future[Any]) -> Any:
        return future.result()

    def cancel(self, futures: Iterable[Future[Any]]) -> None:
        wait([future for future in futures if not future.cancel()])

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown()


@contextmanager
def made_up_cluster(*machines: Node) -> Iterator[MadeUpCluster]:
    """Run the tasks of the block on made-up machines."""
    engine = MadeUpCluster([*machines])
    token = tasks._engine.set(engine)  # type: ignore[arg-type]
    try:
        yield engine
    finally:
        tasks._engine.reset(token)
        engine.close()
