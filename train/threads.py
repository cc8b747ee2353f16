"""Threads for pieces of a step, and for work done ahead.

Pieces of a step run on a fixed number of threads, one of which is the caller's. Whichever thread is free
takes the next piece, and nothing may depend on which that is. A helper that has not begun when the caller
finds no piece left is cancelled: on a busy machine the caller does not wait for a thread to wake. Each thread
runs torch's operators single-threaded, without torch's threads, which wait for each other at every operator.

A bounded queue connects a thread that makes items to the one that uses them. Taking an item is a call or two
of queues in C, without a lock of this module: the loop of a device does it once for each step. Returning the
place of an item wakes the thread, which takes longer than all else, so several places may be returned
together.

Readers read and pack batches ahead of the steps of a device, with results in the order of the calls. A GPU
takes 30 million samples per second, and a core reads and packs some 7 million, or 2 million in small batches.
Kernels and the system do that work, without the interpreter's lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue
from typing import Generic, TypeVar

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
        """Make all calls in parallel, one a thread; the first begins first."""
        self.run(lambda piece, _: calls[piece](), len(calls))


def _leave_torchs_threads() -> None:
    """Let the calling thread run torch's operators single-threaded from now on."""
    # Asked first: torch gives a thread its number of threads at the first question, and would overwrite ours.
    torch.get_num_threads()
    torch.set_num_threads(1)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let the calling thread run torch's operators single-threaded inside the block."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def torch_as_before() -> Iterator[None]:
    """Compute as hotset does inside the block, and leave torch's settings as they were.

    Inside, new tensors are float32 on the host and may have gradients. Afterwards the caller has its number
    of threads, its default type and its device again. No random number of the caller is drawn in any case.
    """
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    # A mode on the host costs time at every call of torch, so there is none where nothing asks for it.
    is_elsewhere = torch.get_default_device().type != "cpu"
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.device("cpu") if is_elsewhere else nullcontext():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        if device is not None:
            torch.cuda.set_device(device)


Item = TypeVar("Item")
PLACES_AT_A_TIME = 4
"""Places that the loop of a device gives back at a time."""


class BackgroundIterator(Generic[Item]):
    """Iterate ``items`` in a thread, at most ``depth`` ahead of the caller.

    An exception in the thread is raised once the items before it are taken.

    Args:
        given_back: places returned to the thread together; it may be up to ``given_back - 1`` items less
            far ahead.
    """

    def __init__(self, items: Iterable[Item], depth: int, name: str, given_back: int = 1) -> None:
        assert given_back <= max(depth, 1), "the thread would wait for places, and the caller for an item"
        self._items = items
        self._given_back = given_back
        # Each item comes in a tuple of one; an empty tuple marks the end.
        self._queue: SimpleQueue[tuple[Item] | tuple[()]] = SimpleQueue()
        # The thread takes a place for each item, and the caller gives it back.
        self._places: SimpleQueue[None] = SimpleQueue()
        for _ in range(max(depth, 1)):
            self._places.put(None)
        self._error: BaseException | None = None
        self._peeked: deque[tuple[Item] | tuple[()]] = deque()
        """What `peek` has taken from the queue."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def __iter__(self) -> Iterator[Item]:
        self._thread.start()
        num_taken = 0
        while True:
            taken = self._peeked.popleft() if self._peeked else self._queue.get()
            if not taken:
                # Set before the end was queued.
                if self._error is not None:
                    raise self._error
                return
            num_taken += 1
            if num_taken == self._given_back:
                num_taken = 0
                for _ in range(self._given_back):
                    self._places.put(None)
            yield taken[0]

    def peek(self, place: int) -> Item | None:
        """Wait for the next item but ``place``, which stays where it is; None: the items end before."""
        while len(self._peeked) <= place:
            if self._peeked and not self._peeked[-1]:
                return None
            self._peeked.append(self._queue.get())
        taken = self._peeked[place]
        return taken[0] if taken else None

    def fault(self, num_items: int = 1) -> BaseException | None:
        """Wait for the next items; return the exception that comes instead of one of them."""
        return self._error if self.peek(num_items - 1) is None else None

    def close(self) -> None:
        """Stop the thread at its next item."""
        self._is_closed = True
        # The thread may be waiting for a place.
        self._places.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        try:
            for item in self._items:
                # One item at a time, and only while the queue has room: a batch is large.
                self._places.get()
                if self._is_closed:
                    return
                self._queue.put((item,))
        # Whatever stopped the work, an interruption too, is raised again where the items are taken.
        except BaseException as error:
            self._error = error
        finally:
            try:
                # A generator is closed in the thread that ran it, so that its own cleanup runs here too.
                if isinstance(self._items, Generator):
                    self._items.close()
            finally:
                self._queue.put(())


Key = TypeVar("Key")
Result = TypeVar("Result")


class Readers:
    """Threads for calls that depend on nothing but their arguments; they run inside a ``with`` block.

    Args:
        num_threads: 0: each call runs synchronously in the caller's thread.
    """

    def __init__(self, num_threads: int = 0) -> None:
        self.num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Readers:
        if self.num_threads:
            self._pool = ThreadPoolExecutor(self.num_threads, "read")
        return self

    def __exit__(self, *_: object) -> None:
        # Calls write to memory of others, so they are waited for. None is cancelled after an error: the loop
        # would meet a batch that nobody packs before it meets the error.
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def submit(self, call: Callable[..., Result], *arguments: object) -> Future[Result]:
        """Return what will be the result of a call, or its exception."""
        if self._pool is not None:
            return self._pool.submit(call, *arguments)
        done: Future[Result] = Future()
        done.set_result(call(*arguments))
        return done

    def in_order(self, call: Callable[[Key], Result], keys: Iterable[Key]) -> Iterator[tuple[Key, Result]]:
        """Yield keys with their calls' results; one call a thread runs ahead."""
        if not self.num_threads:
            for key in keys:
                yield key, call(key)
            return
        pending: deque[tuple[Key, Future[Result]]] = deque()
        for key in keys:
            pending.append((key, self.submit(call, key)))
            if len(pending) > self.num_threads:
                first, result = pending.popleft()
                yield first, result.result()
        for key, result in pending:
            yield key, result.result()
