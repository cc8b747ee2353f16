"""Ranks of a `RankGroup` that are threads: they answer as processes do and end as a test wants."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train.ranks.ranks import Ranks, first_says


class ThreadProcess:
    """A thread that looks like a process."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], name: str, daemon: bool) -> None:
        # A process has a connection of its own, which stays when the one that started it closes its copy.
        own = Connection(os.dup(args[0].fileno()))
        arguments = (target, (own, *args[1:]))
        self._thread = threading.Thread(target=self._run, args=arguments, name=name, daemon=daemon)
        self.exitcode: int | None = None

    def _run(self, target: Callable[..., None], args: tuple[Any, ...]) -> None:
        with args[0]:
            target(*args)
        if self.exitcode is None:
            self.exitcode = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        self._thread.join(timeout)

    def is_alive(self) -> bool:
        """Whether it runs; one that a test has killed does not."""
        return self._thread.is_alive() and self.exitcode is None

    def kill(self) -> None:
        """End it."""
        self.exitcode = -9


class ThreadContext:
    """Stands for multiprocessing's way to start processes."""

    Process = ThreadProcess
    Pipe = staticmethod(multiprocessing.Pipe)


def echo_rank(connection: Connection, rank: int, *_: object) -> None:
    """Answer each call with what a test put into its arguments for this rank; end where there is nothing."""
    while True:
        try:
            call = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        reply = call["arguments"]["replies"][rank]
        if reply is None:
            return
        # The group may have been closed since, as another rank failed.
        with suppress(OSError):
            connection.send_bytes(json.dumps(reply).encode())


def gather_numbers(ranks: Ranks, seconds: float) -> list[int]:
    """Gather the numbers of all ranks, again and again for some seconds, as a rank of a group."""
    ends_at = time.monotonic() + seconds
    while True:
        found = [int(part) for part in ranks.gather(torch.tensor([ranks.rank]))]
        # The first rank decides for all when it is over, so that none waits for another.
        if first_says(ranks, time.monotonic() >= ends_at):
            return found


class ThreadGroup:
    """A group whose ranks are threads of this process, for functions that are quick."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.calls: list[str] = []

    def __enter__(self) -> ThreadGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append("closed")

    def call(self, function: Callable[..., Any], **arguments: Any) -> list[Any]:
        """Call the function at every rank."""
        self.calls.append(function.__name__)

        def work(ranks: Ranks) -> Any:
            return function(ranks, **arguments)

        return run_thread_ranks(self.num_ranks, work)
