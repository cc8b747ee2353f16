"""Ranks on this machine that are started once and called often: processes over gloo on the loopback device.

Measurements call a top-level function at every rank with the same plain arguments and get what each returned.
Nothing outlives the group: a rank that ends takes the others with it, and all end with the process that
started them, whose pipe they read.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self

from ....pipeline.errors import HotsetError
from ....train.ranks.ranks import RankError
from ....train.ranks.torch_ranks import join_ranks

_GRACE_SECONDS = 5.0
"""Seconds in which the other ranks may say why one lost them, and in which all may end."""
RankFunction = Callable[..., Any]
"""``function(ranks, **arguments)``: top-level, with arguments and a result that JSON can hold."""


class RankGroup:
    """Processes that share work, started at once and ended with the block.

    Args:
        num_ranks: 2 or more.
        timeout_seconds: how long a rank may keep the others waiting inside of a call.
    """

    def __init__(self, num_ranks: int, timeout_seconds: float = 60.0) -> None:
        self.num_ranks = num_ranks
        context = get_context("spawn")
        port = _free_port()
        self._pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        # By spawn: a fork would copy threads that compute, and hang.
        for rank in range(num_ranks):
            own, theirs = context.Pipe()
            arguments = (theirs, rank, num_ranks, port, timeout_seconds)
            process = context.Process(target=_serve, args=arguments, name=f"rank {rank}", daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(own)
            self.processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, function: RankFunction, **arguments: Any) -> list[Any]:
        """Call ``function(ranks, **arguments)`` at every rank; return what each returned.

        Raises:
            RankError: a rank ended, or kept the others waiting; the group is closed.
            HotsetError: what a rank raised; the group is closed.
        """
        name = (function.__module__, function.__qualname__)
        message = json.dumps({"function": name, "arguments": arguments}).encode()
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(message)
            except OSError:
                self._fail({rank: None})
        replies: dict[int, dict[str, Any] | None] = {}
        while len(replies) < self.num_ranks:
            replies |= self._next_replies(replies, None)
            if not all(reply and "found" in reply for reply in replies.values()):
                self._fail(replies)
        return [(replies[rank] or {})["found"] for rank in range(self.num_ranks)]

    def close(self) -> None:
        """End all ranks, those at work too."""
        # A rank that waits for calls ends by itself once its pipe is closed.
        for pipe in self._pipes:
            pipe.close()
        deadline = time.monotonic() + _GRACE_SECONDS
        for process in self.processes:
            process.join(max(deadline - time.monotonic(), 0.0))
            if process.is_alive():
                process.kill()
                process.join()

    def _next_replies(
        self, before: dict[int, dict[str, Any] | None], timeout_seconds: float | None
    ) -> dict[int, dict[str, Any] | None]:
        """Return further replies by rank, None for a rank that has ended; empty after the timeout."""
        left = {self._pipes[rank]: rank for rank in range(self.num_ranks) if rank not in before}
        found: dict[int, dict[str, Any] | None] = {}
        for pipe in wait(list(left), timeout_seconds):
            assert isinstance(pipe, Connection)
            # The pipe of a process that ended is at its end, whatever ended it.
            try:
                found[left[pipe]] = json.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                found[left[pipe]] = None
        return found

    def _fail(self, replies: dict[int, dict[str, Any] | None]) -> None:
        """Raise the cause of a failure: ranks that only lost another one are no cause."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while len(replies) < self.num_ranks and not _is_cause(replies):
            more = self._next_replies(replies, max(deadline - time.monotonic(), 0.0))
            if not more:
                break
            replies |= more
        for rank, reply in replies.items():
            if reply is None:
                self.processes[rank].join(_GRACE_SECONDS)
        codes = {rank: self.processes[rank].exitcode for rank, reply in replies.items() if reply is None}
        self.close()
        for rank, code in codes.items():
            raise RankError(
                f"rank {rank} of {self.num_ranks} {_told(code)}",
                hint="run the same command again, with fewer ranks where memory is short",
            )
        errors = [reply for reply in replies.values() if reply and "error" in reply]
        first = min(errors, key=lambda reply: bool(reply["is_lost"]))
        error = (RankError if first["is_lost"] else HotsetError)(first["error"])
        error.hint = first["hint"]
        raise error


def _is_cause(replies: dict[int, dict[str, Any] | None]) -> bool:
    return any(reply is None or ("error" in reply and not reply["is_lost"]) for reply in replies.values())


def _told(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"


def _free_port() -> int:
    """Return a port that is free now, where the ranks will meet."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def _serve(connection: Connection, rank: int, num_ranks: int, port: int, timeout_seconds: float) -> None:
    """Answer calls until the pipe is closed: the main function of a rank."""
    # Ctrl-C goes to the whole group of processes; the one that started this rank closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What gloo prints belongs neither among data nor among messages.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(num_ranks),
        "RANK": str(rank),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    try:
        ranks = join_ranks(timeout_seconds=timeout_seconds)
    except HotsetError as error:
        connection.send_bytes(_reply_of(error))
        return
    with closing(ranks):
        while True:
            try:
                call = json.loads(connection.recv_bytes())
            except (EOFError, OSError):
                return
            module, name = call["function"]
            function = getattr(importlib.import_module(module), name)
            try:
                reply = json.dumps({"found": function(ranks, **call["arguments"])}).encode()
            except HotsetError as error:
                reply = _reply_of(error)
            connection.send_bytes(reply)


def _reply_of(error: HotsetError) -> bytes:
    is_lost = isinstance(error, RankError)
    return json.dumps({"error": str(error), "hint": error.hint, "is_lost": is_lost}).encode()
