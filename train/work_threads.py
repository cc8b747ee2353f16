"""Runs pieces of work on a fixed number of threads, one of which is the caller's.

The pieces are taken in order by whichever thread is free, and nothing may depend on which that is. A helper
that has not begun when the caller finds no piece left is called off: on a busy machine the caller does not
wait for a thread to be woken. Each thread runs torch's operators by itself, without torch's own threads,
which wait for each other at every operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch


class WorkThreads:
    """The caller's thread and its helpers.

    Args:
        num_threads: all of them together.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._pool = ThreadPoolExecutor(max(num_threads - 1, 1), "work", _leave_torchs_threads)

    def run(self, work: Callable[[int, int], object], num_pieces: int) -> None:
        """Call ``work(piece, worker)`` for each piece; return when all are done.

        ``worker`` is below `num_threads`, and no two pieces run at the same time with the same one. Where
        pieces raise, one of the exceptions is raised here.
        """
        pieces = iter(range(num_pieces))

        def take_pieces(worker: int) -> None:
            # One iterator for all: taking the next number is atomic under the interpreter's lock.
            for piece in pieces:
                work(piece, worker)

        num_helpers = min(self.num_threads, num_pieces) - 1
        helpers = [self._pool.submit(take_pieces, worker) for worker in range(1, num_helpers + 1)]
        try:
            with one_torch_thread():
                take_pieces(0)
        finally:
            # A helper that has begun is waited for even after an exception: it works on the caller's arrays.
            errors = [helper.exception() for helper in helpers if not helper.cancel()]
        for error in errors:
            if error is not None:
                raise error

    def run_all(self, *calls: Callable[[], object]) -> None:
        """Make all calls, at the same time as far as there are threads; the first begins first."""
        self.run(lambda piece, _: calls[piece](), len(calls))


def _leave_torchs_threads() -> None:
    """Let the calling thread run torch's operators by itself from now on."""
    # Asked first: torch gives a thread its number of threads at the first question, and would overwrite ours.
    torch.get_num_threads()
    torch.set_num_threads(1)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let the calling thread run torch's operators by itself inside the block."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
